//! Kubeflow's Trainer, and the operator for an elastic PyTorchJob, set `PET_*`, which torchrun reads and no
//! other launcher: each node takes itself for the only one, trains alone, and ends with 0.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "trains-alone",
    sees: "FAIL: `python`, `accelerate launch`, `trl` or `deepspeed` in a TrainJob of several nodes, or \
           in an elastic PyTorchJob; `deepspeed` in several pods without `--hostfile`, or behind `srun`. \
           WARN: `accelerate launch` without `--multi_gpu` on several nodes with one GPU each; a PyTorchJob \
           with `--backend mpi`",
    examples: ["bad-trainjob-python.yaml", "good-trainjob.yaml"],
    find: Find::Files(|manifests| {
        let of_calls =
            manifests.calls().filter_map(|call| of_deepspeed(&call).or_else(|| of_accelerate(&call)));
        let of_mpi = manifests.pods.iter().filter_map(of_mpi);
        of_calls.chain(of_mpi).chain(manifests.pods.iter().flat_map(find)).collect()
    }),
};

fn find(pods: &Pods) -> Vec<Check> {
    let is_elastic = pods.maker == Maker::PyTorchJob && pods.has(When::Elastic) && !pods.has(When::Master);
    let of_trainer = pods.maker == Maker::TrainJob && pods.has_torch_runtime();
    if !pods.are_several() || !of_trainer && !is_elastic {
        return Vec::new();
    }
    pods.containers.iter().filter_map(|container| of_container(pods, container)).collect()
}

/// The operator of a PyTorchJob sets variables, and MPI counts what `mpirun` has started.
fn of_mpi(pods: &Pods) -> Option<Check> {
    let is_mpi = |argv: &[String]| {
        argv.windows(2).any(|two| two[0] == "--backend" && two[1] == "mpi")
            || argv.iter().any(|word| word == "--backend=mpi")
    };
    let is_first = pods.role == "master" || !pods.has(When::Master);
    let own = pods.containers.iter().find(|own| is_mpi(&own.argv))?;
    let evidence = "the backend is MPI, which counts what `mpirun` has started, and reads none of the \
                    variables of a PyTorchJob: each pod trains alone";
    let check = Check::warn(evidence, "--backend=gloo or nccl, or an MPIJob");
    (pods.maker == Maker::PyTorchJob && is_first).then(|| check.at(pods.at(&own.at("args"))))
}

/// DeepSpeed's launcher knows other nodes from its host file only, and sets `MASTER_ADDR=127.0.0.1` without.
fn of_deepspeed(call: &Call<'_>) -> Option<Check> {
    let Call { pods, launch, .. } = call;
    let knows_others = |word: &Text| {
        let word = word.to_string();
        word.starts_with('$') || ["hostfile", "no_ssh", "launcher.launch"].iter().any(|it| word.contains(it))
    };
    let is_meant = launch.host.is_some()
        || launch.most_nodes().is_some_and(|nodes| nodes > 1)
        || matches!(pods.maker, Maker::PyTorchJob | Maker::HyperPod);
    // For the others the operator sets PET_*, which `find` knows.
    let by_task = pods.step.size.tasks.filter(|_| pods.step.by.is_some());
    let started = if pods.are_tasks() { by_task } else { call.total().filter(|_| is_meant) }?;
    let is_told = pods.maker == Maker::TrainJob
        || call.has_usual_hosts()
        // `node-count` knows that it does not start.
        || call.lacks_hosts()
        || pods.has(When::Elastic)
        || launch.starts() == Starts::Node
        || launch.node_rank.is_some() && launch.has_hosts()
        || !pods.are_tasks() && launch.command.words.iter().any(knows_others);
    if launch.tool() != Tool::DeepSpeed || is_told || started < 2 {
        return None;
    }
    let evidence = if pods.are_tasks() {
        format!("`deepspeed` is started {started} times: each trains alone, or starts all of its hostfile")
    } else {
        format!(
            "`deepspeed` without --hostfile starts processes in its own pod only: each of {started} pods \
             trains alone"
        )
    };
    let remedy = "start it with `torchrun`, or with --no_ssh, --node_rank, --hostfile and --master_addr";
    Some(Check::fail(evidence, remedy).at(call.at("command")))
}

/// accelerate starts a distributed training by itself only where it sees several GPUs.
fn of_accelerate(call: &Call<'_>) -> Option<Check> {
    const STARTS: [&str; 6] = ["multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu", "cpu"];
    let Launch { is_configured, command, processes, .. } = call.launch;
    let is_told =
        |word: &Text| STARTS.contains(&word.to_string().trim_start_matches('-').replace('-', "_").as_str());
    let is_one = call.container.gpus() == Some(1)
        && processes.as_ref().is_none_or(|told| told.text.literal() == Some("1"))
        && call.launch.most_nodes() > Some(1);
    let is_alone = call.launch.tool() == Tool::Accelerate
        && is_one
        && !is_configured
        && !command.words.iter().any(is_told);
    let evidence = "`accelerate launch` sees one GPU, and starts its program without the other nodes: each \
                    trains alone, unless its default configuration says otherwise";
    is_alone.then(|| Check::warn(evidence, "--multi_gpu").at(call.at("command")))
}

fn of_container(pods: &Pods, container: &Container) -> Option<Check> {
    const TRAINERS: [&str; 4] = ["python", "accelerate", "trl", "deepspeed"];
    let is_told = |launch: &Launch| {
        matches!(launch.tool(), Tool::Torchrun | Tool::Program | Tool::Other)
            || launch.by_rallypoint
            || launch.node_rank.is_some()
            || launch.is_configured
    };
    let reads_variables =
        |command: &Command| command.words.iter().any(|word| word.to_string().contains("PET_"));
    let handled = container.open
        || container.argv.iter().any(|text| text.contains("PET_"))
        || container.launches.iter().any(is_told)
        || container.commands.iter().any(reads_variables);
    let program =
        container.commands.iter().rev().filter(|command| !command.conditional).find_map(|command| {
            let words = command.words.iter().take(4).filter_map(Text::literal).map(basename);
            words.into_iter().find(|word| {
                TRAINERS
                    .iter()
                    .any(|name| word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == *name)
            })
        })?;
    (!handled && container.may_train(true)).then(|| {
        let evidence = format!(
            "`{program}` does not read the PET_* variables of a {}: each of {} nodes trains alone, and all \
             exit 0",
            pods.facts().name,
            pods.count.unwrap_or_default()
        );
        let remedy = "start it with `torchrun`, or give the launcher the number of nodes, the node's rank \
                      and the master from PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT";
        Check::fail(evidence, remedy).at(pods.at(&container.at("command")))
    })
}
