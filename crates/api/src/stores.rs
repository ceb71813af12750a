//! The stores, and the waits in them.

use serde::{Deserialize, Serialize};

/// One store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Store {
    /// Its port.
    pub port: u16,
    /// The run for which it was opened.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub run_id: Option<String>,
    /// Keys and queues.
    pub keys: usize,
    /// The size of their contents in bytes.
    pub bytes: usize,
    /// Clients that are connected.
    pub connections: usize,
    /// Clients that wait for keys.
    pub waiters: usize,
}

/// `GET /api/v1/stores`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreList {
    /// By port.
    pub stores: Vec<Store>,
}

/// `POST /api/v1/stores`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OpenStore {
    /// The run.
    pub run_id: String,
}

/// A run's own store, as its workers reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunStore {
    /// The run.
    pub run_id: String,
    /// `--advertise-host`; by default the address of the server to which the request came.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `DELETE /api/v1/stores/{port}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreReset {
    /// The store.
    pub port: u16,
    /// Always true.
    pub reset: bool,
    /// Whether it was the store of a run's round, and is closed. The ranks of the round are then
    /// disconnected: ranks that have met go on until they need the store, the others have to start again.
    #[serde(default)]
    pub closed: bool,
}
