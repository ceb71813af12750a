//! Where the packets of a way may be smaller than those of its ends, and nobody says so, small messages pass
//! and large ones vanish: the job meets, and hangs at its first large value.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "large-answers",
    sees: "FAIL: small requests are answered, and large ones are not (MTU)",
    remedy: "one MTU on the whole way",
    find: Find::Server(find),
};

fn find(facts: &ServerFacts) -> Option<Check> {
    let why = facts.large.as_ref()?;
    let evidence = format!("{} answers, but what needs several packets does not come: {why}", facts.admin);
    let remedy = "packets of full size are dropped on the way: set one MTU on every interface (overlay, \
                  VPN), or let ICMP `fragmentation needed` pass; `ping -M do -s 1372 HOST` finds the limit";
    Some(Check::fail(evidence, remedy))
}
