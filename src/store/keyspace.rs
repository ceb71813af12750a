//! The names: what each holds and who waits for it.
//!
//! One name is one slot, whatever it is used for (plain key, queue, barrier, only waited for), so every operation
//! looks a name up once. A slot exists while anything needs it.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use bytes::Bytes;
use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

use super::stale::Record;
use super::waiters::WaitList;

/// Where a name's slot is. Valid while the slot exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotId(u32);

/// Items of a queue, oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Bytes>,
    /// Woken waiters that have not come for their item yet.
    pub(super) offered: u32,
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

    fn is_needed(&self) -> bool {
        self.value.is_some() || self.queue.is_some() || self.barrier.is_some() || !self.waiters.is_empty()
    }
}

/// All slots, by name.
#[derive(Debug, Default)]
pub(super) struct KeySpace {
    hasher: DefaultHashBuilder,
    index: HashTable<SlotId>,
    slots: Slab<Slot>,
    plain: usize,
    bytes: usize,
}

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

    /// Bytes held, with [`Self::SLOT_BYTES`] a name.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<SlotId> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |id| &*self.slots[id.0 as usize].key == key).copied()
    }

    /// The slot of `key`, and whether it was made just now.
    #[inline]
    pub(super) fn find_or_insert(&mut self, key: &[u8]) -> (SlotId, bool) {
        let hash = self.hasher.hash_one(key);
        let slots = &mut self.slots;
        if let Some(&id) = self.index.find(hash, |id| &*slots[id.0 as usize].key == key) {
            return (id, false);
        }
        let slot = Slot {
            key: key.into(),
            value: None,
            queue: None,
            waiters: WaitList::default(),
            barrier: None,
            record: None,
        };
        let id = SlotId(slots.insert(slot) as u32);
        let hasher = &self.hasher;
        self.index.insert_unique(hash, id, |id| hasher.hash_one(&*slots[id.0 as usize].key));
        self.bytes += key.len() + Self::SLOT_BYTES;
        (id, true)
    }

    #[inline]
    pub(super) fn slot(&self, id: SlotId) -> &Slot {
        #[cfg(test)]
        super::tests::work::step();
        &self.slots[id.0 as usize]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, id: SlotId) -> &mut Slot {
        #[cfg(test)]
        super::tests::work::step();
        &mut self.slots[id.0 as usize]
    }

    /// The slot, if it still exists. A slot id that was kept may by now belong to another name.
    pub(super) fn get(&self, id: SlotId) -> Option<&Slot> {
        #[cfg(test)]
        super::tests::work::step();
        self.slots.get(id.0 as usize)
    }

    /// Replaces the plain value and returns the one before.
    #[inline]
    pub(super) fn set_value(&mut self, id: SlotId, value: Option<Bytes>) -> Option<Bytes> {
        let slot = &mut self.slots[id.0 as usize];
        self.bytes += value.as_ref().map_or(0, Bytes::len);
        self.plain += usize::from(value.is_some());
        let before = std::mem::replace(&mut slot.value, value);
        self.bytes -= before.as_ref().map_or(0, Bytes::len);
        self.plain -= usize::from(before.is_some());
        before
    }

    pub(super) fn push_item(&mut self, id: SlotId, item: Bytes) {
        self.bytes += item.len() + size_of::<Bytes>();
        self.slots[id.0 as usize].queue.get_or_insert_default().items.push_back(item);
    }

    pub(super) fn pop_item(&mut self, id: SlotId) -> Option<Bytes> {
        let item = self.slots[id.0 as usize].queue.as_mut()?.items.pop_front()?;
        self.bytes -= item.len() + size_of::<Bytes>();
        Some(item)
    }

    /// Frees what the slot no longer needs, and the slot itself if nothing needs it: then returns its record.
    pub(super) fn release(&mut self, id: SlotId) -> Option<Box<Record>> {
        let slot = &mut self.slots[id.0 as usize];
        slot.queue.take_if(|queue| queue.items.is_empty() && queue.offered == 0);
        slot.barrier.take_if(|barrier| barrier.arrivals.is_empty());
        if slot.is_needed() {
            return None;
        }
        let hash = self.hasher.hash_one(&*slot.key);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        let slot = self.slots.remove(id.0 as usize);
        self.bytes -= slot.key.len() + Self::SLOT_BYTES;
        slot.record
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().map(|(at, slot)| (SlotId(at as u32), slot))
    }
}
