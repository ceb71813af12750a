//! A program that is told pods instead of processes, or the other way round, waits for the wrong number.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "world-size",
    sees: "FAIL: `WORLD_SIZE` counts pods, but each has several processes. WARN beside torchrun",
    remedy: "pods x processes",
    find: Find::Launch(|at| {
        at.launch.iter().filter_map(|launch| find(at.env, launch, at.torchrun)).collect()
    }),
};

fn find(env: &Environment, launch: &LaunchEnv, torchrun: Option<&Torchrun>) -> Option<Check> {
    let world: u32 = env.get("WORLD_SIZE")?.parse().ok()?;
    let nodes = launch.nodes.as_ref()?.value.fixed()?;
    let processes = &launch.nproc_per_node.as_ref()?.value;
    if *processes == Processes::Count(1) || nodes == 1 || world != nodes {
        return Some(Check::pass(format!("WORLD_SIZE={world} for {nodes} nodes of {processes}")));
    }
    let evidence = format!("WORLD_SIZE={world} counts pods, but each has {processes} processes");
    Some(match torchrun {
        Some(_) => Check::warn(
            evidence,
            "torchrun overwrites it for its workers; leave it out, so that it misleads nobody",
        ),
        None => {
            Check::fail(evidence, "set WORLD_SIZE to pods x processes, or start the processes with torchrun")
        }
    })
}
