//! A name without an address is tried until the time-out.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "name-resolves",
    sees: "FAIL: the endpoint's name does not resolve, or a foreign search domain answers for every \
           name. WARN: slowly",
    remedy: "the Service's selector, `publishNotReadyAddresses: true`",
    find: Find::Network(|facts| Some(find(facts))),
};

/// A slower name server delays every look-up, and there are many.
const SLOW_NAME: Duration = Duration::from_secs(1);

fn find(facts: &NetworkFacts) -> Check {
    let host = facts.endpoint.host();
    match &facts.resolved {
        Err(reason) => Check::fail(
            format!("`{host}` has no address: {reason}"),
            "late names come by themselves (`rallypoint wait`); if it stays so, compare the Service's \
             selector with the pods' labels, set publishNotReadyAddresses: true on a headless Service, and \
             check name and namespace",
        ),
        Ok(addrs) if facts.any_name => Check::fail(
            format!("`{host}` is {}, and so is a name that nobody has: the name proves nothing", list(addrs)),
            "a search domain answers for every name: look at `search` in /etc/resolv.conf, and write the \
             name in full (`train-0.train.default.svc.cluster.local`)",
        ),
        Ok(_) if facts.resolving > SLOW_NAME => Check::warn(
            format!("the name server took {} for `{host}`", Elapsed(facts.resolving)),
            "each process asks more than once; look at the cluster's DNS, and at ndots in the pod's \
             dnsConfig",
        ),
        Ok(addrs) => Check::pass(format!("`{host}` is {}", list(addrs))),
    }
}
