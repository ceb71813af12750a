//! The names: what each holds and which connections wait for it.
//!
//! One name is one slot, whatever it is used for (plain key, queue, barrier, only waited for), so every operation
//! looks a name up once. A slot exists while anything needs it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::chunks::{Chunks, left_behind};
use super::index::{Hashed, Index};
use super::slot::SlotId;
use super::stale::record::Record;
use super::waiters::WaitList;

/// Items of a queue, oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Bytes>,
    /// Woken waiters that have not come for their item yet.
    pub(super) offered: u32,
}

impl Queue {
    /// What a queue costs beside its items, roughly.
    pub(super) const BYTES: usize = 192;
}

/// The arrivals that are waiting at a barrier.
#[derive(Debug, Default)]
pub(super) struct BarrierState {
    /// Goes up when the count is replaced or deleted: earlier arrivals are not in the present count.
    pub(super) life: u32,
    pub(super) arrivals: WaitList,
}

/// Everything about one name.
#[derive(Debug)]
pub(super) struct Slot {
    key: Box<[u8]>,
    value: Option<Bytes>,
    pub(super) queue: Option<Box<Queue>>,
    pub(super) waiters: WaitList,
    pub(super) barrier: Option<Box<BarrierState>>,
    /// The age ([`KeySpace::age`]) in which its value or an item was last written.
    written: u64,
    /// What the rules for stale keys know of it; `None` for every key that is not PyTorch's own.
    pub(super) record: Option<Box<Record>>,
}

impl Slot {
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn value(&self) -> Option<&Bytes> {
        self.value.as_ref()
    }

    pub(super) fn queue_len(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.items.len())
    }

    /// What CHECK and WAIT ask for: a plain value or an item in the queue.
    pub(super) fn is_present(&self) -> bool {
        self.value.is_some() || self.queue_len() > 0
    }

    /// Whether what it holds was written before `age` began.
    pub(super) fn is_older_than(&self, age: u64) -> bool {
        self.written < age
    }

    fn is_needed(&self) -> bool {
        self.value.is_some() || self.queue.is_some() || self.barrier.is_some() || !self.waiters.is_empty()
    }
}

/// What a look for a name has found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked {
    hash: Hashed,
    pub(super) id: Option<SlotId>,
}

/// All slots, by name.
#[derive(Debug, Default)]
pub(super) struct KeySpace {
    index: Index,
    slots: Chunks<Slot>,
    plain: usize,
    bytes: usize,
    /// Goes up when keys are to go that are there now: see [`Self::new_age`].
    age: u64,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "counts what is in memory; what is subtracted was added when it came"
)]
impl KeySpace {
    /// What a slot costs beside the bytes of its name and values, roughly.
    pub(super) const SLOT_BYTES: usize = 192;

    /// Number of plain keys.
    pub(super) fn plain(&self) -> usize {
        self.plain
    }

    /// Number of names.
    pub(super) fn names(&self) -> usize {
        self.slots.len()
    }

    /// Bytes held, with [`Self::SLOT_BYTES`] a name, and the places that many names have left behind.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.slots.left_bytes()
    }

    /// Begins a new age and returns it. What goes in several steps goes by this: only what was written before.
    pub(super) fn new_age(&mut self) -> u64 {
        self.age += 1;
        self.age
    }

    /// The slot at a place, of those below [`Self::places`].
    pub(super) fn at(&self, place: u32) -> Option<(SlotId, &Slot)> {
        Some((SlotId::at(place), self.slots.get(place)?))
    }

    /// One more than the last place that a slot may have.
    pub(super) fn places(&self) -> u32 {
        self.slots.end()
    }

    /// Looks `key` up. What is found holds until a name comes or goes.
    #[inline]
    pub(super) fn look(&self, key: &[u8]) -> Looked {
        let hash = self.index.hash(key);
        let is_it = |place| &*self.slots[place].key == key;
        Looked { hash, id: self.index.find(hash, is_it).map(SlotId::at) }
    }

    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<SlotId> {
        self.look(key).id
    }

    /// A slot for `key`, which was looked up and is not there.
    #[inline]
    pub(super) fn insert(&mut self, key: &[u8], Looked { hash, .. }: Looked) -> SlotId {
        let place = self.slots.add(|_| Slot {
            key: key.into(),
            value: None,
            queue: None,
            waiters: WaitList::default(),
            barrier: None,
            written: 0,
            record: None,
        });
        self.index.insert(hash, place);
        self.bytes += key.len() + Self::SLOT_BYTES;
        SlotId::at(place)
    }

    #[inline]
    pub(super) fn slot(&self, id: SlotId) -> &Slot {
        #[cfg(test)]
        super::tests::work::step();
        &self.slots[id.place()]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, id: SlotId) -> &mut Slot {
        #[cfg(test)]
        super::tests::work::step();
        &mut self.slots[id.place()]
    }

    /// The slot, if it still exists. A slot id that was kept may by now belong to another name.
    pub(super) fn get(&self, id: SlotId) -> Option<&Slot> {
        #[cfg(test)]
        super::tests::work::step();
        self.slots.get(id.place())
    }

    /// Replaces the plain value and returns the one before.
    #[inline]
    pub(super) fn set_value(&mut self, id: SlotId, value: Option<Bytes>) -> Option<Bytes> {
        let slot = &mut self.slots[id.place()];
        slot.written = self.age;
        self.bytes += value.as_ref().map_or(0, Bytes::len);
        self.plain += usize::from(value.is_some());
        let before = std::mem::replace(&mut slot.value, value);
        self.bytes -= before.as_ref().map_or(0, Bytes::len);
        self.plain -= usize::from(before.is_some());
        before
    }

    pub(super) fn push_item(&mut self, id: SlotId, item: Bytes) {
        self.bytes += item.len() + size_of::<Bytes>();
        let slot = &mut self.slots[id.place()];
        slot.written = self.age;
        if slot.queue.is_none() {
            self.bytes += Queue::BYTES;
        }
        slot.queue.get_or_insert_default().items.push_back(item);
    }

    pub(super) fn pop_item(&mut self, id: SlotId) -> Option<Bytes> {
        let items = &mut self.slots[id.place()].queue.as_mut()?.items;
        let item = items.pop_front()?;
        if left_behind(items.capacity(), 4 * items.len()) > 0 {
            items.shrink_to(2 * items.len());
        }
        self.forget_item(&item);
        Some(item)
    }

    /// Takes all items of a queue out. Each counts until [`Self::forget_item`].
    pub(super) fn take_items(&mut self, id: SlotId) -> VecDeque<Bytes> {
        let queue = self.slots[id.place()].queue.as_mut();
        queue.map(|queue| std::mem::take(&mut queue.items)).unwrap_or_default()
    }

    /// An item that was taken out is gone.
    pub(super) fn forget_item(&mut self, item: &Bytes) {
        self.bytes -= item.len() + size_of::<Bytes>();
    }

    /// Frees what the slot no longer needs, and the slot itself if nothing needs it: then returns its record.
    pub(super) fn release(&mut self, id: SlotId) -> Option<Box<Record>> {
        let slot = &mut self.slots[id.place()];
        if slot.queue.take_if(|queue| queue.items.is_empty() && queue.offered == 0).is_some() {
            self.bytes -= Queue::BYTES;
        }
        slot.barrier.take_if(|barrier| barrier.arrivals.is_empty());
        if slot.is_needed() {
            return None;
        }
        self.index.remove(self.index.hash(&slot.key), id.place());
        let slot = self.slots.remove(id.place());
        self.bytes -= slot.key.len() + Self::SLOT_BYTES;
        slot.record
    }

    #[cfg(test)]
    pub(super) fn check_places(&self) -> usize {
        self.slots.check()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().map(|(at, slot)| (SlotId::at(at), slot))
    }
}
