//! What was seen, from which an explanation follows.

use std::net::SocketAddr;

use super::Reason;
use crate::api::Seen;
use crate::core::ids::Timestamp;

/// As many are kept with one explanation.
const MOST: usize = 8;

/// One thing that was seen.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::core::insight) struct Evidence {
    pub(in crate::core::insight) seen: Seen,
    /// The process, for people.
    pub(in crate::core::insight) who: String,
    pub(in crate::core::insight) peer: Option<SocketAddr>,
    pub(in crate::core::insight) pid: Option<u32>,
    pub(in crate::core::insight) key: Option<String>,
    pub(in crate::core::insight) at: Timestamp,
}

impl Evidence {
    /// What somebody did who is known by name only: there is no connection or key to show.
    pub(in crate::core::insight) const fn by_name(seen: Seen, who: String, at: Timestamp) -> Self {
        Self { seen, who, peer: None, pid: None, key: None, at }
    }
}

/// A reason that was found.
#[derive(Debug)]
pub(in crate::core::insight) struct Finding {
    pub(in crate::core::insight) reason: Reason,
    /// Tells it from others of its kind in one run.
    pub(in crate::core::insight) about: String,
    pub(in crate::core::insight) since: Timestamp,
    /// The round that it belongs to, where that may not be the run's round when it is told.
    pub(in crate::core::insight) round: Option<u64>,
    /// The first things that show it.
    pub(in crate::core::insight) evidence: Vec<Evidence>,
}

impl Finding {
    pub(in crate::core::insight) fn new(reason: Reason, about: impl Into<String>, since: Timestamp) -> Self {
        Self { reason, about: about.into(), since, round: None, evidence: Vec::new() }
    }

    /// It belongs to this round.
    pub(in crate::core::insight) fn in_round(self, round: Option<u64>) -> Self {
        Self { round: round.or(self.round), ..self }
    }

    /// With what shows it, of which the first few are kept.
    pub(in crate::core::insight) fn seen(self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        Self { evidence: evidence.into_iter().take(MOST).collect(), ..self }
    }
}
