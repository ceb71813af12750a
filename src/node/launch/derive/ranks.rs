//! Ranks: of the node, from whatever numbers pods, and of the process, where it follows.

use super::sources::Sources;
use super::{Derivation, Derived, GIVEN, OF_COMMAND, Processes};
use crate::core::ids::Nodes;
use crate::node::launch::names::{first_label, ordinal, random_suffix};
use crate::node::launch::{LaunchError, Platform};

impl Derivation<'_> {
    pub(super) fn node_rank(
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
            // The first rank of this node, whatever the number of processes is.
            None if sources.found.first().is_some_and(|known| is_multiple(rank, known.value)) => {}
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

    /// Rank, world size and local rank of the process, where they follow.
    #[expect(clippy::type_complexity, reason = "three values of one shape")]
    pub(super) fn ranks(
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
}

/// Whether `rank` can be the first rank of node `node`.
const fn is_multiple(rank: u32, node: u32) -> bool {
    if node == 0 { rank == 0 } else { rank >= node && rank.is_multiple_of(node) }
}
