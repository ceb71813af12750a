//! Why there is no launch environment. Each message names the variables and ends with advice.

use crate::endpoint::EndpointError;

/// A contradiction, or a value that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A text that should be a count or an index.
    #[error("{name} is `{value}`, which is no whole number; correct it, or unset it")]
    NotANumber {
        /// The variable or flag.
        name: String,
        /// Its value.
        value: String,
    },
    /// A number of nodes that is neither `N` nor `MIN:MAX`.
    #[error("{name} is `{value}`; write the number of nodes as N or MIN:MAX, with MIN from 1 to MAX")]
    BadNodes {
        /// The variable or flag.
        name: String,
        /// Its value.
        value: String,
    },
    /// A number of processes that is neither a number nor one of torchrun's words.
    #[error("{name} is `{value}`; write the number of processes per node from 1 on, or auto, gpu, cpu")]
    BadProcesses {
        /// The variable or flag.
        name: String,
        /// Its value.
        value: String,
    },
    /// Two sources give different values.
    #[error(transparent)]
    Differ(Box<Difference>),
    /// An index that does not fit the number of nodes.
    #[error(
        "node rank {rank} (from {rank_from}) does not fit {nodes} nodes (from {nodes_from}): ranks are 0 to \
         {}; was the number of pods raised without the number of nodes?",
        nodes.saturating_sub(1)
    )]
    RankBeyondNodes {
        /// The node rank.
        rank: u32,
        /// Its source.
        rank_from: String,
        /// The number of nodes.
        nodes: u32,
        /// Its source.
        nodes_from: String,
    },
    /// A process rank that does not fit the world size.
    #[error("RANK={rank} does not fit WORLD_SIZE={world}: ranks are 0 to {}", .world.saturating_sub(1))]
    RankBeyondWorld {
        /// `RANK`.
        rank: u32,
        /// `WORLD_SIZE`.
        world: u32,
    },
    /// A world size that fits neither the number of pods nor the number of processes.
    #[error(
        "WORLD_SIZE={world} fits neither {nodes} nodes (from {nodes_from}) nor {nodes} nodes of {processes} \
         processes ({}, processes from {processes_from}); correct it, or leave it to the launcher",
        u64::from(*.nodes).saturating_mul((*.processes).into())
    )]
    WorldSize {
        /// `WORLD_SIZE`.
        world: u32,
        /// The number of nodes.
        nodes: u32,
        /// Its source.
        nodes_from: String,
        /// The number of processes on each node.
        processes: u32,
        /// The source of that number.
        processes_from: String,
    },
    /// A world that cannot be divided into nodes.
    #[error(
        "WORLD_SIZE={world} is no multiple of {processes} processes per node (from {from}), so the number of \
         nodes does not follow; set --nodes (RALLYPOINT_NODES)"
    )]
    UnevenWorld {
        /// `WORLD_SIZE`.
        world: u32,
        /// The number of processes on each node.
        processes: u32,
        /// The source of that number.
        from: String,
    },
    /// The rank of a process in the middle of a node, in a pod that starts the node's launcher.
    #[error(
        "RANK={rank} is not the first rank of a node with {processes} processes (from {from}); for a \
         launcher of whole nodes set PET_NODE_RANK instead, for single processes set LOCAL_RANK too"
    )]
    RankInsideNode {
        /// `RANK`.
        rank: u32,
        /// The number of processes on each node.
        processes: u32,
        /// The source of that number.
        from: String,
    },
    /// A rank that contradicts the rank on the node.
    #[error(
        "RANK={rank} and LOCAL_RANK={local} do not fit {processes} processes on each node (from {from}): \
         process {rank} is number {} of its node; correct the wrong one",
        rank.checked_rem(*.processes).unwrap_or_default()
    )]
    LocalRank {
        /// `RANK`.
        rank: u32,
        /// `LOCAL_RANK`.
        local: u32,
        /// The number of processes on each node.
        processes: u32,
        /// The source of that number.
        from: String,
    },
    /// `${POD_NAME##*-}` in the pod of a Job.
    #[error(
        "{name}={value} is the random end of the Job pod's name `{pod}`, not an index; use \
         JOB_COMPLETION_INDEX, which an Indexed Job sets{}",
        .index.map(|index| format!(" (here {index})")).unwrap_or_default()
    )]
    RandomSuffix {
        /// The variable that has it.
        name: String,
        /// Its value.
        value: String,
        /// The pod.
        pod: String,
        /// The index that is right.
        index: Option<u32>,
    },
    /// The end of a pod's name is random, so it cannot be a StatefulSet's ordinal.
    #[error(
        "the pod's name `{pod}` (from {from}) ends in random characters, not in an ordinal; only pods of a \
         StatefulSet are numbered by name. Set --node-rank (RALLYPOINT_NODE_RANK)"
    )]
    NoOrdinal {
        /// The pod.
        pod: String,
        /// The source of its name.
        from: &'static str,
    },
    /// An invalid host or port.
    #[error("{name}: {error}")]
    Endpoint {
        /// The variable or flag.
        name: String,
        /// The error.
        error: EndpointError,
    },
    /// A variable is missing from which a name is made.
    #[error("{variable} is {}, so the name of the master cannot be made ({made}); set it in the pod's env",
        if *.blank { "set but empty" } else { "not set" })]
    NamePart {
        /// The missing variable.
        variable: &'static str,
        /// Whether it is set, but empty.
        blank: bool,
        /// The form of the name.
        made: String,
    },
    /// The link to a Service with the variable's name, which Kubernetes sets.
    #[error(
        "{name}={value} is the link to a Service `{}` that Kubernetes injects into every pod, not a port; \
         set {name} in the pod's own env, or `enableServiceLinks: false` in its spec",
        service_of(name)
    )]
    ServiceLink {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A list of hosts that cannot be read.
    #[error("{name}=`{value}` is no list of hosts; correct it, or set --endpoint, --nodes and --node-rank")]
    HostList {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A number of tasks that cannot be read.
    #[error(
        "{name}=`{value}` is no number of tasks per node, such as 8(x2),4; set --nproc-per-node or unset it"
    )]
    TasksPerNode {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// JSON about the cluster that names no node, or not this one.
    #[error(
        "{0} is no JSON with `cluster` and `task` that names this node among those that train; set --nodes \
         (RALLYPOINT_NODES), --node-rank (RALLYPOINT_NODE_RANK) and --endpoint, or unset it"
    )]
    ClusterSpec(String),
    /// The JobSet has several jobs, and nothing tells how many pods they have.
    #[error(
        "{name}={job} says that this pod is not in the first job of its JobSet, but nothing says how many \
         pods come before it (NNODES and REPLICATED_JOB_REPLICAS do, if all jobs are of one kind); set \
         RALLYPOINT_NODE_RANK=$((PODS_BEFORE + JOB_COMPLETION_INDEX)) and RALLYPOINT_NODES"
    )]
    JobSetShape {
        /// The source of the job's number.
        name: &'static str,
        /// The number of the job.
        job: u32,
    },
    /// The Volcano job has several tasks, and nothing numbers their pods together.
    #[error(
        "the Volcano job has several tasks ({0}), each of which counts its pods from 0; use Volcano's \
         pytorch plugin, or set RALLYPOINT_NODE_RANK=$((PODS_BEFORE + VC_TASK_INDEX)) in each task, and \
         RALLYPOINT_NODES"
    )]
    VolcanoTasks(String),
    /// The job has several groups of nodes, each with its own ranks.
    #[error(
        "{name}={value}: the job on {platform} has several groups of nodes, and nothing says which of them \
         train together; set --node-rank (RALLYPOINT_NODE_RANK) and --nodes (RALLYPOINT_NODES)"
    )]
    Groups {
        /// The variable that tells it.
        name: String,
        /// Its value.
        value: String,
        /// The platform.
        platform: &'static str,
    },
    /// Several launchers start on one node, and each would start all processes of the node.
    #[error(
        "{from} says that {tasks} processes of the job start on this node, and each would be a torchrun with \
         the same node rank; start one on each node (srun --ntasks-per-node=1, mpirun --npernode 1)"
    )]
    ManyLaunchers {
        /// The number of launchers.
        tasks: u32,
        /// The variable that tells it.
        from: String,
    },
    /// Two pods have rank 0.
    #[error(
        "this pod `{pod}` has node rank 0 (from {rank_from}), but the master is another pod of the same job, \
         `{master}` (from {master_from}), which has rank 0 too: the job has several groups of pods, each \
         counted from 0. Set --node-rank (RALLYPOINT_NODE_RANK) to the place among all of them"
    )]
    SecondFirst {
        /// This pod.
        pod: String,
        /// The source of its rank.
        rank_from: String,
        /// The master.
        master: String,
        /// The source of its name.
        master_from: String,
    },
}

/// Two sources with different values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{first} and {second} differ: {what} is {first_value} by the one and {second_value} by the other; unset \
     the wrong one, or decide with {flag}"
)]
pub struct Difference {
    /// The name of the value, in words.
    pub what: &'static str,
    /// The first source.
    pub first: String,
    /// Its value.
    pub first_value: String,
    /// The other source.
    pub second: String,
    /// Its value.
    pub second_value: String,
    /// The flag that overrides both.
    pub flag: &'static str,
}

fn service_of(name: &str) -> String {
    name.trim_end_matches("_PORT").to_ascii_lowercase().replace('_', "-")
}
