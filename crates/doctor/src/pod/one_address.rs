//! Behind a name of several hosts each connection may meet another store.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "one-address",
    sees: "FAIL, WARN: the name has several addresses",
    remedy: "one pod's name, one server's Service",
    find: Find::Network(|facts| Some(find(facts, facts.resolved.as_ref().ok()?))),
};

fn find(facts: &NetworkFacts, addrs: &[SocketAddr]) -> Check {
    const REMEDY: &str = "name one pod (`train-0.train`), or a ClusterIP Service of the rallypoint server \
                          alone, and use is_host=0 with c10d";
    let v4 = addrs.iter().filter(|addr| addr.is_ipv4()).count();
    // One address of each family means one host.
    if v4 <= 1 && addrs.len().saturating_sub(v4) <= 1 {
        return Check::pass("the name means one host");
    }
    let (host, all) = (facts.endpoint.host(), list(addrs));
    let own = addrs.iter().find(|addr| facts.own.contains(&addr.ip()));
    let stores = facts.tried.iter().filter(|(_, outcome)| outcome.is_ok()).count();
    if let Some(own) = own {
        let evidence = format!(
            "`{host}` is {all}, and {} is this host: a headless Service over all pods. Each pod finds itself \
             behind the name and hosts a store of its own, and the job falls apart",
            own.ip()
        );
        return Check::fail(evidence, REMEDY);
    }
    if stores > 1 {
        return Check::fail(format!("`{host}` is {all}, and a store answers on {stores} of them"), REMEDY);
    }
    Check::warn(format!("`{host}` is {all}; if these are all pods of the job, it may fall apart"), REMEDY)
}
