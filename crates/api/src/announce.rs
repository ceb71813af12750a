//! Announcing a pod at the start gate of its run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::StoreAddress;

use super::PeerDuration;

/// The longest time that an announcement may wait. A waiting pod repeats it to show that it is alive.
pub const MAX_ANNOUNCE_WAIT: Duration = Duration::from_secs(8);

/// `POST /api/v1/runs/{run_id}/announce`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Announce {
    /// The pod's name: the same in every repetition. With the node rank it says which place the pod takes.
    pub pod: String,
    /// Distinguishes the pod from another one with the same name and node rank: its successor, or a pod that
    /// claims the same place.
    #[serde(default)]
    pub uid: String,
    /// Its place among the nodes, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_rank: Option<u32>,
    /// How many nodes the run has: `N` or `MIN:MAX`. All pods must say the same.
    pub nodes: String,
    /// Its own IP address, if it connects from another one. It is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ip: Option<IpAddr>,
    /// PyTorch's version there; if the pods have different ones, a warning says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
    /// How many ranks the job has, if the pod gives its command that number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Whether the pod may start a run again that has finished. Without this it is refused.
    #[serde(default)]
    pub restart_finished: bool,
    /// Whether the run gets its own store: then the answer that opens the gate names it.
    #[serde(default)]
    pub store: bool,
    /// How long to wait for the others before answering, 0 to 8. A client that waits longer sends the request
    /// again: a pod that is silent for 30 s is gone.
    #[serde(default)]
    pub wait_seconds: PeerDuration,
}

/// Where an announced pod stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum AnnounceState {
    /// It may start.
    Go,
    /// Others are missing.
    Gathering,
    /// Another live pod has its node rank.
    Parked,
}

/// 200: `go`. 202: not yet; ask again with the same body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnnounceAnswer {
    /// Where the pod stands.
    pub state: AnnounceState,
    /// The run.
    pub run_id: String,
    /// How many pods are needed.
    pub expected: u32,
    /// How many are there. For an open gate: how many were there when it opened.
    pub arrived: usize,
    /// Some of the missing, in words.
    pub missing: Vec<String>,
    /// Since the first pod's announcement.
    pub waited_seconds: f64,
    /// The state in words.
    pub detail: String,
    /// A problem that stops no pod now, but will do harm later.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub warning: Option<String>,
    /// With `go`: the run's own store, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreAddress>,
}

/// `GET /api/v1/runs/{run_id}/announce`: the pods of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Announced {
    /// The run.
    pub run_id: String,
    /// `N` or `MIN:MAX`.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub nodes: Option<String>,
    /// Whether the gate is open.
    pub open: bool,
    /// The pods, by name.
    pub pods: Vec<AnnouncedPod>,
    /// Pods by their version of PyTorch.
    pub torch_versions: BTreeMap<String, Vec<String>>,
}

/// A pod that announced itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnnouncedPod {
    /// Its name.
    pub pod: String,
    /// Distinguishes it from other pods with the same name.
    pub uid: String,
    /// Its place among the nodes.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub node_rank: Option<u32>,
    /// Where it connects from.
    pub address: String,
    /// Its version of PyTorch.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub torch: Option<String>,
    /// Seconds since its last sign of life.
    pub silent_seconds: f64,
    /// Whether `silent_seconds` is less than 30.
    pub live: bool,
}
