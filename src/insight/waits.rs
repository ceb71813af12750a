//! The outstanding waits, as the stores show them about once a second.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::Insight;
use super::graph::Graph;
use super::run::RunKey;
use crate::ids::{ConnId, Uptime};

/// One outstanding wait, as the store shows it.
#[derive(Debug, Clone)]
pub struct OpenWait {
    /// Who waits.
    pub conn: ConnId,
    /// Its address and port.
    pub peer: SocketAddr,
    /// Its process id, where it told it.
    pub pid: Option<u32>,
    /// For how long.
    pub waited: Duration,
    /// `None` for a WAIT; the awaited number of arrivals for a BARRIER.
    pub barrier_size: Option<i64>,
    /// How many keys the wait names.
    pub keys: usize,
    /// Those that are missing, at most ten; for a BARRIER its key.
    pub missing: Vec<Box<[u8]>>,
}

/// The same, with the time since when.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) since: Uptime,
    pub(super) peer: SocketAddr,
    pub(super) pid: Option<u32>,
    pub(super) barrier_size: Option<i64>,
    pub(super) keys: usize,
    pub(super) missing: Vec<Box<[u8]>>,
}

impl Waiting {
    /// Whether it is for the same. A client that waits in slices waits on.
    fn is_for(&self, other: &Self) -> bool {
        self.missing == other.missing && self.barrier_size == other.barrier_size
    }
}

impl Insight {
    /// The outstanding waits of a store that have lasted over a second; they replace those told before. Runs whose waits
    /// are others than before have changed.
    pub fn waits(&mut self, store: u16, waits: Vec<OpenWait>, now: Uptime) {
        self.waits_told = true;
        let waiting = |wait: OpenWait| {
            let since = Uptime(now.0.saturating_sub(wait.waited));
            let OpenWait { conn, peer, pid, barrier_size, keys, missing, .. } = wait;
            (conn, Waiting { since, peer, pid, barrier_size, keys, missing })
        };
        let told = waits.into_iter().map(waiting).collect();
        let before = std::mem::replace(&mut self.store(store).waits, told);
        let Some(watch) = self.stores.get(&store) else { return };
        let graph = Graph { store: watch, runs: &self.runs, now };
        let mut changed: BTreeSet<RunKey> = BTreeSet::new();
        for (these, those) in [(&graph.store.waits, &before), (&before, &graph.store.waits)] {
            let only_these =
                these.iter().filter(|(conn, wait)| !those.get(conn).is_some_and(|w| w.is_for(wait)));
            changed.extend(only_these.filter_map(|(&conn, wait)| graph.run_waiting(conn, wait)));
        }
        for key in changed {
            self.runs.get_mut(&key).into_iter().for_each(super::run::Run::touch);
        }
    }
}
