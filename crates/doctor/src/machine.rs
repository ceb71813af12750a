//! This host: its limits, its own name, and the time that its resolver needs for an address.

use std::net::IpAddr;
use std::time::Duration;

use super::Check;
use rallypoint_node::launch::{Backend, Environment, Torchrun};
use rallypoint_protocol::ids::Elapsed;

/// Facts about this host.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// The host's name.
    pub hostname: String,
    /// The addresses that the resolver gives for that name.
    pub own_addresses: Vec<IpAddr>,
    /// The contents of `/etc/hosts`. Kubernetes writes the name there that other pods can resolve.
    pub hosts_file: String,
    /// The soft and the hard limit on open files of a process.
    pub descriptors: (Option<u64>, Option<u64>),
    /// The ports from which the kernel takes one for an outgoing connection.
    pub outgoing: Option<(u16, u16)>,
    /// The port of the job's store.
    pub listens_on: Option<u16>,
    /// Connections that the kernel queues for a listener.
    pub backlog: Option<i32>,
    /// How long the reverse look-up of the store's address took, up to a limit.
    pub reverse_lookup: Option<Duration>,
}

/// Every rank of a large job connects to each other rank, and a store has a connection of each rank.
const ENOUGH_DESCRIPTORS: u64 = 4096;
const ENOUGH_BACKLOG: i32 = 1024;
/// PyTorch's store looks up the name of each client, one after the other.
const SLOW_REVERSE: Duration = Duration::from_millis(500);

/// Every check of this host.
pub fn check_machine(facts: &MachineFacts, env: &Environment, torchrun: Option<&Torchrun>) -> Vec<Check> {
    [
        Some(own_name(facts, env, torchrun)),
        descriptors(facts),
        backlog(facts),
        outgoing(facts),
        reverse_lookup(facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// With c10d, rank 0's agent hands its FQDN to the workers of all pods.
fn own_name(facts: &MachineFacts, env: &Environment, torchrun: Option<&Torchrun>) -> Check {
    const ID: &str = "own-name";
    let host = &facts.hostname;
    let said =
        torchrun.is_some_and(|torchrun| torchrun.has("local-addr")) || env.get("PET_LOCAL_ADDR").is_some();
    if said {
        return Check::pass(ID, "torchrun is told this host's address (--local-addr)");
    }
    let has_domain = host.contains('.') || fqdn(&facts.hosts_file, host).is_some();
    let c10d =
        torchrun.and_then(Torchrun::backend).or_else(|| env.get("PET_RDZV_BACKEND").map(Backend::parse));
    if env.in_kubernetes() && !has_domain {
        let evidence = format!(
            "the pod's name is the bare `{host}`, which other pods cannot resolve; with c10d it becomes the \
             workers' MASTER_ADDR"
        );
        let remedy = "set spec.subdomain to a headless Service that selects the pods, or pass \
                      --local-addr=$(POD_IP), which `rallypoint run` does if POD_IP is set";
        return if c10d == Some(Backend::C10d) {
            Check::fail(ID, evidence, remedy)
        } else {
            Check::warn(ID, evidence, remedy)
        };
    }
    let all_loopback = !facts.own_addresses.is_empty() && facts.own_addresses.iter().all(IpAddr::is_loopback);
    if facts.own_addresses.is_empty() || all_loopback {
        let what = if all_loopback { "only this host's loopback address" } else { "no address" };
        return Check::warn(
            ID,
            format!("this host's name `{host}` has {what}, so others cannot reach it by name"),
            "pass --local-addr=ADDRESS to torchrun, or correct the name in DNS or /etc/hosts",
        );
    }
    Check::pass(ID, format!("`{}`", fqdn(&facts.hosts_file, host).unwrap_or(host)))
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

fn descriptors(facts: &MachineFacts) -> Option<Check> {
    const ID: &str = "descriptors";
    let (now, most) = (facts.descriptors.0?, facts.descriptors.1);
    if now >= ENOUGH_DESCRIPTORS {
        return Some(Check::pass(ID, format!("a process may open {now} files")));
    }
    let most = most.map_or_else(|| "no limit".to_owned(), |most| most.to_string());
    Some(Check::warn(
        ID,
        format!(
            "a process may open {now} files (at most: {most}); a rank of a large job needs a socket for each \
             other rank"
        ),
        "raise it with `ulimit -n` in the start script, or in the container runtime",
    ))
}

fn backlog(facts: &MachineFacts) -> Option<Check> {
    const ID: &str = "backlog";
    let backlog = facts.backlog?;
    Some(if backlog >= ENOUGH_BACKLOG {
        Check::pass(ID, format!("the kernel queues {backlog} new connections"))
    } else {
        Check::warn(
            ID,
            format!(
                "the kernel queues only {backlog} new connections; ranks that start together may be refused"
            ),
            "set net.core.somaxconn to 1024 or more where a store runs",
        )
    })
}

/// An outgoing connection may have the port when rank 0 wants to listen there.
fn outgoing(facts: &MachineFacts) -> Option<Check> {
    const ID: &str = "ephemeral-port";
    let ((first, last), port) = (facts.outgoing?, facts.listens_on?);
    Some(if (first..=last).contains(&port) {
        let evidence = format!(
            "port {port} is one of {first}-{last}, from which the kernel takes ports for outgoing \
             connections: one of them may have it when the store wants to listen"
        );
        let remedy =
            format!("a port below {first}, such as 29500; or net.ipv4.ip_local_reserved_ports={port}");
        Check::warn(ID, evidence, remedy)
    } else {
        Check::pass(ID, format!("no outgoing connection takes port {port}"))
    })
}

fn reverse_lookup(facts: &MachineFacts) -> Option<Check> {
    const ID: &str = "reverse-dns";
    let took = facts.reverse_lookup?;
    Some(if took <= SLOW_REVERSE {
        Check::pass(ID, format!("an address has its name after {} ms", took.as_millis()))
    } else {
        Check::warn(
            ID,
            format!("the name of an address takes {}", Elapsed(took)),
            "PyTorch asks for it at each connection, and its own store stalls for so long with each client; \
             let the name server answer reverse look-ups, if only with `no such name` (rallypoint itself \
             never asks)",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    type Vars<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn each_check_of_the_host_can_pass_and_fail() {
        let with_subdomain = "127.0.0.1 localhost\n10.0.0.7\ttrain-0.train.ns.svc.cluster.local\ttrain-0\n";
        let without = "127.0.0.1 localhost\n10.0.0.7\ttrain-0\n";
        let good = || MachineFacts {
            hostname: "train-0".into(),
            own_addresses: vec![IpAddr::from([10, 0, 0, 7])],
            hosts_file: with_subdomain.into(),
            descriptors: (Some(1 << 20), Some(1 << 20)),
            backlog: Some(4096),
            outgoing: Some((32768, 60999)),
            listens_on: Some(29500),
            reverse_lookup: Some(Duration::from_millis(2)),
        };
        let bare = || MachineFacts { hosts_file: without.into(), ..good() };
        let k8s = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
        let c10d = ("PET_RDZV_BACKEND", "c10d");
        #[rustfmt::skip]
        let rows: [(&str, MachineFacts, Vars, Verdict, &str); 14] = [
            ("own-name", good(), &[k8s, c10d], Verdict::Pass, "train-0.train.ns.svc"),
            ("own-name", bare(), &[k8s, c10d], Verdict::Fail, "spec.subdomain"),
            ("own-name", bare(), &[k8s], Verdict::Warn, "MASTER_ADDR"),
            ("own-name", bare(), &[k8s, c10d, ("PET_LOCAL_ADDR", "10.0.0.7")], Verdict::Pass, "--local-addr"),
            ("own-name", MachineFacts { own_addresses: vec![IpAddr::from([127, 0, 1, 1])], ..bare() },
                &[], Verdict::Warn, "loopback"),
            ("own-name", MachineFacts { own_addresses: Vec::new(), ..bare() },
                &[], Verdict::Warn, "no address"),
            ("descriptors", good(), &[], Verdict::Pass, ""),
            ("descriptors", MachineFacts { descriptors: (Some(1024), Some(4096)), ..good() },
                &[], Verdict::Warn, "ulimit -n"),
            ("backlog", good(), &[], Verdict::Pass, ""),
            ("backlog", MachineFacts { backlog: Some(128), ..good() }, &[], Verdict::Warn, "somaxconn"),
            ("ephemeral-port", good(), &[], Verdict::Pass, "29500"),
            ("ephemeral-port", MachineFacts { listens_on: Some(40000), ..good() },
                &[], Verdict::Warn, "32768-60999"),
            ("reverse-dns", good(), &[], Verdict::Pass, "2 ms"),
            ("reverse-dns", MachineFacts { reverse_lookup: Some(Duration::from_secs(5)), ..good() },
                &[], Verdict::Warn, "5 s"),
        ];
        for (id, facts, env, verdict, word) in rows {
            let env: Environment = env.iter().copied().collect();
            let checks = check_machine(&facts, &env, None);
            let check =
                checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}: {checks:?}"));
            assert_eq!(check.verdict, verdict, "{check}");
            assert!(check.to_string().contains(word), "{check}");
        }
    }
}
