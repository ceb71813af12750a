//! Ranks that start together connect together; a short queue refuses some of them.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "backlog",
    sees: "WARN: a short queue for connections",
    remedy: "`net.core.somaxconn`",
    find: Find::Machine(|facts, _, _| find(facts)),
};

const ENOUGH_BACKLOG: i32 = 1024;

fn find(facts: &MachineFacts) -> Option<Check> {
    let backlog = facts.backlog?;
    Some(if backlog >= ENOUGH_BACKLOG {
        Check::pass(format!("the kernel queues {backlog} new connections"))
    } else {
        Check::warn(
            format!(
                "the kernel queues only {backlog} new connections; ranks that start together may be refused"
            ),
            "set net.core.somaxconn to 1024 or more where a store runs",
        )
    })
}
