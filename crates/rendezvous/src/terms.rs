//! What the nodes of a run agree on: how many nodes, how long, how often.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RunRefusal;

/// More nodes than any job has.
const MAX_NODES: u32 = 100_000;
/// A node that has been silent for longer is lost, whatever keep-alive it asked for.
const MAX_PATIENCE: Duration = Duration::from_hours(1);
/// Longer than any node waits.
const MAX_TIME: Duration = Duration::from_hours(7 * 24);

/// The terms of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The least number of nodes in a round.
    pub min_nodes: u32,
    /// The greatest number of nodes in a round.
    pub max_nodes: u32,
    /// How long a round may form, from its first join.
    pub join_timeout: Duration,
    /// How long a round that has enough nodes waits for more.
    pub last_call: Duration,
    /// How often a node must show that it is alive.
    pub keep_alive: Duration,
    /// A node that is silent for this many intervals is lost.
    pub keep_alive_misses: u32,
    /// A node whose connection closed without a word, and that has not come again after this time, is lost.
    /// Without it, such a node has the time of a silent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
    /// Whether each round gets a store.
    pub store: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            min_nodes: 1,
            max_nodes: 1,
            join_timeout: Duration::from_mins(30),
            last_call: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            keep_alive_misses: 3,
            grace: None,
            store: true,
        }
    }
}

impl Terms {
    /// When the sign of life of a node is late: the interval between two of them, and some time more.
    pub(super) fn late_after(&self) -> Duration {
        self.keep_alive.saturating_add(self.keep_alive.checked_div(2).unwrap_or_default())
    }

    /// How long a heartbeat may wait at the server. It is short, so a stopped node soon misses its next
    /// heartbeat, and nodes that are stopped together are late together. With a grace it is longer: a
    /// process that dies while its heartbeat waits is noticed at once, and between two of them it is not.
    pub(super) fn hold(&self) -> Duration {
        const LEAST: Duration = Duration::from_millis(250);
        let half = |time: Duration| time.checked_div(2).unwrap_or_default();
        half(if self.grace.is_some() { self.patience() } else { self.keep_alive }).max(LEAST)
    }

    /// A node that is silent for this long is lost.
    pub fn patience(&self) -> Duration {
        self.keep_alive.saturating_mul(self.keep_alive_misses).min(MAX_PATIENCE)
    }

    /// A node whose connection closed is lost after this time, if it does not come again.
    pub(super) fn grace(&self) -> Duration {
        self.grace.map_or(self.patience(), |grace| grace.min(self.patience()))
    }

    /// A node of a round that outlived its server is lost after this time, if it does not come again. Its
    /// connection closed with the server, and a node that lives tries again at least once in the keep-alive
    /// time.
    pub(super) fn restart_grace(&self) -> Duration {
        self.grace().saturating_add(self.keep_alive).min(self.patience())
    }
}

/// What one node wants. A value that it leaves open is the run's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The least number of nodes in a round.
    pub min_nodes: u32,
    /// The greatest number of nodes in a round.
    pub max_nodes: u32,
    /// See [`Terms`].
    pub join_timeout: Option<Duration>,
    /// See [`Terms`].
    pub last_call: Option<Duration>,
    /// See [`Terms`].
    pub keep_alive: Option<Duration>,
    /// See [`Terms`].
    pub keep_alive_misses: Option<u32>,
    /// See [`Terms`].
    pub grace: Option<Duration>,
    /// See [`Terms`].
    pub store: Option<bool>,
}

/// A term for which a node wants another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The term.
    pub what: &'static str,
    /// The value that holds for the run.
    pub settled: String,
    /// The value that the node wants.
    pub wanted: String,
}

impl Difference {
    /// Whether the term is a number of nodes.
    pub(super) fn is_about_nodes(&self) -> bool {
        matches!(self.what, "min_nodes" | "max_nodes")
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {} there and {} here", self.what, self.settled, self.wanted)
    }
}

impl Wanted {
    pub(super) fn check(&self) -> Result<(), RunRefusal> {
        let bad = |what: &str| Err(RunRefusal::BadTerms(what.to_owned()));
        if self.min_nodes == 0 {
            return bad("min_nodes must be 1 or more");
        }
        if self.max_nodes < self.min_nodes {
            return bad("max_nodes must not be less than min_nodes");
        }
        if self.max_nodes > MAX_NODES {
            return bad("max_nodes must be at most 100000");
        }
        if self.keep_alive.is_some_and(|every| every.is_zero()) || self.keep_alive_misses == Some(0) {
            return bad("keep_alive_seconds and keep_alive_misses must be more than 0");
        }
        let (every, misses) = (self.keep_alive.unwrap_or_default(), self.keep_alive_misses.unwrap_or(1));
        if every.saturating_mul(misses) > MAX_PATIENCE {
            return bad("keep_alive_seconds times keep_alive_misses must not be more than an hour");
        }
        let times = [self.join_timeout, self.last_call, self.grace];
        if times.into_iter().flatten().any(|time| time > MAX_TIME) {
            return bad("no time may be longer than 7 days");
        }
        Ok(())
    }

    /// The terms of a run whose first node wants this.
    pub(super) fn settle(&self, defaults: &Terms) -> Terms {
        Terms {
            min_nodes: self.min_nodes,
            max_nodes: self.max_nodes,
            join_timeout: self.join_timeout.unwrap_or(defaults.join_timeout),
            last_call: self.last_call.unwrap_or(defaults.last_call),
            keep_alive: self.keep_alive.unwrap_or(defaults.keep_alive),
            keep_alive_misses: self.keep_alive_misses.unwrap_or(defaults.keep_alive_misses),
            grace: self.grace.or(defaults.grace),
            store: self.store.unwrap_or(defaults.store),
        }
    }

    /// The terms in which this and the settled ones differ.
    pub(super) fn differences(&self, settled: &Terms) -> Vec<Difference> {
        let wanted = self.settle(settled);
        // Written to the last digit, because two different values are shown side by side.
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        let number = |n: u32| n.to_string();
        let all = [
            ("min_nodes", number(settled.min_nodes), number(wanted.min_nodes)),
            ("max_nodes", number(settled.max_nodes), number(wanted.max_nodes)),
            ("join_timeout", seconds(settled.join_timeout), seconds(wanted.join_timeout)),
            ("last_call", seconds(settled.last_call), seconds(wanted.last_call)),
            ("keep_alive", seconds(settled.keep_alive), seconds(wanted.keep_alive)),
            ("keep_alive_misses", number(settled.keep_alive_misses), number(wanted.keep_alive_misses)),
            ("grace", seconds(settled.grace()), seconds(wanted.grace())),
            ("store", settled.store.to_string(), wanted.store.to_string()),
        ];
        all.into_iter()
            .filter(|(_, settled, wanted)| settled != wanted)
            .map(|(what, settled, wanted)| Difference { what, settled, wanted })
            .collect()
    }
}
