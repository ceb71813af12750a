//! What every launch has to satisfy, for each launcher and each way to start it: as many processes start as
//! wait for each other, each with a rank of its own.

use super::check_manifests;
use crate::Verdict;

/// What a launcher starts where it is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Once {
    /// Called once a node, by its rank.
    ByRank,
    /// Called once a node, in any order.
    ByNode,
    /// Called once in all.
    InAll,
}
use Once::{ByNode, ByRank, InAll};

/// A launcher, with NODES, RANK, HOST and WORLD for what it is told.
const LAUNCHERS: [(Once, &str); 10] = [
    (
        ByNode,
        "torchrun --nnodes=NODES --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=7 \
         --rdzv-endpoint=HOST:29500 t.py",
    ),
    (
        ByRank,
        "torchrun --nnodes NODES --nproc_per_node 8 --node_rank RANK --master_addr HOST \
         --master_port 29500 t.py",
    ),
    (
        ByRank,
        "python3 -m torch.distributed.launch --nnodes=NODES --nproc_per_node=8 --node_rank=RANK \
         --master_addr=HOST t.py",
    ),
    (
        ByRank,
        "accelerate launch --multi_gpu --num_machines=NODES --num_processes=WORLD \
         --machine_rank=RANK --main_process_ip=HOST --main_process_port=29500 t.py",
    ),
    (
        ByRank,
        "deepspeed --no_ssh --hostfile=h --num_nodes=NODES --num_gpus=8 --node_rank=RANK \
         --master_addr=HOST t.py",
    ),
    (
        ByRank,
        "composer --nproc=8 --world_size=WORLD --node_rank=RANK --master_addr=HOST --master_port=29500 t.py",
    ),
    (ByRank, "fabric run --num-nodes=NODES --devices=8 --node-rank=RANK --main-address=HOST t.py"),
    (ByRank, "vllm serve m --nnodes=NODES --node-rank=RANK --master-addr=HOST --tensor-parallel-size=16"),
    (
        ByRank,
        "python3 -m sglang.launch_server --tp=16 --nnodes=NODES --node-rank=RANK --dist-init-addr=HOST:20000",
    ),
    (InAll, "colossalai run --hostfile=h --num_nodes=NODES --nproc_per_node=8 --master_addr=HOST t.py"),
];

fn command(launcher: &str, nodes: u32, rank: &str, host: &str) -> String {
    let told = [("NODES", nodes.to_string()), ("WORLD", (8 * nodes).to_string())];
    let told = told.iter().fold(launcher.to_owned(), |text, (name, value)| text.replace(name, value));
    told.replace("RANK", rank).replace("HOST", host)
}

/// The checks that fail.
fn failed(name: &str, text: String) -> Vec<&'static str> {
    let found = check_manifests(&[(name.into(), text)], &[], &[]);
    found.iter().filter(|check| check.verdict == Verdict::Fail).map(|check| check.id).collect()
}

fn batch(each: u32, body: &str) -> Vec<&'static str> {
    let head = "HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)";
    let asked = format!("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node={each}\n#SBATCH --gpus-per-node=8");
    failed("train.sbatch", format!("#!/bin/bash\n{asked}\n{head}\n{body}\n"))
}

/// Starts the command so that each task fills in its own variables.
fn on_each(by: &str, command: &str) -> String {
    format!("{by} bash -c '{}'", command.replace("$HEAD", "'$HEAD'"))
}

#[test]
fn tasks_of_a_batch_system_are_as_many_as_wait_and_differ_in_their_ranks() {
    for (once, launcher) in LAUNCHERS {
        let call = |nodes, rank: &str| command(launcher, nodes, rank, "$HEAD");
        let by_rank = |id: &'static str| if once == ByRank { vec![id] } else { Vec::new() };
        let says = |found: Vec<&'static str>, expected: &[&str], what: &str| {
            assert_eq!(found, expected, "{what}: {launcher}");
        };
        let right = call(2, "$SLURM_NODEID");
        if once == InAll {
            says(batch(8, &on_each("srun", &right)), &["node-count"], "each starts all");
            continue;
        }
        let of_mpi = call(2, "$OMPI_COMM_WORLD_RANK");
        says(batch(1, &on_each("srun", &right)), &[], "once a node");
        says(batch(1, &on_each("mpirun -np 2 --map-by ppr:1:node", &of_mpi)), &[], "once a node, by MPI");
        says(batch(8, &on_each("srun", &right)), &["node-count"], "8 times a node");
        says(batch(8, &on_each("mpirun -np 16", &right)), &["node-count"], "8 times a node, by MPI");
        let unknown = right.replace(" t.py", " --not-a-flag t.py");
        let all = batch(8, &on_each("srun", &unknown));
        assert!(all.contains(&"node-count"), "8 times a node, with an unknown flag: {launcher}");
        says(batch(1, &right), &["node-count"], "without srun");
        says(batch(1, &format!("srun --nodes=1 --ntasks=1 {}", call(2, "0"))), &["node-count"], "one node");
        let in_loop = format!("for h in $(cat hosts); do\nsrun -N1 -n1 -w $h {}\ndone", call(2, "0"));
        says(batch(1, &in_loop), &["node-count"], "one after the other");
        says(batch(1, &on_each("srun", &call(4, "$SLURM_NODEID"))), &["node-count"], "too few nodes");
        for rank in ["0", "$SLURM_NODEID", "$SLURM_PROCID"] {
            says(batch(1, &format!("srun {}", call(2, rank))), &by_rank("node-rank"), "one rank for all");
        }
        let early = format!("export NODE_RANK=$SLURM_NODEID\n{}", on_each("srun", &call(2, "$NODE_RANK")));
        says(batch(1, &early), &by_rank("node-rank"), "filled in early");
    }
}

#[test]
fn pods_are_as_many_as_wait_and_differ_in_their_ranks() {
    for (once, launcher) in LAUNCHERS.into_iter().filter(|(once, _)| *once != InAll) {
        let pods = |mode: &str, nodes, rank: &str, host: &str| {
            let text = include_str!("job.yaml").replace("MODE", mode);
            failed("job.yaml", text.replace("COMMAND", &command(launcher, nodes, rank, host)))
        };
        let (index, host) = ("$JOB_COMPLETION_INDEX", "train-0.train");
        let by_rank = |id: &'static str| if once == ByRank { vec![id] } else { Vec::new() };
        let says = |found: Vec<&'static str>, expected: &[&str], what: &str| {
            assert_eq!(found, expected, "{what}: {launcher}");
        };
        says(pods("Indexed", 2, index, host), &[], "right");
        says(pods("Indexed", 4, index, host), &["node-count"], "too few pods");
        says(pods("Indexed", 2, "0", host), &by_rank("node-rank"), "one rank for all");
        assert!(pods("Indexed", 1, index, host).contains(&"node-count"), "one node told: {launcher}");
        says(pods("Indexed", 2, index, "localhost"), &["endpoint"], "each meets itself");
        says(pods("Indexed", 2, index, "$HOSTNAME"), &["endpoint"], "each meets itself by its name");
        let without = pods("NonIndexed", 2, index, host);
        assert!(without.contains(&"endpoint"), "pods without names: {launcher}");
        assert_eq!(without.contains(&"node-rank"), once == ByRank, "pods without an index: {launcher}");
    }
}

#[test]
fn a_flag_without_dashes_or_behind_a_quoted_blank_is_told_for_each_launcher() {
    for (_, launcher) in LAUNCHERS.into_iter().filter(|(_, launcher)| launcher.ends_with(" t.py")) {
        let call = command(launcher, 2, "$SLURM_NODEID", "$HEAD");
        let names = [("--main_process_ip", "main_process_port"), ("--main-address", "main_port")];
        let port = names.iter().find(|(flag, _)| call.contains(flag)).map_or("master_port", |(_, port)| port);
        let bare = call.replace(" t.py", &format!(" {port}=29500 t.py"));
        assert!(batch(1, &on_each("srun", &bare)).contains(&"misread-word"), "{bare}");
        let quoted = call.replace(" t.py", &format!(" \\ --{port}=29500 t.py"));
        assert!(batch(1, &format!("srun {quoted}")).contains(&"broken-line"), "{quoted}");
        assert!(!batch(1, &on_each("srun", &call)).contains(&"misread-word"), "{call}");
    }
}
