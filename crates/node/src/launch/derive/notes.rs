//! Notes for the reader of the log: values that no source gave and how to give them, and variables of unknown
//! platforms that were seen but not used.

use super::facts::said;
use super::{Derivation, LaunchEnv};
use crate::launch::Platform;
use crate::launch::names::{first_label, ordinal};
use crate::launch::platform::{Says, Value};

/// Ends of variable names with a likely meaning, and the `RALLYPOINT_*` variable for that value.
const FOREIGN: [(Value, &str, &[&str]); 3] = [
    (
        Value::NodeRank,
        "RALLYPOINT_NODE_RANK",
        &[
            "NODE_RANK",
            "NODE_INDEX",
            "NODE_IDX",
            "NODEID",
            "NODENUM",
            "REPLICA_INDEX",
            "REPLICA_IDX",
            "REPLICA_RANK",
            "WORKER_INDEX",
            "WORKER_ID",
            "WORKER_RANK",
            "TASK_INDEX",
            "POD_INDEX",
            "POD_RANK",
            "HOST_INDEX",
            "HOST_RANK",
            "MACHINE_RANK",
            "MACHINE_INDEX",
            "GROUP_RANK",
            "INSTANCE_INDEX",
            "ROLE_INDEX",
            "PROCNO",
            "TRAINER_ID",
        ],
    ),
    (
        Value::Nodes,
        "RALLYPOINT_NODES",
        &[
            "NUM_NODES",
            "NNODES",
            "NODES_NUM",
            "NODE_NUM",
            "NODE_COUNT",
            "NODES_COUNT",
            "NUM_HOSTS",
            "HOST_COUNT",
            "NHOSTS",
            "NUM_WORKERS",
            "WORKER_NUM",
            "WORKER_COUNT",
            "TOTAL_WORKERS",
            "NUM_REPLICAS",
            "REPLICA_COUNT",
            "NUM_MACHINES",
            "MACHINE_COUNT",
            "NUM_INSTANCES",
            "TRAINERS_NUM",
        ],
    ),
    (
        Value::Endpoint,
        "RALLYPOINT_ENDPOINT",
        &[
            "MASTER_ADDR",
            "MASTER_ADDRESS",
            "MASTER_IP",
            "MASTER_HOST",
            "MASTER_NODE",
            "MASTER_NODE_IP",
            "HEAD_IP",
            "HEAD_NODE_IP",
            "HEAD_ADDRESS",
            "LEADER_ADDRESS",
            "LEADER_IP",
            "CHIEF_IP",
            "COORDINATOR_ADDRESS",
            "PRIMARY_ADDR",
            "RANK0_HOST",
        ],
    ),
];
/// Variables with these prefixes are read elsewhere, or say nothing about nodes: the rank of a process on its
/// node, a Service.
const NOT_FOREIGN: [&str; 8] =
    ["RALLYPOINT_", "PET_", "TORCHELASTIC_", "OMPI_", "KUBERNETES_", "SLURM_", "PBS_", "GROVE_"];

impl Derivation<'_> {
    pub(crate) fn notes(&self, launch: &LaunchEnv) -> Vec<String> {
        let mut notes = Vec::new();
        self.note_slurm(launch, &mut notes);
        self.note_host(launch, &mut notes);
        let missing = |value| match value {
            Value::NodeRank => launch.node_rank.is_none(),
            Value::Nodes => launch.nodes.is_none(),
            Value::Endpoint => launch.endpoint.is_none(),
            Value::World => launch.world_size.is_none(),
        };
        for platform in Platform::all_in(self.env) {
            let hints = platform.hints.iter().filter(|(value, _)| missing(*value));
            let hints = hints.filter(|(_, hint)| self.can_follow(platform, hint));
            notes.extend(hints.map(|(_, hint)| format!("{}: {hint}", platform.name)));
        }
        for (value, ours, ends) in FOREIGN {
            if missing(value) {
                notes.extend(self.foreign(value, ours, ends));
            }
        }
        self.note_counts(launch, &mut notes);
        notes
    }

    /// Whether the variables of the platform that a hint calculates with are set.
    fn can_follow(&self, platform: &Platform, hint: &str) -> bool {
        let Some((_, formula)) = hint.split_once("$((") else { return true };
        let words = || formula.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        platform.says().all(|(name, _)| self.env.get(name).is_some() || words().all(|word| word != name))
    }

    /// Variables whose names suggest a value, each with the line that would set the value.
    fn foreign(&self, value: Value, ours: &str, ends: &[&str]) -> Vec<String> {
        let used = |name: &str| {
            Platform::all_in(self.env).any(|platform| platform.says().any(|(known, _)| known == name))
        };
        let fits = |name: &str, text: &str| {
            let ends_so = ends.iter().any(|end| {
                name.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('_'))
            });
            let is_value = match value {
                Value::Endpoint => !text.contains("://") && !text.contains('/'),
                _ => text.parse::<u32>().is_ok(),
            };
            ends_so && is_value
        };
        let names = self.env.iter().map(|(name, _)| name);
        names
            .filter(|name| !NOT_FOREIGN.iter().any(|start| name.starts_with(start)) && !used(name))
            .filter(|name| !["NODE_RANK", "MASTER_ADDR"].contains(name))
            .filter_map(|name| {
                let text = self.env.get(name).filter(|text| fits(name, text))?;
                Some(format!("{name}={text} is not used; if it says this, set {ours}=\"${name}\""))
            })
            .collect()
    }

    /// A number in the host's name that is not taken for a rank.
    fn note_host(&self, launch: &LaunchEnv, notes: &mut Vec<String>) {
        let host = &self.given.hostname;
        let is_nodes = self.given.pods_hostname().is_empty() && ordinal(first_label(host)).is_some();
        if self.env.in_kubernetes() && is_nodes && launch.node_rank.is_none() {
            notes.push(format!(
                "the host's name `{host}` is that of a node, so its number is no rank; hand in the pod's \
                 name: POD_NAME from metadata.name"
            ));
        }
    }

    fn note_slurm(&self, launch: &LaunchEnv, notes: &mut Vec<String>) {
        let Some(step) = &self.slurm else { return };
        let nodes = step.nodes.map_or(1, |(nodes, _)| nodes);
        if self.env.get("SLURM_HOSTFILE").is_some() && launch.endpoint.is_none() {
            notes.push(
                "Slurm: with SLURM_HOSTFILE the first node of the list need not have rank 0; set \
                 RALLYPOINT_ENDPOINT=\"$(head -n 1 \"$SLURM_HOSTFILE\"):29500\""
                    .to_owned(),
            );
        }
        if !step.started_by_srun && nodes > 1 && launch.node_rank.is_none() {
            notes.push(format!(
                "Slurm: srun did not start this (SLURM_STEP_ID is not set), so it runs once and not on each \
                 of the {nodes} nodes of the job; start it with: srun --ntasks-per-node=1 rallypoint ..."
            ));
        }
        if let (true, Some(all)) = (step.started_by_srun, step.nodes_of_job.filter(|&all| nodes < all)) {
            notes.push(format!(
                "Slurm: this step has {nodes} of the {all} nodes of the job (SLURM_JOB_NUM_NODES), so it is \
                 a run of {nodes}; for one run of all nodes start one step: srun --nodes={all} \
                 --ntasks-per-node=1 ..."
            ));
        }
    }

    /// Notes about `RANK`, `WORLD_SIZE` and GPUs, whose meaning is not clear.
    fn note_counts(&self, launch: &LaunchEnv, notes: &mut Vec<String>) {
        if let (None, Some(world)) = (&launch.nodes, self.env.get("WORLD_SIZE")) {
            notes.push(format!(
                "WORLD_SIZE={world} may count nodes or processes, and nothing says how many processes a node \
                 has; set RALLYPOINT_NODES, or RALLYPOINT_NPROC_PER_NODE"
            ));
        }
        if let (None, Some(rank)) = (&launch.node_rank, self.env.get("RANK")) {
            notes.push(format!(
                "RANK={rank} may be that of a node or of a process, and nothing says how many processes a \
                 node has; set RALLYPOINT_NODE_RANK, or RALLYPOINT_NPROC_PER_NODE"
            ));
        }
        if let (None, Some((name, count))) = (&launch.nproc_per_node, self.gpus())
            && self.command.is_none()
        {
            notes.push(format!(
                "{name}={count} counts GPUs; for one process each set RALLYPOINT_NPROC_PER_NODE=\"${name}\""
            ));
        }
        let members = self.members().unwrap_or_default();
        if let Some((name, _)) = members.iter().find(|(_, member)| member.rank.is_none()) {
            notes.push(format!("{name} says that this node does not train, so it has no rank"));
        }
        let uneven = said(self.env, Says::HostSlots).next().filter(|_| launch.nodes.is_none());
        if let Some((_, name, list)) = uneven {
            notes.push(format!(
                "{name}=`{list}` has hosts with other numbers of slots, of which one may only run the job's \
                 script; set RALLYPOINT_NODES, RALLYPOINT_NODE_RANK and RALLYPOINT_ENDPOINT"
            ));
        }
    }
}
