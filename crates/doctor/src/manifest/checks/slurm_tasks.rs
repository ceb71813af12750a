//! torchrun starts the processes of a node itself, and must run once on each node: no more, no less.

use super::prelude::*;
use crate::manifest::pods::Size;

pub(super) const RULE: Rule = Rule {
    id: "slurm-tasks",
    sees: "FAIL: in a script for a batch system, torchrun without `srun` (`mpiexec`, …) on several nodes; \
           `srun` that starts it on one node only, or 8 times a node. WARN: torchrun that uses one node of \
           several",
    fails: "slurm-eight-tasks.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::DeepSpeed, Tool::Other], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Call { launch, pods, .. } = call;
    let step = pods.step.as_ref().filter(|_| !launch.counts_processes())?;
    let is_deepspeed = launch.tool == Tool::DeepSpeed;
    let (Size { nodes, tasks, each }, usual) = (step.size, step.usual.unwrap_or("srun"));
    let several =
        launch.most_nodes().is_some_and(|nodes| nodes > 1) || launch.nodes.is_none() && launch.host.is_some();
    let name = launch.tool.name();
    let mut is_idle = false;
    let evidence = match (&step.by, nodes, tasks, each) {
        (Some(by), _, Some(tasks), _) if is_deepspeed && tasks > 1 && launch.node_rank.is_none() => {
            format!(
                "{by} starts deepspeed {tasks} times: each trains alone, or starts all nodes of its hostfile"
            )
        }
        _ if is_deepspeed => return None,
        (None, Some(nodes), ..) if several && nodes > 1 => {
            format!(
                "{name} runs without {usual}, so only on the first of {nodes} nodes: it waits for the others"
            )
        }
        (None, Some(nodes), ..) if nodes > 1 && !launch.is_configured => {
            is_idle = true;
            format!("{name} runs on the first of {nodes} nodes alone: the others have nothing to do")
        }
        (Some(by), Some(nodes), Some(tasks), _) if several && tasks < nodes => {
            format!("{by} starts {name} on {tasks} of {nodes} nodes: it waits for the others")
        }
        (Some(by), Some(nodes), Some(tasks), _) if tasks > nodes => {
            let on = if nodes == 1 { "one node".into() } else { format!("{nodes} nodes") };
            format!("{by} starts {name} {tasks} times on {on}, and each starts its own processes")
        }
        (Some(by), None, _, Some(each)) if each > 1 => {
            format!("{by} starts {name} {each} times on each node, and each starts its own processes")
        }
        _ => return None,
    };
    let name = if is_deepspeed { "torchrun" } else { name };
    let remedy = match (step.by.as_deref().unwrap_or(usual), nodes) {
        ("srun", Some(nodes)) => {
            format!("srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {name} …")
        }
        ("srun", None) => format!("srun --ntasks-per-node=1 {name} …"),
        (by, _) => format!("{by} with one task on each node: {name} …, with the number of nodes and a host"),
    };
    let check = if is_idle { Check::warn(evidence, remedy) } else { Check::fail(evidence, remedy) };
    Some(check.at(call.at("command")))
}
