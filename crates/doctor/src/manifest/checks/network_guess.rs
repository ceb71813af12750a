//! A network that the hosts do not have, or a slow one though they have a fast one.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "network-guess",
    sees: "WARN: `NCCL_IB_DISABLE=1` beside an RDMA device; hostNetwork without \
           `GLOO_SOCKET_IFNAME`. FAIL: `GLOO_SOCKET_IFNAME=^lo`",
    examples: ["network-guess.yaml", "good-job-static.yaml"],
    find: Find::Container(find),
};

fn find(pods: &Pods, container: &Container) -> Vec<Check> {
    if !container.trains() {
        return Vec::new();
    }
    let place = || pods.at(&container.at("env"));
    let is = |name: &str, bad: &str| container.variable(name).and_then(Text::literal) == Some(bad);
    let devices: Vec<String> = texts(container.value.pointer("/resources/limits"))
        .into_keys()
        .filter(|name| {
            name.starts_with("rdma/")
                || name.contains("infiniband")
                || name.contains("/hostdev")
                || name.contains("/ib")
        })
        .collect();
    let mut found = Vec::new();
    if is("NCCL_IB_DISABLE", "1") && !devices.is_empty() {
        let evidence = format!(
            "NCCL_IB_DISABLE=1, though the container asks for {}: NCCL uses slow TCP",
            devices.join(", ")
        );
        found.push(Check::warn(evidence, "take NCCL_IB_DISABLE out").at(place()));
    }
    for name in ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"] {
        let value = container.variable(name).and_then(Text::literal).unwrap_or_default();
        if value.starts_with(['^', '=', '!']) {
            let evidence =
                format!("{name}={value}: only NCCL reads `^` and `=`; gloo looks for this very name");
            let remedy = format!("{name} with the name of one interface (`ip -br link`)");
            found.push(Check::fail(evidence, remedy).at(place()));
        }
    }
    let gloo = container.variable("GLOO_SOCKET_IFNAME");
    if pods.on_host() && pods.are_several() && gloo.is_none() && !container.open {
        let evidence = "hostNetwork, and no GLOO_SOCKET_IFNAME: gloo takes the address of the node's own \
                        name, which may be 127.0.0.1";
        let remedy = "GLOO_SOCKET_IFNAME with the interface that the nodes share (`ip -br link`)";
        found.push(Check::warn(evidence, remedy).at(place()));
    }
    found
}
