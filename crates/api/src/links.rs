//! The links of the relays.

use serde::{Deserialize, Serialize};

/// A relay, with the one connection that carries all its clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Link {
    /// The relay's name: its pod's, its host's, or what `--name` says.
    pub name: String,
    /// The address from which it last came.
    pub addr: String,
    /// Its clients.
    pub clients: u32,
    /// How long its connection has been broken, in seconds; its clients wait meanwhile. `null` while it is
    /// up.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub away_seconds: Option<f64>,
}

/// Counts of all links; also the data of the event `links`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkCounts {
    /// Relays that are connected.
    pub connected: u32,
    /// Relays whose link is broken. An explanation `link_away` names them.
    pub away: u32,
    /// The clients of all relays.
    pub clients: u64,
    /// How often a relay came back to its clients.
    pub resumes: u64,
}

impl LinkCounts {
    /// Whether there is no relay.
    pub const fn is_none(&self) -> bool {
        self.connected == 0 && self.away == 0
    }
}

/// `GET /api/v1/links`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkList {
    /// By name.
    pub links: Vec<Link>,
}
