//! The links of the relays.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A relay, with the one connection that carries all its clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Link {
    /// The relay's name: its pod's, its host's, or what `--name` says.
    pub name: String,
    /// Where it came from last.
    pub addr: String,
    /// Its clients.
    pub clients: u32,
    /// How long its connection has been away, in seconds; its clients wait meanwhile. `null` while it is there.
    #[schema(required)]
    pub away_seconds: Option<f64>,
}

/// `GET /api/v1/links`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkList {
    /// By name.
    pub links: Vec<Link>,
}
