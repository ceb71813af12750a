//! What a journal must know of the store: the rows of each critical section. And the way back: a store made
//! of rows.
//!
//! Rows are made from the state at the end of a critical section. Without a journal, a change costs one look
//! at a flag.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv6Addr, SocketAddr};

use super::Store;
use super::effects::Effects;
use super::keyspace::{Changed, Slot};
use super::slot::SlotId;
use super::stale::JobMark;
use super::waiters::{Wait, WaitOn};
use rallypoint_journal::{BarrierPlace, ClientImage, ClientRow, KeyRow, Row, StoreId, StoreImage};
use rallypoint_protocol::ids::{ConnId, Timestamp, count};
use rallypoint_protocol::keys::Role;

/// Changes that the journal does not know yet.
#[derive(Debug)]
pub(super) struct Kept {
    store: StoreId,
    /// Connections about which the rules have learned something, or that began or ended a wait at a barrier.
    clients: Vec<ConnId>,
    /// The mark of the last row about the job.
    job: JobMark,
}

/// How far a walk through the whole store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walk {
    place: u32,
    session: usize,
}

impl Store {
    /// From now on, changes are kept for [`Self::take_rows`]. The rows name this store.
    pub fn keep_rows(&mut self, store: StoreId) {
        self.keys.keep_changes();
        self.stale.keep_reads();
        self.kept = Some(Kept { store, clients: Vec::new(), job: JobMark::default() });
    }

    /// The journal needs a new row of this connection.
    #[inline]
    pub(super) fn client_changed(&mut self, conn: ConnId) {
        if let Some(kept) = &mut self.kept {
            kept.clients.push(conn);
        }
    }

    /// The journal needs new rows of all connections that the stale-key rules know.
    pub(super) fn all_clients_changed(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.clients.extend(self.stale.known());
        }
    }

    /// Whether anything has changed since [`Self::take_rows`]. `false` where no journal is kept.
    #[inline]
    pub fn has_rows(&self) -> bool {
        let is_news = |kept: &Kept| !kept.clients.is_empty() || kept.job != self.stale.job_mark();
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| self.keys.has_changed() || is_news(kept) || self.stale.has_reads())
    }

    /// Appends the rows of what has changed since the last call.
    pub fn take_rows(&mut self, out: &mut Vec<u8>) {
        let Some(kept) = &mut self.kept else { return };
        let store = kept.store;
        let mut clients = std::mem::take(&mut kept.clients);
        let job = self.stale.job_mark();
        if std::mem::replace(&mut kept.job, job) != job {
            Row::Job(store, self.stale.job_row()).encode(out);
        }
        self.keys.take_changed(|changed| match changed {
            Changed::Slot(slot, None) => put_slot(store, slot, false, out),
            Changed::Slot(slot, Some(journaled)) => {
                let more = slot.value().and_then(|value| value.get(journaled..));
                Row::Part(store, slot.key(), journaled as u64, more.unwrap_or_default()).encode(out);
                put_queue(store, slot, false, out);
            }
            Changed::NameGone(key) => Row::Key(store, key, None).encode(out),
            Changed::QueueGone(key) => Row::Queue(store, key, 0, 0).encode(out),
        });
        clients.sort_unstable();
        clients.dedup();
        for conn in clients.drain(..) {
            Row::Client(store, conn.serial(), self.client_row(conn)).encode(out);
        }
        self.stale.take_reads(store, out);
        if let Some(kept) = &mut self.kept {
            kept.clients = clients;
        }
    }

    /// Copies what the store holds: appends rows from where `walk` stands, until they are about `enough`
    /// bytes. Returns `false` at the end.
    #[expect(clippy::arithmetic_side_effects, reason = "places and bytes in memory")]
    pub fn copy_rows(&mut self, walk: &mut Walk, enough: usize, out: &mut Vec<u8>) -> bool {
        /// Places looked at in one call. They may all be empty.
        const MOST_LOOKS: usize = 16 * 1024;
        let Some(Kept { store, .. }) = self.kept else { return false };
        let full = out.len() + enough;
        if *walk == Walk::default() {
            Row::Job(store, self.stale.job_row()).encode(out);
        }
        for _ in 0..MOST_LOOKS {
            if out.len() >= full {
                return true;
            }
            if walk.place < self.keys.places() {
                let place = walk.place;
                walk.place += 1;
                if let Some(slot) = self.keys.at_mut(place).filter(|slot| slot.is_present()) {
                    put_slot(store, slot, true, out);
                }
            } else if let Some(session) = self.sessions.get(walk.session) {
                walk.session += 1;
                if let Some(conn) = session.as_ref().map(|session| session.conn)
                    && let Some(row) = self.client_row(conn)
                {
                    Row::Client(store, conn.serial(), Some(row)).encode(out);
                    self.stale.copy_reads(store, conn, out);
                }
            } else {
                return false;
            }
        }
        true
    }

    pub(super) fn client_row(&self, conn: ConnId) -> Option<ClientRow<'_>> {
        let session = self.session(conn)?;
        let barrier = session.wait.as_ref().and_then(|wait| match wait.on {
            WaitOn::Barrier { registration, arrivals, life, .. } => {
                let key = self.keys.slot(self.registrations.get(registration).slot).key();
                Some(BarrierPlace { key, arrivals, life })
            }
            WaitOn::Keys { .. } | WaitOn::Shared { .. } => None,
        });
        let known = self.stale.client_row(conn);
        let pid = session.pid;
        (known.is_some() || barrier.is_some()).then(|| ClientRow {
            barrier,
            pid,
            ..known.unwrap_or_default()
        })
    }

    /// Fills the store from `image`. Of the connections in the image, the `live` ones (by their numbers and
    /// addresses) are still there: they get the first places, in this order, and will repeat what they waited
    /// for. The others are gone: what the rules do about that is done at once, and pauses before a drop begin
    /// now.
    ///
    /// Call it before any connection and instead of [`Self::keep_rows`], which it calls. Many keys are
    /// dropped in steps, while [`Store::is_unsettled`]. The contents of the image are moved, never copied:
    /// they may be most of the memory.
    pub fn restore(
        &mut self,
        id: StoreId,
        image: StoreImage,
        live: &[(u32, SocketAddr)],
        now: Timestamp,
        fx: &mut impl Effects,
    ) {
        self.deleted.begin_late();
        let StoreImage { keys, queues, clients, reads, job, .. } = image;
        let is_counted = |client: &ClientImage| {
            let place = client.barrier.as_ref();
            place.is_some_and(|(key, _, life)| keys.get(key).is_some_and(|key| key.life == *life))
        };
        let counted: BTreeSet<u32> =
            clients.iter().filter(|(_, client)| is_counted(client)).map(|(&serial, _)| serial).collect();
        let mut writers = Vec::new();
        for (key, it) in keys {
            let slot = self.slot_named(key);
            self.keys.set_value(slot, Some(it.value));
            writers.extend(it.writer.map(|writer| (slot, writer)));
        }
        writers.sort_unstable();
        for (key, queue) in queues {
            let slot = self.slot_named(key);
            let first = queue.items.keys().next().copied().unwrap_or(0);
            for item in queue.items.into_values() {
                self.keys.push_item(slot, item);
            }
            self.keys.number_items(slot, first);
        }
        self.stale.restore_job(&job, now);
        let mut conns = BTreeMap::new();
        for (place, &(serial, addr)) in (0..).zip(live) {
            let conn = ConnId::new(place, serial);
            conns.insert(serial, conn);
            self.connect(conn, addr);
        }
        // Connections of the previous server. Their places are free again at the end.
        let nowhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let mut ghosts = Vec::new();
        for &serial in clients.keys() {
            conns.entry(serial).or_insert_with(|| {
                let conn = ConnId::new(count(live.len().saturating_add(ghosts.len())), serial);
                self.connect(conn, nowhere);
                ghosts.push(conn);
                conn
            });
        }
        for (serial, client) in &clients {
            if let Some(&conn) = conns.get(serial) {
                self.restore_client(conn, client, counted.contains(serial), now);
            }
        }
        for &(slot, writer) in &writers {
            match conns.get(&writer) {
                Some(&conn) => drop(self.stale.on_write(&mut self.keys, conn, slot)),
                None => self.stale.restore_orphan(&mut self.keys, writer, slot),
            }
        }
        for (group, readers) in reads {
            for (serial, ranks) in readers {
                if let Some(&conn) = conns.get(&serial) {
                    self.stale.restore_reads(conn, &group, ranks);
                }
            }
        }
        self.keep_rows(id);
        self.stale.restore_leftovers(&mut self.keys);
        if conns.is_empty()
            && let Some(cause) = self.stale.on_last_left()
        {
            self.clear(cause, fx);
        }
        for conn in conns.values() {
            self.client_changed(*conn);
        }
        for (serial, _) in live {
            if let Some(&conn) = conns.get(serial) {
                self.end_wait(conn);
            }
        }
        // Each with all that follows before the next: counts that stop at 0 depend on the order.
        for conn in ghosts {
            self.disconnect(conn, now, fx);
        }
        self.settle(fx);
        if fx.observes() {
            let live: Vec<_> = live.iter().filter_map(|(serial, _)| conns.get(serial)).copied().collect();
            self.observe_restored(&clients, &writers, &live, fx);
        }
    }

    fn slot_named(&mut self, key: Box<[u8]>) -> SlotId {
        let looked = self.keys.look(&key);
        looked.id.unwrap_or_else(|| self.new_slot(key, looked))
    }

    fn restore_client(&mut self, conn: ConnId, client: &ClientImage, is_counted: bool, now: Timestamp) {
        if let Some(session) = self.session_mut(conn) {
            session.pid = client.pid;
        }
        if let Some(role) = role_of(client.role) {
            let runs = client.runs.iter().map(|run| &**run);
            self.stale.restore_client(conn, role, client.worker_share, runs);
        }
        let Some((key, arrivals, _)) = &client.barrier else { return };
        let slot = self.slot_named(key.clone());
        let barrier = self.keys.slot_mut(slot).barrier.get_or_insert_default();
        let registration = self.registrations.append(&mut barrier.arrivals, conn, slot);
        // It only matters whether this life is the present one.
        let life = if is_counted { barrier.life } else { barrier.life.wrapping_add(1) };
        let on = WaitOn::Barrier { registration, arrivals: *arrivals, life, world_size: i64::MAX };
        self.begin_wait(conn, Wait { since: now, on });
    }
}

/// Writes the row of a slot. For a queue, only the items that the journal does not know, unless the row is a
/// copy.
fn put_slot(store: StoreId, slot: &mut Slot, is_copy: bool, out: &mut Vec<u8>) {
    let life = slot.barrier.as_ref().map_or(0, |barrier| barrier.life);
    let writer = slot.record.as_ref().and_then(|record| record.writer()).map(ConnId::serial);
    let value = slot.value().map(|value| KeyRow { value, life, writer });
    if value.is_some() || !is_copy {
        Row::Key(store, slot.key(), value).encode(out);
    }
    put_queue(store, slot, is_copy, out);
}

fn put_queue(store: StoreId, slot: &mut Slot, is_copy: bool, out: &mut Vec<u8>) {
    let Some(mut queue) = slot.queue.take() else { return };
    let journaled = if is_copy { 0 } else { queue.journaled };
    for (number, item) in (queue.first..).zip(&queue.items).filter(|(number, _)| *number >= journaled) {
        Row::Item(store, slot.key(), number, item).encode(out);
    }
    queue.journaled = queue.next();
    Row::Queue(store, slot.key(), queue.first, queue.journaled).encode(out);
    slot.queue = Some(queue);
}

/// The role for its number in a row. `None` for a connection that belongs to no job.
pub(super) const fn role_of(number: u8) -> Option<Role> {
    match number {
        0 => None,
        2 => Some(Role::Worker),
        3 => Some(Role::Agent),
        _ => Some(Role::Unknown),
    }
}

/// The number of a role in a row.
pub(super) const fn role_number(role: Role) -> u8 {
    match role {
        Role::Unknown => 1,
        Role::Worker => 2,
        Role::Agent => 3,
    }
}
