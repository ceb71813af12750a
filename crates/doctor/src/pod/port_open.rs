//! Where nothing listens, or packets are dropped, every rank tries until its time-out.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "port-open",
    sees: "FAIL: nothing accepts connections there",
    remedy: "start the server, open the port",
    find: Find::Network(|facts| facts.resolved.is_ok().then(|| find(facts))),
};

fn find(facts: &NetworkFacts) -> Check {
    let is_open = |outcome: &Result<Answer, Failure>| {
        outcome.as_ref().err().is_none_or(|failure| failure.step > Step::Connect)
    };
    if let Some((addr, _)) = facts.tried.iter().find(|(_, outcome)| is_open(outcome)) {
        return Check::pass(format!("{addr} takes connections"));
    }
    if facts.relays_only {
        return Check::fail(RELAYS_ONLY, RELAYS_ONLY_REMEDY);
    }
    let why = facts.tried.iter().find_map(|(_, outcome)| outcome.as_ref().err());
    let why = why.map_or_else(|| "no address was tried".to_owned(), |failure| failure.text.clone());
    let has_no_ipv6 = facts.own.iter().all(IpAddr::is_ipv4);
    if has_no_ipv6 && !facts.tried.is_empty() && facts.tried.iter().all(|(addr, _)| addr.is_ipv6()) {
        return Check::fail(
            format!("{why}: this host has no IPv6"),
            "an IPv4 address, or a name that has one",
        );
    }
    let port = facts.endpoint.port();
    Check::fail(why, format!("start the server, or open port {port} from this pod in the NetworkPolicy"))
}
