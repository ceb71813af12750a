//! Without an endpoint every node meets itself on 127.0.0.1, and waits there for the others.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "command-endpoint",
    sees: "FAIL: `torchrun --nnodes=4 train.py`, and nothing says where the nodes meet. WARN for a \
           PyTorchJob without Master, if the operator sets its nodes, and for a script that nothing starts",
    examples: ["no-endpoint.yaml", "good-job-static.yaml"],
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::Other], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let has_host = launch.host.as_ref().is_some_and(|told| told.text.literal() != Some(""));
    // Who names a host that this backend does not read means it for all nodes.
    let is_for_one = call.is_of_one_node()
        && (launch.backend == Backend::Static
            || !launch.called.as_ref().is_some_and(|called| called.has("master-addr")));
    // An operator tells it to launchers that have no flag for it.
    let takes_none = [Role::Host, Role::Endpoint].iter().all(|role| launch.grammar.names(*role).is_empty());
    if has_host
        || takes_none
        || !call.are_to_meet()
        || launch.is_told_elsewhere
        || launch.by_rallypoint
        || launch.is_own
        || launch.starts() != Starts::Node
        || call.may_be_told()
        || is_for_one
        // An etcd client takes its address from its own configuration.
        || matches!(launch.backend, Backend::Other(_))
    {
        return None;
    }
    let (Told { by, text }, name) = (launch.nodes.as_ref()?, launch.grammar.name);
    let then = match launch.tool() {
        Tool::Other => "each node waits alone, or refuses to start",
        _ => "each node waits alone on 127.0.0.1",
    };
    let evidence = format!("{name} has {by} = {text} and no endpoint: {then}");
    let remedy = match (pods.maker, pods.first_host()) {
        (Maker::PyTorchJob, _) if !pods.has(When::Master) => {
            "add a Master to pytorchReplicaSpecs (the operator then sets the endpoint), or an elasticPolicy"
                .into()
        }
        (_, host) => {
            let host = host.unwrap_or_else(|| "HOST".into());
            let flag = match (launch.tool(), &launch.backend) {
                (Tool::Accelerate, _) | (_, Backend::Static) => {
                    let flag = |role| launch.grammar.flag(role);
                    let flag = flag(Role::Host).or_else(|| flag(Role::Endpoint));
                    format!("{}={host}", flag.unwrap_or_default())
                }
                _ => format!("--rdzv-endpoint={host}:29500"),
            };
            format!("add {flag}, or start it with `rallypoint run`, which sets the endpoint")
        }
    };
    // The operator sets PET_NNODES from release 1.7 on. Before that release, each pod trains alone.
    let check = if by == "PET_NNODES" && pods.maker == Maker::PyTorchJob {
        let evidence = format!("{evidence} (PET_NNODES is set by the training operator from release 1.7 on)");
        Check::warn(evidence, remedy)
    } else if pods.are_by_hand() {
        Check::warn(format!("{evidence}, unless who starts the script tells it in its environment"), remedy)
    } else {
        Check::fail(evidence, remedy)
    };
    Some(check.at(call.at("command")))
}
