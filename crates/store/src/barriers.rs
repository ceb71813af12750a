//! BARRIER: arrivals are counted in the key, and only arrivals release.

use super::capacity::Refusal;
use super::number::{decimal, parse_counter};
use super::slot::SlotId;
use super::waiters::{Registrations, Wait, WaitOn};
use super::{Effects, Progress, Store};
use rallypoint_protocol::Reply;
use rallypoint_protocol::ids::{ConnId, Timestamp};

impl Store {
    pub(super) fn barrier(
        &mut self,
        conn: ConnId,
        key: &[u8],
        world_size: i64,
        now: Timestamp,
        fx: &mut impl Effects,
    ) -> Result<Progress, Refusal> {
        let looked = self.keys.look(key);
        let count = self.counter(key, looked, "barrier")?.wrapping_add(1);
        let text = decimal(count);
        self.room_for_value(key, looked, text.len().saturating_add(Registrations::BYTES))?;
        if self.slot_to_write(conn, key, looked, fx).is_none() {
            return Ok(Progress::Begun);
        }
        // A connection waits for one thing at a time. A second BARRIER on the same key is one more arrival.
        let earlier = self.arrivals_at(conn, key);
        match earlier {
            Some(_) => self.forget_wait(conn),
            None => self.end_wait(conn),
        };
        // Ending the earlier wait may have freed the slot of this key.
        let id = self.slot_for(conn, key, self.keys.look(key), fx);
        self.write(conn, id, text, fx);
        if count >= world_size {
            fx.reply(Reply::StopWaiting);
            self.release_barrier(id, fx);
            self.release(id);
            return Ok(Progress::Done);
        }
        let slot = self.keys.slot_mut(id);
        let barrier = slot.barrier.get_or_insert_default();
        let registration = self.registrations.append(&mut barrier.arrivals, conn, id);
        let (arrivals, life) = (earlier.unwrap_or(0).saturating_add(1), barrier.life);
        let on = WaitOn::Barrier { registration, arrivals, life, world_size };
        self.begin_wait(conn, Wait { since: now, on });
        self.client_changed(conn);
        Ok(Progress::Done)
    }

    /// How often `conn` is counted at the barrier `key`; `None` if it does not wait there.
    pub(super) fn arrivals_at(&self, conn: ConnId, key: &[u8]) -> Option<u32> {
        match self.session(conn)?.wait.as_ref()?.on {
            WaitOn::Barrier { registration, arrivals, life, .. } => {
                let slot = self.keys.slot(self.registrations.get(registration).slot);
                let counted = slot.barrier.as_ref().is_some_and(|barrier| barrier.life == life);
                (slot.key() == key).then_some(if counted { arrivals } else { 0 })
            }
            WaitOn::Keys { .. } | WaitOn::Shared { .. } => None,
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "work grows with what is in memory")]
    pub(super) fn release_barrier(&mut self, id: SlotId, fx: &mut impl Effects) {
        let Some(barrier) = &self.keys.slot(id).barrier else { return };
        let mut to_wake = std::mem::take(&mut self.to_wake);
        to_wake.extend(self.registrations.iter(&barrier.arrivals));
        self.work += to_wake.len();
        for conn in to_wake.drain(..) {
            if let Some(since) = self.forget_wait(conn) {
                fx.wake(conn, since);
            }
        }
        self.to_wake = to_wake;
    }

    /// Subtracts arrivals, if the count still contains them, but not below 0. The key stays.
    pub(super) fn withdraw_arrivals(&mut self, id: SlotId, arrivals: u32, life: u32) {
        let slot = self.keys.slot(id);
        if slot.barrier.as_ref().is_some_and(|barrier| barrier.life == life)
            && let Some(count @ 1..) = slot.value().and_then(|text| parse_counter(text))
        {
            self.keys.set_value(id, Some(decimal(count.saturating_sub(arrivals.into()).max(0))));
        }
    }

    pub(super) fn start_new_barrier_life(&mut self, id: SlotId) {
        if let Some(barrier) = &mut self.keys.slot_mut(id).barrier {
            barrier.life = barrier.life.wrapping_add(1);
        }
    }
}
