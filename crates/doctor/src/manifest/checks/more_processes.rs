//! A process without a GPU fails (`invalid device ordinal`), or shares one, which NCCL refuses. The others
//! wait.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "more-processes",
    sees: "FAIL: `--nproc-per-node=8`, or `--num_processes` by `--num_machines`, and a limit of 4 GPUs, or \
           one without a number, or 4 in `CUDA_VISIBLE_DEVICES`. WARN: torchrun without `--nproc-per-node` \
           and several GPUs",
    examples: ["more-processes.yaml", "good-job-accelerate.yaml"],
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::DeepSpeed, Tool::Lightning], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { launch, container, .. } = call;
    let place = if call.pods.are_tasks() { "on a node" } else { "in a pod" };
    if launch.tool == Tool::Torchrun && launch.processes.is_none() {
        return one_process(call, place);
    }
    let told = launch.processes.as_ref().filter(|_| !launch.by_rallypoint)?;
    let each: u64 = told.text.literal()?.parse().ok()?;
    if container.gpus_are_blank() {
        let evidence =
            format!("{each} processes in a pod ({}), but the number of GPUs is empty: it has none", told.by);
        return Some(Check::fail(evidence, format!("nvidia.com/gpu: {each}")).at(call.at("resources")));
    }
    let visible = call.variable("CUDA_VISIBLE_DEVICES").and_then(Text::literal).unwrap_or_default();
    let visible = visible.split(',').map(|one| one.trim().parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let visible = visible.map(|all| u64::try_from(all.len()).unwrap_or(u64::MAX));
    let gpus = container.gpus().into_iter().chain(visible).filter(|gpus| each > *gpus && *gpus > 0).min()?;
    let evidence = format!(
        "{each} processes {place} ({}), but it has {}{}: those without fail, and the others wait for them",
        told.by,
        counted(gpus, "GPU", "GPUs"),
        if visible == Some(gpus) { " in CUDA_VISIBLE_DEVICES" } else { "" }
    );
    Some(Check::fail(evidence, "as many processes as GPUs").at(call.at("command")))
}

/// torchrun without a number starts one process.
fn one_process(call: &Call<'_>, place: &str) -> Option<Check> {
    let is_told = call.launch.by_rallypoint || call.launch.is_told_elsewhere || call.may_be_told();
    let gpus = call.container.gpus().filter(|gpus| *gpus > 1 && !is_told)?;
    let evidence =
        format!("torchrun starts one process {place} (no --nproc-per-node), but it has {gpus} GPUs");
    Some(Check::warn(evidence, format!("--nproc-per-node={gpus}")).at(call.at("command")))
}
