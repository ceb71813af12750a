//! The torchrun runs that use the store, and how long each has been idle.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use super::members::Members;
use crate::DropCause;
use crate::slot::SlotId;
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{RunId, Timestamp};

/// The number of a run. Never reused, and never zero, so an `Option` of it needs no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RunNumber(NonZeroU64);

/// The keys of one run, and the connections that use them.
#[derive(Debug)]
struct RunKeys {
    id: RunId,
    /// Connections that have touched one of its keys.
    connections: usize,
    /// Names that belong to it.
    slots: Members,
    /// Names that tell whether the run is over.
    ends: Members,
    forget_at: Option<Timestamp>,
    closed: bool,
    finished: bool,
}

/// All runs, up to [`Runs::TRACKED`].
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_id: HashMap<RunId, RunNumber>,
    by_key: HashMap<RunNumber, RunKeys>,
    /// Ids of runs that finished, oldest first.
    finished: VecDeque<RunId>,
    made: u64,
    changes: u64,
}

/// Bits that describe a run in a row of the journal.
pub(super) const CLOSED: u8 = 1;
pub(super) const FINISHED: u8 = 2;
pub(super) const LEAVING: u8 = 4;

#[expect(
    clippy::arithmetic_side_effects,
    reason = "counts what is in memory; what is subtracted was added when it came"
)]
impl Runs {
    /// The keys of further runs are ordinary keys: only a reset drops them.
    const TRACKED: usize = 1000;

    /// The run called `id`, made if there is none. The name `slot` belongs to it now. Also returns the name's
    /// position in the run.
    pub(super) fn enter(&mut self, id: &[u8], slot: SlotId) -> Option<(RunNumber, u32)> {
        let id = RunId::new(id);
        let key = match self.by_id.get(&id) {
            Some(&key) => key,
            None if self.by_key.len() >= Self::TRACKED => return None,
            None => {
                let key = RunNumber(NonZeroU64::MIN.saturating_add(self.made));
                self.made += 1;
                self.by_id.insert(id.clone(), key);
                let run = RunKeys {
                    id,
                    connections: 0,
                    slots: Members::default(),
                    ends: Members::default(),
                    forget_at: None,
                    closed: false,
                    finished: false,
                };
                self.by_key.insert(key, run);
                key
            }
        };
        let run = self.by_key.get_mut(&key)?;
        Some((key, run.slots.add(slot)))
    }

    /// The name `slot` tells whether the run is over. Returns its position among such names.
    pub(super) fn add_end(&mut self, key: RunNumber, slot: SlotId) -> u32 {
        self.by_key.get_mut(&key).map_or(0, |run| run.ends.add(slot))
    }

    /// The name at position `at` leaves the run. Returns the name that took its position.
    pub(super) fn leave(&mut self, key: RunNumber, at: u32, slot: SlotId) -> Option<SlotId> {
        let moved = self.by_key.get_mut(&key)?.slots.remove(at, slot);
        self.remove_if_empty(key);
        moved
    }

    /// As [`Self::leave`], for the names that tell whether the run is over.
    pub(super) fn remove_end(&mut self, key: RunNumber, at: u32, slot: SlotId) -> Option<SlotId> {
        self.by_key.get_mut(&key)?.ends.remove(at, slot)
    }

    fn remove_if_empty(&mut self, key: RunNumber) {
        if self.by_key.get(&key).is_some_and(|run| run.slots.as_slice().is_empty() && run.connections == 0)
            && let Some(run) = self.by_key.remove(&key)
        {
            self.changes += 1;
            self.by_id.remove(&run.id);
        }
    }

    /// One more connection uses the run. Returns the run's id if it had finished and this starts it again.
    pub(super) fn connect(&mut self, key: RunNumber) -> Option<RunId> {
        let run = self.by_key.get_mut(&key)?;
        run.connections += 1;
        if run.closed {
            // The run's state refuses every node that comes now. Its keys still go at the time that is set.
            return None;
        }
        self.changes += u64::from(run.finished || run.forget_at.is_some());
        run.forget_at = None;
        run.finished = false;
        if run.connections > 1 {
            return None;
        }
        let at = self.finished.iter().position(|id| *id == run.id)?;
        self.finished.remove(at)
    }

    /// One connection fewer uses the run. Returns whether it was the last one of a run that is not over.
    pub(super) fn disconnect(&mut self, key: RunNumber) -> bool {
        let Some(run) = self.by_key.get_mut(&key) else { return false };
        run.connections -= 1;
        let is_idle = run.connections == 0 && !run.closed;
        self.remove_if_empty(key);
        is_idle && self.by_key.contains_key(&key)
    }

    /// Sets when the keys of an idle run go, and how the run ended.
    pub(super) fn set_idle(
        &mut self,
        key: RunNumber,
        forget_at: Option<Timestamp>,
        finished: bool,
        closed: bool,
    ) {
        let Some(run) = self.by_key.get_mut(&key) else { return };
        self.changes += 1;
        run.forget_at = forget_at;
        run.finished = finished;
        run.closed = closed;
        // A static run is never closed: jobs with one id follow each other, and a late node waits for the
        // others.
        if finished && closed && !self.finished.contains(&run.id) {
            if self.finished.len() == Self::TRACKED {
                self.finished.pop_front();
            }
            self.finished.push_back(run.id.clone());
        }
    }

    /// The state that closed the run is gone: a node that comes now is no longer refused.
    pub(super) fn reopen(&mut self, key: RunNumber) {
        let Some(run) = self.by_key.get_mut(&key) else { return };
        self.changes += 1;
        (run.closed, run.finished) = (false, false);
        if run.connections > 0 {
            run.forget_at = None;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_key.values().filter_map(|run| run.forget_at).min()
    }

    /// Takes the runs whose time has come.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Vec<(RunNumber, DropCause)> {
        let due = self.by_key.iter_mut().filter_map(|(&key, run)| {
            run.forget_at.take_if(|at| *at <= now)?;
            let over = run.closed || run.finished;
            (run.closed, run.finished) = (false, false);
            Some((key, if over { DropCause::RunOver } else { DropCause::RunIdle }))
        });
        let due: Vec<_> = due.collect();
        self.changes += due.len() as u64;
        due
    }

    /// The run called `id`.
    pub(super) fn key_of(&self, id: &[u8]) -> Option<RunNumber> {
        self.by_id.get(&RunId::new(id)).copied()
    }

    /// The id of a run.
    pub(super) fn id_of(&self, key: RunNumber) -> Option<&RunId> {
        self.by_key.get(&key).map(|run| &run.id)
    }

    /// How runs ended, as far as it is known.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&RunId, u8)> {
        self.by_key.values().filter_map(|run| {
            let (closed, finished) = (u8::from(run.closed) * CLOSED, u8::from(run.finished) * FINISHED);
            let leaving = u8::from(run.forget_at.is_some()) * LEAVING;
            let is = closed | finished | leaving;
            (is != 0).then_some((&run.id, is))
        })
    }

    /// Goes up whenever [`Self::ended`] changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The names of a run.
    pub(super) fn slots(&self, key: RunNumber) -> &[SlotId] {
        self.by_key.get(&key).map_or(&[], |run| run.slots.as_slice())
    }

    /// The names of a run that tell whether it is over.
    pub(super) fn ends(&self, key: RunNumber) -> &[SlotId] {
        self.by_key.get(&key).map_or(&[], |run| run.ends.as_slice())
    }

    #[cfg(test)]
    pub(super) fn names_and_connections(&self) -> std::collections::HashMap<RunNumber, (usize, usize)> {
        self.by_key.iter().map(|(&key, run)| (key, (run.slots.as_slice().len(), run.connections))).collect()
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        assert!(self.finished.len() <= Self::TRACKED);
        for (key, run) in &self.by_key {
            assert_eq!(self.by_id.get(&run.id), Some(key));
            let names = run.slots.as_slice().len();
            assert!(names > 0 || run.connections > 0, "an unused run");
            assert!(run.forget_at.is_none() || run.connections == 0 || run.closed, "a run in use is to go");
            assert!(run.connections > 0 || !run.finished || run.forget_at.is_some() || names > 0);
        }
        assert_eq!(self.by_id.len(), self.by_key.len());
    }
}
