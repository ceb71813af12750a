//! Ranks: the node's rank, from any source that numbers pods, and the process's rank, if it follows.

use super::sources::Sources;
use super::volcano::refused_if;
use super::{Derivation, Derived, Meeting, OF_COMMAND, Processes};
use crate::launch::LaunchError;
use crate::launch::names::{first_label, ordinal, random_suffix, role_of, siblings};
use crate::launch::platform::{Kind, Says};
use crate::launch::slurm::Step;
use crate::makers::Maker;
use rallypoint_protocol::ids::Nodes;

const FLAG: &str = "--node-rank (RALLYPOINT_NODE_RANK)";

impl Derivation<'_> {
    /// The node rank, from every source except `RANK`.
    pub(crate) fn place(&self, nodes: Option<&Derived<Nodes>>) -> Result<Option<Derived<u32>>, LaunchError> {
        let mut sources = Sources::of("the node rank", FLAG);
        let said = self.given.node_rank.as_ref();
        let read = |text: &str| text.parse().ok();
        if let Some(said) = self.said(said, "--node-rank", "RALLYPOINT_NODE_RANK", read) {
            return Ok(Some(said));
        }
        if let Some((text, from)) = self.flag("node-rank") {
            let rank =
                text.parse().map_err(|_| LaunchError::NotANumber { name: from.clone(), value: text.into() });
            sources.add(Some(rank?), from, OF_COMMAND);
        } else {
            sources.add(self.number("PET_NODE_RANK")?, "PET_NODE_RANK", "torchrun's own variable");
        }
        if sources.found.is_empty() {
            self.refuse_groups()?;
        }
        self.add_said(Says::NodeRank, "the node's index", &mut sources, |name| self.number(name))?;
        self.add_completion_index(nodes, &mut sources)?;
        if self.sees(Kind::Maker(Maker::LeaderWorkerSet)) {
            self.add_group_index(&mut sources);
        }
        for list in self.host_lists()? {
            if let Some((at, from)) = list.own {
                sources.add(Some(at), from, "this node's place in the list");
            }
        }
        for (name, member) in self.members()? {
            sources.add(member.rank, name, "this node's place among those that train");
        }
        self.add_index_of_the_launcher(nodes, &mut sources)?;
        // `RANK` of Volcano's pytorch plugin counts the pods of all tasks. The `RANK` of a process says
        // nothing about its pod.
        let has_rank = self.env.get("RANK").is_some();
        if self.sees(Kind::Maker(Maker::VolcanoJob)) && (!has_rank || self.is_a_process()) {
            let nothing_else = sources.found.is_empty() && !has_rank;
            let place = self.volcano_place().or_else(|error| refused_if(nothing_else, error))?;
            if let Some(place) = place {
                sources.add(place.index, place.from, "the pod's place among all tasks of the job");
            }
        }
        self.add_ordinal(&mut sources)?;
        let settled = sources.settle(PartialEq::eq);
        if settled.is_err() {
            for name in ["PET_NODE_RANK", "NODE_RANK"] {
                self.refuse_random_suffix(name)?;
            }
        }
        settled
    }

    /// The node of the launcher's task.
    fn add_index_of_the_launcher(
        &self,
        nodes: Option<&Derived<Nodes>>,
        sources: &mut Sources<u32>,
    ) -> Result<(), LaunchError> {
        if self.slurm_counts_this() {
            let why = "the node's index in the job step";
            sources.add(self.number("SLURM_NODEID")?, "SLURM_NODEID", why);
        }
        let Some(task) = &self.task else { return Ok(()) };
        if task.is_alone() {
            let from = task.on_this_node.as_ref().map_or("", |here| &here.from);
            sources.add(Some(0), from, "all processes are on this node");
        } else if task.is_the_node(nodes.and_then(|nodes| nodes.value.fixed())) {
            sources.add(Some(task.rank.value), &*task.rank.from, "one process on each node");
        }
        Ok(())
    }

    /// The index from the Job controller. In a JobSet of several jobs it is the index within one job.
    fn add_completion_index(
        &self,
        nodes: Option<&Derived<Nodes>>,
        sources: &mut Sources<u32>,
    ) -> Result<(), LaunchError> {
        let Some(index) = self.number("JOB_COMPLETION_INDEX")? else { return Ok(()) };
        let (job, from) = if self.sees(Kind::Maker(Maker::JobSet)) {
            self.job_of_the_set(index)?
        } else {
            (0, "JOB_COMPLETION_INDEX")
        };
        let jobs = self.number("REPLICATED_JOB_REPLICAS")?.unwrap_or(1);
        let global = self.number("JOB_GLOBAL_INDEX")?.unwrap_or(job);
        let total = nodes.and_then(|nodes| nodes.value.fixed());
        let even = total.filter(|total| total.is_multiple_of(jobs));
        let per_job = even.and_then(|total| total.checked_div(jobs));
        match per_job {
            _ if job == 0 => {
                let why = "set by the Job controller in each pod of an Indexed Job";
                sources.add(Some(index), "JOB_COMPLETION_INDEX", why);
            }
            // Jobs of another kind, with another number of pods, may precede this job.
            Some(per_job) if jobs > 1 && job < jobs && index < per_job && global == job => {
                let why = format!("pod {index} of job {job}, {per_job} pods in each of {jobs} jobs");
                let rank = job.checked_mul(per_job).and_then(|first| first.checked_add(index));
                sources.add(rank, format!("{from} and JOB_COMPLETION_INDEX"), why);
            }
            _ if sources.found.is_empty() => {
                return Err(LaunchError::JobSetShape { name: from, job });
            }
            _ => {}
        }
        Ok(())
    }

    /// The number of this pod's job in its JobSet, from a label or from the host's name
    /// `SET-REPLICATED-JOB-POD`.
    fn job_of_the_set(&self, index: u32) -> Result<(u32, &'static str), LaunchError> {
        let (job, global) = (self.number("JOB_INDEX")?, self.number("JOB_GLOBAL_INDEX")?);
        if let Some(global) = global.filter(|global| job.is_none_or(|job| *global > job)) {
            return Ok((global, "JOB_GLOBAL_INDEX"));
        }
        if let Some(job) = job {
            return Ok((job, "JOB_INDEX"));
        }
        let host = ordinal(first_label(&self.given.hostname)).filter(|(_, pod)| *pod == index);
        let job = host.and_then(|(job, _)| ordinal(job)).map(|(_, job)| job);
        Ok((job.unwrap_or(0), "the host's name"))
    }

    /// Before 0.6, a LeaderWorkerSet set no index. Its leader is named `NAME-GROUP`, and its workers
    /// `NAME-GROUP-INDEX`.
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
        let from = format!("{from} and LWS_LEADER_ADDRESS");
        sources.add(index, from, "the pod's place behind the leader's name");
    }

    /// The node rank, including `RANK`, whose meaning depends on the platform.
    pub(crate) fn node_rank(
        &self,
        place: Option<Derived<u32>>,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
    ) -> Result<Option<Derived<u32>>, LaunchError> {
        let Some(rank) = self.number("RANK")?.filter(|_| self.given.node_rank.is_none()) else {
            return Ok(place);
        };
        let known = place.as_ref().map(|place| place.value);
        let mut sources = Sources::of("the node rank", FLAG);
        sources.found.extend(place);
        // The task that is the node's launcher may have started this process.
        let fixed = nodes.and_then(|nodes| nodes.value.fixed());
        let is_a_process = self.is_a_process();
        if let Some(task) = self.task.as_ref().filter(|task| !(is_a_process && task.is_the_node(fixed))) {
            let each = processes.and_then(|processes| processes.value.count()).unwrap_or(1);
            let of_the_node = !is_a_process
                && known.is_some_and(|known| [known, known.saturating_mul(each)].contains(&rank));
            if rank == task.rank.value || of_the_node {
                return sources.settle(PartialEq::eq);
            }
            sources.what = "the rank";
            sources.found = vec![task.rank.clone()];
            sources.add(Some(rank), "RANK", "");
            return sources.settle(PartialEq::eq);
        }
        if self.counts_pods() {
            let why = format!("RANK counts pods on this platform ({})", self.platform.name);
            sources.add(Some(rank), "RANK", why);
        } else if known != Some(rank) || self.is_a_process() {
            self.add_rank_of_process(rank, known, nodes, processes, &mut sources)?;
        }
        let settled = sources.settle(PartialEq::eq);
        if settled.is_err() {
            self.refuse_random_suffix("RANK")?;
        }
        settled
    }

    fn add_rank_of_process(
        &self,
        rank: u32,
        known: Option<u32>,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
        sources: &mut Sources<u32>,
    ) -> Result<(), LaunchError> {
        let world = self.number("WORLD_SIZE")?;
        let fixed = nodes.and_then(|nodes| nodes.value.fixed());
        let is_a_process = self.is_a_process();
        let local = if is_a_process { self.number("LOCAL_RANK")? } else { None };
        match processes.map(|processes| (processes.value.count(), &processes.from)) {
            Some((None, _)) => {}
            Some((Some(each), from))
                if local.is_some_and(|local| local >= each || rank.checked_rem(each) != Some(local)) =>
            {
                let local = local.unwrap_or_default();
                return Err(LaunchError::LocalRank { rank, local, processes: each, from: from.clone() });
            }
            Some((Some(each), _)) if each > 1 && !is_a_process && world.is_some() && world == fixed => {
                let why =
                    format!("WORLD_SIZE is the number of nodes, so RANK counts pods of {each} processes");
                sources.add(Some(rank), "RANK", why);
            }
            Some((Some(each), _)) if is_a_process || rank.is_multiple_of(each) => {
                let why = format!("process {rank}, with {each} processes on each node");
                sources.add(rank.checked_div(each), "RANK", why);
            }
            Some((Some(each), from)) => {
                return Err(LaunchError::RankInsideNode { rank, processes: each, from: from.clone() });
            }
            None => match known {
                // It may be the first rank of this node or a later one, whatever the number of processes is.
                Some(known) if could_be_on(rank, known, local) => {}
                Some(_) => {
                    sources.add(Some(rank), "RANK", "no number of processes makes it a rank of this node");
                }
                None if self.is_one_process_a_pod() => sources.add(Some(rank), "RANK", "one process a pod"),
                None => {}
            },
        }
        Ok(())
    }

    fn add_ordinal(&self, sources: &mut Sources<u32>) -> Result<(), LaunchError> {
        let by_name = self.platform.numbers_names()
            || self.platform.kind == Kind::Maker(Maker::PyTorchJob) && self.env.get("RANK").is_none();
        if !by_name || self.env.get("JOB_COMPLETION_INDEX").is_some() {
            return Ok(());
        }
        let (from, pod) = self.pod_name();
        match ordinal(pod) {
            // Two groups of pods may contain two pods with one number.
            Some((set, _)) if role_of(set).is_some() && !sources.found.is_empty() => {}
            Some((name, ordinal)) => {
                sources.add(Some(ordinal), from, format!("`{pod}` is pod {ordinal} of `{name}`"));
            }
            None if sources.found.is_empty() && random_suffix(pod) => {
                return Err(LaunchError::NoOrdinal { pod: pod.into(), from });
            }
            None => {}
        }
        Ok(())
    }

    /// Refuses rank 0 if the master is, by its name, another pod of the same job: that pod also has rank 0.
    pub(crate) fn refuse_second_first(
        &self,
        node_rank: Option<&Derived<u32>>,
        endpoint: Option<&Derived<Meeting>>,
    ) -> Result<(), LaunchError> {
        let (Some(rank), Some(endpoint)) = (node_rank.filter(|rank| rank.value == 0), endpoint) else {
            return Ok(());
        };
        if self.given.node_rank.is_some() || self.given.endpoint.is_some() {
            return Ok(());
        }
        let master = first_label(endpoint.value.endpoint().host());
        let own = first_label(&self.given.hostname);
        let of_one_set = self.env.get("JOBSET_NAME").is_some_and(|set| {
            let of_the_set = |name: &str| name.strip_prefix(set).is_some_and(|rest| rest.starts_with('-'));
            own != master
                && of_the_set(own)
                && of_the_set(master)
                && ordinal(own).is_some()
                && ordinal(master).is_some()
        });
        if of_one_set || siblings(own, master) {
            return Err(LaunchError::SecondFirst {
                pod: own.into(),
                rank_from: rank.from.clone(),
                master: master.into(),
                master_from: endpoint.from.clone(),
            });
        }
        Ok(())
    }

    /// Rank, world size and local rank of the process, if they follow.
    #[expect(clippy::type_complexity, reason = "three values of one shape")]
    pub(crate) fn ranks(
        &self,
        node_rank: Option<&Derived<u32>>,
        nodes: Option<&Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
    ) -> Result<(Option<Derived<u32>>, Option<Derived<u32>>, Option<Derived<u32>>), LaunchError> {
        let value = |value, from: &str, why: &str| {
            Some(Derived { value, from: from.to_owned(), why: why.to_owned() })
        };
        let fixed = nodes.and_then(|nodes| nodes.value.fixed());
        if let Some(task) = self.task.as_ref().filter(|task| !task.is_the_node(fixed)) {
            return Ok((Some(task.rank.clone()), task.tasks.clone(), task.local_rank.clone()));
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
        let each = match processes {
            Some(processes) => processes.value.count(),
            None => Some(1).filter(|_| {
                let several = self.slurm.as_ref().is_some_and(Step::has_several_tasks_on_a_node);
                let rank = self.env.get("RANK").and_then(|rank| rank.parse().ok());
                let counts_nodes =
                    self.env.get("WORLD_SIZE").is_some() && rank == node_rank.map(|place| place.value);
                let is_of_node = rank.is_none() || counts_nodes;
                !several && is_of_node && self.gpus().is_none() && !self.is_a_process()
            }),
        };
        let from = |nodes: &Derived<Nodes>| match processes {
            Some(processes) => format!("{} and {}", nodes.from, processes.from),
            None => nodes.from.clone(),
        };
        let world = fixed.zip(each).and_then(|(count, each)| {
            let why = format!("{count} nodes of {each}");
            value(count.saturating_mul(each), &nodes.map(from).unwrap_or_default(), &why)
        });
        if each != Some(1) {
            return Ok((None, world, None));
        }
        let why = "one process a node, so its rank is the node's";
        let rank = node_rank.filter(|_| world.is_some());
        let rank = rank.and_then(|rank| value(rank.value, &rank.from, why));
        let local = rank.as_ref().and_then(|rank| value(0, &rank.from, why));
        Ok((rank, world, local))
    }
}

/// Whether process `rank` can be on node `node`, if each node has the same number of processes. `local` is
/// the rank on the node, if that is known.
const fn could_be_on(rank: u32, node: u32, local: Option<u32>) -> bool {
    match local {
        None => {
            if node == 0 {
                rank == 0
            } else {
                rank >= node && rank.is_multiple_of(node)
            }
        }
        Some(local) => match rank.checked_sub(local) {
            None => false,
            Some(first) if node == 0 => first == 0,
            Some(first) => {
                first.is_multiple_of(node) && matches!(first.checked_div(node), Some(rank) if rank > local)
            }
        },
    }
}
