//! Which platform made this pod, and what its variables say. `table` has a row for each platform; `docs/env.md` is the
//! same for users. A new platform is a row: the variables that it sets, what each of them says, and where that is
//! written. What a maker of pods in Kubernetes gives them stands in [`crate::node::makers`] and is taken from there.
//! Only a platform whose variables need more than that has code in `derive`, by its [`Kind`].

mod table;

use serde::{Serialize, Serializer};

use super::Environment;
use super::names::{first_label, ordinal, role_of};
use crate::node::makers::{Holds, Maker, Variable};

/// A platform.
#[derive(PartialEq, Eq)]
pub struct Platform {
    /// Its name in JSON.
    pub id: &'static str,
    /// Its name in messages and tables.
    pub name: &'static str,
    /// What it needs beyond its row.
    pub(super) kind: Kind,
    /// Variables that only this platform sets: any of them, each `A & B` for both, `*` for any text.
    pub(super) mark: &'static [&'static str],
    /// What variables say that are not in the makers' table: of other platforms, and what users hand in.
    says: &'static [(&'static str, Says)],
    /// What to do where it does not say a value.
    pub(super) hints: &'static [(Value, &'static str)],
    /// Where its variables are written down, if they are not a maker's.
    source: &'static str,
}

/// What kind of platform it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A maker of pods in Kubernetes.
    Maker(Maker),
    Slurm,
    InjectedStatefulSet,
    InjectedJob,
    Kubetorch,
    Variables,
    Unknown,
    /// Its row says it all.
    Plain,
}

/// What a variable says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// The node's index, from 0.
    NodeRank,
    /// How many nodes there are.
    Nodes,
    /// Processes of each node.
    Processes,
    /// GPUs of each node, which are not always as many processes.
    Gpus,
    /// The index of this process among all, as its launcher counts.
    TaskRank,
    /// How many processes the launcher started.
    Tasks,
    /// The index of this process on its node.
    LocalTaskRank,
    /// How many of them are on this node.
    LocalTasks,
    /// The names of all nodes in their order: a JSON list, or words.
    Hosts,
    /// The name of this node among them.
    OwnHost,
    /// `HOST SLOTS HOST SLOTS …`.
    HostSlots,
    /// JSON with `cluster` and `task`.
    ClusterSpec,
    /// The host of rank 0.
    Master,
    /// The port there.
    MasterPort,
    /// The name of the run. The first that is set counts.
    RunId,
    /// What tells apart runs with one name.
    RunIdPart,
    /// The number of the attempt, from 0 or from 1.
    AttemptFrom(u32),
    /// How many groups the job has, each with ranks of its own.
    Groups,
    /// The index of the group that this node is in.
    GroupIndex,
}

/// Variables for which `derive` has rules, whatever sets them.
const BY_NAME: [&str; 5] = ["JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"];

impl Says {
    /// What a variable says that a maker injects.
    fn of(variable: &Variable) -> Option<Self> {
        if BY_NAME.contains(&variable.name) || variable.name.starts_with("PET_") {
            return None;
        }
        match variable.holds {
            Holds::Index => Some(Self::NodeRank),
            Holds::Nodes => Some(Self::Nodes),
            Holds::Processes => Some(Self::Processes),
            Holds::Master => Some(Self::Master),
            Holds::Port(_) => Some(Self::MasterPort),
            // An index or a list of one role says no node's rank before all roles are known. The rest is torch's.
            Holds::IndexInRole
            | Holds::Hosts
            | Holds::World
            | Holds::Endpoint
            | Holds::Backend(_)
            | Holds::Other => None,
        }
    }
}

/// What is derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    NodeRank,
    Nodes,
    Endpoint,
}

impl Platform {
    /// Every platform, in the order in which they are looked for.
    pub const ALL: &'static [Self] = table::PLATFORMS;

    /// The first platform whose mark is in the environment.
    pub(super) fn recognize(env: &Environment, hostname: &str) -> &'static Self {
        let found = Self::ALL.iter().find(|platform| platform.has_left_its_mark(env, hostname));
        found.unwrap_or(&table::UNKNOWN)
    }

    /// The platforms that count here: those with a mark in the environment, and variables set by hand.
    pub(super) fn all_in(env: &Environment) -> impl Iterator<Item = &'static Self> {
        Self::ALL.iter().filter(|platform| platform.kind == Kind::Variables || platform.has_variables(env))
    }

    /// The maker of pods that it is.
    const fn maker(&self) -> Option<Maker> {
        match self.kind {
            Kind::Maker(maker) => Some(maker),
            _ => None,
        }
    }

    /// What its variables say. They are read wherever they are set.
    pub(super) fn says(&self) -> impl Iterator<Item = (&'static str, Says)> {
        let injected = self.maker().map_or(&[][..], |maker| maker.facts().variables);
        let injected = injected.iter().filter_map(|variable| Some((variable.name, Says::of(variable)?)));
        injected.chain(self.says.iter().copied())
    }

    /// Where its variables are written down.
    pub fn source(&self) -> &'static str {
        self.maker().map_or(self.source, |maker| maker.facts().source)
    }

    fn has_variables(&self, env: &Environment) -> bool {
        self.mark.iter().any(|mark| mark.split(" & ").all(|name| env.matching(name).next().is_some()))
    }

    fn has_left_its_mark(&self, env: &Environment, hostname: &str) -> bool {
        let host = first_label(hostname);
        match self.kind {
            Kind::Maker(maker @ Maker::TrainJob) => {
                let mut like = maker.facts().master.split("{name}");
                let master = env.get("PET_MASTER_ADDR");
                self.has_variables(env) && master.is_some_and(|master| like.all(|part| master.contains(part)))
            }
            Kind::Maker(Maker::PyTorchJob) => {
                let replica = ordinal(host)
                    .is_some_and(|(name, _)| name.ends_with("-master") || name.ends_with("-worker"));
                replica && env.in_kubernetes() && self.has_variables(env)
            }
            Kind::Maker(Maker::StatefulSet) => {
                self.has_variables(env) || env.in_kubernetes() && is_numbered(env, host)
            }
            Kind::Unknown => true,
            _ => self.has_variables(env),
        }
    }

    /// Whether its `RANK` and `WORLD_SIZE` count pods and not processes.
    pub(super) fn counts_pods(&self) -> bool {
        let ranks_pods = |variable: &Variable| variable.name == "RANK" && variable.holds == Holds::Index;
        matches!(self.kind, Kind::InjectedStatefulSet | Kind::InjectedJob)
            || self.maker().is_some_and(|maker| maker.facts().variables.iter().any(ranks_pods))
    }

    /// Whether its pods are numbered by name.
    pub(super) const fn numbers_names(&self) -> bool {
        matches!(self.kind, Kind::Maker(Maker::StatefulSet) | Kind::InjectedStatefulSet)
    }
}

/// Whether the pod's name has a number that can be its rank: of one group of pods only, and not that of a machine, which is
/// the host's name of a pod on the host's network.
fn is_numbered(env: &Environment, host: &str) -> bool {
    let Some((set, number)) = ordinal(env.get("POD_NAME").unwrap_or(host)) else { return false };
    let said = ["PET_NODE_RANK", "NODE_RANK"].into_iter().find_map(|name| env.get(name)?.parse().ok());
    let of_the_host = env.get("POD_NAME").is_none();
    role_of(set).is_none() && !(of_the_host && said.is_some_and(|said: u32| said != number))
}

impl std::fmt::Debug for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

impl Serialize for Platform {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id)
    }
}
