//! The derivation. Each value has an ordered list of sources. All present sources must agree, and the first
//! one is named as the origin. A value that the user gives to rallypoint itself overrides everything, and so
//! resolves a contradiction.

mod counts;
mod facts;
mod notes;
mod place;
mod ranks;
mod sources;
mod values;
mod volcano;

use super::names::{first_label, is_of_a_node, random_suffix};
use super::platform::Kind;
use super::slurm::Step;
use super::{Environment, LaunchError, Platform, Torchrun};
use crate::endpoint::Endpoint;
use facts::Task;
use rallypoint_protocol::ids::Nodes;
pub use values::{Derived, LaunchEnv, Meeting, Pod, Processes};

/// Values that the user gives to rallypoint, by flags or `RALLYPOINT_*`.
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
    /// Whether the host's name is the node's, and not the pod's, if the kubelet says so.
    pub host_network: Option<bool>,
}

impl Given {
    /// The host's name, if it can be the pod's. With the host's network it is the node's.
    pub(super) fn pods_hostname(&self) -> &str {
        if self.host_network.unwrap_or_else(|| is_of_a_node(&self.hostname)) { "" } else { &self.hostname }
    }
}

const GIVEN: &str = "said to rallypoint, overrides every other source";
const OF_COMMAND: &str = "a flag of the command, which torchrun prefers to its variables";

/// Derives all values from the environment, the command and the user. Only `rallypoint run` has a command.
pub fn derive(
    env: &Environment,
    given: &Given,
    command: Option<&Torchrun>,
) -> Result<LaunchEnv, LaunchError> {
    let mut job = Derivation::of(env, given, command);
    job.ask_launchers()?;
    let processes = job.processes()?;
    let said = job.nodes(processes.as_ref())?;
    let place = job.place(said.as_ref())?;
    let processes = job.processes_of_world(processes, said.as_ref())?;
    let nodes = job.nodes_of_world(said, processes.as_ref(), place.as_ref())?;
    let node_rank = job.node_rank(place, nodes.as_ref(), processes.as_ref())?;
    job.check(node_rank.as_ref(), nodes.as_ref(), processes.as_ref())?;
    let (rank, world_size, local_rank) = job.ranks(node_rank.as_ref(), nodes.as_ref(), processes.as_ref())?;
    let endpoint = job.endpoint()?;
    job.refuse_second_first(node_rank.as_ref(), endpoint.as_ref())?;
    let mut launch = LaunchEnv {
        platform: job.platform,
        pod: job.pod(),
        endpoint,
        run_id: job.run_id(),
        node_rank,
        nodes,
        nproc_per_node: processes,
        rank,
        world_size,
        local_rank,
        notes: Vec::new(),
    };
    launch.notes = job.notes(&launch);
    Ok(launch)
}

/// Derives the node rank alone, for the sidecar: its container does not have the other values.
pub fn node_rank(env: &Environment, given: &Given) -> Result<Option<Derived<u32>>, LaunchError> {
    let mut job = Derivation::of(env, given, None);
    job.ask_launchers()?;
    let place = job.place(None)?;
    job.node_rank(place, None, None)
}

/// Derives the endpoint alone, for commands that only need to reach the server.
pub fn endpoint(env: &Environment, given: &Given) -> Result<Option<Derived<Meeting>>, LaunchError> {
    Derivation::of(env, given, None).endpoint()
}

struct Derivation<'a> {
    env: &'a Environment,
    given: &'a Given,
    command: Option<&'a Torchrun>,
    platform: &'static Platform,
    /// The Slurm job step, if there is one.
    slurm: Option<Step>,
    /// The process, as its launcher counts it.
    task: Option<Task>,
}

impl<'a> Derivation<'a> {
    /// A value that the user gave to rallypoint. Its origin is the variable if that has the same value,
    /// otherwise the flag.
    fn said<T: Clone + PartialEq>(
        &self,
        value: Option<&T>,
        flag: &str,
        variable: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Derived<T>> {
        let value = value?.clone();
        let in_variable = self.env.get(variable).and_then(read).as_ref() == Some(&value);
        let from = if in_variable { variable } else { flag }.to_owned();
        Some(Derived { value, from, why: GIVEN.to_owned() })
    }

    fn of(env: &'a Environment, given: &'a Given, command: Option<&'a Torchrun>) -> Self {
        let platform = Platform::recognize(env, given.pods_hostname());
        Self { env, given, command, platform, slurm: None, task: None }
    }

    /// Reads the variables of launchers of single processes. Their errors do not matter if rank and nodes are
    /// given.
    fn ask_launchers(&mut self) -> Result<(), LaunchError> {
        let decided = self.given.node_rank.is_some() && self.given.nodes.is_some();
        self.slurm = Step::read(self.env).or_else(|error| if decided { Ok(None) } else { Err(error) })?;
        self.task = self.task().or_else(|error| if decided { Ok(None) } else { Err(error) })?;
        let here = self.task.as_ref().and_then(|task| task.on_this_node.as_ref());
        if let (Some(_), false, Some(here)) = (self.command, decided, here.filter(|here| here.value > 1)) {
            return Err(LaunchError::ManyLaunchers { tasks: here.value, from: here.from.clone() });
        }
        Ok(())
    }

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

    fn processes_in(name: &str, text: &str) -> Result<Option<Processes>, LaunchError> {
        let bad = || LaunchError::BadProcesses { name: name.into(), value: text.into() };
        Processes::parse(text).map(Some).ok_or_else(bad)
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

    /// The name that may end in an ordinal, and its source.
    fn pod_name(&self) -> (&'static str, &str) {
        match self.env.get("POD_NAME") {
            Some(name) => ("POD_NAME", name),
            None => ("the host's name", first_label(self.given.pods_hostname())),
        }
    }

    /// Whether a platform's variables are set: it may be the platform that made the pod, or one inside the
    /// pod.
    fn sees(&self, kind: Kind) -> bool {
        Platform::all_in(self.env).any(|platform| platform.kind == kind)
    }

    /// Whether `RANK` belongs to one of several processes of a node: a launcher of such processes also sets
    /// `LOCAL_RANK`. Before a command that is a launcher itself, both are leftovers.
    fn is_a_process(&self) -> bool {
        self.env.get("LOCAL_RANK").is_some() && self.command.is_none()
    }
}

#[cfg(test)]
mod tests;
