//! A variable that looks like a rank or an address, and is not used, is often the one that was meant.

use super::interface::{misspelled, nobody_reads};
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "environment-understood",
    sees: "WARN: a variable that looks like a rank, a number of nodes or an address is not used; one that \
           is none of NCCL's (`NCCL_SOCKET_IFNAMES`)",
    remedy: "the line in the message",
    find: Find::Launch(find),
};

fn find(at: &Launched<'_>) -> Vec<Check> {
    let notes = at.launch.iter().flat_map(|launch| &launch.notes);
    let check =
        |note: &String| Check::warn(note.clone(), "set what it names, if it is meant, in the pod's env");
    let misspelled = at.env.iter().filter_map(|(name, _)| Some((name, misspelled(name)?)));
    let of_nobody = misspelled.map(|(name, right)| Check::warn(nobody_reads(name), right));
    notes.map(check).chain(of_nobody).collect()
}
