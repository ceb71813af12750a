//! Who shares a network shares its ports: the second store cannot listen, or its nodes meet the store of the
//! first.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "host-port",
    sees: "WARN: two jobs with `hostNetwork` and one port for their stores; more pods with it than their \
           affinity names nodes. FAIL: two launchers side by side with one port",
    examples: ["host-port.yaml", "good-jobsets-host-ports.yaml"],
    find: Find::Files(find),
};

fn find(manifests: &Manifests) -> Vec<Check> {
    let mut before: Vec<(Call<'_>, &str)> = Vec::new();
    let mut found = Vec::new();
    for call in manifests.calls() {
        let on_host = |call: &Call<'_>| call.pods.on_host() && call.hosts_store();
        let Some(port) = (if on_host(&call) { call.launch.known_port() } else { own_port(&call) }) else {
            continue;
        };
        let name = call.launch.grammar.name;
        let shared = |(other, own): &(Call<'_>, &str)| {
            let object = &other.pods.place.object;
            if *own != port {
                None
            } else if are_beside(other, &call) {
                let evidence =
                    format!("{name} runs beside another one on its node, and both have port {port}");
                Some(Check::fail(evidence, "another --master-port for each, or --standalone"))
            } else if on_host(other) && on_host(&call) && !call.is_together(other.pods) {
                let evidence =
                    format!("hostNetwork, and port {port} is that of {object}, too: one of them can listen");
                let remedy = "another port for each job, or pods that never share a node (podAntiAffinity)";
                Some(Check::warn(evidence, remedy))
            } else {
                None
            }
        };
        found.extend(before.iter().find_map(shared).map(|check| check.at(call.at("command"))));
        before.push((call, port));
    }
    found.extend(manifests.pods.iter().filter_map(crowded));
    found
}

/// With `hostNetwork` a `containerPort` is one of the node, and the scheduler gives it to one pod.
fn crowded(pods: &Pods) -> Option<Check> {
    let mut ports = pods.containers.iter().flat_map(|own| list(&own.value, "/ports"));
    let declared = ports.find_map(|port| port.get("containerPort")?.as_u64());
    // The training operator gives one to each pod that has none.
    let port = declared.or((pods.maker == Maker::PyTorchJob).then_some(23456));
    let (count, port) = pods.count.zip(port).filter(|_| pods.on_host())?;
    let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let names = list(&pods.spec, terms).iter().map(|term| {
        let named = |it: &&Value| it["key"] == "kubernetes.io/hostname" && it["operator"] == "In";
        Some(list(list(term, "/matchExpressions").iter().find(named)?, "/values").len() as u64)
    });
    let is_one = pods.spec.get("nodeName").is_some()
        || pods.spec.pointer("/nodeSelector/kubernetes.io~1hostname").is_some();
    let of_terms = || names.sum::<Option<u64>>().filter(|nodes| *nodes > 0);
    let nodes = if is_one { Some(1) } else { of_terms() }.filter(|nodes| *nodes < count)?;
    let evidence = format!(
        "hostNetwork, and each of {count} pods has port {port}, but only {} named: one fits a node",
        counted(nodes, "node is", "nodes are")
    );
    Some(
        Check::warn(evidence, "one pod a node with more processes, or no hostNetwork")
            .at(pods.at("hostNetwork")),
    )
}

/// The port on which a launcher listens on the node of the script or the container that starts it.
fn own_port<'c>(call: &Call<'c>) -> Option<&'c str> {
    let Launch { grammar, backend, port, processes, command, is_configured, node_rank, .. } = call.launch;
    let is_launched = command.words.first().is_some_and(|word| Grammar::is_program(&word.to_string()));
    // accelerate starts a single process without a store.
    let listens = match grammar.tool {
        Tool::Torchrun | Tool::DeepSpeed => *backend == Backend::Static,
        Tool::Accelerate => processes.as_ref().is_some_and(|told| told.text.literal() != Some("1")),
        _ => false,
    };
    // Another node than the first one, on the same machine, only calls.
    let is_first = node_rank.as_ref().is_none_or(|told| matches!(told.text.literal(), None | Some("0")));
    let is_here = is_launched && is_first && listens && !(*is_configured || call.pods.step.by.is_some());
    port.as_ref().map_or(Some("29500"), |told| told.text.literal()).filter(|port| is_here && *port != "0")
}

/// Whether a script starts both at one moment: the first one goes on.
fn are_beside(one: &Call<'_>, other: &Call<'_>) -> bool {
    let is_one_script = one.pods.are_tasks() && one.pods.object == other.pods.object;
    (is_one_script || std::ptr::eq(one.container, other.container))
        && one.launch.command.background
        && one.launch.command.moment == other.launch.command.moment
}
