//! The c10d backend compares the clocks of the nodes to find dead ones.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "clock-skew",
    sees: "WARN: the clocks differ",
    remedy: "time synchronisation",
    find: Find::Server(|facts| find(facts).filter(|_| facts.unreachable.is_none())),
};

/// `Date` has whole seconds, and the answer needed some time.
const CLOCK_TOLERANCE: i64 = 3;

fn find(facts: &ServerFacts) -> Option<Check> {
    let ahead = facts.clock_ahead?;
    if ahead.abs() <= CLOCK_TOLERANCE {
        return Some(Check::pass("this host's clock agrees with the server's"));
    }
    let way = if ahead > 0 { "behind" } else { "ahead of" };
    Some(Check::warn(
        format!("this host's clock is {} s {way} the server's", ahead.abs()),
        "torchrun's c10d backend compares the nodes' clocks to find dead ones (15 s); set them by NTP",
    ))
}
