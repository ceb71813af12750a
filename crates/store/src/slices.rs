//! Requests of very many keys, and long lists of keys, are done in slices. The store serves others in
//! between.
//!
//! The caller gives the same request again until it is done, and meanwhile no other request of that
//! connection. Each key is looked at or written once, but not all of them at the same moment. A request of up
//! to [`Store::KEYS_AT_ONCE`] keys is done at one moment.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::capacity::Refusal;
use super::keyspace::Answer;
use super::slot::SlotId;
use super::waiters::{Registrations, Wait, WaitOn};
use super::{Effects, Store};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{KeyList, List, Pairs, Reply, Request};

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Done,
    /// The caller must give it again, in the next critical section.
    Begun,
}

#[cfg(any(test, feature = "sim"))]
thread_local! {
    /// Set to write and answer one key a slice, even where a request has few keys.
    pub static KEY_BY_KEY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// How a request of many keys goes on after one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Next,
    /// The request is done.
    Last,
    /// The request goes on with this key in the next critical section.
    Again,
}

/// The names for a LIST_KEYS. The reply begins with their number, so all names are collected first.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Whether all places were looked at.
    is_whole: bool,
    count: usize,
    chunks: VecDeque<KeyList>,
}

impl Listed {
    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.as_list().wire_len()).sum()
    }
}

/// A large value that is copied because a reader still holds it.
#[derive(Debug)]
pub(super) struct Copied {
    from: Bytes,
    copy: Vec<u8>,
}

#[expect(clippy::arithmetic_side_effects, reason = "the size of what is in memory")]
impl Copied {
    fn of(value: &Bytes) -> Self {
        // With room to grow, as a value that was appended to before has it.
        Self { from: value.clone(), copy: Vec::with_capacity(value.len() + value.len() / 8) }
    }

    fn is_of(&self, value: &Bytes) -> bool {
        // `from` keeps the old value alive, so no other value can have its address.
        (self.from.as_ptr(), self.from.len()) == (value.as_ptr(), value.len())
    }

    pub(super) fn bytes(&self) -> usize {
        self.copy.capacity()
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "steps, of which a critical section takes few, and what is in memory"
)]
impl Store {
    /// Steps that one slice of a request takes: some milliseconds.
    pub(super) const WORK_A_SLICE: usize = 4 * Self::WORK_AT_ONCE;
    /// Requests of up to this many keys are done at one moment, unless very many connections wait for the
    /// keys or the values are very large.
    pub(super) const KEYS_AT_ONCE: usize = 4096;
    /// Steps that each key of a request costs.
    pub(super) const STEPS_A_KEY: usize = Self::WORK_A_SLICE / Self::KEYS_AT_ONCE;

    /// Whether a request of `conn` is done in part.
    pub(super) fn has_begun(&self, conn: ConnId) -> bool {
        self.session(conn)
            .is_some_and(|session| session.done > 0 || session.listed.is_some() || session.copied.is_some())
    }

    /// The number of keys that a request in slices has written or answered. These must not be done twice. A
    /// request that only looks at keys begins anew.
    pub fn done(&self, conn: ConnId, request: &Request<'_>) -> usize {
        match request {
            Request::MultiSet(_) | Request::MultiGet(_) => {
                self.session(conn).map_or(0, |session| session.done)
            }
            _ => 0,
        }
    }

    /// The previous server has done this many keys of `request`: it goes on behind them.
    pub fn go_on(&mut self, conn: ConnId, request: &Request<'_>, done: usize) {
        if matches!(request, Request::MultiSet(_) | Request::MultiGet(_))
            && let Some(session) = self.session_mut(conn)
        {
            session.done = done;
        }
    }

    /// Steps that it costs to write or answer one key.
    fn steps_of_key() -> usize {
        #[cfg(any(test, feature = "sim"))]
        if KEY_BY_KEY.get() {
            return Self::WORK_A_SLICE;
        }
        Self::STEPS_A_KEY
    }

    /// Goes on with a request of many `items` for one slice, or until `each` ends it.
    fn in_slices<T, F: Effects>(
        &mut self,
        conn: ConnId,
        items: impl Iterator<Item = T>,
        steps: usize,
        fx: &mut F,
        mut each: impl FnMut(&mut Self, T, &mut F) -> Result<After, Refusal>,
    ) -> Result<Progress, Refusal> {
        let before = self.session_mut(conn).map_or(0, |session| std::mem::take(&mut session.done));
        let enough = self.work + Self::WORK_A_SLICE;
        for (done, item) in items.enumerate().skip(before) {
            let after = if self.work >= enough {
                After::Again
            } else {
                self.work += steps;
                each(self, item, fx)?
            };
            match after {
                After::Next => {}
                After::Last => break,
                After::Again => {
                    if let Some(session) = self.session_mut(conn) {
                        session.done = done;
                    }
                    return Ok(Progress::Begun);
                }
            }
        }
        Ok(Progress::Done)
    }

    pub(super) fn check(
        &mut self,
        conn: ConnId,
        keys: List<'_>,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let mut ready = true;
        let progress = self.in_slices(conn, keys.iter(), Self::STEPS_A_KEY, fx, |store, key, _| {
            if store.stale.is_held(conn, key) {
                return Ok(After::Again);
            }
            ready = store.is_present(key);
            Ok(if ready { After::Next } else { After::Last })
        })?;
        if progress == Progress::Done {
            fx.reply(Reply::Ready(ready));
        }
        Ok(progress)
    }

    pub(super) fn multi_get(
        &mut self,
        conn: ConnId,
        keys: List<'_>,
        now: Timestamp,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        if let Some(answer) = self.answer_at_once(conn, keys) {
            fx.reply(Reply::Values(&answer.values));
            self.all_were_read(conn, &answer, now, fx);
            return if fx.has_room() { Ok(Progress::Done) } else { Err(Refusal::OutOfMemory) };
        }
        self.in_slices(conn, keys.iter(), Self::steps_of_key(), fx, |store, key, fx| {
            if store.stale.is_held(conn, key) {
                return Ok(After::Again);
            }
            store.get(conn, key, now, fx);
            if fx.has_room() { Ok(After::Next) } else { Err(Refusal::OutOfMemory) }
        })
    }

    /// The answer to a MULTI_GET whose values are all there. It is made once for all ranks that ask for the
    /// same keys before any value changes, because making it takes longer than the rest of the request.
    fn answer_at_once(&mut self, conn: ConnId, keys: List<'_>) -> Option<Arc<Answer>> {
        const FEWEST: usize = 16;
        const MOST_BYTES: usize = 1 << 20;
        if !(FEWEST..=Self::KEYS_AT_ONCE).contains(&keys.len())
            || self.stale.is_holding()
            || self.has_begun(conn)
        {
            return None;
        }
        if let Some(answer) = self.keys.answer(keys) {
            return Some(Arc::clone(answer));
        }
        let mut bytes = keys.wire_len();
        let mut slots = Vec::with_capacity(keys.len());
        for key in keys.iter() {
            let id = self.keys.find(key)?;
            bytes += self.keys.slot(id).value()?.len();
            if bytes > MOST_BYTES {
                return None;
            }
            slots.push(id);
        }
        // The kept answer must never be the reason why something else does not fit.
        self.room_for(16 * bytes, 0).ok()?;
        let values: KeyList = slots.iter().filter_map(|&id| self.keys.slot(id).value()).collect();
        let group = self.stale.whole_group(&self.keys, &slots);
        let representatives = self.representatives(slots.iter().copied());
        let (keys, values) = (keys.to_shared(), values.share());
        let answer = Arc::new(Answer { keys, values, slots, representatives, group });
        self.keys.keep_answer(Arc::clone(&answer));
        Some(answer)
    }

    pub(super) fn multi_set(
        &mut self,
        conn: ConnId,
        pairs: Pairs<'_>,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let is_small = pairs.len() <= Self::KEYS_AT_ONCE;
        if is_small && !self.has_begun(conn) {
            self.room_for_pairs(pairs)?;
        }
        self.in_slices(conn, pairs.iter(), Self::steps_of_key(), fx, |store, (key, value), fx| {
            if store.stale.is_held(conn, key) {
                return Ok(After::Again);
            }
            let looked = store.keys.look(key);
            if !is_small {
                store.room_for_value(key, looked, value.as_slice().len())?;
            }
            store.work += value.as_slice().len() / Self::BYTES_A_STEP;
            let progress = store.store_value(conn, key, looked, value, fx);
            Ok(if progress == Progress::Done { After::Next } else { After::Again })
        })
    }

    /// Registers `conn` for all of `keys`. It waits if one of them is missing.
    pub(super) fn wait(
        &mut self,
        conn: ConnId,
        keys: List<'_>,
        now: Timestamp,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let is_small = keys.len() <= Self::KEYS_AT_ONCE;
        if !self.has_begun(conn) {
            if is_small {
                self.room_for_wait(keys)?;
            }
            self.end_wait(conn);
            if self.is_ending_wait(conn) {
                return Ok(Progress::Begun);
            }
            // An unfinished registration counts as one missing key, so nothing ends the wait before it is
            // complete.
            if self.join_wait(conn, keys, now, fx) {
                return Ok(Progress::Done);
            }
            let on = WaitOn::Keys { registrations: SmallVec::new(), missing: 1, shared: None };
            self.begin_wait(conn, Wait { since: now, on });
        }
        let progress = self.in_slices(conn, keys.iter(), Self::STEPS_A_KEY, fx, |store, key, fx| {
            if store.stale.is_held(conn, key) {
                return Ok(After::Again);
            }
            let looked = store.keys.look(key);
            if !is_small {
                match looked.id {
                    Some(_) => store.room_for(Registrations::BYTES, 0)?,
                    None => store.room_for_name(key, Registrations::BYTES)?,
                }
            }
            store.register(conn, key, looked, fx);
            Ok(After::Next)
        })?;
        if progress == Progress::Done {
            if self.is_registered(conn) {
                self.end_wait(conn);
                fx.reply(Reply::StopWaiting);
            } else {
                self.share_wait(conn, keys);
            }
        }
        Ok(progress)
    }

    /// Prepares the value of `id` for growing in place. If the value is large and a reader still holds it, it
    /// is copied slice by slice.
    pub(super) fn own_value(&mut self, conn: ConnId, id: SlotId) -> Result<Progress, Refusal> {
        const LARGE: usize = Store::WORK_AT_ONCE * Store::BYTES_A_STEP;
        let copied = self.session_mut(conn).and_then(|session| session.copied.take());
        self.unfinished_bytes -= copied.as_ref().map_or(0, |copied| copied.bytes());
        let value = self.keys.slot(id).value().filter(|value| value.len() > LARGE);
        let Some(value) = value else { return Ok(Progress::Done) };
        let mut copied = match copied.filter(|copied| copied.is_of(value)) {
            Some(copied) => copied,
            None if value.is_unique() => return Ok(Progress::Done),
            None => {
                self.room_for(value.len(), 0)?;
                Box::new(Copied::of(value))
            }
        };
        let done = copied.copy.len();
        let slice = &copied.from[done..copied.from.len().min(done + LARGE)];
        copied.copy.extend_from_slice(slice);
        self.work += Self::WORK_AT_ONCE;
        if copied.copy.len() == copied.from.len() {
            self.keys.set_value(id, Some(copied.copy.into()));
            return Ok(Progress::Done);
        }
        self.unfinished_bytes += copied.bytes();
        if let Some(session) = self.session_mut(conn) {
            session.copied = Some(copied);
        }
        Ok(Progress::Begun)
    }

    pub(super) fn list_keys(&mut self, conn: ConnId, fx: &mut impl Effects) -> Result<Progress, Refusal> {
        let listed = self.session_mut(conn).and_then(|session| session.listed.take());
        let mut listed = listed.unwrap_or_default();
        self.unfinished_bytes -= listed.bytes();
        let progress = self.list_more(conn, &mut listed, fx)?;
        if progress == Progress::Begun
            && let Some(session) = self.sessions[conn.slot()].as_mut()
        {
            self.unfinished_bytes += listed.bytes();
            session.listed = Some(listed);
        }
        Ok(progress)
    }

    fn list_more(
        &mut self,
        conn: ConnId,
        listed: &mut Listed,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        if !listed.is_whole {
            let mut names = KeyList::default();
            let before = listed.bytes();
            let places = 0..self.keys.places();
            let progress = self.in_slices(conn, places, 1, fx, |store, place, _| {
                if let Some((_, slot)) = store.keys.at(place)
                    && slot.value().is_some()
                {
                    names.push(slot.key());
                    store.work += slot.key().len() / Self::BYTES_A_STEP;
                    store.room_for(before + names.as_list().wire_len(), 0)?;
                }
                Ok(After::Next)
            })?;
            listed.count += names.as_list().len();
            listed.chunks.push_back(names);
            if progress == Progress::Begun {
                return Ok(progress);
            }
            listed.is_whole = true;
            fx.reply(Reply::count(listed.count));
        }
        if let Some(names) = listed.chunks.pop_front() {
            fx.reply(Reply::Keys(names.as_list()));
            if !fx.has_room() {
                return Err(Refusal::OutOfMemory);
            }
        }
        Ok(if listed.chunks.is_empty() { Progress::Done } else { Progress::Begun })
    }
}
