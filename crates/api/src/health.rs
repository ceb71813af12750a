//! The health of the server itself.

use serde::{Deserialize, Serialize};

/// `GET /api/v1/server`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerHealth {
    /// The server's version.
    pub version: String,
    /// How long it has run, in seconds.
    pub up_seconds: f64,
    /// Whether it takes new clients.
    pub ready: bool,
    /// How many stores it has.
    pub stores: usize,
    /// Open connections to the stores, including the clients of relays.
    pub connections: usize,
    /// Most connections that it takes without relays (`--max-connections`).
    pub max_connections: usize,
    /// Bytes of memory for everything that it keeps.
    pub memory_bytes: usize,
    /// The limit on `memory_bytes` (`--max-memory`).
    pub max_memory_bytes: usize,
    /// Requests that wait: WAITs and BARRIERs.
    pub waiters: usize,
    /// `HOST:PORT` of the first store, for clients; `null` if the stores have no ports (`--listen none`).
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub endpoint: Option<String>,
    /// The ports for the own stores of runs and rounds; `null` if the stores have no ports (`--listen none`).
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub run_stores: Option<StorePorts>,
    /// The journal; `null` without one: jobs then do not survive the server's death.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub journal: Option<JournalHealth>,
}

/// The ports for the own stores of runs and rounds (`--store-ports`): clients have to reach them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StorePorts {
    /// `--advertise-host`; by default the address of the server to which the request came.
    pub host: String,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// The journal of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JournalHealth {
    /// Where it is (`--journal`).
    pub path: String,
    /// The error that prevents writing; `null` if there is none.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub error: Option<String>,
    /// How long it has not been writable, in seconds.
    pub broken_seconds: f64,
}
