//! PyTorch's store looks up the name of each client, one after the other.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "reverse-dns",
    sees: "WARN: looking up names of addresses is slow",
    remedy: "the resolver",
    find: Find::Machine(|facts, _, _| find(facts)),
};

const SLOW_REVERSE: Duration = Duration::from_millis(500);

fn find(facts: &MachineFacts) -> Option<Check> {
    let took = facts.reverse_lookup?;
    Some(if took <= SLOW_REVERSE {
        Check::pass(format!("an address has its name after {} ms", took.as_millis()))
    } else {
        Check::warn(
            format!("the name of an address takes {}", Elapsed(took)),
            "PyTorch asks for it at each connection, and its own store stalls for so long with each client; \
             let the name server answer reverse look-ups, if only with `no such name` (rallypoint itself \
             never asks)",
        )
    })
}
