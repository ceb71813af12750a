//! Outstanding waits: the JSON of `GET /api/v1/waits`, and the waits of one run.

use serde::{Deserialize, Serialize};

/// One outstanding WAIT or BARRIER, or a key that a client asks for again and again: an element of `WaitList`
/// and, but for these, of a run's `waits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Wait {
    /// The port of the store.
    pub store: u16,
    /// The run it belongs to, if that is known.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub run_id: Option<String>,
    /// Address and port of the client that waits.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub peer: Option<String>,
    /// Its process id, if it sent one.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub pid: Option<u32>,
    /// The waiting client, in words: `rank 3`, `node train-llm-2`.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub who: Option<String>,
    /// `wait`, `barrier`, or `poll`: it asks again and again, and nothing blocks it.
    pub op: String,
    /// How long it has waited; behind a relay, since this server was started at most.
    pub waited_seconds: f64,
    /// Number of keys that the wait names.
    pub keys: usize,
    /// Up to ten keys that are still missing; for a barrier its key.
    pub missing: Vec<String>,
    /// The key that is polled, whether it is there or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled: Option<String>,
    /// The number of arrivals that the barrier waits for.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub world_size: Option<i64>,
    /// The process that must write the missing key, if the key shows it: `rank 0`,
    /// `node rank 2 (train-llm-2)`.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub writer: Option<String>,
    /// Why the wait lasts, in a sentence: what the writer itself waits for, down to the root of the chain.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub reason: Option<String>,
}

/// `GET /api/v1/waits`: outstanding waits of all stores, the oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaitList {
    /// Number of all outstanding waits, shown or not.
    pub total: usize,
    /// The waits.
    pub waits: Vec<Wait>,
}
