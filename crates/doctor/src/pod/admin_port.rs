//! Without the admin port pods cannot be gathered, and runs get no store of their own.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "admin-port",
    sees: "WARN: no admin port, or not ready",
    remedy: "`--admin`",
    find: Find::Server(|facts| Some(find(facts))),
};

fn find(facts: &ServerFacts) -> Check {
    match &facts.unreachable {
        Some(why) => Check::warn(
            format!("{}: {why}", facts.admin),
            "without the admin port pods cannot be gathered and runs get no store of their own; name it with \
             --admin, and open 29501 beside 29500 in the NetworkPolicy. If the store is PyTorch's own, there \
             is none",
        ),
        None if !facts.ready => Check::warn(
            format!("{} says that the server is starting or stopping", facts.admin),
            "wait for it, or look at its log",
        ),
        None => Check::pass(format!("{} is ready", facts.admin)),
    }
}
