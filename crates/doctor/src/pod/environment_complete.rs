//! What nothing says, torchrun takes from its defaults: one node, itself.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "environment-complete",
    sees: "WARN: no node rank, number of nodes or endpoint",
    remedy: "the flag, or the variable",
    find: Find::Launch(|at| at.launch.iter().map(find).collect()),
};

fn find(launch: &LaunchEnv) -> Check {
    let missing: Vec<&str> = [
        (launch.node_rank.is_none(), "the node rank (--node-rank)"),
        (launch.nodes.is_none(), "the number of nodes (--nodes)"),
        (launch.endpoint.is_none(), "the endpoint (HOST:PORT)"),
    ]
    .into_iter()
    .filter_map(|(is_missing, name)| is_missing.then_some(name))
    .collect();
    if missing.is_empty() {
        return Check::pass("node rank, number of nodes and endpoint are known");
    }
    let remedy = "give it to rallypoint, or set RALLYPOINT_NODE_RANK, RALLYPOINT_NODES, RALLYPOINT_ENDPOINT \
                  in the pod's env";
    Check::warn(format!("nothing says {}", missing.join(", ")), remedy)
}
