//! Arriving at a barrier.

use serde::{Deserialize, Serialize};

use super::PeerDuration;

/// `POST /api/v1/barriers/{name}/arrive`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Arrive {
    /// The id of the participant that arrives: the same in every retry, and no other participant's.
    pub participant: String,
    /// Identifies this arrival: a request with the `arrival_id` of an earlier one is its retry; with another
    /// one the participant arrives at the barrier's next use.
    #[serde(default)]
    pub arrival_id: String,
    /// How many must arrive. May be left out if `members` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// The ids of all participants, so that the missing ones can be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// This arrival is taken back after this time.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: PeerDuration,
    /// How long to wait before answering `waiting`, 0 to 60.
    #[serde(default = "super::default_wait")]
    pub wait_seconds: PeerDuration,
}

fn default_timeout() -> PeerDuration {
    PeerDuration::from_secs(300)
}

/// 200: all have arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArriveReleased {
    /// Always `released`.
    pub state: String,
    /// The barrier.
    pub barrier: String,
    /// The number of this use of the barrier, from 1.
    pub generation: u64,
    /// How many arrived.
    pub world_size: u32,
}

/// 202: not yet. Ask again with the same body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArriveWaiting {
    /// Always `waiting`.
    pub state: String,
    /// The barrier.
    pub barrier: String,
    /// The number of this use of the barrier, from 1.
    pub generation: u64,
    /// How many have arrived.
    pub arrived: u32,
    /// How many must arrive.
    pub world_size: u32,
    /// Members that have not arrived, if members were named. At most 32.
    pub missing: Vec<String>,
    /// Since this participant's arrival.
    pub waited_seconds: f64,
}
