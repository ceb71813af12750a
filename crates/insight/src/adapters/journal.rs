//! The pasts of all runs, as the journal keeps them: a row for each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use crate::adapters::past::Past;
use crate::epoch::Epoch;
use crate::facts::run::{RunKey, TrackedRun};
use rallypoint_api::RunKind;
use rallypoint_protocol::ids::{RunId, Timestamp};

/// The row of a run: its id, and its past. Without that there is nothing to remember any more.
pub type PastRow = (Vec<u8>, Option<Past>);

/// What the last server knew of its runs, and what the next one will.
#[derive(Debug, Default)]
pub(crate) struct Pasts {
    /// Runs that have not been seen since this server started.
    of_before: BTreeMap<RunKey, Past>,
    /// Stores of such runs that had met: without agents, their ranks have no run's id.
    without_agents: BTreeSet<u16>,
    /// The runs that have a row.
    kept: BTreeSet<RunKey>,
    /// When this server looked first.
    looked: Option<Timestamp>,
}

/// Nodes of a native round that formed when the last server ended ask again within this time.
const ASK_AGAIN: Duration = Duration::from_secs(30);

impl Pasts {
    pub(crate) fn restore(&mut self, rows: impl Iterator<Item = PastRow>) {
        self.of_before = rows.filter_map(|(id, past)| Some((run_of(&id)?, past?))).collect();
        self.kept = self.of_before.keys().cloned().collect();
    }

    /// Gives the runs that are seen again their pasts. The others are over, or go on without the server.
    pub(crate) fn recall(&mut self, runs: &mut BTreeMap<RunKey, TrackedRun>, epoch: Epoch, now: Timestamp) {
        if self.looked.is_none() {
            let had_met = self.of_before.iter().filter(|(key, past)| key.id().is_some() && past.goes_on());
            self.without_agents = had_met.filter_map(|(key, _)| key.port()).collect();
        }
        let looked = *self.looked.get_or_insert(now);
        self.without_agents.retain(|&port| {
            let Some(ranks) = runs.get_mut(&RunKey::Store { port, id: None }) else { return true };
            // Else it was there besides.
            if ranks.first_seen > looked {
                ranks.had_met_before(looked);
            }
            false
        });
        let up = now.since(looked);
        self.of_before.retain(|key, past| {
            match runs.get_mut(key) {
                // The rendezvous shows its runs when their nodes ask again.
                None if key.port().is_none() => return up < ASK_AGAIN,
                Some(run) if run.kind == RunKind::Announced => return up < ASK_AGAIN,
                None => return !past.is_over(),
                Some(run) if up.is_zero() || key.port().is_none() => run.recall(past, epoch),
                // It comes anew, or a part of it.
                Some(run) => run.had_met_before(looked),
            }
            false
        });
    }

    pub(crate) fn take_changed(
        &mut self,
        runs: &mut BTreeMap<RunKey, TrackedRun>,
        epoch: Epoch,
    ) -> Vec<PastRow> {
        let of_before = &self.of_before;
        let gone = self.kept.extract_if(.., |key| !runs.contains_key(key) && !of_before.contains_key(key));
        let mut rows: Vec<PastRow> = gone.map(|key| (row_id(&key), None)).collect();
        // An announcement is made again: there is nothing to remember of it.
        for (key, run) in runs.iter_mut().filter(|(_, run)| run.kind != RunKind::Announced) {
            if let Some(past) = run.take_past(epoch) {
                if !self.kept.contains(key) {
                    self.kept.insert(key.clone());
                }
                rows.push((row_id(key), Some(past)));
            }
        }
        rows
    }

    /// The next rows that there are, behind the one with this id.
    pub(crate) fn some(
        &self,
        runs: &BTreeMap<RunKey, TrackedRun>,
        after: Option<&[u8]>,
        most: usize,
        epoch: Epoch,
    ) -> Vec<PastRow> {
        let behind = after.and_then(run_of).map_or(Unbounded, Excluded);
        let past = |key: &RunKey| match runs.get(key) {
            Some(run) => Some(run.past(epoch)),
            None => self.of_before.get(key).cloned(),
        };
        self.kept.range((behind, Unbounded)).take(most).map(|key| (row_id(key), past(key))).collect()
    }
}

/// Names a run in the journal: its kind, the port of its store, and its id.
pub(crate) fn row_id(key: &RunKey) -> Vec<u8> {
    let kind = match key {
        RunKey::Id(_) => b'n',
        RunKey::Store { id: Some(_), .. } => b'i',
        RunKey::Store { id: None, .. } => b's',
    };
    let id = key.id().map_or(&b""[..], RunId::as_bytes);
    [&[kind][..], &key.port().unwrap_or(0).to_be_bytes(), id].concat()
}

/// The run of a row, if there is such a kind of runs.
pub(crate) fn run_of(row_id: &[u8]) -> Option<RunKey> {
    let (&[kind, high, low], id) = row_id.split_first_chunk()?;
    let (port, id) = (u16::from_be_bytes([high, low]), RunId::new(id));
    Some(match kind {
        b'n' => RunKey::Id(id),
        b'i' => RunKey::Store { port, id: Some(id) },
        b's' => RunKey::Store { port, id: None },
        _ => return None,
    })
}
