//! With c10d, rank 0's agent hands its FQDN to the workers of all pods.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "own-name",
    sees: "FAIL, WARN: this host's name, or the name that its address has (PTR), cannot be resolved, or is \
           loopback",
    remedy: "`--local-addr`",
    find: Find::Machine(|facts, env, torchrun| Some(find(facts, env, torchrun))),
};

fn find(facts: &MachineFacts, env: &Environment, torchrun: Option<&Torchrun>) -> Check {
    let host = &facts.hostname;
    let said =
        torchrun.is_some_and(|torchrun| torchrun.has("local-addr")) || env.get("PET_LOCAL_ADDR").is_some();
    if said {
        return Check::pass("torchrun is told this host's address (--local-addr)");
    }
    let in_hosts = fqdn(&facts.hosts_file, host).or_else(|| host.contains('.').then_some(host));
    let published = facts.published.as_ref().filter(|_| in_hosts.is_none());
    let has_domain = in_hosts.is_some() || published.is_some_and(|(_, resolves)| *resolves);
    let c10d =
        torchrun.and_then(Torchrun::backend).or_else(|| env.get("PET_RDZV_BACKEND").map(Backend::parse));
    if let Some((name, false)) = published {
        let evidence = format!(
            "the address of this host is called `{name}` (PTR), and that name does not resolve; torch takes \
             it for the host's full name, and with c10d it becomes the workers' MASTER_ADDR"
        );
        let remedy = "pass --local-addr=ADDRESS to torchrun, or give that name an address in DNS";
        return if c10d == Some(Backend::C10d) {
            Check::fail(evidence, remedy)
        } else {
            Check::warn(evidence, remedy)
        };
    }
    if env.in_kubernetes() && !has_domain {
        let evidence = format!(
            "the pod's name is the bare `{host}`, which other pods cannot resolve; with c10d it becomes the \
             workers' MASTER_ADDR"
        );
        let remedy = "set spec.subdomain to a headless Service that selects the pods, or pass \
                      --local-addr=$(POD_IP), which `rallypoint run` does if POD_IP is set";
        return if c10d == Some(Backend::C10d) {
            Check::fail(evidence, remedy)
        } else {
            Check::warn(evidence, remedy)
        };
    }
    let all_loopback = !facts.own_addresses.is_empty() && facts.own_addresses.iter().all(IpAddr::is_loopback);
    if facts.own_addresses.is_empty() || all_loopback {
        let what = if all_loopback { "only this host's loopback address" } else { "no address" };
        return Check::warn(
            format!("this host's name `{host}` has {what}, so others cannot reach it by name"),
            "pass --local-addr=ADDRESS to torchrun and set GLOO_SOCKET_IFNAME, or correct the name in DNS or \
             /etc/hosts",
        );
    }
    let name = in_hosts.or(published.map(|(name, _)| name.as_str())).unwrap_or(host);
    Check::pass(format!("`{name}`"))
}

/// The full name in the line of the hosts file that has the bare name.
fn fqdn<'a>(hosts: &'a str, host: &str) -> Option<&'a str> {
    hosts
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter(|line| line.split_whitespace().skip(1).any(|name| name == host))
        .find_map(|line| {
            let full = |name: &&str| name.strip_prefix(host).is_some_and(|rest| rest.starts_with('.'));
            line.split_whitespace().skip(1).find(full)
        })
}
