//! More nodes than there are: all wait for the missing ones. Fewer: some never get in, or train alone. A
//! launcher starts the processes of a node itself, so it must run once on each.

use super::prelude::*;
use crate::manifest::pods::Size;
use crate::manifest::scripts;

pub(super) const RULE: Rule = Rule {
    id: "node-count",
    sees: "FAIL: `--nnodes=8` and 4 pods, or no `--nnodes`; in a batch script, torchrun without `srun` \
           (`mpiexec`, …) on several nodes, or `srun` that starts it on one only, or 8 times a node; \
           Lightning with `--trainer.devices=4` and `--ntasks-per-node=8`; `deepspeed --num_nodes=2` without \
           `--hostfile`. WARN: several pods that train alone, nodes that nothing uses, or a Worker \
           without the Master's command",
    examples: ["node-count.yaml", "good-job-static.yaml"],
    find: Find::Launch(
        &[Tool::Torchrun, Tool::Accelerate, Tool::DeepSpeed, Tool::Lightning, Tool::Other],
        find,
    ),
};

fn find(call: &Call<'_>) -> Option<Check> {
    let Launch { by_rallypoint, is_told_elsewhere, nodes, is_own, .. } = call.launch;
    // Each task of a node may be a node of torchrun's.
    let size = call.pods.step.size;
    let are_nodes = size.nodes > Some(1)
        && call.launch.tool() != Tool::Lightning
        && size.tasks == call.launch.most_nodes().map(u64::from);
    let starts = call.launch.starts();
    if call.lacks_hosts() {
        return Some(without_hosts(call)?.at(call.at("command")));
    }
    if starts == Starts::All && call.launch.tool() == Tool::DeepSpeed {
        // With hosts it reaches them by itself. `trains-alone` knows several of it.
        let called = call.launch.called.as_ref()?;
        let knows_others = call.launch.has_hosts() || called.has("launcher");
        return Some(idle(call).filter(|_| !knows_others)?.at(call.at("command")));
    }
    if *by_rallypoint || *is_own || starts == Starts::One || are_nodes {
        return None;
    }
    // `trains-alone` knows a TrainJob.
    let is_bare = call.launch.tool() == Tool::Accelerate && call.pods.maker != Maker::TrainJob;
    let is_told = nodes.is_some() || !is_told_elsewhere || is_bare && !call.launch.is_configured;
    let is_told = is_told && !by_unknown(call);
    let of_number = || of_number(call).filter(|_| is_told);
    let check = match call.launch.tool() {
        Tool::Lightning => of_devices(call).or_else(of_number),
        _ => too_often(call).or_else(of_number).or_else(|| idle(call).filter(|_| !by_unknown(call))),
    };
    check.map(|check| check.at(call.at("command"))).or_else(|| of_one_role(call))
}

/// One role of a PyTorchJob starts torchrun for all, and another starts what the same image starts.
fn of_one_role(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, container, .. } = call;
    let image = container.value.get("image")?;
    let is_other = |own: &&Pods| own.role != pods.role && own.maker == Maker::PyTorchJob;
    let all = call.manifests.of_object(pods.object).filter(is_other).flat_map(|own| {
        let idle =
            own.containers.iter().filter(|it| it.argv.is_empty() && it.value.get("image") == Some(image));
        idle.map(move |it| (own, it))
    });
    let (other, idle) = all.into_iter().next()?;
    let nodes = launch.most_nodes().filter(|_| launch.tool() == Tool::Torchrun).map(u64::from);
    let waits = nodes.zip(pods.count).is_some_and(|(nodes, own)| nodes > own);
    let evidence = format!(
        "the {} has no command: it starts what its image starts, and torchrun of the {} waits for it",
        other.role, pods.role
    );
    waits.then(|| Check::warn(evidence, "the same command in both").at(other.at(&idle.at("command"))))
}

/// deepspeed knows other nodes from a file alone.
fn without_hosts(call: &Call<'_>) -> Option<Check> {
    let Told { text, by } = call.launch.nodes.as_ref()?;
    let evidence = format!("{by} is {text}, and no host file names them: deepspeed does not start");
    let remedy = "--hostfile=FILE with a line `HOST slots=N` for each node, or torchrun";
    // A machine may have one where it looks by itself.
    Some(if call.pods.are_by_hand() {
        Check::warn(format!("{evidence}, unless there is a /job/hostfile"), remedy)
    } else {
        Check::fail(evidence, remedy)
    })
}

/// Whether a program that is not known stands in front of the launcher: it may start it on all nodes.
fn by_unknown(call: &Call<'_>) -> bool {
    #[rustfmt::skip]
    const KNOWN: [&str; 42] = [
        "env", "time", "timeout", "numactl", "taskset", "nohup", "nice", "ionice", "stdbuf", "exec", "sudo",
        "singularity", "apptainer", "docker", "podman", "enroot", "conda", "mamba", "micromamba", "uv",
        "poetry", "pipenv", "nsys", "ncu", "xvfb-run", "eval", "pixi", "pdm", "rye", "hatch", "dotenv",
        "direnv", "setsid", "chrt", "strace", "perf", "py-spy", "memray", "viztracer", "rocprof",
        "rocprofv3", "ch-run",
    ];
    let first = call.launch.called.as_ref().and_then(|called| called.caller().first());
    let is_known = |first: &String| {
        let name = basename(first);
        KNOWN.contains(&name) || Grammar::is_program(name) || first.contains(['$', '='])
    };
    call.pods.step.by.is_none() && call.pods.are_tasks() && first.is_some_and(|first| !is_known(first))
}

/// Several launchers on one node.
fn too_often(call: &Call<'_>) -> Option<Check> {
    let name = call.launch.grammar.name;
    let (by, Size { nodes, tasks, each }) = match &call.pods.step.by {
        Some(by) => (by.clone(), call.pods.step.size),
        None => by_mpi(call)?,
    };
    let often = match (nodes, tasks, each) {
        (Some(nodes), Some(tasks), _) if tasks > nodes => {
            format!("{tasks} times on {}", counted(nodes, "node", "nodes"))
        }
        (None, _, Some(each)) if each > 1 => format!("{each} times on each node"),
        _ => return None,
    };
    let evidence = format!("{by} starts {name} {often}, and each starts its own processes");
    Some(Check::fail(evidence, remedy(call)))
}

/// What `mpirun` of an MPIJob starts in its Workers.
fn by_mpi(call: &Call<'_>) -> Option<(String, Size)> {
    let Call { manifests, pods, launch, .. } = call;
    let is_led = pods.maker == Maker::MpiJob && pods.role == "launcher";
    let workers = manifests.of_object(pods.object).find(|own| is_led && own.role == "worker")?;
    let slots = pods.owner.get("slotsPerWorker").map_or(Some(1), Value::as_u64);
    let job = Size { nodes: workers.count, tasks: None, each: slots };
    scripts::of_mpi(&launch.command.written(), job)
}

/// In a job with a number of tasks Lightning starts no process itself: Slurm is to start one for each device.
fn of_devices(call: &Call<'_>) -> Option<Check> {
    let step = Some(&call.pods.step).filter(|step| step.usual == Some("srun"))?;
    let told = call.launch.processes.as_ref()?;
    let devices: u64 = told.text.literal()?.parse().ok()?;
    let by_all = step.size.tasks.zip(step.size.nodes).and_then(|(tasks, nodes)| tasks.checked_div(nodes));
    let each = if step.by.is_some() { by_all } else { step.size.each }?;
    // Without `trainer.` they may be flags of another program.
    let is_sure = call.launch.command.words.iter().any(|word| word.to_string().contains("trainer."));
    let tell = if is_sure { Check::fail } else { Check::warn };
    let what =
        format!("Lightning is to use {} of a node ({})", counted(devices, "device", "devices"), told.by);
    let evidence = match step.by {
        _ if each != devices => format!("{what}, but Slurm has {} there", counted(each, "task", "tasks")),
        None if devices > 1 => {
            format!("{what}, and leaves it to srun to start their processes: nothing does")
        }
        _ => return None,
    };
    let remedy = format!("#SBATCH --ntasks-per-node={devices}, and `srun` in front of the program");
    Some(tell(format!("{evidence}: it refuses to start, or waits"), remedy))
}

/// Nodes of a batch system that the only launcher does not use.
fn idle(call: &Call<'_>) -> Option<Check> {
    let step = Some(&call.pods.step).filter(|step| step.by.is_none() && !call.launch.is_configured)?;
    let nodes = step.size.nodes.filter(|nodes| *nodes > 1)?;
    let name = call.launch.grammar.name;
    let evidence = format!("{name} runs on the first of {nodes} nodes alone: the others have nothing to do");
    Some(Check::warn(evidence, remedy(call)))
}

fn of_number(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, manifests, .. } = call;
    let name = launch.grammar.name;
    let is_none = |told: &&Told| told.text.literal().is_some_and(|it| it.parse::<i64>().is_ok_and(|n| n < 1));
    if let Some(Told { text, by }) = launch.nodes.as_ref().filter(is_none) {
        let evidence = format!("{by} is {text}: {name} does not start");
        return Some(Check::fail(evidence, "a number from 1 on; `${N:-2}` gives 2, and `${N:=-2}` gives -2"));
    }
    let total = call.total()?;
    let (one, several) = if pods.are_tasks() { ("task", "tasks") } else { ("pod", "pods") };
    let are = |number: u64| counted(number, one, several);
    let Some(told) = &launch.nodes else {
        if total < 2 || call.may_be_told() || !pods.are_several() || call.launch.starts_nothing() {
            return None;
        }
        let evidence =
            format!("{name} is not told how many nodes there are, and takes itself for the only one");
        let remedy = format!("{}={total}", launch.nodes_flag());
        let Some(host) = launch.host.as_ref().filter(|_| launch.tool() != Tool::Accelerate) else {
            return Some(Check::warn(format!("{evidence}: each of {} trains alone", are(total)), remedy));
        };
        let to = format!("{} are to meet at {} ({})", are(total), host.text, host.by);
        return Some(Check::fail(format!("{evidence}; but {to}"), remedy));
    };
    let nodes = Nodes::parse(told.text.literal()?)?;
    let in_unit = pods.in_unit.filter(|_| !pods.is_alone);
    let possible = [Some(total), pods.count, in_unit, manifests.own_nodes(pods)];
    let (min, max) = (u64::from(nodes.min), u64::from(nodes.max));
    let fits = |count: u64| (min..=max).contains(&count) || nodes.fixed().is_none() && count > max;
    if max == 1 {
        return meets_others(call, total);
    }
    if possible.into_iter().flatten().any(fits) {
        return None;
    }
    // One object a node, each in a file of its own.
    let is_lone = total == 1 && matches!(pods.maker, Maker::Job | Maker::Pod);
    let rank = launch.node_rank.as_ref().and_then(|rank| rank.text.literal()?.parse::<u64>().ok());
    if let Some(rank) = rank.filter(|rank| is_lone && *rank < min) {
        let evidence =
            format!("this is node {rank} of {nodes} ({}), and the others are not in these files", told.by);
        return Some(Check::warn(evidence, "give all files of the job together"));
    }
    let then = if min > total {
        "they wait for the missing ones until the time-out"
    } else {
        "those that are too many never get in"
    };
    let only = match &pods.step {
        Step { by: None, usual: Some(usual), .. } => format!("runs without {usual}, so once only"),
        _ => format!("gets {}", are(total)),
    };
    let evidence = format!("{name} expects {nodes} nodes ({}), but {only}: {then}", told.by);
    Some(Check::fail(evidence, remedy(call)))
}

/// One node is told, and all are to meet at one host.
fn meets_others(call: &Call<'_>, total: u64) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let host = launch.host.as_ref().filter(|_| launch.backend == Backend::C10d || launch.needs_rank())?;
    let is_shared = match resolve(&host.text, pods, call.manifests) {
        Target::Pod { .. } => true,
        Target::Absent => pods.are_tasks() && pods.step.by.is_some() && !is_localhost(&host.text),
        _ => false,
    };
    // A rank is asked for only where there are others.
    let is_ranked = launch.node_rank.as_ref().is_some_and(|told| told.text.literal() != Some("0"));
    let told = launch.nodes.as_ref().filter(|_| is_shared && total > 1 && pods.are_alike())?;
    (is_ranked || launch.backend == Backend::C10d && launch.run_id.is_some()).then(|| {
        let what = if pods.are_tasks() { "tasks" } else { "pods" };
        let evidence = format!(
            "{} expects 1 node ({}), but {total} {what} come to {} ({}): each trains alone, or one gets in",
            launch.grammar.name, told.by, host.text, host.by
        );
        Check::fail(evidence, format!("{}={total}", launch.nodes_flag()))
    })
}

fn remedy(call: &Call<'_>) -> String {
    let (launch, name) = (call.launch, call.launch.grammar.name);
    let step = &call.pods.step;
    if by_mpi(call).is_some() {
        return format!("one task on each node: mpirun -npernode 1 {name} …");
    }
    if !call.pods.are_tasks() {
        return format!("change both together: the number of pods and {}", launch.nodes_flag());
    }
    match (step.by.as_deref().or(step.usual).unwrap_or("srun"), step.size.nodes) {
        ("srun", Some(1)) if launch.most_nodes() > Some(1) => {
            "srun on all nodes; or a `&` behind each srun, and `wait` after the last".into()
        }
        ("srun", Some(nodes)) => {
            format!("srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {name} …")
        }
        ("srun", None) => format!("srun --ntasks-per-node=1 {name} …"),
        (by, _) => format!("{by} with one task on each node: {name} …, with the number of nodes and a host"),
    }
}
