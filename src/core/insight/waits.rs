//! The outstanding waits, as the stores show them about once a second.

use std::collections::BTreeSet;

use super::Insight;
use super::graph::Graph;
use super::run::RunKey;
use crate::core::ids::Timestamp;
use crate::core::store::WaitView;

/// An outstanding wait, and since when.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) since: Timestamp,
    /// As the store showed it last.
    pub(super) view: WaitView,
}

impl Waiting {
    /// Whether it is for the same. A client that waits in slices waits on.
    fn is_for(&self, other: &Self) -> bool {
        self.view.missing == other.view.missing && self.view.barrier_size == other.view.barrier_size
    }
}

impl Insight {
    /// The outstanding waits of a store that have lasted over a second; they replace those told before. Runs whose waits
    /// are others than before have changed.
    pub fn waits(&mut self, store: u16, waits: Vec<WaitView>, now: Timestamp) {
        self.waits_told = true;
        let waiting = |view: WaitView| {
            (view.conn, Waiting { since: Timestamp(now.0.saturating_sub(view.waited)), view })
        };
        let told = waits.into_iter().map(waiting).collect();
        let before = std::mem::replace(&mut self.store(store).waits, told);
        let Some(watch) = self.stores.get(&store) else { return };
        let graph = Graph { store: watch, runs: &self.runs, now };
        let mut changed: BTreeSet<RunKey> = BTreeSet::new();
        for (these, those) in [(&graph.store.waits, &before), (&before, &graph.store.waits)] {
            let only_these =
                these.iter().filter(|(conn, wait)| !those.get(conn).is_some_and(|w| w.is_for(wait)));
            changed.extend(only_these.filter_map(|(_, wait)| graph.run_waiting(&wait.view)));
        }
        for key in changed {
            self.runs.get_mut(&key).into_iter().for_each(super::run::Run::touch);
        }
    }
}
