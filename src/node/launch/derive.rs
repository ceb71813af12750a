//! The derivation. For each value there is an ordered list of sources; all that are there must agree, the first is named
//! as the origin. What the user gives to rallypoint itself overrides everything, and is the way out of a contradiction.

mod place;
mod ranks;
mod sources;
mod values;

use super::names::{first_label, random_suffix};
use super::{Environment, LaunchError, Platform, Torchrun};
use crate::core::ids::Nodes;
use crate::node::endpoint::Endpoint;
use sources::Sources;
pub use values::{Derived, LaunchEnv, Pod, Processes};

/// What the user says to rallypoint: flags, or `RALLYPOINT_*`.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// `--node-rank`.
    pub node_rank: Option<u32>,
    /// `--nodes`.
    pub nodes: Option<Nodes>,
    /// `--nproc-per-node`.
    pub processes: Option<Processes>,
    /// `--endpoint`.
    pub endpoint: Option<Endpoint>,
    /// `--run-id`.
    pub run_id: Option<String>,
    /// The host's name.
    pub hostname: String,
}

const GIVEN: &str = "said to rallypoint, overrides every other source";
const OF_COMMAND: &str = "a flag of the command, which torchrun prefers to its variables";

/// Derives what the environment, the command and the user say. The command is there for `rallypoint run`.
pub fn derive(
    env: &Environment,
    given: &Given,
    command: Option<&Torchrun>,
) -> Result<LaunchEnv, LaunchError> {
    let job = Derivation { env, given, command, platform: Platform::recognize(env, &given.hostname) };
    let processes = job.processes()?;
    let nodes = job.nodes(processes.as_ref())?;
    let processes = job.processes_of_world(processes, nodes.as_ref())?;
    let node_rank = job.node_rank(nodes.as_ref(), processes.as_ref())?;
    job.check(node_rank.as_ref(), nodes.as_ref(), processes.as_ref())?;
    let (rank, world_size, local_rank) = job.ranks(node_rank.as_ref(), nodes.as_ref(), processes.as_ref())?;
    Ok(LaunchEnv {
        platform: job.platform,
        pod: job.pod(),
        endpoint: job.endpoint()?,
        run_id: job.run_id(),
        node_rank,
        nodes,
        nproc_per_node: processes,
        rank,
        world_size,
        local_rank,
    })
}

/// Derives the node rank alone, for the sidecar whose container is not told the rest.
pub fn node_rank(env: &Environment, given: &Given) -> Result<Option<Derived<u32>>, LaunchError> {
    let platform = Platform::recognize(env, &given.hostname);
    Derivation { env, given, command: None, platform }.node_rank(None, None)
}

/// Derives the endpoint alone, for the commands that only need to reach the store.
pub fn endpoint(env: &Environment, given: &Given) -> Result<Option<Derived<Endpoint>>, LaunchError> {
    let platform = Platform::recognize(env, &given.hostname);
    Derivation { env, given, command: None, platform }.endpoint()
}

struct Derivation<'a> {
    env: &'a Environment,
    given: &'a Given,
    command: Option<&'a Torchrun>,
    platform: Platform,
}

impl Derivation<'_> {
    fn flag(&self, name: &'static str) -> Option<(&str, String)> {
        let value = self.command?.flag(name).filter(|value| !value.is_empty() && !value.contains('$'))?;
        Some((value, format!("--{name} of the command")))
    }

    fn number(&self, name: &'static str) -> Result<Option<u32>, LaunchError> {
        let number = self.env.number(name);
        if number.is_err() {
            self.refuse_random_suffix(name)?;
        }
        number
    }

    /// Refuses a "rank" that is the end of a Job pod's name.
    fn refuse_random_suffix(&self, name: &str) -> Result<(), LaunchError> {
        let (Some(value), Some(pod)) = (self.env.get(name), self.env.get("POD_NAME")) else { return Ok(()) };
        let is_end = pod.rsplit_once('-').is_some_and(|(_, end)| end == value);
        let index = self.env.get("JOB_COMPLETION_INDEX").and_then(|index| index.parse().ok());
        let of_a_job = index.is_some_and(|index: u32| index.to_string() != value) || random_suffix(pod);
        if is_end && of_a_job {
            return Err(LaunchError::RandomSuffix {
                name: name.into(),
                value: value.into(),
                pod: pod.into(),
                index,
            });
        }
        Ok(())
    }

    fn nodes_in(&self, name: &'static str) -> Result<Option<Nodes>, LaunchError> {
        let Some(text) = self.env.get(name) else { return Ok(None) };
        let bad = || LaunchError::BadNodes { name: name.into(), value: text.into() };
        Nodes::parse(text).map(Some).ok_or_else(bad)
    }

    fn pod(&self) -> Pod {
        let text = |name| self.env.get(name).map(str::to_owned);
        let named = text("POD_NAME").or_else(|| text("SLURMD_NODENAME"));
        Pod {
            name: named.unwrap_or_else(|| first_label(&self.given.hostname).to_owned()),
            uid: text("POD_UID").or_else(|| text("POD_UUID")),
            address: text("POD_IP"),
        }
    }

    /// The name that may end in an ordinal.
    fn pod_name(&self) -> (&'static str, &str) {
        match self.env.get("POD_NAME") {
            Some(name) => ("POD_NAME", name),
            None => ("the host's name", first_label(&self.given.hostname)),
        }
    }

    fn processes(&self) -> Result<Option<Derived<Processes>>, LaunchError> {
        let mut sources = Sources::of("the number of processes per node", "--nproc-per-node");
        if self.given.processes.is_some() {
            sources.add(self.given.processes.clone(), "--nproc-per-node (RALLYPOINT_NPROC_PER_NODE)", GIVEN);
            return Ok(sources.found.pop());
        }
        let read = |name: &str, text: &str| {
            let bad = || LaunchError::NotANumber { name: name.into(), value: text.into() };
            Processes::parse(text).map(Some).ok_or_else(bad)
        };
        if let Some((text, from)) = self.flag("nproc-per-node") {
            // The flag wins in torchrun, so its variable is not asked.
            sources.add(read(&from, text)?, from, OF_COMMAND);
        } else if let Some(text) = self.env.get("PET_NPROC_PER_NODE") {
            sources.add(read("PET_NPROC_PER_NODE", text)?, "PET_NPROC_PER_NODE", "torchrun's own variable");
        }
        for name in ["NPROC_PER_NODE", "LOCAL_WORLD_SIZE"] {
            if let Some(text) = self.env.get(name) {
                sources.add(read(name, text)?, name, "processes of a node");
            }
        }
        if self.platform == Platform::Slurm {
            let (tasks, nodes) = (self.number("SLURM_NTASKS")?, self.number("SLURM_NNODES")?);
            let each =
                tasks.zip(nodes).and_then(|(tasks, nodes)| tasks.checked_div(nodes)).filter(|&n| n > 1);
            sources.add(each.map(Processes::Count), "SLURM_NTASKS", "Slurm starts each process as a task");
        }
        // `auto` and a number are not two opinions: torchrun counts, and the number is what it should find.
        sources.settle(|a, b| a == b || a.count().is_none() || b.count().is_none())
    }

    fn nodes(&self, processes: Option<&Derived<Processes>>) -> Result<Option<Derived<Nodes>>, LaunchError> {
        let mut sources = Sources::of("the number of nodes", "--nodes (RALLYPOINT_NODES)");
        if self.given.nodes.is_some() {
            sources.add(self.given.nodes, "--nodes (RALLYPOINT_NODES)", GIVEN);
            return Ok(sources.found.pop());
        }
        if let Some((text, from)) = self.flag("nnodes") {
            let bad = || LaunchError::BadNodes { name: from.clone(), value: text.into() };
            sources.add(Some(Nodes::parse(text).ok_or_else(bad)?), from.clone(), OF_COMMAND);
        } else {
            sources.add(self.nodes_in("PET_NNODES")?, "PET_NNODES", "torchrun's own variable");
        }
        for (name, why) in [
            ("NNODES", "number of nodes"),
            ("NUM_NODES", "number of nodes"),
            ("POD_NUMS", "pods of the job"),
            ("LWS_GROUP_SIZE", "pods of the group, leader included"),
        ] {
            sources.add(self.nodes_in(name)?, name, why);
        }
        if self.platform == Platform::Slurm {
            for name in ["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"] {
                if self.env.get(name).is_some() {
                    sources.add(self.nodes_in(name)?, name, "nodes of the job step");
                    break;
                }
            }
        }
        if let Some(world) = self.number("WORLD_SIZE")?.filter(|&world| world > 0) {
            self.add_nodes_of_world(world, processes, &mut sources)?;
        }
        // A number within a range agrees with it.
        let within = |a: &Nodes, b: &Nodes| a.min <= b.min && b.max <= a.max;
        sources.settle(|a, b| within(a, b) || within(b, a))
    }

    /// What `WORLD_SIZE` says of the number of nodes. Where another source says it, `check` compares them.
    fn add_nodes_of_world(
        &self,
        world: u32,
        processes: Option<&Derived<Processes>>,
        sources: &mut Sources<Nodes>,
    ) -> Result<(), LaunchError> {
        if !sources.found.is_empty() {
            return Ok(());
        }
        if self.platform.counts_pods() {
            let why = format!("WORLD_SIZE counts pods on this platform ({})", self.platform.name());
            sources.add(Some(Nodes::exactly(world)), "WORLD_SIZE", why);
            return Ok(());
        }
        match processes.map(|processes| (processes.value.count(), &processes.from)) {
            // Where pods have an index of their own, a world of processes looks the same on pod 0.
            None if self.platform != Platform::Variables => {}
            None => {
                let why = "one process a pod, since nothing says how many";
                sources.add(Some(Nodes::exactly(world)), "WORLD_SIZE", why);
            }
            Some((Some(each), _)) if world.is_multiple_of(each) => {
                let why = format!("{world} processes, {each} on each node");
                sources.add(Some(Nodes::exactly(world / each)), "WORLD_SIZE", why);
            }
            Some((Some(each), from)) => {
                return Err(LaunchError::UnevenWorld { world, processes: each, from: from.clone() });
            }
            // How many processes `auto` means is not known here.
            Some((None, _)) => {}
        }
        Ok(())
    }

    /// Where only the world and the nodes are known, the number of processes follows.
    fn processes_of_world(
        &self,
        processes: Option<Derived<Processes>>,
        nodes: Option<&Derived<Nodes>>,
    ) -> Result<Option<Derived<Processes>>, LaunchError> {
        let known = (self.number("WORLD_SIZE")?, nodes.and_then(|nodes| nodes.value.fixed()));
        let (None, (Some(world), Some(nodes))) = (&processes, known) else { return Ok(processes) };
        if world <= nodes || !world.is_multiple_of(nodes) {
            return Ok(None);
        }
        let why = format!("{world} processes on {nodes} nodes");
        Ok(Some(Derived { value: Processes::Count(world / nodes), from: "WORLD_SIZE".into(), why }))
    }

    /// Whether rank, nodes and world fit each other.
    fn check(
        &self,
        node_rank: Option<&Derived<u32>>,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
    ) -> Result<(), LaunchError> {
        if let (Some(rank), Some(nodes)) = (node_rank, nodes)
            && rank.value >= nodes.value.max
        {
            return Err(LaunchError::RankBeyondNodes {
                rank: rank.value,
                rank_from: rank.from.clone(),
                nodes: nodes.value.max,
                nodes_from: nodes.from.clone(),
            });
        }
        let world = self.number("WORLD_SIZE")?;
        if let (Some(rank), Some(world)) = (self.number("RANK")?, world)
            && rank >= world
        {
            return Err(LaunchError::RankBeyondWorld { rank, world });
        }
        let known = (
            world,
            nodes.and_then(|nodes| nodes.value.fixed()),
            processes.map_or(Some(1), |processes| processes.value.count()),
        );
        if let (Some(world), Some(nodes), Some(processes)) = known
            && world != nodes
            && world != nodes.saturating_mul(processes)
        {
            return Err(LaunchError::WorldSize { world, nodes, processes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
