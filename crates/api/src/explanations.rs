//! Explanations of runs: log, API, `status` and page share them.

use serde::{Deserialize, Serialize};

/// How much an explanation matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// The run waits for something, or something looks wrong.
    Warning,
    /// The run will not continue by itself.
    Error,
}

impl Severity {
    /// The name in JSON and as a metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// How sure an explanation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Everything in it was observed.
    Seen,
    /// The process was found by elimination: the others were observed, and this one was not.
    Eliminated,
}

/// An observed action of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// It has waited for the key since then.
    Waits,
    /// It wrote the key.
    Wrote,
    /// It gave up waiting for the key.
    GaveUp,
    /// It joined.
    Joined,
    /// Its connection closed.
    Closed,
    /// It was given up, as its host or link did not answer.
    Unreachable,
    /// Its last heartbeat came.
    Heard,
    /// It said that it leaves.
    Left,
}

/// One observation from which an explanation follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evidence {
    /// What was observed.
    pub seen: Seen,
    /// The process, as sentences name it.
    pub who: String,
    /// Its connection, if that is known.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub peer: Option<String>,
    /// Its process id, if it told it.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub pid: Option<u32>,
    /// The key it is about.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub key: Option<String>,
    /// When.
    pub at: f64,
}

/// One explanation, shared by log, API, status and page: an element of many documents, and the data of the
/// event `explanation`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Its id, for as long as it holds.
    pub id: u64,
    /// The run it is about.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub run_id: Option<String>,
    /// The store it is about.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub store: Option<u16>,
    /// The kind of problem: one of the headings of `docs/explanations.md`, such as `nodes_missing`.
    pub code: String,
    /// How much it matters.
    pub severity: Severity,
    /// When it began to hold.
    pub since: f64,
    /// Whether it still holds. A past problem is still shown for a while, with `false`.
    pub holds: bool,
    /// How sure it is.
    pub certainty: Certainty,
    /// What is wrong, in a sentence.
    pub text: String,
    /// What to do about it; empty if there is nothing to do.
    pub remedy: String,
    /// What it was found from, the same fields for every code: `held`, `missing` (each with `what`, `name`,
    /// `presence`, `at`), `candidates` (connected, and may be one of those), `joined` (how many of `of`),
    /// `expected`, `from`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub facts: serde_json::Value,
    /// The first observations that show it: connection, key and time. Only with `GET /api/v1/runs/{run_id}`
    /// and in events; left out if only the traffic as a whole shows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// Something that happened: an element of a run's `timeline`, and the data of the event `moment`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimelineEvent {
    /// When.
    pub at: f64,
    /// The run it happened to.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub run_id: Option<String>,
    /// What kind of event: `node_joined`, `round_complete`, … or the code of an explanation.
    pub code: String,
    /// What happened, in a sentence.
    pub text: String,
}
