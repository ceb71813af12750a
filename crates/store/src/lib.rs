//! The store: a pure state machine. Requests go in, replies and wake-ups come out. It does no I/O and uses no
//! clock, lock or log. The engine owns it and passes its effects on to the connections.
//!
//! What each operation does follows PyTorch's libuv server; where that server is wrong we differ, and
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]
//! `proto-notes/differences.md` lists each case with its test. Two rules explain most of them: a WAIT ends
//! exactly when CHECK of the same keys would say ready, and a BARRIER ends exactly when enough arrivals are
//! counted.

mod barriers;
mod capacity;
mod chunks;
mod counting;
mod deleted;
mod drops;
mod effects;
mod index;
mod keyspace;
mod number;
mod polls;
mod queues;
mod restored;
mod rows;
mod shared;
mod similar;
mod slices;
mod slot;
mod stale;
#[cfg(any(test, feature = "sim"))]
pub mod testing;
mod values;
mod view;
mod waiters;
mod waits;

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;

pub use capacity::{Capacity, Refusal};
pub use counting::Counted;
use counting::Counting;
use deleted::Deleted;
pub use deleted::KeyPast;
use drops::Sweep;
pub use effects::{Cleanup, DropCause, Effects, Observed};
use keyspace::{KeySpace, Looked};
use number::{decimal, parse_counter};
use polls::Asks;
pub use polls::Polled;
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{List, PROBE, Reply, Request};
use rows::Kept;
pub use rows::Walk;
use shared::SharedWaits;
pub use similar::{Similar, is_slip};
#[cfg(any(test, feature = "sim"))]
pub use slices::KEY_BY_KEY;
pub use slices::Progress;
use slices::{Copied, Listed};
use slot::SlotId;
pub use stale::StaleKeyConfig;
use stale::{Process, StaleKeys};
pub use view::{Stats, WaitView, WaitedKey};
use waiters::{Ended, Registrations, Wait};

/// What the store knows of one connection.
#[derive(Debug)]
struct Session {
    conn: ConnId,
    peer: SocketAddr,
    /// Process id, as the client's PING said it (PyTorch 2.5 and later).
    pid: Option<u32>,
    /// It only looks, and is no process of a job.
    is_probe: bool,
    asks: Asks,
    wait: Option<Box<Wait>>,
    /// The queue for whose item this connection was woken. It has not come for the item yet.
    offered: Option<SlotId>,
    /// How much of a request that takes several critical sections is done.
    done: usize,
    listed: Option<Box<Listed>>,
    copied: Option<Box<Copied>>,
    /// It has used a key that is not PyTorch's.
    used_own_keys: bool,
    /// The time of its last request.
    heard: Timestamp,
    /// Set while it polls `init/`, as the host of a job does.
    counting: Option<Counting>,
}

impl Session {
    /// The process at its other end.
    fn process(&self) -> Process {
        self.pid.map_or(Process::Unnamed(self.conn), |pid| Process::Named(self.peer.ip(), pid))
    }

    /// Bytes held for a request that is done in part.
    fn unfinished_bytes(&self) -> usize {
        let listed = self.listed.as_ref().map_or(0, |listed| listed.bytes());
        listed.saturating_add(self.copied.as_ref().map_or(0, |copied| copied.bytes()))
    }
}

/// One keyspace with its waiters.
#[derive(Debug)]
pub struct Store {
    keys: KeySpace,
    registrations: Registrations,
    shared: SharedWaits,
    sessions: Vec<Option<Session>>,
    connections: usize,
    waiting: usize,
    stale: StaleKeys,
    deleted: Deleted,
    /// Whether [`Cleanup::KeysStay`] was reported since the store was last emptied.
    has_reported_what_stays: bool,
    /// What the store may hold.
    pub capacity: Capacity,
    /// Connections to wake, collected while a list of waiters is walked.
    to_wake: Vec<ConnId>,
    /// The step-by-step emptying of the store, while it goes on.
    sweep: Option<Sweep>,
    /// Work of this critical section in steps, beside the fixed cost of each request.
    work: usize,
    /// Keys dropped by rule so far.
    dropped: u64,
    /// Bytes held for requests that are done in part.
    unfinished_bytes: usize,
    /// Registrations of large waits that are over, oldest first. They leave the lists of their keys step by
    /// step.
    ended: VecDeque<Ended>,
    /// Connections that have polled `init/` and may still wait for more workers.
    counting: Vec<ConnId>,
    /// Connections that ask for keys again and again.
    asking: Vec<ConnId>,
    /// Set where a journal is kept.
    kept: Option<Kept>,
    /// Steps of a search that are taken at once.
    #[cfg(test)]
    search_at_once: usize,
}

impl Store {
    /// An empty store.
    pub fn new(capacity: Capacity, stale: StaleKeyConfig) -> Self {
        Self {
            keys: KeySpace::default(),
            registrations: Registrations::default(),
            shared: SharedWaits::default(),
            sessions: Vec::new(),
            connections: 0,
            waiting: 0,
            stale: StaleKeys::new(stale),
            deleted: Deleted::default(),
            has_reported_what_stays: false,
            capacity,
            to_wake: Vec::new(),
            sweep: None,
            work: 0,
            dropped: 0,
            unfinished_bytes: 0,
            ended: VecDeque::new(),
            counting: Vec::new(),
            asking: Vec::new(),
            kept: None,
            #[cfg(test)]
            search_at_once: usize::MAX,
        }
    }

    /// Makes `conn` known. Must come before its first request.
    pub fn connect(&mut self, conn: ConnId, peer: SocketAddr) {
        if self.sessions.len() <= conn.slot() {
            self.sessions.resize_with(conn.slot().saturating_add(1), || None);
        }
        self.sessions[conn.slot()] = Some(Session {
            conn,
            peer,
            pid: None,
            is_probe: false,
            asks: Asks::default(),
            wait: None,
            offered: None,
            done: 0,
            listed: None,
            copied: None,
            used_own_keys: false,
            heard: Timestamp::default(),
            counting: None,
        });
        self.connections = self.connections.saturating_add(1);
    }

    /// Forgets `conn`: its wait ends, its barrier arrival is withdrawn, and the keys that are useless without
    /// it are dropped.
    pub fn disconnect(&mut self, conn: ConnId, now: Timestamp, fx: &mut impl Effects) {
        if self.session(conn).is_none() {
            return;
        }
        self.end_wait(conn);
        self.pass_on_offer(conn, fx);
        let session = self.sessions[conn.slot()].take();
        let has_told_pid = session.as_ref().is_some_and(|session| session.pid.is_some());
        let used_own_keys = session.as_ref().is_some_and(|session| session.used_own_keys);
        let process = session.as_ref().map_or(Process::Unnamed(conn), Session::process);
        let unfinished = session.map_or(0, |session| session.unfinished_bytes());
        self.unfinished_bytes = self.unfinished_bytes.saturating_sub(unfinished);
        self.connections = self.connections.saturating_sub(1);
        let left = self.stale.on_disconnect(&mut self.keys, conn, process, now);
        if left.was_of_job {
            self.client_changed(conn);
        }
        if (left.was_of_job || has_told_pid) && fx.observes() {
            fx.observe(Observed::Gone { conn, used_own_keys });
        }
        self.settle(fx);
        if left.worker_share != 0 {
            self.lower_worker_count(left.worker_share);
        }
        if self.connections == 0 {
            match self.stale.on_last_left() {
                Some(cause) => self.clear(cause, fx),
                None => self.report_what_stays(fx),
            }
        }
    }

    /// Reports, once, that the last client left keys that match no pattern: the next job on this store will
    /// read them.
    fn report_what_stays(&mut self, fx: &mut impl Effects) {
        // Enough to find such a key where there is one, for the keys of a job are gone or few.
        const MOST: usize = 100;
        if self.has_reported_what_stays {
            return;
        }
        let mut slots = self.keys.iter().map(|(_, slot)| slot).take(MOST);
        if let Some(slot) = slots.find(|slot| slot.is_present() && slot.record.is_none()) {
            fx.cleanup(Cleanup::KeysStay { keys: self.keys.plain(), example: slot.key().into() });
            self.has_reported_what_stays = true;
        }
    }

    /// Applies one request and gives all its effects to `fx`.
    ///
    /// Effects come in the order in which the peers must see them; the engine puts them on the wire before it
    /// releases the lock. A WAIT or BARRIER that cannot finish yet gives no reply, only registers itself, and
    /// exactly one later call will finish it. After a [`Refusal`] no key has changed, except keys that a
    /// MULTI_SET in slices had already written.
    // Not inlined into its one caller: every request would pay for the registers that the rarest request
    // needs.
    #[inline(never)]
    pub fn apply(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        now: Timestamp,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        if self.stale.is_holding() && self.is_put_off(conn, request) {
            return Ok(Progress::Begun);
        }
        if let Some(session) = self.session_mut(conn) {
            session.heard = now;
        }
        self.settle_offer(conn, request, fx);
        match *request {
            Request::Set { key, value } => return self.set(conn, key, value, fx),
            Request::CompareSet { key, expected, desired } => {
                return self.compare_set(conn, key, expected, desired, fx);
            }
            Request::Get { key } => self.get(conn, key, now, fx),
            Request::Add { key, delta } => return self.add(conn, key, delta, fx),
            Request::Check(keys) if keys.len() > Self::KEYS_AT_ONCE => return self.check(conn, keys, fx),
            Request::Check(keys) => {
                // Most look for one key, which is looked up once.
                let only = keys.iter().next().filter(|_| keys.len() == 1);
                let id = only.and_then(|key| self.keys.find(key));
                let ready = match only {
                    Some(_) => {
                        self.work = self.work.saturating_add(1);
                        id.is_some_and(|id| self.keys.slot(id).is_present())
                    }
                    None => self.are_present(keys),
                };
                match ready {
                    _ if !fx.observes() => {}
                    true => self.finds(conn, keys.iter()),
                    false => self.looks_in_vain(conn, keys.iter()),
                }
                fx.reply(Reply::Ready(ready));
            }
            Request::Wait(keys) => {
                // The usual WAIT is the first half of a client's `get`: one key, which is there. If others
                // wait for the same keys, one of them is missing, and the keys need no look-up.
                if keys.len() > Self::KEYS_AT_ONCE || self.is_missed(keys) || !self.are_present(keys) {
                    return self.wait(conn, keys, now, fx);
                }
                self.end_wait(conn);
                if fx.observes() {
                    self.finds(conn, keys.iter());
                }
                fx.reply(Reply::StopWaiting);
            }
            Request::NumKeys => fx.reply(Reply::count(self.keys.plain())),
            Request::Delete { key } => self.delete(conn, key, fx),
            Request::Append { key, value } => return self.append(conn, key, value, fx),
            Request::MultiGet(keys) => return self.multi_get(conn, keys, now, fx),
            Request::MultiSet(pairs) => return self.multi_set(conn, pairs, fx),
            Request::CancelWait => {
                if fx.observes() && !self.is_probe(conn) {
                    self.gives_up(conn, now, fx);
                }
                self.end_wait(conn);
                fx.reply(Reply::WaitCancelled);
            }
            Request::Ping { nonce } => {
                if let Some(session) = self.session_mut(conn) {
                    let pid = nonce & !PROBE;
                    let (before, peer) = (session.pid.replace(pid), session.peer);
                    session.is_probe |= nonce != pid;
                    if before.is_none() && !session.is_probe && fx.observes() {
                        fx.observe(Observed::Came { conn, peer, pid });
                    }
                }
                // A PING is usually the first request, before anything is known of the client: then no row
                // changes.
                if self.kept.is_some() && self.client_row(conn).is_some() {
                    self.client_changed(conn);
                }
                fx.reply(Reply::Nonce(nonce));
            }
            Request::QueuePush { key, value } => self.queue_push(conn, key, value, fx)?,
            Request::QueuePop { key } => self.queue_pop(conn, key, fx),
            Request::QueueLen { key } => {
                let len = self.keys.find(key).map_or(0, |id| self.keys.slot(id).queue_len());
                match len {
                    _ if !fx.observes() => {}
                    0 => self.looks_in_vain(conn, std::iter::once(key)),
                    _ => self.finds(conn, std::iter::once(key)),
                }
                fx.reply(Reply::count(len));
            }
            Request::ListKeys => return self.list_keys(conn, fx),
            Request::Barrier { key, world_size } => {
                return self.barrier(conn, key, world_size, now, fx);
            }
        }
        Ok(Progress::Done)
    }

    /// The next moment at which [`Store::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.stale.next_deadline()
    }

    /// Drops what has been idle for long enough.
    pub fn tick(&mut self, now: Timestamp, fx: &mut impl Effects) {
        self.stale.take_due_runs(&mut self.keys, now);
        self.look_for_publishers(now);
        self.settle(fx);
        if self.stale.take_due_reset(now, self.connections > 0) {
            self.clear(DropCause::StoreIdle, fx);
        }
    }

    /// Rule 5: of processes that have published something, some may have come back with another connection.
    fn look_for_publishers(&mut self, now: Timestamp) {
        let missed = self.stale.missed_publishers(now);
        let mut there = HashSet::new();
        if !missed.is_empty() {
            let connected = self.sessions.iter().flatten().map(Session::process);
            there.extend(connected.filter(|process| missed.contains(process)));
        }
        self.stale.take_due_published(&mut self.keys, now, &there);
    }

    /// Drops every key and queue that is there now, because an operator asked for it. Connections and their
    /// waits stay. Many keys are dropped in steps, while [`Store::is_unsettled`].
    pub fn reset(&mut self, fx: &mut impl Effects) {
        self.clear(DropCause::Operator, fx);
    }

    /// Drops the keys of one run's rendezvous, because an operator asked for it. Many keys are dropped in
    /// steps, while [`Store::is_unsettled`].
    pub fn drop_run(&mut self, run_id: &[u8], fx: &mut impl Effects) {
        self.stale.take_run(&mut self.keys, run_id);
        self.settle(fx);
    }

    fn session(&self, conn: ConnId) -> Option<&Session> {
        self.sessions.get(conn.slot())?.as_ref().filter(|session| session.conn == conn)
    }

    /// The time of a client's last request.
    fn heard_last(&self, conn: ConnId) -> Timestamp {
        self.session(conn).map(|session| session.heard).unwrap_or_default()
    }

    fn is_probe(&self, conn: ConnId) -> bool {
        self.session(conn).is_some_and(|session| session.is_probe)
    }

    fn session_mut(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.sessions.get_mut(conn.slot())?.as_mut().filter(|session| session.conn == conn)
    }

    #[inline]
    fn is_present(&self, key: &[u8]) -> bool {
        self.keys.find(key).is_some_and(|id| self.keys.slot(id).is_present())
    }

    #[inline]
    fn are_present(&mut self, keys: List<'_>) -> bool {
        self.work = self.work.saturating_add(keys.len());
        if keys.len() > 1 && self.keys.answer(keys).is_some() {
            return true;
        }
        keys.iter().all(|key| self.is_present(key))
    }

    /// Whether a request is put off, as the group of one of its keys is being searched. Of requests that are
    /// done in slices each key is looked at when it comes to it.
    #[cold]
    fn is_put_off(&mut self, conn: ConnId, request: &Request<'_>) -> bool {
        match *request {
            Request::Set { key, .. }
            | Request::CompareSet { key, .. }
            | Request::Get { key }
            | Request::Add { key, .. }
            | Request::Delete { key }
            | Request::Append { key, .. }
            | Request::QueuePush { key, .. }
            | Request::QueuePop { key }
            | Request::QueueLen { key }
            | Request::Barrier { key, .. } => self.stale.is_held(conn, key),
            Request::Check(keys) | Request::Wait(keys) | Request::MultiGet(keys) => {
                self.is_any_held(conn, keys.len(), keys.iter())
            }
            Request::MultiSet(pairs) => self.is_any_held(conn, pairs.len(), pairs.iter().map(|(key, _)| key)),
            Request::NumKeys | Request::ListKeys | Request::CancelWait | Request::Ping { .. } => false,
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "steps, of which a critical section takes few")]
    fn is_any_held<'r>(
        &mut self,
        conn: ConnId,
        count: usize,
        mut keys: impl Iterator<Item = &'r [u8]>,
    ) -> bool {
        if count > Self::KEYS_AT_ONCE || self.has_begun(conn) {
            return false;
        }
        self.work += 2 * count;
        keys.any(|key| self.stale.is_held(conn, key))
    }

    /// The slot to write `key` in; `None` while what has to go before is not gone.
    #[inline]
    fn slot_to_write(
        &mut self,
        conn: ConnId,
        key: &[u8],
        looked: Looked,
        fx: &mut impl Effects,
    ) -> Option<SlotId> {
        let id = self.slot_for(conn, key, looked, fx);
        (self.keys.slot(id).record.is_none() || self.make_way(conn, id, fx)).then_some(id)
    }

    /// The slot for `key`, made if there is none. The stale-key rules learn that `conn` uses it.
    #[inline]
    fn slot_for(&mut self, conn: ConnId, key: &[u8], looked: Looked, fx: &mut impl Effects) -> SlotId {
        let id = looked.id.unwrap_or_else(|| self.new_slot(key.into(), looked));
        self.touch(conn, id, fx);
        id
    }

    fn new_slot(&mut self, key: Box<[u8]>, looked: Looked) -> SlotId {
        let id = self.keys.insert(key, looked);
        self.stale.on_new_slot(&mut self.keys, id);
        id
    }

    #[inline]
    fn touch(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) {
        if self.keys.slot(id).record.is_none() {
            self.stale.on_plain_use();
            if let Some(session) = self.session_mut(conn) {
                (session.used_own_keys, session.counting) = (true, None);
            }
        } else if self.stale.on_touch(&self.keys, conn, id) {
            self.client_changed(conn);
            if let Some(session) = self.session_mut(conn) {
                session.counting = None;
            }
            if fx.observes()
                && let Some(&Session { peer, pid, is_probe: false, .. }) = self.session(conn)
            {
                fx.observe(Observed::Client { conn, peer, pid, key: self.keys.slot(id).key().into() });
            }
        }
    }

    /// Called after a slot lost its value or its last item: its waiters miss it again, and a slot that
    /// nothing needs is freed.
    fn after_loss(&mut self, id: SlotId) {
        self.start_new_barrier_life(id);
        if self.keys.slot(id).record.is_some() {
            self.stale.on_value_gone(&mut self.keys, id);
        }
        if !self.keys.slot(id).is_present() {
            self.add_missing(id);
        }
        self.release(id);
    }

    fn release(&mut self, id: SlotId) {
        if let Some(record) = self.keys.release(id) {
            self.stale.on_slot_freed(&mut self.keys, id, &record);
        }
    }

    /// Subtracts the share of workers that are gone from `init/`, as if they had never been counted.
    fn lower_worker_count(&mut self, share: i64) {
        let Some(id) = self.keys.find(b"init/") else { return };
        let Some(count) = self.keys.slot(id).value().and_then(|text| parse_counter(text)) else { return };
        if let left @ 1.. = count.saturating_sub(share) {
            self.keys.set_value(id, Some(decimal(left)));
        } else {
            self.keys.set_value(id, None);
            self.after_loss(id);
        }
    }
}
#[cfg(test)]
mod tests;
