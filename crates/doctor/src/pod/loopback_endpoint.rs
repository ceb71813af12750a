//! A loopback address is another host on each node: every one waits at its own, unless a relay listens there.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "loopback-endpoint",
    sees: "FAIL: several nodes, and the endpoint is `0.0.0.0`, or a loopback address where no store answers",
    remedy: "the first node's name, or a [relay](relay.md)",
    find: Find::Network(find),
};

fn find(facts: &NetworkFacts) -> Option<Check> {
    let answers = facts.tried.iter().any(|(_, outcome)| outcome.is_ok());
    let is_any = facts.endpoint.host().parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    (facts.several && (is_any || facts.endpoint.is_loopback() && !answers)).then(|| {
        let relay = if is_any { "" } else { ", and no relay listens there" };
        let evidence = format!("the endpoint {} is each node itself{relay}", facts.endpoint);
        Check::fail(evidence, "the first node's name, or a relay on each node (rallypoint relay)")
    })
}
