//! The number of nodes, and the number of processes on each.

use super::facts;
use super::sources::Sources;
use super::volcano::refused_if;
use super::{Derivation, Derived, OF_COMMAND, Processes};
use crate::launch::LaunchError;
use crate::launch::platform::{Kind, Says};
use crate::makers::Maker;
use rallypoint_protocol::ids::Nodes;

impl Derivation<'_> {
    pub(crate) fn processes(&self) -> Result<Option<Derived<Processes>>, LaunchError> {
        let mut sources = Sources::of("the number of processes per node", "--nproc-per-node");
        let said = self.given.processes.as_ref();
        let variable = "RALLYPOINT_NPROC_PER_NODE";
        if let Some(said) = self.said(said, "--nproc-per-node", variable, Processes::parse) {
            return Ok(Some(said));
        }
        if let Some((text, from)) = self.flag("nproc-per-node") {
            // In torchrun the flag overrides its variable, so the variable does not count.
            sources.add(Self::processes_in(&from, text)?, from, OF_COMMAND);
        } else if let Some(text) = self.env.get("PET_NPROC_PER_NODE") {
            let name = "PET_NPROC_PER_NODE";
            sources.add(Self::processes_in(name, text)?, name, "torchrun's own variable");
        }
        self.add_said(Says::Processes, "processes of a node", &mut sources, |name| {
            self.env.get(name).map_or(Ok(None), |text| Self::processes_in(name, text))
        })?;
        if let Some((each, from, why)) = self.tasks_of_each_node() {
            sources.add(Some(Processes::Count(each)), from, why);
        }
        // `auto` and a number do not contradict each other: torchrun counts, and should find that number.
        sources.settle(|a, b| a == b || a.count().is_none() || b.count().is_none())
    }

    /// The number of processes per node, if the launcher starts each process. A single task may be the node's
    /// own launcher.
    fn tasks_of_each_node(&self) -> Option<(u32, String, &'static str)> {
        let task = self.task.as_ref()?;
        let slurm = self.slurm.as_ref().filter(|_| task.rank.from == "SLURM_PROCID");
        let (each, from) = if let Some(step) = slurm {
            step.even().map(|(each, from)| (each, from.to_owned()))?
        } else {
            let here = task.on_this_node.as_ref()?;
            let even = task.tasks.as_ref().is_none_or(|tasks| tasks.value.is_multiple_of(here.value));
            even.then(|| (here.value, here.from.clone()))?
        };
        (each > 1).then_some((each, from, "the launcher starts each process as a task"))
    }

    /// The number of nodes, as far as a source names it.
    pub(crate) fn nodes(
        &self,
        processes: Option<&Derived<Processes>>,
    ) -> Result<Option<Derived<Nodes>>, LaunchError> {
        let mut sources = Sources::of("the number of nodes", "--nodes (RALLYPOINT_NODES)");
        let said = self.given.nodes.as_ref();
        if let Some(said) = self.said(said, "--nodes", "RALLYPOINT_NODES", Nodes::parse) {
            return Ok(Some(said));
        }
        if let Some((text, from)) = self.flag("nnodes") {
            let bad = || LaunchError::BadNodes { name: from.clone(), value: text.into() };
            sources.add(Some(Nodes::parse(text).ok_or_else(bad)?), from.clone(), OF_COMMAND);
        } else {
            sources.add(self.nodes_in("PET_NNODES")?, "PET_NNODES", "torchrun's own variable");
        }
        if sources.found.is_empty() {
            self.refuse_groups()?;
        }
        self.add_said(Says::Nodes, "number of nodes", &mut sources, |name| self.nodes_in(name))?;
        for list in self.host_lists()?.iter().filter(|list| list.is_even) {
            let count = u32::try_from(list.hosts.len()).ok().map(Nodes::exactly);
            sources.add(count, list.from, "the nodes in the list");
        }
        for (name, member) in self.members()? {
            sources.add(Some(Nodes::exactly(member.nodes)), name, "the nodes that train");
        }
        self.add_nodes_of_the_launcher(&mut sources);
        if self.sees(Kind::Maker(Maker::VolcanoJob)) && self.env.get("WORLD_SIZE").is_none() {
            // Who tells the node's place, such as TorchX, makes tasks of one pod: only their number lacks.
            let nothing_else =
                sources.found.is_empty() && facts::said(self.env, Says::NodeRank).next().is_none();
            let place = self.volcano_place().or_else(|error| refused_if(nothing_else, error))?;
            if let Some(count) = place.and_then(|place| place.pods) {
                let from: Vec<&str> = self.volcano_tasks().iter().map(|task| task.variable).collect();
                sources.add(Some(Nodes::exactly(count)), from.join(" and "), "the pods in the lists");
            }
        }
        // A number within a range agrees with the range.
        let within = |a: &Nodes, b: &Nodes| a.min <= b.min && b.max <= a.max;
        let said = sources.settle(|a, b| within(a, b) || within(b, a))?;
        if processes.is_some() { self.nodes_of_world(said, processes, None) } else { Ok(said) }
    }

    fn add_nodes_of_the_launcher(&self, sources: &mut Sources<Nodes>) {
        let by_slurm = self.task.as_ref().is_none_or(|task| task.rank.from == "SLURM_PROCID");
        if let Some(step) = self.slurm.as_ref().filter(|_| by_slurm || self.slurm_counts_this())
            && let Some((nodes, from)) = step.nodes.filter(|(nodes, _)| *nodes > 0)
        {
            sources.add(Some(Nodes::exactly(nodes)), from, "nodes of the job step");
        }
        let Some(task) = self.task.as_ref().filter(|task| task.rank.from != "SLURM_PROCID") else { return };
        let Some(tasks) = &task.tasks else { return };
        if task.is_alone() {
            let from =
                format!("{} and {}", tasks.from, task.on_this_node.as_ref().map_or("", |here| &here.from));
            sources.add(Some(Nodes::exactly(1)), from, "all processes are on this node");
        } else if task.is_the_node(None) {
            sources.add(Some(Nodes::exactly(tasks.value)), &*tasks.from, "one process on each node");
        }
    }

    /// Whether `RANK` and `WORLD_SIZE` count pods here.
    pub(crate) fn counts_pods(&self) -> bool {
        self.platform.counts_pods() && !self.is_a_process()
    }

    /// The number of nodes from `WORLD_SIZE`, if no other source names it.
    pub(crate) fn nodes_of_world(
        &self,
        said: Option<Derived<Nodes>>,
        processes: Option<&Derived<Processes>>,
        place: Option<&Derived<u32>>,
    ) -> Result<Option<Derived<Nodes>>, LaunchError> {
        let world = self.number("WORLD_SIZE")?.filter(|&world| world > 0);
        let (None, Some(world)) = (&said, world) else { return Ok(said) };
        let derived = |nodes: u32, why: String| {
            Ok(Some(Derived { value: Nodes::exactly(nodes), from: "WORLD_SIZE".into(), why }))
        };
        if self.counts_pods() {
            return derived(
                world,
                format!("WORLD_SIZE counts pods on this platform ({})", self.platform.name),
            );
        }
        match processes.map(|processes| (processes.value.count(), &processes.from)) {
            Some((Some(each), from)) if self.task.is_none() => {
                let Some(nodes) = world.checked_div(each).filter(|_| world.is_multiple_of(each)) else {
                    return Err(LaunchError::UnevenWorld { world, processes: each, from: from.clone() });
                };
                derived(nodes, format!("{world} processes, {each} on each node by {from}"))
            }
            None if place.is_none() && self.is_one_process_a_pod() => {
                derived(world, "one process a pod, since nothing says how many".into())
            }
            _ => Ok(None),
        }
    }

    /// Whether `RANK` and `WORLD_SIZE` are the only sources, as for a single process per pod. If pods have an
    /// index of their own, or processes have one on their node, pod 0 of a larger world looks the same.
    pub(crate) fn is_one_process_a_pod(&self) -> bool {
        self.platform.kind == Kind::Variables
            && self.task.is_none()
            && !self.is_a_process()
            && self.gpus().is_none()
    }

    /// A variable with the number of GPUs of each node, if there are several.
    pub(crate) fn gpus(&self) -> Option<(&'static str, u32)> {
        let mut found = facts::said(self.env, Says::Gpus);
        found.find_map(|(_, name, count)| Some((name, count.parse().ok().filter(|&count| count > 1)?)))
    }

    /// The number of processes per node, if it follows from world and nodes. It is not derived from the ranks
    /// of a process and its node: node 0 cannot derive it so, and all pods must get the same values.
    pub(crate) fn processes_of_world(
        &self,
        processes: Option<Derived<Processes>>,
        nodes: Option<&Derived<Nodes>>,
    ) -> Result<Option<Derived<Processes>>, LaunchError> {
        if processes.is_some() || self.task.is_some() {
            return Ok(processes);
        }
        let (Some(world), Some(nodes)) = (self.number("WORLD_SIZE")?, nodes) else { return Ok(None) };
        let fixed = nodes.value.fixed().filter(|&count| world > count && world.is_multiple_of(count));
        let each = fixed.and_then(|count| Some((count, world.checked_div(count)?)));
        Ok(each.map(|(count, each)| Derived {
            value: Processes::Count(each),
            from: format!("WORLD_SIZE and {}", nodes.from),
            why: format!("{world} processes on {count} nodes"),
        }))
    }

    /// Checks whether rank, nodes and world fit together.
    pub(crate) fn check(
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
        let of_the_launcher = self.task.as_ref().and_then(|task| Some(task.tasks.as_ref()?.value));
        let (Some(world), Some(nodes)) = (world, nodes) else { return Ok(()) };
        if of_the_launcher == Some(world) {
            return Ok(());
        }
        let each = processes.map_or(Some(1), |processes| processes.value.count());
        if let (Some(count), Some(each)) = (nodes.value.fixed(), each)
            && world != count
            && world != count.saturating_mul(each)
        {
            return Err(LaunchError::WorldSize {
                world,
                nodes: count,
                nodes_from: nodes.from.clone(),
                processes: each,
                processes_from: processes.map_or("nothing else said", |processes| &processes.from).into(),
            });
        }
        Ok(())
    }
}
