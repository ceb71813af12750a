//! The platform that made this pod, and the meaning of its variables. `table` has a row for each platform;
//! `docs/env.md` has the same contents for users. A new platform is a new row: its variables, their meanings,
//! and their documentation. The variables of a maker of pods in Kubernetes are in [`crate::makers`] and
//! are taken from there. Only a platform whose variables need more than a row has code in `derive`, by its
//! [`Kind`].

mod table;

use serde::{Serialize, Serializer};

use super::Environment;
use super::names::{first_label, ordinal, role_of};
use crate::makers::{Holds, Maker, Variable};

/// A platform: one row of the table.
#[derive(PartialEq, Eq)]
pub struct Platform {
    /// Its name in JSON.
    pub id: &'static str,
    /// Its name in messages and tables.
    pub name: &'static str,
    /// The rules that it needs beyond its row.
    pub(super) kind: Kind,
    /// Variables that only this platform sets. Any of them is enough; `A & B` needs both, and `*` stands for
    /// any text.
    pub(super) mark: &'static [&'static str],
    /// The meaning of its variables that are not in the makers' table: variables of other platforms, and
    /// variables that users set.
    says: &'static [(&'static str, Says)],
    /// Advice for values that it does not give.
    pub(super) hints: &'static [(Value, &'static str)],
    /// The documentation of its variables, unless it is a maker of pods.
    source: &'static str,
}

/// The kind of a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A maker of pods in Kubernetes.
    Maker(Maker),
    Slurm,
    InjectedStatefulSet,
    InjectedJob,
    Kubetorch,
    Variables,
    Unknown,
    /// Its row is enough.
    Plain,
}

/// The meaning of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The node's index, from 0.
    NodeRank,
    /// The number of nodes.
    Nodes,
    /// The number of processes on each node.
    Processes,
    /// The number of GPUs on each node, which may differ from the number of processes.
    Gpus,
    /// The index of this process among all processes of its launcher.
    TaskRank,
    /// The number of processes that the launcher started.
    Tasks,
    /// The index of this process on its node.
    LocalTaskRank,
    /// The number of these processes on this node.
    LocalTasks,
    /// The names of all nodes in order: a JSON list, or words.
    Hosts,
    /// The name of this node in that list.
    OwnHost,
    /// `HOST SLOTS HOST SLOTS …`.
    HostSlots,
    /// JSON with `cluster` and `task`.
    ClusterSpec,
    /// The host of rank 0.
    Master,
    /// The port on that host.
    MasterPort,
    /// The name of the run. The first variable that is set counts.
    RunId,
    /// A part that distinguishes runs with one name.
    RunIdPart,
    /// The number of the attempt, from 0 or from 1.
    AttemptFrom(u32),
    /// The number of groups in the job, each with its own ranks; or their names.
    Groups,
    /// The index of this node's group.
    GroupIndex,
}

/// Variables for which `derive` has rules, whoever sets them.
const BY_NAME: [&str; 5] = ["JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"];

impl Says {
    /// The meaning of a variable that a maker injects.
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
            // An index in a role, or a list of its hosts, gives no node rank before all roles are known. The
            // other variables are torch's.
            Holds::IndexInRole
            | Holds::Hosts
            | Holds::World
            | Holds::Endpoint
            | Holds::Backend(_)
            | Holds::Other => None,
        }
    }
}

/// A derived value for which there may be advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    NodeRank,
    Nodes,
    Endpoint,
    World,
}

impl Platform {
    /// Every platform, in the order of the search.
    pub const ALL: &'static [Self] = table::PLATFORMS;

    /// The first platform whose mark is in the environment.
    pub fn recognize(env: &Environment, hostname: &str) -> &'static Self {
        let found = Self::ALL.iter().find(|platform| platform.has_left_its_mark(env, hostname));
        found.unwrap_or(&table::UNKNOWN)
    }

    /// The platforms that count here: each one with a mark in the environment, and variables set by hand.
    pub fn all_in(env: &Environment) -> impl Iterator<Item = &'static Self> {
        Self::ALL.iter().filter(|platform| platform.kind == Kind::Variables || platform.has_variables(env))
    }

    /// The maker of pods, if the platform is one.
    const fn maker(&self) -> Option<Maker> {
        match self.kind {
            Kind::Maker(maker) => Some(maker),
            _ => None,
        }
    }

    /// The meaning of its variables. They are read wherever they are set.
    pub fn says(&self) -> impl Iterator<Item = (&'static str, Says)> {
        let injected = self.maker().map_or(&[][..], |maker| maker.facts().variables);
        let injected = injected.iter().filter_map(|variable| Some((variable.name, Says::of(variable)?)));
        injected.chain(self.says.iter().copied())
    }

    /// The documentation of its variables.
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
                let of_role = |name: &'static str| ordinal(host)?.0.strip_suffix(name);
                let Some(job) = of_role("-master").or_else(|| of_role("-worker")) else { return false };
                // As on platforms that hide Kubernetes.
                let names_its_master = || {
                    let master = env.get("MASTER_ADDR").map(first_label);
                    master.and_then(|master| master.strip_prefix(job)) == Some("-master-0")
                };
                self.has_variables(env) && (env.in_kubernetes() || names_its_master())
            }
            Kind::Maker(Maker::StatefulSet) => {
                self.has_variables(env) || env.in_kubernetes() && is_numbered(env, host)
            }
            Kind::Unknown => true,
            _ => self.has_variables(env),
        }
    }

    /// Whether its `RANK` and `WORLD_SIZE` count pods, and not processes.
    pub fn counts_pods(&self) -> bool {
        let ranks_pods = |variable: &Variable| variable.name == "RANK" && variable.holds == Holds::Index;
        matches!(self.kind, Kind::InjectedStatefulSet | Kind::InjectedJob)
            || self.maker().is_some_and(|maker| maker.facts().variables.iter().any(ranks_pods))
    }

    /// Whether its pods' names have numbers.
    pub const fn numbers_names(&self) -> bool {
        matches!(self.kind, Kind::Maker(Maker::StatefulSet) | Kind::InjectedStatefulSet)
    }
}

/// Whether the pod's name has a number that can be its rank. The job must have one group of pods only. With
/// the host's network, the host name is the machine's, and its number is no rank.
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
