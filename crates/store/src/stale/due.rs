//! What the rules drop, step by step: a connection may have written a million addresses, and a run may have
//! as many names. A decision puts names on a list. Each name is looked at once, and goes if the decision
//! still applies to it. What was written after the decision stays.

use super::{DropCause, KeySpace, Notes, Record, SlotId, StaleKeys};
use crate::keyspace::Slot;
use rallypoint_protocol::ids::ConnId;

/// A list of names, some of which go. When its turn comes, a slot may belong to another name or hold a later
/// value.
#[derive(Debug)]
pub(super) struct Due {
    ids: std::vec::IntoIter<SlotId>,
    filter: Filter,
    cause: DropCause,
    /// Only what was written before this age goes.
    age: u64,
    /// Bytes of the list, until it is done.
    bytes: usize,
}

/// Which names of the list go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Filter {
    /// Addresses that this connection wrote, which has closed.
    Writer(ConnId),
    /// What an attempt left behind. Keys that match no pattern go only if nobody but agents is left.
    Attempt { only_agents: bool },
    /// What this connection has published.
    Publisher(ConnId),
    /// The names of a run.
    Run(super::RunNumber),
}

impl Due {
    pub(super) fn new(ids: Vec<SlotId>, filter: Filter, cause: DropCause, age: u64) -> Self {
        let bytes = ids.capacity().saturating_mul(size_of::<SlotId>());
        Self { ids: ids.into_iter(), filter, cause, age, bytes }
    }
}

impl Due {
    /// Why a name is dropped now. `None` if it stays.
    fn cause(&self, slot: &Slot, record: &Record) -> Option<DropCause> {
        let is_old = || slot.is_older_than(self.age);
        let goes = match self.filter {
            Filter::Writer(conn) | Filter::Publisher(conn) => record.writer == Some(conn),
            Filter::Run(run) => record.run == Some(run) && is_old(),
            Filter::Attempt { only_agents } => {
                let cause = record.kind.attempt_over().filter(|_| is_old())?;
                return (cause == DropCause::AttemptOver || only_agents).then_some(cause);
            }
        };
        goes.then_some(self.cause)
    }
}

impl StaleKeys {
    /// Whether there are names that may have to go.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn add_due(&mut self, due: Due) {
        self.bytes += due.bytes;
        self.due.push_back(due);
    }

    /// As [`Self::add_due`], for what attempts left behind. It replaces a list of the same kind that has not
    /// begun, because it contains all names of that list.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn add_due_once(&mut self, due: Due) {
        // The first list may have begun.
        if let Some(at) = self.due.iter().skip(1).position(|other| other.filter == due.filter)
            && let Some(before) = self.due.remove(at + 1)
        {
            self.bytes -= before.bytes;
        }
        self.add_due(due);
    }

    #[cfg(test)]
    pub(super) fn due_bytes(&self) -> usize {
        self.due.iter().map(|due| due.bytes).sum()
    }

    /// Frees the notes on what one connection had read. Returns how many steps it took, `None` if nothing is
    /// left.
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(crate) fn free_reads(&mut self) -> Option<usize> {
        let reads = self.forgotten.pop()?;
        self.bytes -= Notes::bytes_of(&reads);
        Some(reads.len())
    }

    /// Whether notes on what connections had read are still to be freed.
    #[inline]
    pub(crate) fn has_reads_to_free(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Looks at up to `most` names, and returns the names to drop now.
    #[expect(clippy::arithmetic_side_effects, reason = "looks are at most one for each name in memory")]
    pub(crate) fn next_drops(&mut self, keys: &mut KeySpace, most: usize) -> Vec<(SlotId, DropCause)> {
        let mut drops = Vec::new();
        let mut looks = 0;
        while let Some(mut due) = self.due.pop_front() {
            while looks < most
                && let Some(id) = due.ids.next()
            {
                looks += 1;
                let Some(slot) = keys.get(id) else { continue };
                let Some(cause) = slot.record.as_ref().and_then(|record| due.cause(slot, record)) else {
                    continue;
                };
                // Rule 1 (a).
                if let Filter::Writer(_) = due.filter {
                    self.on_value_gone(keys, id);
                }
                drops.push((id, cause));
            }
            if !due.ids.as_slice().is_empty() {
                self.due.push_front(due);
                break;
            }
            self.bytes -= due.bytes;
        }
        self.looks += looks;
        drops
    }
}
