//! Something that accepts connections, and is no store, keeps every rank waiting.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "store-answers",
    sees: "FAIL: something answers, but it is not a TCPStore",
    remedy: "another port",
    find: Find::Network(|facts| find(facts).filter(|_| facts.resolved.is_ok())),
};

fn find(facts: &NetworkFacts) -> Option<Check> {
    if let Some((addr, Ok(answer))) = facts.tried.iter().find(|(_, outcome)| outcome.is_ok()) {
        let dialect = if answer.pings { "PyTorch 2.5 or later" } else { "PyTorch 2.2 to 2.4" };
        return Some(Check::pass(format!("a TCPStore answers on {addr}, in the dialect of {dialect}")));
    }
    let failed = facts.tried.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    let failure = failed.filter(|failure| failure.step > Step::Connect).max_by_key(|failure| failure.step)?;
    Some(Check::fail(
        failure.text.clone(),
        "the port is open, but no TCPStore is behind it: check the port (29500, not 29501), and exclude it \
         from a service mesh (traffic.sidecar.istio.io/excludeInboundPorts and excludeOutboundPorts)",
    ))
}
