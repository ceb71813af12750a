//! Drops of keys that no client deleted: by the stale-key rules, by idleness, or because an operator asked
//! for it.
//!
//! Dropping a million keys at once would hold up all clients. So each critical section drops some of them,
//! before it serves a request. Only keys that were there at the time of the decision are dropped.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Store;
use super::deleted::Deleted;
use super::effects::{Cleanup, DropCause, Effects, Observed};
use super::slot::SlotId;
use super::stale::StaleKeys;
use rallypoint_protocol::ids::ConnId;

/// The progress of emptying the whole store: everything that was written before `age` goes.
#[derive(Debug)]
pub(super) struct Sweep {
    cause: DropCause,
    /// Only keys that match a pattern go: somebody may still use the others.
    only_rows: bool,
    age: u64,
    /// The place to look at next.
    next: u32,
    /// Keys and queues dropped so far.
    dropped: usize,
    /// Items of the queue that was dropped last. They are freed in steps.
    items: VecDeque<Bytes>,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "steps, of which a critical section takes few, and keys in memory"
)]
impl Store {
    /// Steps after which a critical section does not begin another request: about a millisecond. A step is a
    /// look at one other waiter, key or connection.
    pub(super) const WORK_AT_ONCE: usize = 16 * 1024;
    /// Bytes that are compared or copied in the time of a step.
    pub(super) const BYTES_A_STEP: usize = 256;
    /// Steps that dropping a key costs.
    const STEPS_A_DROP: usize = 2;

    /// Begins a critical section: continues the step-by-step drops before it serves any request.
    #[inline]
    pub fn begin(&mut self, fx: &mut impl Effects) {
        self.work = 0;
        if self.is_unsettled() {
            self.settle(fx);
        }
    }

    /// Whether this critical section has done so much work that the next request must wait for the next
    /// section.
    #[inline]
    pub fn has_worked_enough(&self) -> bool {
        self.work >= Self::WORK_AT_ONCE
    }

    /// Whether step-by-step drops are not finished: each [`Store::begin`] continues them.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        self.sweep.is_some()
            || self.stale.has_due()
            || self.stale.is_searching()
            || self.stale.has_reads_to_free()
            || !self.ended.is_empty()
    }

    /// How many keys were dropped so far, by a rule or with a run that an operator dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Empties the store. While anybody is connected, keys that match no pattern stay, unless an operator
    /// asked for it.
    pub(super) fn clear(&mut self, cause: DropCause, fx: &mut impl Effects) {
        let only_rows = cause != DropCause::Operator && self.connections > 0;
        if !only_rows {
            self.stale.on_clear();
            self.all_clients_changed();
            self.has_reported_what_stays = false;
            self.deleted = Deleted::default();
        }
        let before = self.sweep.replace(Sweep {
            cause,
            only_rows,
            age: self.keys.new_age(),
            next: 0,
            dropped: 0,
            items: VecDeque::new(),
        });
        if let Some(Sweep { cause, dropped, items, .. }) = before {
            // The new sweep takes the rest of the old one with it.
            for item in &items {
                self.keys.forget_item(item);
            }
            fx.cleanup(Cleanup::StoreReset { cause, keys: dropped });
            fx.observe(Observed::StoreReset { cause });
        }
        self.settle(fx);
    }

    /// Continues the step-by-step drops until they are finished or this section has done enough.
    #[cold]
    pub(super) fn settle(&mut self, fx: &mut impl Effects) {
        let enough = self.work + Self::WORK_AT_ONCE;
        self.search(Self::WORK_AT_ONCE, fx);
        while self.stale.has_due() && self.work < enough {
            let most = (enough - self.work).div_ceil(Self::STEPS_A_DROP);
            let drops = self.stale.next_drops(&mut self.keys, most);
            self.work += self.stale.take_looks();
            self.drop_some(&drops, fx);
        }
        while self.work < enough
            && let Some(steps) = self.stale.free_reads()
        {
            self.work += steps;
        }
        while self.work < enough
            && let Some(ended) = self.ended.front_mut()
        {
            if let Some(registration) = ended.registrations.pop() {
                self.work += Self::STEPS_A_DROP;
                self.unregister(registration);
            } else {
                self.ended.pop_front();
            }
        }
        let Some(mut sweep) = self.sweep.take() else { return };
        while sweep.next < self.keys.places() || !sweep.items.is_empty() {
            if self.work >= enough {
                self.sweep = Some(sweep);
                return;
            }
            self.work += 1;
            if let Some(item) = sweep.items.pop_front() {
                self.keys.forget_item(&item);
                continue;
            }
            if let Some((id, slot)) = self.keys.at(sweep.next)
                && slot.is_present()
                && slot.is_older_than(sweep.age)
                && (!sweep.only_rows || slot.record.is_some())
                && (sweep.cause != DropCause::StoreIdle || !StaleKeys::outlives_idleness(slot))
            {
                self.empty(id, &mut sweep);
            }
            sweep.next += 1;
        }
        if sweep.dropped > 0 || sweep.cause == DropCause::Operator {
            fx.cleanup(Cleanup::StoreReset { cause: sweep.cause, keys: sweep.dropped });
            fx.observe(Observed::StoreReset { cause: sweep.cause });
        }
    }

    fn empty(&mut self, id: SlotId, sweep: &mut Sweep) {
        self.work += Self::STEPS_A_DROP;
        sweep.items = self.keys.take_items(id);
        self.keys.set_value(id, None);
        self.after_loss(id);
        sweep.dropped += 1;
    }

    /// Before `conn` writes what holds rule 1 (c) up: whether it may. If not, its request is to be given
    /// again.
    #[cold]
    pub(super) fn make_way(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) -> bool {
        let mut may_write = self.stale.may_write(&self.keys, conn, id);
        self.work += self.stale.take_looks();
        if !may_write {
            self.search(Self::WORK_A_SLICE, fx);
            may_write = self.stale.may_write(&self.keys, conn, id);
        }
        if !may_write {
            self.release(id);
        }
        may_write
    }

    /// Goes on with searches for addresses that are spent because others were, for about so many steps.
    fn search(&mut self, steps: usize, fx: &mut impl Effects) {
        #[cfg(test)]
        let steps = steps.min(self.search_at_once);
        let enough = self.work + steps;
        while self.work < enough && self.stale.is_searching() {
            let drops = self.stale.search(&mut self.keys, enough - self.work);
            self.work += self.stale.take_looks();
            self.drop_some(&drops, fx);
        }
    }

    /// Drops plain values, and reports one [`Cleanup`] for each cause.
    fn drop_some(&mut self, drops: &[(SlotId, DropCause)], fx: &mut impl Effects) {
        let mut counts = [0_usize; DropCause::ALL.len()];
        let mut examples: [Option<Box<[u8]>>; DropCause::ALL.len()] = Default::default();
        for &(id, cause) in drops {
            if self.keys.get(id).is_none_or(|slot| slot.value().is_none()) {
                continue;
            }
            counts[cause as usize] += 1;
            self.dropped += 1;
            examples[cause as usize].get_or_insert_with(|| self.keys.slot(id).key().into());
            self.work += Self::STEPS_A_DROP;
            self.keys.set_value(id, None);
            if fx.observes() {
                fx.observe(Observed::Dropped { key: self.keys.slot(id).key().into(), cause });
            }
            self.after_loss(id);
        }
        for cause in DropCause::ALL {
            if let Some(example) = examples[cause as usize].take() {
                fx.cleanup(Cleanup::KeysDropped { cause, keys: counts[cause as usize], example });
            }
        }
    }
}
