//! A process without a GPU fails (`invalid device ordinal`), or shares one, which NCCL refuses. The others
//! wait.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "more-processes",
    sees: "FAIL: `--nproc-per-node=8`, or `--num_processes` by `--num_machines`, and a limit of 4 GPUs, or \
           one without a number, or 4 in `CUDA_VISIBLE_DEVICES`. WARN: fewer processes than GPUs: torchrun \
           without `--nproc-per-node`, `python` with a `WORLD_SIZE` of the pods; the number of all nodes, \
           `--num_gpus $((GPUS * NODES))`",
    examples: ["more-processes.yaml", "good-job-accelerate.yaml"],
    find: Find::Files(|manifests| {
        let certain = manifests.calls().filter_map(|call| find(&call));
        certain.chain(manifests.all_calls().filter_map(|call| of_all_nodes(&call))).collect()
    }),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { launch, container, .. } = call;
    let place = if call.pods.are_tasks() { "on a node" } else { "in a pod" };
    let (each, by) = of_a_node(call)?;
    if each == 0 {
        let evidence = format!("fewer processes than nodes ({by}): it counts those of all nodes");
        return Some(Check::fail(evidence, "the number of all nodes' GPUs").at(call.at("command")));
    }
    if container.gpus_are_blank() {
        let evidence =
            format!("{each} processes in a pod ({by}), but the number of GPUs is empty: it has none");
        return Some(Check::fail(evidence, format!("nvidia.com/gpu: {each}")).at(call.at("resources")));
    }
    // deepspeed does not read it beside its own flags.
    let said = call.variable("CUDA_VISIBLE_DEVICES").filter(|_| launch.tool() != Tool::DeepSpeed);
    let visible = said.and_then(Text::literal).unwrap_or_default();
    let visible = visible.split(',').map(|one| one.trim().parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let visible = visible.map(|all| u64::try_from(all.len()).unwrap_or(u64::MAX));
    let gpus = container.gpus().into_iter().chain(visible).filter(|gpus| *gpus > 0).min()?;
    let evidence = format!(
        "{} {place} ({by}), but it has {}{}",
        counted(each, "process", "processes"),
        counted(gpus, "GPU", "GPUs"),
        if visible == Some(gpus) { " in CUDA_VISIBLE_DEVICES" } else { "" }
    );
    let remedy = match launch.tool() {
        Tool::Other => "--nnodes and --node-rank for several pods, or as many processes as GPUs",
        _ => "as many processes as GPUs",
    };
    if each > gpus {
        let evidence = format!("{evidence}: those without fail, and the others wait for them");
        return Some(Check::fail(evidence, remedy).at(call.at("command")));
    }
    // Launchers that run side by side share the GPUs of their node.
    let is_beside = |other: &Call<'_>| {
        (other.pods.object, &other.pods.role) == (call.pods.object, &call.pods.role)
            && other.launch.command.moment == launch.command.moment
    };
    let is_only = call.manifests.all_calls().filter(is_beside).count() == 1
        && call.pods.step.size.tasks <= call.pods.step.size.nodes;
    // accelerate counts the processes of all nodes, and is given those of one.
    let of_one = launch.most_nodes().map(u64::from).filter(|nodes| {
        launch.tool() == Tool::Accelerate && *nodes > 1 && each.saturating_mul(*nodes) == gpus
    });
    let remedy = match of_one {
        Some(nodes) => {
            format!("--num_processes={}, which counts those of all nodes", gpus.saturating_mul(nodes))
        }
        None => remedy.to_owned(),
    };
    // Each may have several, as parts of its model.
    let are_idle = each < gpus
        && (each == 1 || gpus.checked_rem(each) > Some(0) || of_one.is_some())
        && !matches!(launch.tool(), Tool::DeepSpeed | Tool::Lightning | Tool::Other);
    (are_idle && is_only && said.is_some() == visible.is_some())
        .then(|| Check::warn(evidence, remedy).at(call.at("command")))
}

/// The number of processes of a node, and what says so.
fn of_a_node(call: &Call<'_>) -> Option<(u64, String)> {
    let launch = call.launch;
    if let Some(Told { text, by }) = launch.processes.as_ref().filter(|_| !launch.by_rallypoint) {
        return Some((text.literal()?.parse().ok()?, by.clone()));
    }
    let has = |part: &str| launch.command.words.iter().any(|word| word.to_string().contains(part));
    let world = launch.number("WORLD_SIZE").map(u64::from).filter(|world| *world > 1);
    let is_told = launch.by_rallypoint || launch.is_told_elsewhere;
    let by = match launch.tool() {
        Tool::Torchrun if !call.may_be_told() && !launch.starts_nothing() => "no --nproc-per-node".into(),
        Tool::Program
            if world == call.total() && has("python") && !has("spawn") && !has("multiprocessing") =>
        {
            format!("WORLD_SIZE is {}, unless it starts others itself", world?)
        }
        _ => return None,
    };
    (!is_told).then_some((1, by))
}

/// A number of processes that is multiplied by the number of nodes.
fn of_all_nodes(call: &Call<'_>) -> Option<Check> {
    let told = call.launch.processes.as_ref()?;
    let (written, nodes) = (told.text.to_string(), call.launch.nodes.as_ref()?);
    let mut names = written.strip_prefix("$((")?.strip_suffix("))")?.split('*');
    let is_nodes = |name: &str| {
        let name = name.trim_matches(['$', '{', '}', ' ']);
        rallypoint_shell::text(&call.launch.command.variables, name) == Some(&nodes.text)
    };
    names.any(is_nodes).then(|| {
        let evidence =
            format!("{} is `{written}`, the processes of all nodes: it counts those of one", told.by);
        Check::warn(evidence, "the number of GPUs of one node").at(call.at("command"))
    })
}
