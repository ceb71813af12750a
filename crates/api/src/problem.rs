//! The body of an error answer.

use serde::{Deserialize, Serialize};

/// A problem detail as in RFC 9457, sent as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
    /// What happened, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For a barrier's timeout: how many had arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived: Option<u32>,
    /// For a barrier's timeout: members that had not arrived, at most 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Vec<String>>,
}
