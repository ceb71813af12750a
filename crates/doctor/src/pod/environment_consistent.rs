//! Two sources of one value contradict each other: the nodes would wait for other nodes than there are.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "environment-consistent",
    sees: "FAIL: two variables contradict each other",
    remedy: "the one that the message names",
    find: Find::Launch(|at| vec![find(at)]),
};

fn find(at: &Launched<'_>) -> Check {
    let launch = match at.launch {
        Ok(launch) => launch,
        Err(error) => {
            let remedy = "correct the variable that is wrong, or decide: --node-rank, --nodes, \
                          --nproc-per-node, --endpoint";
            return Check::fail(error.to_string(), remedy);
        }
    };
    Check::pass(describe(launch))
}

fn describe(launch: &LaunchEnv) -> String {
    let mut parts = vec![format!("platform {}", launch.platform.name)];
    if let Some(rank) = &launch.node_rank {
        parts.push(format!("node rank {} from {}", rank.value, rank.from));
    }
    if let Some(nodes) = &launch.nodes {
        parts.push(format!("{} nodes from {}", nodes.value, nodes.from));
    }
    if let Some(endpoint) = &launch.endpoint {
        parts.push(format!("endpoint {} from {}", endpoint.value, endpoint.from));
    }
    parts.join(", ")
}
