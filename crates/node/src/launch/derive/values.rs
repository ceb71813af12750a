//! The derived values, each with its origin.

use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::launch::Platform;
use rallypoint_protocol::ids::Nodes;

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Derived<T> {
    /// The value.
    pub value: T,
    /// The variable or flag that gave it.
    pub from: String,
    /// Why this source gives it.
    pub why: String,
}

impl<T> Derived<T> {
    /// Another value with this origin.
    pub fn map<U>(self, value: impl FnOnce(T) -> U) -> Derived<U> {
        Derived { value: value(self.value), from: self.from, why: self.why }
    }
}

/// The number of processes on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Processes {
    /// This number.
    Count(u32),
    /// A word with which torchrun counts itself: `auto`, `gpu`, `cpu`, …
    Auto(String),
}

impl Processes {
    /// Parses a number from 1 on, or one of torchrun's words.
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

/// The endpoint where the nodes meet, by the kind of port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Meeting {
    /// The port of a store.
    Store(Endpoint),
    /// The admin port, which torchrun's plugin uses.
    Admin(Endpoint),
}

impl Meeting {
    /// The given endpoint.
    pub const fn endpoint(&self) -> &Endpoint {
        match self {
            Self::Store(endpoint) | Self::Admin(endpoint) => endpoint,
        }
    }

    /// The given store, or the usual store port on the host of the admin port.
    #[must_use]
    pub fn store(&self) -> Endpoint {
        match self {
            Self::Store(store) => store.clone(),
            Self::Admin(admin) => admin.with_port(Endpoint::DEFAULT_PORT),
        }
    }
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.endpoint().fmt(f)
    }
}

/// The pod, as other pods see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// `POD_NAME`, else the host's name.
    pub name: String,
    /// `POD_UID`, if it is set.
    pub uid: Option<String>,
    /// `POD_IP`, if it is set.
    pub address: Option<String>,
}

/// The place of this pod, or of this process, in its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaunchEnv {
    /// The platform that made the pod.
    pub platform: &'static Platform,
    /// The pod.
    pub pod: Pod,
    /// The pod's place among the nodes.
    pub node_rank: Option<Derived<u32>>,
    /// How many nodes there are.
    pub nodes: Option<Derived<Nodes>>,
    /// The number of processes on each node.
    pub nproc_per_node: Option<Derived<Processes>>,
    /// The endpoint where the nodes meet.
    pub endpoint: Option<Derived<Meeting>>,
    /// The name of the run.
    pub run_id: Option<Derived<String>>,
    /// The process's rank, if each process has its own environment, or if a node has one process.
    pub rank: Option<Derived<u32>>,
    /// The number of processes in the job, if it follows.
    pub world_size: Option<Derived<u32>>,
    /// The process's rank on its node.
    pub local_rank: Option<Derived<u32>>,
    /// Values that no source gave, and how to give them; variables that were seen but not used.
    pub notes: Vec<String>,
}

impl LaunchEnv {
    /// The number of nodes to wait for before any of them starts: the minimum that can start.
    pub fn quorum(&self) -> Option<u32> {
        self.nodes.as_ref().map(|nodes| nodes.value.min)
    }

    /// The name of the run; a run without a name is called by its store.
    pub fn run_id_or_store(&self) -> Option<String> {
        let named = self.run_id.as_ref().map(|run_id| run_id.value.clone());
        named.or_else(|| Some(format!("store:{}", self.endpoint.as_ref()?.value.store().port())))
    }
}
