//! How the server itself is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /api/v1/server`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerHealth {
    /// The server's version.
    pub version: String,
    /// How long it has run, in seconds.
    pub up_seconds: f64,
    /// Whether it takes new clients.
    pub ready: bool,
    /// How many stores it has.
    pub stores: usize,
    /// Open connections to the stores, also those of relays' clients.
    pub connections: usize,
    /// Most connections that it takes without relays (`--max-connections`).
    pub max_connections: usize,
    /// Bytes that all it keeps holds.
    pub memory_bytes: usize,
    /// Most bytes that it may hold (`--max-memory`).
    pub max_memory_bytes: usize,
    /// Requests that wait: WAITs and BARRIERs.
    pub waiters: usize,
    /// Where runs and rounds get stores of their own; `null` if the stores have no ports (`--listen none`).
    #[serde(default)]
    #[schema(required)]
    pub run_stores: Option<StorePorts>,
    /// The journal; `null` if none is kept, and jobs then do not survive the server's death.
    #[schema(required)]
    pub journal: Option<JournalHealth>,
}

/// The ports on which runs and rounds get stores of their own (`--store-ports`): clients have to reach them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StorePorts {
    /// `--advertise-host`, by default the server's address that the request came in on.
    pub host: String,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// The journal of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournalHealth {
    /// Where it is (`--journal`).
    pub path: String,
    /// The error that keeps it from being written; `null` while it can be.
    #[schema(required)]
    pub error: Option<String>,
    /// For how long it could not be written, in seconds.
    pub broken_seconds: f64,
}
