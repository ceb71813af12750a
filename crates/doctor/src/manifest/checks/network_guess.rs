//! A network that the hosts do not have, or a slow one though they have a fast one.

use super::prelude::*;
use crate::pod::interface::{ONLY_NCCL, VARIABLES, is_only_for_nccl, misspelled, nobody_reads};

pub(super) const RULE: Rule = Rule {
    id: "network-guess",
    sees: "WARN: `NCCL_IB_DISABLE=1` beside an RDMA device; hostNetwork without `GLOO_SOCKET_IFNAME`; \
           `NCCL_IP_VERSION`; `docker run` of a launcher without `--network`. FAIL: \
           `GLOO_SOCKET_IFNAME=^lo`, `NCCL_SOCKET_IFNAME=lo` in several pods",
    examples: ["network-guess.yaml", "good-job-static.yaml"],
    find: Find::Container(find),
};

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
    let mut set = container.launches.iter().flat_map(|launch| launch.command.variables.keys());
    if let Some((name, right)) = set.find_map(|name| Some((name, misspelled(name)?))) {
        found.push(Check::warn(nobody_reads(name), right).at(place()));
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
    if container.launches.iter().any(is_behind_bridge) {
        let evidence = "`docker run` gives the launcher a network of its own: other nodes cannot connect to \
                        what it listens on";
        found.push(Check::warn(evidence, "--network=host").at(pods.at(&container.at("command"))));
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

/// Whether docker starts the launcher of a node without the network of its host.
fn is_behind_bridge(launch: &Launch) -> bool {
    const OPEN: [&str; 4] = ["--net", "-p", "-P", "--publish"];
    let caller = launch.called.as_ref().map_or(&[][..], |called| called.caller());
    let runs = |two: &[String]| {
        matches!(basename(&two[0]), "docker" | "podman" | "nvidia-docker") && two[1] == "run"
    };
    let at = caller.windows(2).position(runs);
    // A variable may hold options, unless it is the value of one.
    let is_open = |two: &[String]| {
        OPEN.iter().any(|open| two[1].starts_with(open))
            || two[1].starts_with('$') && !two[0].starts_with('-')
    };
    // The image may be a variable, and stands last.
    let options = at.and_then(|at| caller.get(at..)?.split_last()).map(|(_, options)| options);
    let is_one = launch.nodes.as_ref().is_none_or(|told| told.text.literal() == Some("1"));
    options.is_some_and(|options| !options.windows(2).any(is_open)) && !is_one
}
