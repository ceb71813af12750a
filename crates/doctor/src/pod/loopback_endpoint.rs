//! A loopback address is another host on each node: every one waits at its own, unless a relay listens there.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "loopback-endpoint",
    sees: "FAIL: several nodes, and the endpoint is a loopback address where no store answers",
    remedy: "the first node's name, or a [relay](relay.md)",
    find: Find::Network(find),
};

fn find(facts: &NetworkFacts) -> Option<Check> {
    let answers = facts.tried.iter().any(|(_, outcome)| outcome.is_ok());
    (facts.several && facts.endpoint.is_loopback() && !answers).then(|| {
        let evidence =
            format!("the endpoint {} is each node itself, and no relay listens there", facts.endpoint);
        Check::fail(evidence, "the first node's name, or a relay on each node (rallypoint relay)")
    })
}
