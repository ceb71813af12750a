//! Reads the variables of all platforms, by the table of platforms.

use super::sources::Sources;
use super::{Derivation, Derived};
use crate::launch::hosts::{ClusterSpec, Member, hosts, slots};
use crate::launch::names::{first_label, same_host};
use crate::launch::platform::{Kind, Says};
use crate::launch::{Environment, LaunchError, Platform};

/// The process, as its launcher counts it: `mpirun`, `srun`, `flux run`.
#[derive(Debug)]
pub(crate) struct Task {
    pub rank: Derived<u32>,
    pub tasks: Option<Derived<u32>>,
    pub local_rank: Option<Derived<u32>>,
    /// How many processes of the launcher are on this node.
    pub on_this_node: Option<Derived<u32>>,
}

impl Task {
    /// Whether each node has exactly one task, so that the task is the node. The number of tasks on this node
    /// shows it, or the number of nodes.
    pub(crate) fn is_the_node(&self, nodes: Option<u32>) -> bool {
        let tasks = self.tasks.as_ref().map(|tasks| tasks.value);
        match (self.on_this_node.as_ref().map(|here| here.value), nodes) {
            (Some(1), None) => true,
            (Some(1) | None, Some(nodes)) => tasks == Some(nodes),
            _ => false,
        }
    }

    /// Whether another launcher counts exactly these tasks.
    fn is_told_by(&self, other: &Self) -> bool {
        let count = |of: &Option<Derived<u32>>| of.as_ref().map(|of| of.value);
        self.rank.value == other.rank.value
            && count(&other.tasks).is_none_or(|tasks| count(&self.tasks) == Some(tasks))
            && count(&other.local_rank).is_none_or(|local| count(&self.local_rank) == Some(local))
    }

    /// Whether all tasks are on this node.
    pub(crate) fn is_alone(&self) -> bool {
        let count = |of: &Option<Derived<u32>>| of.as_ref().map(|of| of.value);
        self.tasks.is_some() && count(&self.tasks) == count(&self.on_this_node)
    }
}

/// The nodes of a list, and this node's place in it.
#[derive(Debug)]
pub(crate) struct HostList {
    pub hosts: Vec<String>,
    pub from: &'static str,
    /// The index of this node, and the variable or name that identified it.
    pub own: Option<(u32, String)>,
    /// Whether the first host certainly takes part in the training.
    pub is_even: bool,
}

pub(crate) fn said(
    env: &Environment,
    what: Says,
) -> impl Iterator<Item = (&'static Platform, &'static str, &str)> {
    Platform::all_in(env)
        .flat_map(|platform| platform.says().map(move |(name, says)| (platform, name, says)))
        .filter(move |(_, _, says)| *says == what)
        .filter_map(|(platform, name, _)| Some((platform, name, env.get(name)?)))
}

impl Derivation<'_> {
    /// Adds the values of all variables with this meaning.
    pub(crate) fn add_said<T: PartialEq + std::fmt::Display>(
        &self,
        what: Says,
        why: &str,
        sources: &mut Sources<T>,
        read: impl Fn(&'static str) -> Result<Option<T>, LaunchError>,
    ) -> Result<(), LaunchError> {
        for (platform, name, _) in said(self.env, what) {
            let why = match platform.kind {
                Kind::Variables => why.to_owned(),
                _ => format!("{why}, set by {}", platform.name),
            };
            sources.add(read(name)?, name, why);
        }
        Ok(())
    }

    /// The process, as its launcher counts it. A launcher is nearer to the process than the scheduler, so it
    /// comes first.
    pub(crate) fn task(&self) -> Result<Option<Task>, LaunchError> {
        let one = |what, called, why: &str| -> Result<Option<Derived<u32>>, LaunchError> {
            let mut sources = Sources::of(called, "--node-rank (RALLYPOINT_NODE_RANK) and --nodes");
            self.add_said(what, why, &mut sources, |name| self.number(name))?;
            sources.settle(PartialEq::eq)
        };
        if let Some(rank) = one(Says::TaskRank, "the rank of the process", "the process's rank")? {
            let counted = |what, called, why| Ok(one(what, called, why)?.filter(|count| count.value > 0));
            let task = Task {
                rank,
                tasks: counted(Says::Tasks, "the number of processes", "number of processes")?,
                local_rank: one(
                    Says::LocalTaskRank,
                    "the rank on the node",
                    "the process's rank on its node",
                )?,
                on_this_node: counted(
                    Says::LocalTasks,
                    "the number of processes on this node",
                    "processes of this node",
                )?,
            };
            // PMI of srun counts the tasks of Slurm, which says more.
            let by_slurm = self.slurm_task().filter(|slurm| slurm.is_told_by(&task));
            return Ok(Some(by_slurm.unwrap_or(task)));
        }
        Ok(self.slurm_task())
    }

    fn slurm_task(&self) -> Option<Task> {
        let step = self.slurm.as_ref().filter(|step| step.started_by_srun)?;
        let why = "Slurm starts each process as a task";
        let value = |value: Option<u32>, from: &str| {
            value.map(|value| Derived { value, from: from.to_owned(), why: why.to_owned() })
        };
        let rank = value(step.rank, "SLURM_PROCID")?;
        let from = step.per_node.as_ref().map_or("SLURM_NTASKS", |per_node| per_node.from);
        Some(Task {
            rank,
            tasks: step.tasks.and_then(|(tasks, from)| value(Some(tasks), from)),
            local_rank: value(step.local_rank, "SLURM_LOCALID"),
            on_this_node: value(step.on_this_node().filter(|&tasks| tasks > 0), from),
        })
    }

    /// Whether Slurm's numbers describe this process, and not the program that started its launcher.
    pub(crate) fn slurm_counts_this(&self) -> bool {
        let Some(step) = self.slurm.as_ref().filter(|step| step.started_by_srun) else { return false };
        match self.task.as_ref() {
            Some(task) if task.rank.from != "SLURM_PROCID" => step.rank == Some(task.rank.value),
            _ => true,
        }
    }

    /// The lists of hosts, with this node's place in each.
    pub(crate) fn host_lists(&self) -> Result<Vec<HostList>, LaunchError> {
        let mut lists = Vec::new();
        for (platform, name, text) in said(self.env, Says::Hosts) {
            let bad = || LaunchError::HostList { name: name.into(), value: text.into() };
            let hosts = hosts(text).ok_or_else(bad)?;
            let own = platform.says().find(|(_, says)| *says == Says::OwnHost);
            let own = own.and_then(|(own, _)| {
                let at = place_of(&hosts, self.env.get(own)?)?;
                Some((at, format!("{own} in {name}")))
            });
            lists.push(HostList { hosts, from: name, own, is_even: true });
        }
        for (_, name, text) in said(self.env, Says::HostSlots) {
            let bad = || LaunchError::HostList { name: name.into(), value: text.into() };
            let (hosts, is_even) = slots(text).ok_or_else(bad)?;
            let own = place_of(&hosts, &self.given.hostname).filter(|_| is_even);
            let own = own.map(|at| (at, format!("the host's name in {name}")));
            lists.push(HostList { hosts, from: name, own, is_even });
        }
        Ok(lists)
    }

    /// This node's place in the JSON that describes a cluster.
    pub(crate) fn members(&self) -> Result<Vec<(&'static str, Member)>, LaunchError> {
        said(self.env, Says::ClusterSpec)
            .map(|(_, name, text)| {
                let bad = || LaunchError::ClusterSpec(name.into());
                Ok((name, ClusterSpec::parse(text).ok_or_else(bad)?))
            })
            .collect()
    }

    /// Refuses a job of several groups, each with its own ranks.
    pub(crate) fn refuse_groups(&self) -> Result<(), LaunchError> {
        let are_two = |value: &str| value.starts_with('[') && hosts(value).is_some_and(|all| all.len() > 1);
        let several = |value: &str| {
            value == "true" || are_two(value) || value.parse().is_ok_and(|groups: u32| groups > 1)
        };
        let later = |value: &str| value.parse().is_ok_and(|index: u32| index > 0);
        let found = said(self.env, Says::Groups).find(|(_, _, value)| several(value));
        let found = found.or_else(|| said(self.env, Says::GroupIndex).find(|(_, _, value)| later(value)));
        match found {
            Some((platform, name, value)) => {
                Err(LaunchError::Groups { name: name.into(), value: value.into(), platform: platform.name })
            }
            None => Ok(()),
        }
    }
}

/// The only place of a host in a list; names may be long or short.
fn place_of(hosts: &[String], own: &str) -> Option<u32> {
    let mut found = hosts.iter().enumerate().filter(|(_, host)| {
        same_host(host, own) || first_label(host) == first_label(own) && !is_address(host)
    });
    let (at, _) = found.next()?;
    found.next().is_none().then(|| u32::try_from(at).ok())?
}

fn is_address(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok()
}
