//! This host: its limits, its own name, and the time that its resolver needs for an address.

use std::net::IpAddr;
use std::time::Duration;

/// Facts about this host.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// The host's name.
    pub hostname: String,
    /// The addresses that the resolver gives for that name.
    pub own_addresses: Vec<IpAddr>,
    /// The contents of `/etc/hosts`. Kubernetes writes the name there that other pods can resolve.
    pub hosts_file: String,
    /// The name that the address of this host has in DNS, and whether that name resolves. torch publishes it
    /// where `/etc/hosts` has none with a domain.
    pub published: Option<(String, bool)>,
    /// Its network interfaces, if that is known.
    pub interfaces: Vec<String>,
    /// The job has several nodes.
    pub several: bool,
    /// The soft and the hard limit on open files of a process.
    pub descriptors: (Option<u64>, Option<u64>),
    /// The ports from which the kernel takes one for an outgoing connection.
    pub outgoing: Option<(u16, u16)>,
    /// The ports on which the job's processes listen, each with what names it.
    pub binds: Vec<(u16, &'static str)>,
    /// Connections that the kernel queues for a listener.
    pub backlog: Option<i32>,
    /// How long the reverse look-up of the store's address took, up to a limit.
    pub reverse_lookup: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::check_machine;
    use crate::{Verdict, assert_found};
    use rallypoint_node::launch::Environment;

    type Vars<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn each_check_of_the_host_can_pass_and_fail() {
        let with_subdomain = "127.0.0.1 localhost\n10.0.0.7\ttrain-0.train.ns.svc.cluster.local\ttrain-0\n";
        let without = "127.0.0.1 localhost\n10.0.0.7\ttrain-0\n";
        let good = || MachineFacts {
            hostname: "train-0".into(),
            own_addresses: vec![IpAddr::from([10, 0, 0, 7])],
            hosts_file: with_subdomain.into(),
            published: None,
            interfaces: vec!["eth0".into(), "lo".into()],
            several: true,
            descriptors: (Some(1 << 20), Some(1 << 20)),
            backlog: Some(4096),
            outgoing: Some((32768, 60999)),
            binds: vec![(29500, "the store")],
            reverse_lookup: Some(Duration::from_millis(2)),
        };
        let bare = || MachineFacts { hosts_file: without.into(), ..good() };
        let k8s = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
        let c10d = ("PET_RDZV_BACKEND", "c10d");
        let ptr = |resolves| MachineFacts { published: Some(("x7.pods.example".into(), resolves)), ..bare() };
        #[rustfmt::skip]
        let rows: [(&str, MachineFacts, Vars, Verdict, &str); 25] = [
            ("own-name", ptr(true), &[k8s, c10d], Verdict::Pass, "x7.pods.example"),
            ("own-name", ptr(false), &[c10d], Verdict::Fail, "x7.pods.example"),
            ("own-name", ptr(false), &[], Verdict::Warn, "PTR"),
            ("own-name", good(), &[k8s, c10d], Verdict::Pass, "train-0.train.ns.svc"),
            ("own-name", bare(), &[k8s, c10d], Verdict::Fail, "spec.subdomain"),
            ("own-name", bare(), &[k8s], Verdict::Warn, "MASTER_ADDR"),
            ("own-name", bare(), &[k8s, c10d, ("PET_LOCAL_ADDR", "10.0.0.7")], Verdict::Pass, "--local-addr"),
            ("own-name", MachineFacts { own_addresses: vec![IpAddr::from([127, 0, 1, 1])], ..bare() },
                &[], Verdict::Warn, "loopback"),
            ("own-name", MachineFacts { own_addresses: Vec::new(), ..bare() },
                &[], Verdict::Warn, "no address"),
            ("interface", good(), &[("GLOO_SOCKET_IFNAME", "eth0")], Verdict::Pass, "eth0"),
            ("interface", good(), &[("NCCL_SOCKET_IFNAME", "eth,ib")], Verdict::Pass, "eth,ib"),
            ("interface", good(), &[("NCCL_SOCKET_IFNAME", "^lo,docker")], Verdict::Pass, "^lo"),
            ("interface", good(), &[("NCCL_SOCKET_IFNAME", "=eth")], Verdict::Fail, "no such interface"),
            ("interface", good(), &[("GLOO_SOCKET_IFNAME", "^lo,docker")], Verdict::Fail, "only NCCL"),
            ("interface", good(), &[("GLOO_SOCKET_IFNAME", "bond1")], Verdict::Fail, "share: eth0"),
            ("interface", good(), &[("NCCL_SOCKET_IFNAME", "lo")], Verdict::Fail, "loopback"),
            ("interface", MachineFacts { several: false, ..good() }, &[("NCCL_SOCKET_IFNAME", "lo")],
                Verdict::Pass, "lo"),
            ("descriptors", good(), &[], Verdict::Pass, ""),
            ("descriptors", MachineFacts { descriptors: (Some(1024), Some(4096)), ..good() },
                &[], Verdict::Warn, "ulimit -n"),
            ("backlog", good(), &[], Verdict::Pass, ""),
            ("backlog", MachineFacts { backlog: Some(128), ..good() }, &[], Verdict::Warn, "somaxconn"),
            ("ephemeral-port", good(), &[], Verdict::Pass, "32768-60999"),
            ("ephemeral-port", MachineFacts { binds: vec![(29500, "the store"), (40000, "MASTER_PORT")],
                ..good() }, &[], Verdict::Warn, "port 40000 (MASTER_PORT): the kernel takes 32768-60999"),
            ("reverse-dns", good(), &[], Verdict::Pass, "2 ms"),
            ("reverse-dns", MachineFacts { reverse_lookup: Some(Duration::from_secs(5)), ..good() },
                &[], Verdict::Warn, "5 s"),
        ];
        for (id, facts, env, verdict, word) in rows {
            let env: Environment = env.iter().copied().collect();
            assert_found(&check_machine(&facts, &env, None), id, verdict, word);
        }
    }
}
