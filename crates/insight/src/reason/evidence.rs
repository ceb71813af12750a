//! What was seen, from which an explanation follows.

use std::net::{IpAddr, SocketAddr};

use crate::reason::Reason;
use rallypoint_api::Seen;
use rallypoint_protocol::ids::Timestamp;

/// As many are kept with one explanation.
const MOST: usize = 8;

/// One thing that was seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Evidence {
    pub(crate) seen: Seen,
    /// The process, for people.
    pub(crate) who: String,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) pid: Option<u32>,
    pub(crate) key: Option<String>,
    pub(crate) at: Timestamp,
}

impl Evidence {
    /// What somebody did who is known by name only: there is no connection or key to show.
    pub(crate) const fn by_name(seen: Seen, who: String, at: Timestamp) -> Self {
        Self { seen, who, peer: None, pid: None, key: None, at }
    }

    /// Its address and process id, where it told them. Containers may share both.
    pub(crate) fn process(&self) -> Option<(IpAddr, u32)> {
        Some((self.peer?.ip(), self.pid?))
    }
}

/// A reason that was found.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) reason: Reason,
    /// Tells it from others of its kind in one run.
    pub(crate) about: String,
    pub(crate) since: Timestamp,
    /// The round that it belongs to, where that may not be the run's round when it is told.
    pub(crate) round: Option<u64>,
    /// The first things that show it.
    pub(crate) evidence: Vec<Evidence>,
}

impl Finding {
    pub(crate) fn new(reason: impl Into<Reason>, about: impl Into<String>, since: Timestamp) -> Self {
        Self { reason: reason.into(), about: about.into(), since, round: None, evidence: Vec::new() }
    }

    /// What tells one round from the next.
    pub(crate) fn of_round(reason: Reason, round: u64, since: Timestamp) -> Self {
        Self::new(reason, format!("round {round}"), since)
    }

    pub(crate) fn in_round(self, round: Option<u64>) -> Self {
        Self { round: round.or(self.round), ..self }
    }

    /// With what shows it, of which the first few are kept.
    pub(crate) fn seen(self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        Self { evidence: evidence.into_iter().take(MOST).collect(), ..self }
    }
}
