//! Checks whether the environment is complete, and agrees with itself and with the command.

use super::Check;
use rallypoint_node::launch::{Environment, LaunchEnv, LaunchError, Processes, Torchrun};

/// Every check of the environment. `torchrun` is the command, if there is one.
pub fn check_environment(
    env: &Environment,
    launch: &Result<LaunchEnv, LaunchError>,
    torchrun: Option<&Torchrun>,
) -> Vec<Check> {
    let launch = match launch {
        Ok(launch) => launch,
        Err(error) => {
            let remedy = "correct the variable that is wrong, or decide: --node-rank, --nodes, \
                          --nproc-per-node, --endpoint";
            return vec![Check::fail("environment-consistent", error.to_string(), remedy)];
        }
    };
    let mut checks = vec![Check::pass("environment-consistent", describe(launch))];
    checks.push(complete(launch));
    checks.extend(launch.notes.iter().map(|note| {
        Check::warn(
            "environment-understood",
            note.clone(),
            "set what it names, if it is meant, in the pod's env",
        )
    }));
    checks.extend(world_size(env, launch, torchrun));
    checks.extend(ranks_beside_torchrun(env, torchrun));
    checks.push(run_id(launch));
    checks
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

fn complete(launch: &LaunchEnv) -> Check {
    const ID: &str = "environment-complete";
    let missing: Vec<&str> = [
        (launch.node_rank.is_none(), "the node rank (--node-rank)"),
        (launch.nodes.is_none(), "the number of nodes (--nodes)"),
        (launch.endpoint.is_none(), "the endpoint (HOST:PORT)"),
    ]
    .into_iter()
    .filter_map(|(is_missing, name)| is_missing.then_some(name))
    .collect();
    if missing.is_empty() {
        return Check::pass(ID, "node rank, number of nodes and endpoint are known");
    }
    let remedy = "give it to rallypoint, or set RALLYPOINT_NODE_RANK, RALLYPOINT_NODES, RALLYPOINT_ENDPOINT \
                  in the pod's env";
    Check::warn(ID, format!("nothing says {}", missing.join(", ")), remedy)
}

fn world_size(env: &Environment, launch: &LaunchEnv, torchrun: Option<&Torchrun>) -> Option<Check> {
    const ID: &str = "world-size";
    let world: u32 = env.get("WORLD_SIZE")?.parse().ok()?;
    let nodes = launch.nodes.as_ref()?.value.fixed()?;
    let processes = &launch.nproc_per_node.as_ref()?.value;
    if *processes == Processes::Count(1) || nodes == 1 || world != nodes {
        return Some(Check::pass(ID, format!("WORLD_SIZE={world} for {nodes} nodes of {processes}")));
    }
    let evidence = format!("WORLD_SIZE={world} counts pods, but each has {processes} processes");
    Some(match torchrun {
        Some(_) => Check::warn(
            ID,
            evidence,
            "torchrun overwrites it for its workers; leave it out, so that it misleads nobody",
        ),
        None => Check::fail(
            ID,
            evidence,
            "set WORLD_SIZE to pods x processes, or start the processes with torchrun",
        ),
    })
}

fn ranks_beside_torchrun(env: &Environment, torchrun: Option<&Torchrun>) -> Option<Check> {
    const ID: &str = "ranks-beside-torchrun";
    torchrun?;
    let set: Vec<&str> =
        ["RANK", "LOCAL_RANK", "WORLD_SIZE"].into_iter().filter(|name| env.get(name).is_some()).collect();
    if set.is_empty() {
        return Some(Check::pass(ID, "RANK, LOCAL_RANK and WORLD_SIZE are left to torchrun"));
    }
    let evidence = format!("{} set beside torchrun, which sets them for each worker itself", set.join(", "));
    Some(Check::warn(ID, evidence, "leave them out; for the node's place set PET_NODE_RANK"))
}

fn run_id(launch: &LaunchEnv) -> Check {
    const ID: &str = "run-name";
    let run_id = launch.run_id.as_ref();
    match run_id {
        None => Check::warn(
            ID,
            "nothing names the run; jobs without a name share the store",
            "set RALLYPOINT_RUN_ID to the Job's UID: metadata.labels['batch.kubernetes.io/controller-uid']",
        ),
        Some(run_id) => Check::pass(ID, format!("`{}` from {}", run_id.value, run_id.from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;
    use rallypoint_node::launch::{Given, derive};

    type Vars = Vec<(&'static str, &'static str)>;

    #[test]
    fn each_check_of_the_environment_can_pass_and_fail() {
        let full = [("PET_NODE_RANK", "1"), ("PET_NNODES", "4"), ("MASTER_ADDR", "head"), ("JOB_UID", "u")];
        let with =
            |more: &[(&'static str, &'static str)]| full.iter().chain(more).copied().collect::<Vec<_>>();
        #[rustfmt::skip]
        let rows: [(&str, Vars, bool, Verdict, &str); 13] = [
            ("environment-consistent", with(&[("JOB_COMPLETION_INDEX", "2")]), false, Verdict::Fail,
                "PET_NODE_RANK and JOB_COMPLETION_INDEX differ"),
            ("environment-consistent", with(&[]), false, Verdict::Pass, "node rank 1 from PET_NODE_RANK"),
            ("environment-complete", vec![("MASTER_ADDR", "head")], false, Verdict::Warn, "--node-rank"),
            ("environment-complete", with(&[]), false, Verdict::Pass, ""),
            ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "8")]), false, Verdict::Fail,
                "pods x processes"),
            ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "auto")]), false, Verdict::Fail,
                "auto"),
            ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "8")]), true, Verdict::Warn,
                "overwrites"),
            ("world-size", with(&[("WORLD_SIZE", "32"), ("PET_NPROC_PER_NODE", "8")]), false, Verdict::Pass,
                ""),
            ("world-size", with(&[("WORLD_SIZE", "4"), ("PET_NPROC_PER_NODE", "1")]), false, Verdict::Pass,
                ""),
            ("ranks-beside-torchrun", with(&[("RANK", "1"),
                ("WORLD_SIZE", "4")]), true, Verdict::Warn, "RANK, WORLD_SIZE"),
            ("ranks-beside-torchrun", with(&[]), true, Verdict::Pass, ""),
            ("run-name", vec![("MASTER_ADDR", "head")], false, Verdict::Warn, "controller-uid"),
            ("run-name", with(&[]), false, Verdict::Pass, "JOB_UID"),
        ];
        for (id, vars, beside, verdict, word) in rows {
            let env: Environment = vars.into_iter().collect();
            let command = ["torchrun".to_owned(), "t.py".to_owned()];
            let torchrun = beside.then(|| Torchrun::parse(&command).expect("torchrun"));
            let launch = derive(&env, &Given::default(), torchrun.as_ref());
            let checks = check_environment(&env, &launch, torchrun.as_ref());
            let check =
                checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}: {checks:?}"));
            assert_eq!(check.verdict, verdict, "{check}");
            assert!(check.to_string().contains(word), "{check}");
        }
    }
}
