//! The derivation. For each value there is an ordered list of sources; all that are there must agree, the first is named
//! as the origin. What the user gives to rallypoint itself overrides everything, and is the way out of a contradiction.

use serde::Serialize;

use super::names::{first_label, ordinal, random_suffix};
use super::slurm::first_host;
use super::{Difference, Environment, LaunchError, Platform, Torchrun};
use crate::endpoint::{Endpoint, EndpointError, parse_port};

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

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Derived<T> {
    /// The value.
    pub value: T,
    /// The variable or flag it came from.
    pub from: String,
    /// Why that says it.
    pub why: String,
}

/// A number of nodes: as many as `max`, at least `min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nodes {
    /// The fewest to start with.
    pub min: u32,
    /// The most.
    pub max: u32,
}

impl Nodes {
    /// Exactly `n`.
    pub const fn exactly(n: u32) -> Self {
        Self { min: n, max: n }
    }

    /// Reads `N` or `MIN:MAX`.
    pub fn parse(text: &str) -> Option<Self> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let nodes = Self { min: min.trim().parse().ok()?, max: max.trim().parse().ok()? };
        (1 <= nodes.min && nodes.min <= nodes.max).then_some(nodes)
    }

    /// The number, if it is one.
    pub const fn fixed(self) -> Option<u32> {
        if self.min == self.max { Some(self.max) } else { None }
    }
}

impl std::fmt::Display for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.fixed() {
            Some(n) => write!(f, "{n}"),
            None => write!(f, "{}:{}", self.min, self.max),
        }
    }
}

impl Serialize for Nodes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Processes of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Processes {
    /// So many.
    Count(u32),
    /// What torchrun counts itself: `auto`, `gpu`, `cpu`, …
    Auto(String),
}

impl Processes {
    /// Reads a number from 1 on, or one of torchrun's words.
    pub fn parse(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(0) => None,
            Ok(count) => Some(Self::Count(count)),
            Err(_) if text.chars().all(|c| c.is_ascii_alphabetic()) => Some(Self::Auto(text.into())),
            Err(_) => None,
        }
    }

    /// The number, if it is known.
    pub const fn count(&self) -> Option<u32> {
        match self {
            Self::Count(count) => Some(*count),
            Self::Auto(_) => None,
        }
    }
}

impl std::fmt::Display for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Auto(word) => f.write_str(word),
        }
    }
}

impl Serialize for Processes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The pod, as others are told of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// `POD_NAME`, else the host's name.
    pub name: String,
    /// `POD_UID`, if the pod was given it.
    pub uid: Option<String>,
    /// `POD_IP`, if the pod was given it.
    pub address: Option<String>,
}

/// Who this pod, or this process, is in its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaunchEnv {
    /// What made the pod.
    pub platform: Platform,
    /// The pod.
    pub pod: Pod,
    /// The pod's place among the nodes.
    pub node_rank: Option<Derived<u32>>,
    /// How many nodes there are.
    pub nodes: Option<Derived<Nodes>>,
    /// Processes of each node.
    pub nproc_per_node: Option<Derived<Processes>>,
    /// Where the nodes meet.
    pub endpoint: Option<Derived<Endpoint>>,
    /// The name of the run.
    pub run_id: Option<Derived<String>>,
    /// The process's rank, where each process has its own environment or a node has one process.
    pub rank: Option<Derived<u32>>,
    /// The number of processes, where it follows.
    pub world_size: Option<Derived<u32>>,
    /// The process's rank on its node.
    pub local_rank: Option<Derived<u32>>,
}

impl LaunchEnv {
    /// The number of nodes to wait for before anybody starts: the fewest that can start.
    pub fn quorum(&self) -> Option<u32> {
        self.nodes.as_ref().map(|nodes| nodes.value.min)
    }

    /// The run's name, or for a run without one the name of its store.
    pub fn run_id_or_store(&self) -> Option<String> {
        let named = self.run_id.as_ref().map(|run_id| run_id.value.clone());
        named.or_else(|| Some(format!("store:{}", self.endpoint.as_ref()?.value.port())))
    }
}

/// The sources of one value, best first.
struct Sources<T> {
    what: &'static str,
    flag: &'static str,
    found: Vec<Derived<T>>,
}

impl<T: PartialEq + std::fmt::Display> Sources<T> {
    const fn of(what: &'static str, flag: &'static str) -> Self {
        Self { what, flag, found: Vec::new() }
    }

    fn add(&mut self, value: Option<T>, from: impl Into<String>, why: impl Into<String>) {
        let (from, why) = (from.into(), why.into());
        self.found.extend(value.map(|value| Derived { value, from, why }));
    }

    /// The first source, if no other contradicts it.
    fn settle(self, agree: impl Fn(&T, &T) -> bool) -> Result<Option<Derived<T>>, LaunchError> {
        let (what, flag) = (self.what, self.flag);
        let mut found = self.found.into_iter();
        let Some(first) = found.next() else { return Ok(None) };
        match found.find(|other| !agree(&first.value, &other.value)) {
            None => Ok(Some(first)),
            Some(second) => Err(LaunchError::Differ(Box::new(Difference {
                what,
                first: first.from,
                first_value: first.value.to_string(),
                second: second.from,
                second_value: second.value.to_string(),
                flag,
            }))),
        }
    }
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

    fn node_rank(
        &self,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
    ) -> Result<Option<Derived<u32>>, LaunchError> {
        let mut sources = Sources::of("the node rank", "--node-rank (RALLYPOINT_NODE_RANK)");
        if self.given.node_rank.is_some() {
            sources.add(self.given.node_rank, "--node-rank (RALLYPOINT_NODE_RANK)", GIVEN);
            return Ok(sources.found.pop());
        }
        if let Some((text, from)) = self.flag("node-rank") {
            let rank =
                text.parse().map_err(|_| LaunchError::NotANumber { name: from.clone(), value: text.into() });
            sources.add(Some(rank?), from, OF_COMMAND);
        } else {
            sources.add(self.number("PET_NODE_RANK")?, "PET_NODE_RANK", "torchrun's own variable");
        }
        for name in ["RALLYPOINT_POD_INDEX", "POD_INDEX"] {
            sources.add(self.number(name)?, name, "the pod's index, from its label");
        }
        self.add_completion_index(nodes, &mut sources)?;
        sources.add(self.number("NODE_RANK")?, "NODE_RANK", "node rank");
        match self.platform {
            Platform::LeaderWorkerSet => {
                let why = "index in the group, 0 is the leader";
                sources.add(self.number("LWS_WORKER_INDEX")?, "LWS_WORKER_INDEX", why);
                self.add_group_index(&mut sources);
            }
            Platform::Slurm => {
                sources.add(self.number("SLURM_NODEID")?, "SLURM_NODEID", "the node's index in the job step");
            }
            Platform::Volcano if self.env.get("RANK").is_none() => {
                for name in ["VC_TASK_INDEX", "VK_TASK_INDEX"] {
                    sources.add(
                        self.number(name)?,
                        name,
                        "the pod's index in its task, the only one in a job of one task",
                    );
                }
            }
            _ => {}
        }
        self.add_rank(nodes, processes, &mut sources)?;
        self.add_ordinal(&mut sources)?;
        let settled = sources.settle(PartialEq::eq);
        if settled.is_err() {
            for name in ["PET_NODE_RANK", "NODE_RANK", "RANK"] {
                self.refuse_random_suffix(name)?;
            }
        }
        settled
    }

    /// The index that the Job controller gives; in a JobSet of several jobs it is the index within one of them.
    fn add_completion_index(
        &self,
        nodes: Option<&Derived<Nodes>>,
        sources: &mut Sources<u32>,
    ) -> Result<(), LaunchError> {
        let Some(index) = self.number("JOB_COMPLETION_INDEX")? else { return Ok(()) };
        let job = if self.platform == Platform::JobSet { self.number("JOB_INDEX")?.unwrap_or(0) } else { 0 };
        let jobs = self.number("REPLICATED_JOB_REPLICAS")?.unwrap_or(1);
        let per_job = nodes.and_then(|nodes| nodes.value.fixed()?.checked_div(jobs));
        match (job, per_job) {
            (0, _) => {
                let why = "set by the Job controller in each pod of an Indexed Job";
                sources.add(Some(index), "JOB_COMPLETION_INDEX", why);
            }
            (job, Some(per_job)) if jobs > 1 => {
                let why = format!("pod {index} of job {job}, {per_job} pods in each of {jobs} jobs");
                sources.add(Some(job * per_job + index), "JOB_INDEX and JOB_COMPLETION_INDEX", why);
            }
            _ if sources.found.is_empty() => return Err(LaunchError::JobSetShape(job)),
            _ => {}
        }
        Ok(())
    }

    /// Before 0.6 a LeaderWorkerSet gave no index; its leader is `NAME-GROUP`, its workers `NAME-GROUP-INDEX`.
    fn add_group_index(&self, sources: &mut Sources<u32>) {
        if self.env.get("LWS_WORKER_INDEX").is_some() {
            return;
        }
        let (from, name) = self.pod_name();
        let leader = self.env.get("LWS_LEADER_ADDRESS").map(first_label);
        let index = match leader {
            Some(leader) if leader == name => Some(0),
            Some(leader) => {
                let worker = name.strip_prefix(leader).and_then(|rest| rest.strip_prefix('-'));
                worker.and_then(|index| index.parse().ok())
            }
            None => None,
        };
        sources.add(index, from, "its place behind the leader's name in LWS_LEADER_ADDRESS");
    }

    /// What `RANK` says of the node, which depends on what it counts.
    fn add_rank(
        &self,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
        sources: &mut Sources<u32>,
    ) -> Result<(), LaunchError> {
        // Slurm numbers nodes itself; what RANK is there, a script made of it.
        let Some(rank) = self.number("RANK")?.filter(|_| self.platform != Platform::Slurm) else {
            return Ok(());
        };
        let world = self.number("WORLD_SIZE")?;
        let of_a_process = self.env.get("LOCAL_RANK").is_some() && self.command.is_none();
        if self.platform.counts_pods() && !of_a_process {
            let why = format!("RANK counts pods on this platform ({})", self.platform.name());
            sources.add(Some(rank), "RANK", why);
            return Ok(());
        }
        let fixed = nodes.and_then(|nodes| nodes.value.fixed());
        match processes.map(|processes| processes.value.count()) {
            None | Some(Some(1)) => sources.add(Some(rank), "RANK", "one process a pod"),
            Some(Some(each)) if world.is_some() && world == fixed => {
                let why =
                    format!("WORLD_SIZE is the number of nodes, so RANK counts pods of {each} processes");
                sources.add(Some(rank), "RANK", why);
            }
            Some(Some(each)) if of_a_process || rank.is_multiple_of(each) => {
                let why = format!("process {rank}, with {each} processes on each node");
                sources.add(Some(rank / each), "RANK", why);
            }
            Some(Some(each)) if sources.found.is_empty() || world.is_some() => {
                return Err(LaunchError::RankInsideNode { rank, processes: each });
            }
            _ => {}
        }
        Ok(())
    }

    /// The ordinal in the name, where pods are numbered by name and are not a Job's.
    fn add_ordinal(&self, sources: &mut Sources<u32>) -> Result<(), LaunchError> {
        let by_name = self.platform.numbers_names()
            || self.platform == Platform::PyTorchJob && self.env.get("RANK").is_none();
        if !by_name || self.env.get("JOB_COMPLETION_INDEX").is_some() {
            return Ok(());
        }
        let (from, pod) = self.pod_name();
        if let Some((name, ordinal)) = ordinal(pod) {
            sources.add(Some(ordinal), from, format!("`{pod}` is pod {ordinal} of `{name}`"));
        } else if sources.found.is_empty() && random_suffix(pod) {
            return Err(LaunchError::NoOrdinal { pod: pod.into() });
        }
        Ok(())
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

    /// Rank, world size and local rank of the process, where they follow.
    #[expect(clippy::type_complexity, reason = "three values of one shape")]
    fn ranks(
        &self,
        node_rank: Option<&Derived<u32>>,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
    ) -> Result<(Option<Derived<u32>>, Option<Derived<u32>>, Option<Derived<u32>>), LaunchError> {
        let value = |value, from: &str, why: &str| {
            Some(Derived { value, from: from.to_owned(), why: why.to_owned() })
        };
        let fixed = nodes.and_then(|nodes| nodes.value.fixed());
        let each = processes.map_or(Some(1), |processes| processes.value.count());
        if self.platform == Platform::Slurm && each.is_some_and(|each| each > 1) {
            let why = "Slurm starts each process as a task";
            let of = |name| Ok(self.number(name)?.and_then(|number| value(number, name, why)));
            return Ok((of("SLURM_PROCID")?, of("SLURM_NTASKS")?, of("SLURM_LOCALID")?));
        }
        if self.command.is_none()
            && let (Some(rank), Some(world), Some(local)) =
                (self.number("RANK")?, self.number("WORLD_SIZE")?, self.number("LOCAL_RANK")?)
        {
            let why = "set for this process";
            return Ok((
                value(rank, "RANK", why),
                value(world, "WORLD_SIZE", why),
                value(local, "LOCAL_RANK", why),
            ));
        }
        let world = fixed.zip(each).and_then(|(nodes, each)| {
            value(nodes.saturating_mul(each), "nodes and processes", &format!("{nodes} nodes of {each}"))
        });
        if each != Some(1) {
            return Ok((None, world, None));
        }
        let why = "one process a node, so its rank is the node's";
        let rank = node_rank.and_then(|rank| value(rank.value, &rank.from, why));
        let local = rank.as_ref().and_then(|_| value(0, "nodes and processes", why));
        Ok((rank, world, local))
    }

    fn endpoint(&self) -> Result<Option<Derived<Endpoint>>, LaunchError> {
        /// Where torchrun's c10d backend goes if its endpoint names no port.
        const TORCHRUN_PORT: u16 = 29400;

        let found = |value, from: &str, why: &str| {
            Ok(Some(Derived { value, from: from.to_owned(), why: why.to_owned() }))
        };
        let wrong = |name: &str| {
            let name = name.to_owned();
            move |error| LaunchError::Endpoint { name, error }
        };
        if let Some(endpoint) = &self.given.endpoint {
            return found(endpoint.clone(), "RALLYPOINT_ENDPOINT", GIVEN);
        }
        if let Some((text, from)) = self.flag("rdzv-endpoint") {
            return found(Endpoint::parse(text, TORCHRUN_PORT).map_err(wrong(&from))?, &from, OF_COMMAND);
        }
        if let Some((host, from)) = self.flag("master-addr") {
            let port = match self.flag("master-port") {
                Some((port, from)) => parse_port(port, port).map_err(wrong(&from))?,
                None => self.port("PET_MASTER_PORT")?.unwrap_or(Endpoint::DEFAULT_PORT),
            };
            return found(Endpoint::new(host, port).map_err(wrong(&from))?, &from, OF_COMMAND);
        }
        let name = "PET_RDZV_ENDPOINT";
        if let Some(text) = self.env.get(name) {
            let endpoint = Endpoint::parse(text, TORCHRUN_PORT).map_err(wrong(name))?;
            return found(endpoint, name, "torchrun's own variable");
        }
        let mut sources = Sources::of("the master's address", "--endpoint (RALLYPOINT_ENDPOINT)");
        for (name, port_name) in [("PET_MASTER_ADDR", "PET_MASTER_PORT"), ("MASTER_ADDR", "MASTER_PORT")] {
            let Some(host) = self.env.get(name) else { continue };
            let port = self.port(port_name)?.unwrap_or(Endpoint::DEFAULT_PORT);
            sources.add(
                Some(Endpoint::new(host, port).map_err(wrong(name))?),
                name,
                "the address of the store",
            );
        }
        if sources.found.is_empty() {
            self.add_platforms_master(&mut sources)?;
        }
        sources.settle(PartialEq::eq)
    }

    fn port(&self, name: &'static str) -> Result<Option<u16>, LaunchError> {
        match self.env.get(name) {
            None => Ok(None),
            Some(value) if value.starts_with("tcp://") => {
                Err(LaunchError::ServiceLink { name: name.into(), value: value.into() })
            }
            Some(port) => {
                let wrong = |error: EndpointError| LaunchError::Endpoint { name: name.into(), error };
                parse_port(port, port).map(Some).map_err(wrong)
            }
        }
    }

    /// The address of pod 0, where the platform says how it is called.
    fn add_platforms_master(&self, sources: &mut Sources<Endpoint>) -> Result<(), LaunchError> {
        let default = Endpoint::DEFAULT_PORT;
        let at = |host: &str, port: u16, name: &str| {
            Endpoint::new(host, port)
                .map(Some)
                .map_err(|error| LaunchError::Endpoint { name: name.to_owned(), error })
        };
        match self.platform {
            Platform::LeaderWorkerSet => {
                if let Some(leader) = self.env.get("LWS_LEADER_ADDRESS") {
                    let name = "LWS_LEADER_ADDRESS";
                    sources.add(
                        at(leader, default, name)?,
                        name,
                        "the group's leader, with torch's usual port",
                    );
                }
            }
            Platform::Slurm => {
                let list = self.env.get("SLURM_STEP_NODELIST").or_else(|| self.env.get("SLURM_JOB_NODELIST"));
                if let Some(list) = list {
                    let host = first_host(list).ok_or_else(|| LaunchError::NodeList(list.into()))?;
                    let name = "SLURM_JOB_NODELIST";
                    sources.add(at(&host, default, name)?, name, "the first node, with torch's usual port");
                }
            }
            Platform::InjectedStatefulSet | Platform::InjectedJob => {
                let (host, why) = self.first_injected_pod()?;
                let port = self.port("POD_PORT")?.unwrap_or(default);
                let name = "SVC_NAME, POD_NAMESPACE and POD_PORT";
                sources.add(at(&host, port, name)?, name, why);
            }
            _ => {}
        }
        Ok(())
    }

    /// `JOB-0.SVC.NAMESPACE`, to which the resolver adds the cluster's domain.
    fn first_injected_pod(&self) -> Result<(String, String), LaunchError> {
        let (_, pod) = self.pod_name();
        let of_the_name = ordinal(pod).map(|(name, _)| name);
        let job = self.env.get("JOB_NAME").or(of_the_name).ok_or(LaunchError::NamePart {
            variable: "JOB_NAME",
            blank: self.env.is_blank("JOB_NAME"),
            made: "JOB_NAME-0.SVC_NAME.POD_NAMESPACE".into(),
        })?;
        let mut host = format!("{job}-0");
        for (variable, needed) in [("SVC_NAME", true), ("POD_NAMESPACE", false)] {
            match self.env.get(variable) {
                Some(part) => host = format!("{host}.{part}"),
                None if needed => {
                    let (blank, made) = (self.env.is_blank(variable), format!("{host}.{variable}"));
                    return Err(LaunchError::NamePart { variable, blank, made });
                }
                None => {}
            }
        }
        let why = format!("pod 0 of `{job}` behind its headless Service");
        Ok((host, why))
    }

    fn run_id(&self) -> Option<Derived<String>> {
        let found = |value: &str, from: &str, why: &str| {
            Some(Derived { value: value.to_owned(), from: from.to_owned(), why: why.to_owned() })
        };
        if let Some(run_id) = &self.given.run_id {
            return found(run_id, "--run-id (RALLYPOINT_RUN_ID)", GIVEN);
        }
        if let Some((run_id, from)) = self.flag("rdzv-id") {
            return found(run_id, &from, OF_COMMAND);
        }
        for (name, why) in [
            ("PET_RDZV_ID", "torchrun's own variable"),
            ("JOB_UID", "the Job's UID, another one for each run"),
            ("SLURM_JOB_ID", "another one for each job"),
            ("RDZV_ID", "torchrun does not read it, rallypoint does"),
            ("JOB_ID", "another one for each job, by its name"),
        ] {
            // torchrun's own default is no id.
            if let Some(run_id) = self.env.get(name).filter(|&id| id != "none") {
                return found(run_id, name, why);
            }
        }
        let namespace = self.env.get("POD_NAMESPACE").map(|name| format!("{name}.")).unwrap_or_default();
        for name in ["JOBSET_NAME", "JOB_NAME"] {
            if let Some(job) = self.env.get(name) {
                return found(
                    &format!("{namespace}{job}"),
                    name,
                    "the job's name, the same for each run of it",
                );
            }
        }
        let (from, pod) = match self.env.get("JOB_COMPLETION_INDEX") {
            // A Job's pod has the index at the end of its host name, not of its own name.
            Some(_) => ("the host's name", first_label(&self.given.hostname)),
            None => self.pod_name(),
        };
        let numbered = self.env.in_kubernetes() && self.platform != Platform::Kubetorch;
        let (set, _) = ordinal(pod).filter(|_| numbered)?;
        // The leader of a LeaderWorkerSet has one number less than its workers.
        let set = match (self.platform, self.env.get("LWS_LEADER_ADDRESS")) {
            (Platform::LeaderWorkerSet, Some(leader)) => first_label(leader),
            (Platform::PyTorchJob, _) => set.trim_end_matches("-master").trim_end_matches("-worker"),
            _ => set,
        };
        found(&format!("{namespace}{set}"), from, "the name that all its pods share, the same for each run")
    }
}

#[cfg(test)]
mod tests;
