//! The store: a pure state machine. Requests go in, replies and wake-ups come out; it does no I/O and knows no
//! clock, no lock and no log. The engine owns it and gives its effects to the connections.
//!
//! What each operation does follows PyTorch's libuv server; where that server is wrong we differ, and
//! `proto-notes/differences.md` lists each case with its test. Two rules explain most of them:
//! a WAIT ends exactly when CHECK of the same keys would say ready, and a BARRIER ends exactly when enough arrivals
//! are counted.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros)]

mod effects;
mod keyspace;
mod number;
mod stale;
mod view;
mod waiters;

use std::net::IpAddr;

use bytes::{BufMut, Bytes};

use crate::ids::{ConnId, Uptime};
use crate::protocol::{List, Pairs, Payload, Reply, Request};
pub use effects::{DropCause, Effects, Event};
use keyspace::{KeySpace, SlotId};
use number::parse_counter;
pub use stale::StaleKeyConfig;
use stale::StaleKeys;
pub use view::{Stats, WaitView, WaitedKey};
use waiters::{Registrations, Wait, WaitOn};

/// Why a request was not done. The peer is closed; the others are untouched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// ADD or BARRIER on a value that is no number.
    #[error("{op} on key `{key}`, whose value is not a decimal number")]
    NotANumber {
        /// The operation.
        op: &'static str,
        /// The key, fit for a log line.
        key: String,
    },
    /// One name more than the store may hold.
    #[error("the store holds {limit} names, the limit (--max-keys); `rallypoint store keys` shows them")]
    TooManyKeys {
        /// The limit.
        limit: usize,
    },
    /// The memory for all stores is used up.
    #[error("the memory for all stores is used up (--max-memory)")]
    OutOfMemory,
}

/// How much one store may hold.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Names, including those that are only waited for.
    pub keys: usize,
    /// Bytes of names, values and waits. The engine lowers this as other stores grow.
    pub bytes: usize,
}

/// What the store knows of one connection.
#[derive(Debug)]
struct Session {
    conn: ConnId,
    addr: IpAddr,
    /// Process id, as PING told it (PyTorch 2.5 and later).
    pid: Option<u32>,
    wait: Option<Box<Wait>>,
    /// The queue for whose item this connection was woken and has not come yet.
    offered: Option<SlotId>,
}

/// One keyspace with its waiters.
#[derive(Debug)]
pub struct Store {
    keys: KeySpace,
    registrations: Registrations,
    sessions: Vec<Option<Session>>,
    connections: usize,
    waiting: usize,
    stale: StaleKeys,
    /// What the store may hold.
    pub capacity: Capacity,
    /// Connections to wake, collected while a list of waiters is walked.
    to_wake: Vec<ConnId>,
}

impl Store {
    /// An empty store.
    pub fn new(capacity: Capacity, stale: StaleKeyConfig) -> Self {
        Self {
            keys: KeySpace::default(),
            registrations: Registrations::default(),
            sessions: Vec::new(),
            connections: 0,
            waiting: 0,
            stale: StaleKeys::new(stale),
            capacity,
            to_wake: Vec::new(),
        }
    }

    /// Makes `conn` known. Must come before its first request.
    pub fn connect(&mut self, conn: ConnId, addr: IpAddr) {
        if self.sessions.len() <= conn.slot() {
            self.sessions.resize_with(conn.slot() + 1, || None);
        }
        self.sessions[conn.slot()] = Some(Session { conn, addr, pid: None, wait: None, offered: None });
        self.connections += 1;
    }

    /// Forgets `conn`: its wait ends, its barrier arrival is withdrawn, what it alone stood for is dropped.
    pub fn disconnect(&mut self, conn: ConnId, now: Uptime, fx: &mut impl Effects) {
        if self.session(conn).is_none() {
            return;
        }
        self.end_wait(conn);
        self.pass_on_offer(conn, fx);
        self.sessions[conn.slot()] = None;
        self.connections -= 1;
        let left = self.stale.on_disconnect(&mut self.keys, conn, now);
        self.drop_values(&left.drops, fx);
        if left.worker_share != 0 {
            self.lower_worker_count(left.worker_share);
        }
    }

    /// Applies one request, handing everything that follows from it to `fx`.
    ///
    /// Effects come in the order in which the peers must see them; the engine puts them on the wire before it
    /// releases the lock. A WAIT or BARRIER that cannot finish yet leaves no reply behind, only its registration,
    /// and exactly one later call will finish it. After a [`Refusal`] nothing has changed.
    pub fn apply(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        now: Uptime,
        fx: &mut impl Effects,
    ) -> Result<(), Refusal> {
        self.settle_offer(conn, request, fx);
        match *request {
            Request::Set { key, value } => self.set(conn, key, value, fx)?,
            Request::CompareSet { key, expected, desired } => {
                self.compare_set(conn, key, expected, desired, fx)?;
            }
            Request::Get { key } => self.get(conn, key, now, fx),
            Request::Add { key, delta } => self.add(conn, key, delta, fx)?,
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| self.is_present(key));
                fx.reply(Reply::Ready(ready));
            }
            Request::Wait(keys) => {
                // The usual WAIT is the first half of a `get` of one key that is there.
                let all_there = keys.iter().all(|key| self.is_present(key));
                if all_there {
                    self.end_wait(conn);
                    fx.reply(Reply::StopWaiting);
                } else {
                    self.room_for_wait(keys)?;
                    self.park(conn, keys.iter(), now);
                }
            }
            Request::NumKeys => fx.reply(Reply::Number(self.keys.plain() as i64)),
            Request::Delete { key } => self.delete(conn, key, fx),
            Request::Append { key, value } => self.append(conn, key, value, fx)?,
            Request::MultiGet(keys) => keys.iter().for_each(|key| self.get(conn, key, now, fx)),
            Request::MultiSet(pairs) => {
                self.room_for_pairs(pairs)?;
                for (key, value) in pairs.iter() {
                    self.store_value(conn, key, value.to_stored(), fx);
                }
            }
            Request::CancelWait => {
                self.end_wait(conn);
                fx.reply(Reply::WaitCancelled);
            }
            Request::Ping { nonce } => {
                if let Some(session) = self.session_mut(conn) {
                    session.pid = Some(nonce);
                }
                fx.reply(Reply::Nonce(nonce));
            }
            Request::QueuePush { key, value } => self.queue_push(key, value, fx)?,
            Request::QueuePop { key } => self.queue_pop(key, fx),
            Request::QueueLen { key } => {
                let len = self.keys.find(key).map_or(0, |id| self.keys.slot(id).queue_len());
                fx.reply(Reply::Number(len as i64));
            }
            Request::ListKeys => {
                fx.reply(Reply::Number(self.keys.plain() as i64));
                for (_, slot) in self.keys.iter().filter(|(_, slot)| slot.value().is_some()) {
                    fx.reply(Reply::Bytes(slot.key()));
                }
            }
            Request::Barrier { key, world_size } => self.barrier(conn, key, world_size, now, fx)?,
        }
        Ok(())
    }

    /// The next moment at which [`Store::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Uptime> {
        self.stale.next_deadline()
    }

    /// Drops what has been idle for long enough.
    pub fn tick(&mut self, now: Uptime, fx: &mut impl Effects) {
        let drops = self.stale.take_due_runs(&self.keys, now);
        self.drop_values(&drops, fx);
        if self.stale.take_due_reset(now) {
            self.clear(DropCause::StoreIdle, fx);
        }
    }

    /// Drops every key and queue by an operator's wish. Connections and their waits stay.
    pub fn reset(&mut self, fx: &mut impl Effects) {
        self.clear(DropCause::Operator, fx);
    }

    fn clear(&mut self, cause: DropCause, fx: &mut impl Effects) {
        let held: Vec<SlotId> = self
            .keys
            .iter()
            .filter(|(_, slot)| slot.is_present())
            .filter(|(_, slot)| cause == DropCause::Operator || !self.stale.outlives_idleness(slot))
            .map(|(id, _)| id)
            .collect();
        for &id in &held {
            while self.keys.pop_item(id).is_some() {}
            self.keys.set_value(id, None);
            self.after_loss(id);
        }
        self.stale.on_clear();
        fx.event(Event::StoreReset { cause, keys: held.len() });
    }

    fn session(&self, conn: ConnId) -> Option<&Session> {
        self.sessions.get(conn.slot())?.as_ref().filter(|session| session.conn == conn)
    }

    fn session_mut(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.sessions.get_mut(conn.slot())?.as_mut().filter(|session| session.conn == conn)
    }

    #[inline]
    fn is_present(&self, key: &[u8]) -> bool {
        self.keys.find(key).is_some_and(|id| self.keys.slot(id).is_present())
    }

    fn held_bytes(&self) -> usize {
        self.keys.bytes() + self.registrations.len() * Registrations::BYTES
    }

    /// Whether `bytes` more in up to `names` more names fit.
    #[inline]
    fn room_for(&self, bytes: usize, names: usize) -> Result<(), Refusal> {
        if self.held_bytes() + bytes + names * KeySpace::SLOT_BYTES > self.capacity.bytes {
            return Err(Refusal::OutOfMemory);
        }
        if self.keys.names() + names > self.capacity.keys {
            return Err(Refusal::TooManyKeys { limit: self.capacity.keys });
        }
        Ok(())
    }

    /// As [`Self::room_for`], for one value that may replace another. Replacing by less always fits.
    #[inline]
    fn room_for_value(&self, key: &[u8], value: usize) -> Result<(), Refusal> {
        let found = self.keys.find(key).map(|id| self.keys.slot(id));
        let freed = found.and_then(|slot| slot.value()).map_or(0, Bytes::len);
        match found {
            Some(_) if value <= freed => Ok(()),
            Some(_) => self.room_for(value - freed, 0),
            None => self.room_for(key.len() + value, 1),
        }
    }

    /// As [`Self::room_for`], for the registrations of a WAIT. Looks names up only where room is scarce.
    fn room_for_wait(&self, keys: List<'_>) -> Result<(), Refusal> {
        let registrations = keys.len() * Registrations::BYTES;
        self.room_for(keys.wire_len() + registrations, keys.len()).or_else(|_| {
            let unknown = || keys.iter().filter(|key| self.keys.find(key).is_none());
            self.room_for(unknown().map(<[u8]>::len).sum::<usize>() + registrations, unknown().count())
        })
    }

    /// As [`Self::room_for_value`], for all values of a MULTI_SET together.
    fn room_for_pairs(&self, pairs: Pairs<'_>) -> Result<(), Refusal> {
        self.room_for(pairs.wire_len(), pairs.len()).or_else(|_| {
            let (mut bytes, mut names) = (0, 0);
            for (key, value) in pairs.iter() {
                let value = value.as_slice().len();
                if let Some(id) = self.keys.find(key) {
                    bytes += value.saturating_sub(self.keys.slot(id).value().map_or(0, Bytes::len));
                } else {
                    bytes += key.len() + value;
                    names += 1;
                }
            }
            if bytes + names == 0 { Ok(()) } else { self.room_for(bytes, names) }
        })
    }

    /// The slot to write `key` in, known to the rules for stale keys.
    #[inline]
    fn slot_for(&mut self, conn: ConnId, key: &[u8]) -> SlotId {
        let (id, is_new) = self.keys.find_or_insert(key);
        if is_new {
            self.stale.on_new_slot(&mut self.keys, id);
        }
        self.touch(conn, id);
        id
    }

    #[inline]
    fn touch(&mut self, conn: ConnId, id: SlotId) {
        if self.keys.slot(id).record.is_some() {
            self.stale.on_touch(&self.keys, conn, id);
        }
    }

    fn set(
        &mut self,
        conn: ConnId,
        key: &[u8],
        value: Payload<'_>,
        fx: &mut impl Effects,
    ) -> Result<(), Refusal> {
        self.room_for_value(key, value.as_slice().len())?;
        self.store_value(conn, key, value.to_stored(), fx);
        Ok(())
    }

    fn store_value(&mut self, conn: ConnId, key: &[u8], value: Bytes, fx: &mut impl Effects) {
        let id = self.slot_for(conn, key);
        self.start_new_barrier_life(id);
        self.write(conn, id, value, fx);
    }

    /// Writes a plain value and wakes who waits for it.
    fn write(&mut self, conn: ConnId, id: SlotId, value: Bytes, fx: &mut impl Effects) {
        if self.keys.slot(id).record.is_some() {
            let written = self.stale.on_write(&mut self.keys, conn, id);
            self.drop_values(&written.drops, fx);
            if let Some(first) = written.other_writer
                && !self.is_same_process(first, conn)
            {
                let key = self.keys.slot(id).key().into();
                fx.event(Event::TwoWriters { key, first, second: conn });
            }
            while let Some(run_id) = self.stale.take_restarted_run() {
                fx.event(Event::RunRestarted { run_id });
            }
        }
        let was_present = self.keys.slot(id).is_present();
        self.keys.set_value(id, Some(value));
        if !self.keys.slot(id).waiters.is_empty() {
            self.wake_waiters(id, !was_present, fx);
        }
    }

    /// Two connections of one process, as far as address and process id tell.
    fn is_same_process(&self, a: ConnId, b: ConnId) -> bool {
        match (self.session(a), self.session(b)) {
            (Some(a), Some(b)) => a.addr == b.addr && a.pid.is_some() && a.pid == b.pid,
            _ => false,
        }
    }

    /// Tells the waiters of a slot that its plain value was written: one key less is missing if it `appeared`.
    fn wake_waiters(&mut self, id: SlotId, appeared: bool, fx: &mut impl Effects) {
        let mut to_wake = std::mem::take(&mut self.to_wake);
        for conn in self.registrations.iter(&self.keys.slot(id).waiters) {
            let session = self.sessions[conn.slot()].as_mut();
            let Some(WaitOn::Keys { missing, .. }) =
                session.and_then(|s| s.wait.as_mut()).map(|wait| &mut wait.on)
            else {
                continue;
            };
            *missing -= u32::from(appeared);
            if *missing == 0 {
                to_wake.push(conn);
            }
        }
        for conn in to_wake.drain(..) {
            if self.end_wait(conn) {
                fx.wake(conn);
            }
        }
        self.to_wake = to_wake;
    }

    /// After a slot lost its value or its last item: waiters wait for it again, and unneeded slots go.
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

    fn add_missing(&mut self, id: SlotId) {
        for conn in self.registrations.iter(&self.keys.slot(id).waiters) {
            if let Some(wait) = self.sessions[conn.slot()].as_mut().and_then(|session| session.wait.as_mut())
                && let WaitOn::Keys { missing, .. } = &mut wait.on
            {
                *missing += 1;
            }
        }
    }

    fn release(&mut self, id: SlotId) {
        if let Some(record) = self.keys.release(id) {
            self.stale.on_slot_freed(&record);
        }
    }

    fn start_new_barrier_life(&mut self, id: SlotId) {
        if let Some(barrier) = &mut self.keys.slot_mut(id).barrier {
            barrier.life = barrier.life.wrapping_add(1);
        }
    }

    /// Drops plain values by the rules for stale keys, with one event a cause.
    fn drop_values(&mut self, drops: &[(SlotId, DropCause)], fx: &mut impl Effects) {
        let mut counts = [0_usize; DropCause::ALL.len()];
        let mut examples: [Option<Box<[u8]>>; DropCause::ALL.len()] = Default::default();
        for &(id, cause) in drops {
            if self.keys.get(id).is_none_or(|slot| slot.value().is_none()) {
                continue;
            }
            counts[cause as usize] += 1;
            examples[cause as usize].get_or_insert_with(|| self.keys.slot(id).key().into());
            self.keys.set_value(id, None);
            self.after_loss(id);
        }
        for cause in DropCause::ALL {
            if let Some(example) = examples[cause as usize].take() {
                fx.event(Event::KeysDropped { cause, keys: counts[cause as usize], example });
            }
        }
    }

    /// Takes the share of gone workers out of `init/`, as if they had never announced themselves.
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

    fn compare_set(
        &mut self,
        conn: ConnId,
        key: &[u8],
        expected: &[u8],
        desired: Payload<'_>,
        fx: &mut impl Effects,
    ) -> Result<(), Refusal> {
        let found = self.keys.find(key);
        if let Some(id) = found {
            self.touch(conn, id);
        }
        match found.and_then(|id| self.keys.slot(id).value()) {
            Some(current) if current != expected => {
                fx.reply(Reply::Value(current));
                return Ok(());
            }
            // What PyTorch answers, though the key does not exist: its clients compare it with what they sent.
            None if !expected.is_empty() => {
                fx.reply(Reply::Bytes(expected));
                return Ok(());
            }
            _ => {}
        }
        self.room_for_value(key, desired.as_slice().len())?;
        let value = desired.to_stored();
        fx.reply(Reply::Value(&value));
        self.store_value(conn, key, value, fx);
        Ok(())
    }

    #[inline]
    fn get(&mut self, conn: ConnId, key: &[u8], now: Uptime, fx: &mut impl Effects) {
        let Some(id) = self.keys.find(key) else {
            return fx.reply(Reply::Bytes(b""));
        };
        let slot = self.keys.slot(id);
        match slot.value() {
            Some(value) => fx.reply(Reply::Value(value)),
            None => fx.reply(Reply::Bytes(b"")),
        }
        if slot.record.is_some() {
            self.stale.on_touch(&self.keys, conn, id);
            if let Some(event) = self.stale.on_read(&mut self.keys, conn, id, now) {
                fx.event(event);
            }
        }
    }

    fn add(&mut self, conn: ConnId, key: &[u8], delta: i64, fx: &mut impl Effects) -> Result<(), Refusal> {
        let sum = self.counter(key, "add")?.wrapping_add(delta);
        let text = decimal(sum);
        self.room_for_value(key, text.len())?;
        let id = self.slot_for(conn, key);
        if self.keys.slot(id).record.is_some() {
            self.stale.on_count(&self.keys, conn, id, delta);
        }
        fx.reply(Reply::Number(sum));
        self.write(conn, id, text, fx);
        Ok(())
    }

    /// The number in `key`; 0 if there is none.
    fn counter(&self, key: &[u8], op: &'static str) -> Result<i64, Refusal> {
        match self.keys.find(key).and_then(|id| self.keys.slot(id).value()) {
            None => Ok(0),
            Some(text) => parse_counter(text)
                .ok_or_else(|| Refusal::NotANumber { op, key: crate::ids::ShownKey(key).to_string() }),
        }
    }

    fn delete(&mut self, conn: ConnId, key: &[u8], fx: &mut impl Effects) {
        let mut deleted = 0;
        if let Some(id) = self.keys.find(key) {
            self.touch(conn, id);
            if self.keys.set_value(id, None).is_some() {
                deleted = 1;
                self.after_loss(id);
            }
        }
        fx.reply(Reply::Number(deleted));
    }

    fn append(
        &mut self,
        conn: ConnId,
        key: &[u8],
        more: &[u8],
        fx: &mut impl Effects,
    ) -> Result<(), Refusal> {
        let held = self.keys.find(key).and_then(|id| self.keys.slot(id).value()).map_or(0, Bytes::len);
        self.room_for_value(key, held + more.len())?;
        let id = self.slot_for(conn, key);
        let was_present = self.keys.slot(id).is_present();
        // Taken out so that its buffer can grow in place.
        let value = match self.keys.set_value(id, None).map(Bytes::try_into_mut) {
            None => Bytes::copy_from_slice(more),
            Some(Ok(mut own)) => {
                own.extend_from_slice(more);
                own.freeze()
            }
            Some(Err(shared)) => {
                let mut own = bytes::BytesMut::with_capacity(shared.len() + more.len());
                own.put_slice(&shared);
                own.put_slice(more);
                own.freeze()
            }
        };
        self.start_new_barrier_life(id);
        if was_present {
            // Nobody's count of missing keys changes.
            self.keys.set_value(id, Some(Bytes::new()));
        }
        self.write(conn, id, value, fx);
        Ok(())
    }

    fn queue_push(&mut self, key: &[u8], item: Payload<'_>, fx: &mut impl Effects) -> Result<(), Refusal> {
        let known = self.keys.find(key).is_some();
        let item_bytes = item.as_slice().len() + size_of::<Bytes>();
        self.room_for(item_bytes + if known { 0 } else { key.len() }, usize::from(!known))?;
        let (id, is_new) = self.keys.find_or_insert(key);
        if is_new {
            self.stale.on_new_slot(&mut self.keys, id);
        }
        let appeared = !self.keys.slot(id).is_present();
        self.keys.push_item(id, item.to_stored());
        if appeared {
            self.subtract_missing(id);
        }
        self.offer_item(id, fx);
        Ok(())
    }

    fn subtract_missing(&mut self, id: SlotId) {
        for conn in self.registrations.iter(&self.keys.slot(id).waiters) {
            if let Some(wait) = self.sessions[conn.slot()].as_mut().and_then(|session| session.wait.as_mut())
                && let WaitOn::Keys { missing, .. } = &mut wait.on
            {
                *missing -= 1;
            }
        }
    }

    /// Wakes the first waiter of a queue that waits for nothing else.
    fn offer_item(&mut self, id: SlotId, fx: &mut impl Effects) {
        let ready = self.registrations.iter(&self.keys.slot(id).waiters).find(|conn| {
            let wait = self.sessions[conn.slot()].as_ref().and_then(|session| session.wait.as_ref());
            wait.is_some_and(|wait| matches!(wait.on, WaitOn::Keys { missing: 0, .. }))
        });
        let Some(conn) = ready else { return };
        self.end_wait(conn);
        if let Some(queue) = &mut self.keys.slot_mut(id).queue {
            queue.offered += 1;
        }
        if let Some(session) = self.session_mut(conn) {
            session.offered = Some(id);
        }
        fx.wake(conn);
    }

    /// A connection that was woken for an item takes it with its next request, or the item is offered to another.
    #[inline]
    fn settle_offer(&mut self, conn: ConnId, request: &Request<'_>, fx: &mut impl Effects) {
        let Some(id) = self.session(conn).and_then(|session| session.offered) else { return };
        if let Request::QueuePop { key } = *request
            && self.keys.slot(id).key() == key
        {
            self.take_offer(conn);
            return;
        }
        self.pass_on_offer(conn, fx);
    }

    fn take_offer(&mut self, conn: ConnId) -> Option<SlotId> {
        let id = self.session_mut(conn)?.offered.take()?;
        if let Some(queue) = &mut self.keys.slot_mut(id).queue {
            queue.offered -= 1;
        }
        Some(id)
    }

    fn pass_on_offer(&mut self, conn: ConnId, fx: &mut impl Effects) {
        if let Some(id) = self.take_offer(conn) {
            if self.keys.slot(id).queue_len() > 0 {
                self.offer_item(id, fx);
            }
            self.release(id);
        }
    }

    fn queue_pop(&mut self, key: &[u8], fx: &mut impl Effects) {
        let Some(id) = self.keys.find(key) else {
            return fx.reply(Reply::Number(0));
        };
        fx.reply(Reply::Number(self.keys.slot(id).queue_len() as i64));
        if let Some(item) = self.keys.pop_item(id) {
            fx.reply(Reply::Value(&item));
            if !self.keys.slot(id).is_present() {
                self.add_missing(id);
            }
        }
        self.release(id);
    }

    fn barrier(
        &mut self,
        conn: ConnId,
        key: &[u8],
        world_size: i64,
        now: Uptime,
        fx: &mut impl Effects,
    ) -> Result<(), Refusal> {
        let count = self.counter(key, "barrier")?.wrapping_add(1);
        let text = decimal(count);
        self.room_for_value(key, text.len() + Registrations::BYTES)?;
        // A connection waits for one thing. Arriving again where it waits already is one more arrival.
        let earlier = self.arrivals_at(conn, key);
        match earlier {
            Some(_) => self.forget_wait(conn),
            None => self.abandon_wait(conn),
        }
        let id = self.slot_for(conn, key);
        self.write(conn, id, text, fx);
        if count >= world_size {
            fx.reply(Reply::StopWaiting);
            self.release_barrier(id, fx);
            self.release(id);
            return Ok(());
        }
        let slot = self.keys.slot_mut(id);
        let barrier = slot.barrier.get_or_insert_default();
        let registration = self.registrations.append(&mut barrier.arrivals, conn, id);
        let (arrivals, life) = (1 + earlier.unwrap_or(0), barrier.life);
        let on = WaitOn::Barrier { registration, arrivals, life, world_size };
        self.begin_wait(conn, Wait { since: now, on });
        Ok(())
    }

    /// How often `conn` is counted at the barrier `key`; `None` if it does not wait there.
    fn arrivals_at(&self, conn: ConnId, key: &[u8]) -> Option<u32> {
        match self.session(conn)?.wait.as_ref()?.on {
            WaitOn::Barrier { registration, arrivals, life, .. } => {
                let slot = self.keys.slot(self.registrations.get(registration).slot);
                let counted = slot.barrier.as_ref().is_some_and(|barrier| barrier.life == life);
                (slot.key() == key).then_some(if counted { arrivals } else { 0 })
            }
            WaitOn::Keys { .. } => None,
        }
    }

    fn release_barrier(&mut self, id: SlotId, fx: &mut impl Effects) {
        let Some(barrier) = &self.keys.slot(id).barrier else { return };
        let mut to_wake = std::mem::take(&mut self.to_wake);
        to_wake.extend(self.registrations.iter(&barrier.arrivals));
        for conn in to_wake.drain(..) {
            self.forget_wait(conn);
            fx.wake(conn);
        }
        self.to_wake = to_wake;
    }

    /// Registers `conn` for all of `keys`, of which at least one is missing.
    fn park<'k>(&mut self, conn: ConnId, keys: impl Iterator<Item = &'k [u8]>, now: Uptime) {
        self.end_wait(conn);
        let mut registrations = smallvec::SmallVec::new();
        let mut missing = 0;
        for key in keys {
            let id = self.slot_for(conn, key);
            let slot = self.keys.slot_mut(id);
            registrations.push(self.registrations.append(&mut slot.waiters, conn, id));
            missing += u32::from(!slot.is_present());
        }
        self.begin_wait(conn, Wait { since: now, on: WaitOn::Keys { registrations, missing } });
    }

    fn begin_wait(&mut self, conn: ConnId, wait: Wait) {
        if let Some(session) = self.session_mut(conn) {
            session.wait = Some(Box::new(wait));
            self.waiting += 1;
        }
    }

    /// Ends a wait before its condition: a barrier arrival is withdrawn. `false` if there was none.
    fn end_wait(&mut self, conn: ConnId) -> bool {
        let Some(wait) = self.session(conn).and_then(|session| session.wait.as_ref()) else {
            return false;
        };
        if let WaitOn::Barrier { registration, arrivals, life, .. } = wait.on {
            self.withdraw_arrivals(self.registrations.get(registration).slot, arrivals, life);
        }
        self.forget_wait(conn);
        true
    }

    /// Subtracts arrivals that are still in the count, but not below 0. The key stays.
    fn withdraw_arrivals(&mut self, id: SlotId, arrivals: u32, life: u32) {
        let slot = self.keys.slot(id);
        if slot.barrier.as_ref().is_some_and(|barrier| barrier.life == life)
            && let Some(count @ 1..) = slot.value().and_then(|text| parse_counter(text))
        {
            self.keys.set_value(id, Some(decimal((count - i64::from(arrivals)).max(0))));
        }
    }

    /// Removes the registrations of a wait that is over.
    fn forget_wait(&mut self, conn: ConnId) {
        let Some(wait) = self.session_mut(conn).and_then(|session| session.wait.take()) else { return };
        self.waiting -= 1;
        match wait.on {
            WaitOn::Keys { registrations, .. } => {
                for registration in registrations {
                    let id = self.registrations.get(registration).slot;
                    let list = &mut self.keys.slot_mut(id).waiters;
                    self.registrations.remove(list, registration);
                    if list.is_empty() {
                        self.release(id);
                    }
                }
            }
            WaitOn::Barrier { registration, .. } => {
                let id = self.registrations.get(registration).slot;
                if let Some(barrier) = &mut self.keys.slot_mut(id).barrier {
                    self.registrations.remove(&mut barrier.arrivals, registration);
                }
                self.release(id);
            }
        }
    }

    /// Whether `conn` has a WAIT or BARRIER outstanding.
    pub fn is_waiting(&self, conn: ConnId) -> bool {
        self.session(conn).is_some_and(|session| session.wait.is_some())
    }

    /// Ends the outstanding wait of a client that cannot cancel (PyTorch 2.0) and has plainly moved on.
    pub fn abandon_wait(&mut self, conn: ConnId) {
        self.end_wait(conn);
    }
}

fn decimal(number: i64) -> Bytes {
    Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes())
}

#[cfg(test)]
mod tests;
