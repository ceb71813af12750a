//! Rule 5: what a process has published goes some time after its connection has closed.
//!
//! A process publishes once. When it has lost its connection it comes with another one, and publishes nothing
//! again. So a key stays while any connection has the address and the process id of its writer. Both repeat:
//! then a key stays longer than its writer.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use hashbrown::HashMap;

use super::due::{Due, Filter};
use super::members::Members;
use super::{DropCause, Kind, StaleKeys, put};
use crate::keyspace::KeySpace;
use crate::slot::SlotId;
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// A process, as far as its connections tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Process {
    /// Its address, and the process id that it said.
    Named(IpAddr, u32),
    /// It said no process id, and is known by its one connection.
    Unnamed(ConnId),
}

/// A process whose connection closed after it had published something.
#[derive(Debug)]
struct Away {
    /// When the last of its connections closed.
    since: Timestamp,
    /// Its connections that had published something.
    writers: Vec<ConnId>,
}

/// Names that were published and are still there.
#[derive(Debug, Default)]
pub(super) struct Published {
    by_writer: HashMap<ConnId, Members>,
    away: HashMap<Process, Away>,
    /// When to look whether a process that is away has come back: one entry for each of them.
    looks: BTreeSet<(Timestamp, Process)>,
}

impl Published {
    /// Bytes of one publisher, roughly.
    pub(super) const BYTES: usize = 2 * size_of::<(ConnId, Members)>();
    const AWAY_BYTES: usize = 2 * size_of::<(Process, Away)>() + 2 * size_of::<(Timestamp, Process)>();

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
    pub(super) fn bytes(&self) -> usize {
        self.by_writer.len() * Self::BYTES + self.away.len() * Self::AWAY_BYTES
    }

    fn add(&mut self, conn: ConnId, id: SlotId) -> u32 {
        self.by_writer.entry(conn).or_default().add(id)
    }

    /// Removes `id` at position `at` of what `conn` has published. Returns the name that took its position.
    fn remove(&mut self, conn: ConnId, at: u32, id: SlotId) -> Option<SlotId> {
        let names = self.by_writer.get_mut(&conn)?;
        let moved = names.remove(at, id);
        if names.as_slice().is_empty() {
            self.by_writer.remove(&conn);
        }
        moved
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.looks.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(super) fn at(&self, conn: ConnId, at: u32) -> Option<SlotId> {
        self.by_writer.get(&conn)?.as_slice().get(at as usize).copied()
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> usize {
        self.by_writer.values().map(|names| names.as_slice().len()).sum()
    }
}

impl StaleKeys {
    /// `conn` publishes the name `id`.
    pub(super) fn publish(&mut self, keys: &mut KeySpace, conn: ConnId, id: SlotId) {
        let Some(record) = &mut keys.slot_mut(id).record else { return };
        let before = record.writer.replace(conn);
        if before == Some(conn) {
            return;
        }
        let at_before = std::mem::replace(&mut record.at, self.published.add(conn, id));
        if let Some(before) = before {
            let moved = self.published.remove(before, at_before, id);
            put(keys, moved, |it| it.at = at_before);
        }
    }

    /// The name `id`, which `writer` had published, has lost its value.
    pub(super) fn unpublish(&mut self, keys: &mut KeySpace, writer: ConnId, id: SlotId) {
        let Some(at) = super::record_of(keys, id).map(|record| record.at) else { return };
        let moved = self.published.remove(writer, at, id);
        put(keys, moved, |it| it.at = at);
    }

    /// `conn`, a connection of `process`, has closed.
    pub(super) fn publisher_left(&mut self, conn: ConnId, process: Process, now: Timestamp) {
        let Some(grace) = self.config.forget_run_after else { return };
        let Published { by_writer, away, looks } = &mut self.published;
        if by_writer.contains_key(&conn) {
            let away = away.entry(process).or_insert_with(|| {
                looks.insert((now + grace, process));
                Away { since: now, writers: Vec::new() }
            });
            away.writers.push(conn);
        }
        if let Some(away) = away.get_mut(&process) {
            away.since = now;
        }
    }

    /// Processes to look for now.
    pub(crate) fn missed_publishers(&self, now: Timestamp) -> HashSet<Process> {
        let due = self.published.looks.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, process)| *process).collect()
    }

    /// Rule 5: what was published by processes that are gone is due. `there` are the ones of
    /// [`Self::missed_publishers`] that have a connection.
    pub(crate) fn take_due_published(
        &mut self,
        keys: &mut KeySpace,
        now: Timestamp,
        there: &HashSet<Process>,
    ) {
        let Some(grace) = self.config.forget_run_after else { return };
        while self.published.next_deadline().is_some_and(|at| at <= now)
            && let Some((_, process)) = self.published.looks.pop_first()
        {
            let Published { by_writer, away, looks } = &mut self.published;
            let Some(its) = away.get_mut(&process) else { continue };
            its.writers.retain(|writer| by_writer.contains_key(writer));
            let next = if there.contains(&process) { now + grace } else { its.since + grace };
            if next > now && !its.writers.is_empty() {
                looks.insert((next, process));
                continue;
            }
            for writer in away.remove(&process).into_iter().flat_map(|away| away.writers) {
                let ids = self.published.by_writer.get(&writer).map(|names| names.as_slice().to_vec());
                let filter = Filter::Publisher(writer);
                let age = keys.new_age();
                self.add_due(Due::new(ids.unwrap_or_default(), filter, DropCause::WriterGone, age));
            }
        }
    }

    /// A restored name whose writer lost its connection with the previous server. It may live, and publish
    /// nothing again: the name stays until somebody writes it.
    pub(super) fn restore_published(keys: &mut KeySpace, writer: ConnId, id: SlotId) -> bool {
        let Some(record) = &mut keys.slot_mut(id).record else { return false };
        let is_published = record.kind == Kind::Published;
        if is_published {
            record.writer = Some(writer);
        }
        is_published
    }
}
