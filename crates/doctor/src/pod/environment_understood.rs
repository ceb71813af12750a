//! A variable that looks like a rank or an address, and is not used, is often the one that was meant.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "environment-understood",
    sees: "WARN: a variable that looks like a rank, a number of nodes or an address is not used",
    remedy: "the line in the message",
    find: Find::Launch(find),
};

fn find(at: &Launched<'_>) -> Vec<Check> {
    let notes = at.launch.iter().flat_map(|launch| &launch.notes);
    let check =
        |note: &String| Check::warn(note.clone(), "set what it names, if it is meant, in the pod's env");
    notes.map(check).collect()
}
