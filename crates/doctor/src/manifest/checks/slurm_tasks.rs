//! torchrun starts the processes of a node itself, and must run once on each node: no more, no less.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "slurm-tasks",
    sees: "FAIL: in a script for sbatch, torchrun without `srun` on several nodes; `srun` that starts it on \
           one node only, or 8 times a node",
    fails: "slurm-eight-tasks.sbatch",
    passes: "good-slurm.sbatch",
    find: Find::Launch(&[Tool::Torchrun, Tool::Accelerate, Tool::DeepSpeed, Tool::Other], find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let step = call.pods.step.as_ref()?;
    let several = call.launch.most_nodes().is_some_and(|nodes| nodes > 1)
        || call.launch.nodes.is_none() && call.launch.host.is_some();
    let (nodes, name) = (step.nodes?, call.launch.tool.name());
    if call.launch.conditional {
        return None;
    }
    let evidence = match step.tasks {
        Some(tasks) if call.launch.tool == Tool::DeepSpeed => {
            if !step.by_srun || tasks < 2 || call.launch.node_rank.is_some() {
                return None;
            }
            format!(
                "srun starts deepspeed {tasks} times: each trains alone, or starts all nodes of its hostfile"
            )
        }
        _ if !step.by_srun && several && nodes > 1 => {
            format!(
                "{name} runs without srun, so only on the first of {nodes} nodes: it waits for the others"
            )
        }
        Some(tasks) if step.by_srun && several && tasks < nodes => {
            format!("srun starts {name} on {tasks} of {nodes} nodes: it waits for the others")
        }
        Some(tasks) if step.by_srun && tasks > nodes => {
            let on = if nodes == 1 { "one node".into() } else { format!("{nodes} nodes") };
            format!("srun starts {name} {tasks} times on {on}, and each starts its own processes")
        }
        _ => return None,
    };
    let name = if call.launch.tool == Tool::DeepSpeed { "torchrun" } else { name };
    let remedy = format!("srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {name} …");
    Some(Check::fail(evidence, remedy).at(call.at("command")))
}
