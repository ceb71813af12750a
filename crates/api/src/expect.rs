//! An operator's expectation for a run.

use serde::{Deserialize, Serialize};

/// How many nodes to expect: `nodes`, or `min` and `max`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The exact number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// The most. By default `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Their names, so that the missing ones can be named.
    #[serde(default)]
    pub names: Vec<String>,
}

/// What is expected now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Expects {
    /// The run.
    pub run_id: String,
    /// The least number of nodes.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// The effect on a native run, in words, if the run is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comes: Option<String>,
}

/// A run that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forgotten {
    /// The run.
    pub run_id: String,
    /// How many keys of its rendezvous were dropped.
    pub dropped_keys: usize,
}
