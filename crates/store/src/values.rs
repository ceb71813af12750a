//! Plain values: SET, COMPARE_SET, GET, ADD, DELETE, APPEND.

use bytes::Bytes;

use super::capacity::Refusal;
use super::deleted::KeyPast;
use super::keyspace::{Answer, Looked};
use super::number::{decimal, parse_counter};
use super::slot::SlotId;
use super::stale::StaleKeys;
use super::{Cleanup, Effects, Observed, Polled, Progress, Store};
use rallypoint_journal::grown;
use rallypoint_protocol::addresses::read_gloo;
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::debug_server_of;
use rallypoint_protocol::{Payload, Reply};

impl Store {
    pub(super) fn set(
        &mut self,
        conn: ConnId,
        key: &[u8],
        value: Payload<'_>,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let looked = self.keys.look(key);
        self.room_for_value(key, looked, value.as_slice().len())?;
        Ok(self.store_value(conn, key, looked, value, fx))
    }

    pub(super) fn store_value(
        &mut self,
        conn: ConnId,
        key: &[u8],
        looked: Looked,
        value: Payload<'_>,
        fx: &mut impl Effects,
    ) -> Progress {
        let Some(id) = self.slot_to_write(conn, key, looked, fx) else { return Progress::Begun };
        self.start_new_barrier_life(id);
        self.write(conn, id, value.to_stored(), fx);
        self.polls_no_more(conn);
        Progress::Done
    }

    /// Writes a plain value and wakes the connections that wait for it.
    pub(super) fn write(&mut self, conn: ConnId, id: SlotId, value: Bytes, fx: &mut impl Effects) {
        if self.keys.slot(id).record.is_some() {
            if let Some(first) = self.stale.on_write(&mut self.keys, conn, id)
                && !self.is_same_process(first, conn)
            {
                let key = self.keys.slot(id).key().into();
                fx.observe(Observed::TwoWriters { key, first, second: conn });
            }
            while let Some(run_id) = self.stale.take_restarted_run() {
                fx.cleanup(Cleanup::RunRestarted);
                fx.observe(Observed::RunRestarted { run_id });
            }
        }
        let was_present = self.keys.slot(id).is_present();
        if fx.observes() {
            let slot = self.keys.slot(id);
            match &slot.record {
                Some(record) if !record.is_of_job() => {
                    let address = debug_server_of(slot.key()).map(|_| value.clone());
                    fx.observe(Observed::Published { conn, key: slot.key().into(), address });
                }
                // Below a prefix of its own a program makes groups, too: only the value tells.
                None if read_gloo(&value).size.is_none() => {}
                _ => fx.observe(Observed::Wrote { conn, key: slot.key().into(), value: value.clone() }),
            }
            self.keys.slot_mut(id).note_writer(conn, !was_present);
        }
        self.keys.set_value(id, Some(value));
        if !self.keys.slot(id).waiters.is_empty() {
            self.wake_waiters(id, !was_present, fx);
        }
    }

    /// Whether two connections belong to one process, as far as address and process id tell.
    pub(super) fn is_same_process(&self, a: ConnId, b: ConnId) -> bool {
        match (self.session(a), self.session(b)) {
            (Some(a), Some(b)) => a.peer.ip() == b.peer.ip() && a.pid.is_some() && a.pid == b.pid,
            _ => false,
        }
    }

    pub(super) fn compare_set(
        &mut self,
        conn: ConnId,
        key: &[u8],
        expected: &[u8],
        desired: Payload<'_>,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let looked = self.keys.look(key);
        if let Some(id) = looked.id {
            self.touch(conn, id, fx);
        }
        match looked.id.and_then(|id| self.keys.slot(id).value()) {
            Some(current) if current != expected => {
                fx.reply(Reply::Value(current));
                if let Some(id) = looked.id {
                    self.is_refused(conn, id, Polled::Held, fx);
                }
                return Ok(Progress::Done);
            }
            // PyTorch's answer, though the key does not exist: its clients compare it with what they sent.
            None if !expected.is_empty() => {
                fx.reply(Reply::Bytes(expected));
                return Ok(Progress::Done);
            }
            _ => {}
        }
        self.room_for_value(key, looked, desired.as_slice().len())?;
        let Some(id) = self.slot_to_write(conn, key, looked, fx) else { return Ok(Progress::Begun) };
        let value = desired.to_stored();
        fx.reply(Reply::Value(&value));
        self.start_new_barrier_life(id);
        self.write(conn, id, value, fx);
        self.polls_no_more(conn);
        Ok(Progress::Done)
    }

    #[inline]
    pub(super) fn get(&mut self, conn: ConnId, key: &[u8], now: Timestamp, fx: &mut impl Effects) {
        let Some(id) = self.keys.find(key) else {
            return fx.reply(Reply::Bytes(b""));
        };
        match self.keys.slot(id).value() {
            Some(value) => fx.reply(Reply::Value(value)),
            None => fx.reply(Reply::Bytes(b"")),
        }
        self.was_read(conn, id, now, fx);
    }

    /// Tells the stale-key rules that `conn` has received what the slot holds.
    #[inline]
    pub(super) fn was_read(&mut self, conn: ConnId, id: SlotId, now: Timestamp, fx: &mut impl Effects) {
        if self.keys.slot(id).record.is_some() {
            self.touch(conn, id, fx);
            // What there is no room for is not remembered.
            if self.room_for(StaleKeys::MOST_BYTES_A_READ, 0).is_ok() {
                self.stale.on_read(&self.keys, conn, id);
            }
            if fx.observes() && StaleKeys::is_worker_count(&self.keys, id) {
                self.counts(conn, id, now);
            }
        } else {
            self.reads(conn, id, fx);
        }
    }

    /// As [`Self::was_read`], for all values of an answer.
    #[expect(clippy::arithmetic_side_effects, reason = "steps: no more than it has written")]
    pub(super) fn all_were_read(
        &mut self,
        conn: ConnId,
        answer: &Answer,
        now: Timestamp,
        fx: &mut impl Effects,
    ) {
        let room = self.room_for(StaleKeys::MOST_BYTES_A_READ, 0).is_ok();
        match &answer.group {
            Some(group) if room => {
                self.touch_all(conn, &answer.representatives, fx);
                self.work += self.stale.on_read_of_all(&self.keys, conn, group);
            }
            _ => {
                self.work += Self::STEPS_A_KEY * answer.slots.len();
                answer.slots.iter().for_each(|&id| self.was_read(conn, id, now, fx));
            }
        }
    }

    pub(super) fn add(
        &mut self,
        conn: ConnId,
        key: &[u8],
        delta: i64,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let looked = self.keys.look(key);
        let sum = self.counter(key, looked, "add")?.wrapping_add(delta);
        let text = decimal(sum);
        self.room_for_value(key, looked, text.len())?;
        let Some(id) = self.slot_to_write(conn, key, looked, fx) else { return Ok(Progress::Begun) };
        if self.keys.slot(id).record.is_some() {
            self.stale.on_count(&self.keys, conn, id, delta);
            self.client_changed(conn);
        }
        fx.reply(Reply::Number(sum));
        self.write(conn, id, text, fx);
        self.adds(conn, id, delta, sum, fx);
        Ok(Progress::Done)
    }

    /// The number in `key`; 0 if the key has no value.
    #[expect(clippy::arithmetic_side_effects, reason = "work grows with bytes in memory")]
    pub(super) fn counter(&mut self, key: &[u8], looked: Looked, op: &'static str) -> Result<i64, Refusal> {
        match looked.id.and_then(|id| self.keys.slot(id).value()) {
            None => Ok(0),
            Some(text) => {
                // A counter may begin with megabytes of blanks and zeros.
                self.work += text.len() / Self::BYTES_A_STEP;
                parse_counter(text).ok_or_else(|| Refusal::NotANumber {
                    op,
                    key: rallypoint_protocol::ids::ShownKey(key).to_string(),
                })
            }
        }
    }

    pub(super) fn delete(&mut self, conn: ConnId, key: &[u8], fx: &mut impl Effects) {
        let mut deleted = 0;
        if let Some(id) = self.keys.find(key) {
            self.touch(conn, id, fx);
            if self.keys.set_value(id, None).is_some() {
                deleted = 1;
                self.deleted.add(key, KeyPast::Deleted(conn, self.heard_last(conn)));
                self.after_loss(id);
            }
        }
        self.polls_no_more(conn);
        fx.reply(Reply::Number(deleted));
    }

    #[expect(clippy::arithmetic_side_effects, reason = "work grows with bytes in memory")]
    pub(super) fn append(
        &mut self,
        conn: ConnId,
        key: &[u8],
        more: &[u8],
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let looked = self.keys.look(key);
        let held = looked.id.and_then(|id| self.keys.slot(id).value()).map_or(0, Bytes::len);
        self.room_for_value(key, looked, held.saturating_add(more.len()))?;
        let Some(id) = self.slot_to_write(conn, key, looked, fx) else { return Ok(Progress::Begun) };
        let journaled = self.keys.journaled(id);
        if self.own_value(conn, id)? == Progress::Begun {
            return Ok(Progress::Begun);
        }
        let was_present = self.keys.slot(id).is_present();
        self.work += held / Self::BYTES_A_STEP;
        // The value is taken out so that its buffer can grow in place.
        let value = grown(self.keys.set_value(id, None).unwrap_or_default(), held, more);
        self.start_new_barrier_life(id);
        if was_present {
            // With a value in between, no count of missing keys changes.
            self.keys.set_value(id, Some(Bytes::new()));
        }
        self.write(conn, id, value, fx);
        if let Some(journaled) = journaled {
            self.keys.journal_from(id, journaled);
        }
        self.polls_no_more(conn);
        Ok(Progress::Done)
    }
}
