//! A network that the hosts do not have, or a slow one though they have a fast one.

use super::prelude::*;
use super::unset_variable::is_near;
use crate::pod::interface::{ONLY_NCCL, VARIABLES, is_only_for_nccl};

pub(super) const RULE: Rule = Rule {
    id: "network-guess",
    sees: "WARN: `NCCL_IB_DISABLE=1` beside an RDMA device; hostNetwork without `GLOO_SOCKET_IFNAME`; \
           `NCCL_IP_VERSION`. FAIL: `GLOO_SOCKET_IFNAME=^lo`, `NCCL_SOCKET_IFNAME=lo` in several pods",
    examples: ["network-guess.yaml", "good-job-static.yaml"],
    find: Find::Container(find),
};

/// The variables that are set most often.
#[rustfmt::skip]
const KNOWN: [&str; 17] = [
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX",
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_DEBUG_SUBSYS", "NCCL_NET_GDR_LEVEL", "NCCL_IB_TIMEOUT",
    "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_CROSS_NIC", "NCCL_DEBUG_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG",
];

/// Names that are none of NCCL's, each with the one that is meant.
const OTHERS: [(&str, &str); 1] = [("NCCL_IP_VERSION", "NCCL_SOCKET_FAMILY")];

fn find(pods: &Pods, container: &Container) -> Vec<Check> {
    if !container.trains() {
        return Vec::new();
    }
    let place = || pods.at(&container.at("env"));
    let variable = |name: &str| container.launches.iter().find_map(|launch| launch.command.variable(name));
    let value = |name: &str| variable(name).and_then(Text::literal).unwrap_or_default();
    let is_rdma = |name: &&String| {
        name.starts_with("rdma/") || ["infiniband", "/hostdev", "/ib"].iter().any(|part| name.contains(part))
    };
    let limits = texts(container.value.pointer("/resources/limits"));
    let mut found = Vec::new();
    if let Some(device) = limits.keys().find(is_rdma).filter(|_| value("NCCL_IB_DISABLE") == "1") {
        let evidence =
            format!("NCCL_IB_DISABLE=1, though the container asks for {device}: NCCL uses slow TCP");
        found.push(Check::warn(evidence, "take NCCL_IB_DISABLE out").at(place()));
    }
    let set = container.launches.iter().flat_map(|launch| launch.command.variables.keys());
    // RCCL and others have variables of their own.
    let is_meant = |known: &str, name: &str| is_near(known, name) && known.get(..1) == name.get(..1);
    let misspelled = |name: &String| {
        let (_, other) = OTHERS.iter().find(|(other, _)| other == name).copied().unzip();
        Some((name.clone(), other.or_else(|| KNOWN.iter().copied().find(|known| is_meant(known, name)))?))
    };
    if let Some((name, right)) = set.filter(|name| !KNOWN.contains(&name.as_str())).find_map(misspelled) {
        let evidence = format!("{name} is no variable of NCCL, gloo or PyTorch: nothing reads it");
        found.push(Check::warn(evidence, right).at(place()));
    }
    for name in VARIABLES {
        let value = value(name);
        let what = match value {
            "lo" if pods.are_several() => "the others are not on the loopback of a node",
            _ if is_only_for_nccl(name, value) => ONLY_NCCL,
            _ => continue,
        };
        let remedy = format!("{name} with the name of one interface (`ip -br link`)");
        found.push(Check::fail(format!("{name}={value}: {what}"), remedy).at(place()));
    }
    let gloo = variable("GLOO_SOCKET_IFNAME");
    if pods.on_host() && pods.are_several() && gloo.is_none() && !container.open {
        let evidence = "hostNetwork, and no GLOO_SOCKET_IFNAME: gloo takes the address of the node's own \
                        name, which may be 127.0.0.1";
        let remedy = "GLOO_SOCKET_IFNAME with the interface that the nodes share (`ip -br link`)";
        found.push(Check::warn(evidence, remedy).at(place()));
    }
    found
}
