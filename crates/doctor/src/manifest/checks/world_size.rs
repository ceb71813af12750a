//! torch waits until `WORLD_SIZE` processes are there. If it is more than there are, all wait for ever.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "world-size",
    sees: "FAIL: `WORLD_SIZE` counts pods, but each has 8 processes; or it is not pods x processes",
    examples: ["world-size-in-pods.yaml", "good-pytorchjob-world-size.yaml"],
    find: Find::Launch(&[Tool::Program], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, container, .. } = call;
    let told = call.variable("WORLD_SIZE")?;
    let world: u64 = told.literal()?.parse().ok()?;
    let total = call.total()?;
    // The operator multiplies, and starts the command once. What an image's own command starts is not known.
    let is_told = !call.sets("WORLD_SIZE") && !container.argv.is_empty();
    let by_operator = pods.maker == Maker::PyTorchJob && world > total && is_told;
    if let Some(each) = pods.processes.as_ref().filter(|_| by_operator) {
        let evidence = format!(
            "nprocPerNode={each} makes WORLD_SIZE={world}, but each of {total} pods runs its command once: \
             torch waits for the others unless the command starts them"
        );
        let remedy = "start it with torchrun, or leave nprocPerNode out";
        return Some(Check::warn(evidence, remedy).at(call.at("command")));
    }
    if !call.sets("WORLD_SIZE") || world < 2 || launch.by_rallypoint || pods.in_unit != pods.count {
        return None;
    }
    // What the operator sets (`auto`) is a number of processes only for torchrun.
    let names = ["PET_NPROC_PER_NODE", "NPROC_PER_NODE", "GPUS_PER_NODE"];
    // Each task is a process, unless it starts others itself.
    let own = |name: &&str| call.sets(name) && !pods.are_tasks();
    let said =
        names.into_iter().filter(own).find_map(|name| Some(call.variable(name)?.literal()?.to_owned()));
    let each = said.as_ref().and_then(|each| each.parse().ok()).or_else(|| container.gpus()).unwrap_or(1);
    // Each task of a Volcano job may be a training of its own.
    let is_of_task = pods.maker == Maker::VolcanoJob && pods.count == Some(world);
    // A program that starts others needs their GPUs.
    let is_zero = |name: &str| launch.number(name) == Some(0);
    let is_for_one = is_zero("RANK") && is_zero("LOCAL_RANK")
        || call.sets("RANK") && container.gpus().is_none_or(|gpus| gpus < 2) && !pods.is_open;
    let check = if world == total && said.as_ref().is_some_and(|each| each != "1") {
        let evidence =
            format!("WORLD_SIZE={world} counts pods, but each has {} processes", said.unwrap_or_default());
        Check::fail(evidence, "WORLD_SIZE is pods x processes; with torchrun leave it out")
    } else if world != total && world != total.saturating_mul(each) && total > 1 && !is_of_task {
        let processes = counted(each, "process", "processes");
        let of_pods = || (format!("{total} pods with {processes} each"), total.saturating_mul(each));
        let of_tasks = || (format!("{total} tasks"), total);
        let (are, right) = if pods.are_tasks() { of_tasks() } else { of_pods() };
        let evidence = format!("WORLD_SIZE={world}, but there are {are}: torch waits for {world}");
        Check::fail(evidence, format!("WORLD_SIZE={right}"))
    } else if total == 1 && is_for_one && call.hosts_store() {
        let evidence = format!(
            "WORLD_SIZE={world}, but RANK is set for one process in one pod, which is the master itself: it \
             waits for the others"
        );
        Check::fail(evidence, format!("torchrun --nproc-per-node={world}, without these variables"))
    } else {
        return None;
    };
    Some(check.at(call.at("env")))
}
