//! Outstanding waits: the JSON of `GET /api/v1/waits`, and those of one run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One outstanding WAIT or BARRIER: an element of `WaitList` and of a run's `waits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Wait {
    /// The port of the store.
    pub store: u16,
    /// The run it belongs to, where that is known.
    #[schema(required)]
    pub run_id: Option<String>,
    /// Who waits: address and port.
    #[schema(required)]
    pub peer: Option<String>,
    /// Its process id, where it told it.
    #[schema(required)]
    pub pid: Option<u32>,
    /// Who waits, for people: `rank 3`, `node train-llm-2`.
    #[schema(required)]
    pub who: Option<String>,
    /// `wait` or `barrier`.
    pub op: String,
    /// For how long.
    pub waited_seconds: f64,
    /// Number of keys the wait names.
    pub keys: usize,
    /// Up to ten keys that are still missing; for a barrier its key.
    pub missing: Vec<String>,
    /// Arrivals the barrier waits for.
    #[schema(required)]
    pub world_size: Option<i64>,
    /// Who must write the missing key, where the key tells: `rank 0`, `node rank 2 (train-llm-2)`.
    #[schema(required)]
    pub writer: Option<String>,
    /// Why it lasts, in a sentence: what the writer itself does, down to the root of the chain.
    #[schema(required)]
    pub reason: Option<String>,
}

/// `GET /api/v1/waits`: outstanding waits of all stores, the oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitList {
    /// Number of all outstanding waits, shown or not.
    pub total: usize,
    /// The waits.
    pub waits: Vec<Wait>,
}
