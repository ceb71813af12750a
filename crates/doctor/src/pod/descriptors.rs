//! Every rank of a large job connects to each other rank.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "descriptors",
    sees: "WARN: the process may open only few files",
    remedy: "`ulimit -n`",
    find: Find::Machine(|facts, _, _| find(facts)),
};

/// A store has a connection of each rank, and each rank one of each other.
const ENOUGH_DESCRIPTORS: u64 = 4096;

fn find(facts: &MachineFacts) -> Option<Check> {
    let (now, most) = (facts.descriptors.0?, facts.descriptors.1);
    if now >= ENOUGH_DESCRIPTORS {
        return Some(Check::pass(format!("a process may open {now} files")));
    }
    let most = most.map_or_else(|| "no limit".to_owned(), |most| most.to_string());
    Some(Check::warn(
        format!(
            "a process may open {now} files (at most: {most}); a rank of a large job needs a socket for each \
             other rank"
        ),
        "raise it with `ulimit -n` in the start script, or in the container runtime",
    ))
}
