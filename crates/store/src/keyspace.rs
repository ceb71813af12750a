//! The names: what each holds and which connections wait for it.
//!
//! One name is one slot, whatever it is used for (plain key, queue, barrier, only waited for), so every
//! operation looks a name up once. A slot exists while anything needs it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::chunks::{Chunks, left_behind};
use super::index::{Hashed, Index};
use super::slot::SlotId;
use super::stale::groups::WholeGroup;
use super::stale::record::Record;
use super::waiters::WaitList;
use rallypoint_protocol::ids::ConnId;
use rallypoint_protocol::{List, SharedList};

/// Items of a queue, oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Bytes>,
    /// Waiters that were woken and have not come for their item yet.
    pub(super) offered: u32,
    /// The number of the first item. Numbers are consecutive.
    pub(super) first: u64,
    /// The journal knows the items below this number.
    pub(super) journaled: u64,
}

impl Queue {
    /// What a queue costs beside its items, roughly.
    pub(super) const BYTES: usize = 192;

    /// The number that the next item gets.
    pub(super) fn next(&self) -> u64 {
        self.first.saturating_add(self.items.len() as u64)
    }
}

/// The arrivals that are waiting at a barrier.
#[derive(Debug, Default)]
pub(super) struct BarrierState {
    /// Goes up when the count is replaced or deleted: earlier arrivals are not in the present count.
    pub(super) life: u32,
    pub(super) arrivals: WaitList,
}

/// Representatives of several names: one for each stretch of names that say the same of their user (role and
/// run).
pub(super) type Representatives = SmallVec<[SlotId; 2]>;

/// The reply to a MULTI_GET, kept for the next client that asks for the same keys.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) keys: SharedList,
    pub(super) values: SharedList,
    /// The slots, in the order of the keys.
    pub(super) slots: Vec<SlotId>,
    /// Representatives of the keys.
    pub(super) representatives: Representatives,
    /// The group that its reader has read, where all keys are addresses of one group.
    pub(super) group: Option<WholeGroup>,
}

impl Answer {
    fn bytes(&self) -> usize {
        let lists = self.keys.as_list().wire_len().saturating_add(self.values.as_list().wire_len());
        let slots = self.slots.capacity().saturating_add(self.representatives.len());
        let group = self.group.as_ref().map_or(0, WholeGroup::bytes);
        lists.saturating_add(slots.saturating_mul(size_of::<SlotId>())).saturating_add(group)
    }
}

/// This bit of `Slot::written` is set while the journal does not know the change. An age itself is even.
const UNJOURNALED: u64 = 1;

/// A change that the journal does not know yet.
#[derive(Debug)]
pub(super) enum Changed<'a> {
    /// The slot has new contents. With a number, the journal knows that many bytes of the value and needs
    /// only the rest.
    Slot(&'a mut Slot, Option<usize>),
    /// The name is gone.
    NameGone(&'a [u8]),
    /// The queue of this name is gone.
    QueueGone(&'a [u8]),
}

/// Everything about one name.
#[derive(Debug)]
pub(super) struct Slot {
    key: Box<[u8]>,
    value: Option<Bytes>,
    pub(super) queue: Option<Box<Queue>>,
    pub(super) waiters: WaitList,
    pub(super) barrier: Option<Box<BarrierState>>,
    /// The age ([`KeySpace::age`]) in which its value or an item was last written, with the bit
    /// [`UNJOURNALED`].
    written: u64,
    /// The connections that wrote its value: the last one, and another before that.
    writers: [Option<ConnId>; 2],
    /// What the stale-key rules know of it. `None` for a key that matches no pattern.
    pub(super) record: Option<Box<Record>>,
}

impl Slot {
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn value(&self) -> Option<&Bytes> {
        self.value.as_ref()
    }

    /// This connection has written its value; `anew`: there was none.
    pub(super) fn note_writer(&mut self, conn: ConnId, anew: bool) {
        if anew {
            self.writers = [Some(conn), None];
        } else if self.writers[0] != Some(conn) {
            self.writers = [Some(conn), self.writers[0]];
        }
    }

    /// The last connections that wrote its value.
    pub(super) fn writers(&self) -> impl Iterator<Item = ConnId> {
        self.writers.into_iter().flatten()
    }

    pub(super) fn queue_len(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.items.len())
    }

    /// What CHECK and WAIT ask for: a plain value, or an item in the queue.
    pub(super) fn is_present(&self) -> bool {
        self.value.is_some() || self.queue_len() > 0
    }

    /// Whether its contents were written before `age` began.
    pub(super) fn is_older_than(&self, age: u64) -> bool {
        self.written | UNJOURNALED < age | UNJOURNALED
    }

    fn is_needed(&self) -> bool {
        self.value.is_some() || self.queue.is_some() || self.barrier.is_some() || !self.waiters.is_empty()
    }
}

/// The result of looking up a name.
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
    /// Goes up before keys of the present are dropped: see [`Self::new_age`].
    age: u64,
    /// Whether changes are kept for a journal.
    is_kept: bool,
    /// Slots that have changed, each one once.
    changed: Vec<SlotId>,
    /// For values that were only appended to: how many of their bytes the journal knows.
    appended: Vec<(SlotId, usize)>,
    names_gone: Vec<Box<[u8]>>,
    queues_gone: Vec<Box<[u8]>>,
    /// The last answer to a MULTI_GET of many keys. Dropped as soon as any value changes.
    answer: Option<Arc<Answer>>,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "counts what is in memory; what is subtracted was added when it came"
)]
impl KeySpace {
    /// Changes for which room is kept from one critical section to the next.
    const ROOM_FOR_CHANGES: usize = 1024;

    /// From this size on, an appended value is journaled in parts: only the new bytes.
    const IN_PARTS_FROM: usize = 1024;

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

    /// Bytes held, including [`Self::SLOT_BYTES`] for each name and free places.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.slots.left_bytes() + self.answer.as_ref().map_or(0, |answer| answer.bytes())
    }

    /// The kept answer, if it answers a question for `keys`.
    pub(super) fn answer(&self, keys: List<'_>) -> Option<&Arc<Answer>> {
        self.answer.as_ref().filter(|answer| answer.keys.as_list() == keys)
    }

    /// Keeps an answer until a value changes.
    pub(super) fn keep_answer(&mut self, answer: Arc<Answer>) {
        self.answer = Some(answer);
    }

    /// Begins a new age and returns it. A drop in several steps takes only what was written before that age.
    pub(super) fn new_age(&mut self) -> u64 {
        self.age += 2;
        self.age
    }

    /// From now on, changes are kept for [`Self::take_changed`].
    pub(super) fn keep_changes(&mut self) {
        self.is_kept = true;
    }

    /// Whether [`Self::take_changed`] has any changes.
    pub(super) fn has_changed(&self) -> bool {
        !(self.changed.is_empty() && self.names_gone.is_empty() && self.queues_gone.is_empty())
    }

    /// Gives all changes since the last call to `each`. Names that are gone come first, because the same name
    /// may be there again.
    pub(super) fn take_changed(&mut self, mut each: impl FnMut(Changed<'_>)) {
        self.queues_gone.drain(..).for_each(|key| each(Changed::QueueGone(&key)));
        self.names_gone.drain(..).for_each(|key| each(Changed::NameGone(&key)));
        for id in self.changed.drain(..) {
            if let Some(slot) = self.slots.get_mut(id.place())
                && slot.written & UNJOURNALED != 0
            {
                slot.written &= !UNJOURNALED;
                each(Changed::Slot(slot, journaled_of(&self.appended, id)));
            }
        }
        self.appended.clear();
        // Dropping very many keys needs much room for a moment.
        self.changed.shrink_to(Self::ROOM_FOR_CHANGES);
        self.names_gone.shrink_to(Self::ROOM_FOR_CHANGES);
    }

    /// How many bytes of a large value the journal knows, if they are the beginning of the present value.
    /// `None` for keys of the stale-key rules and of barriers.
    pub(super) fn journaled(&self, id: SlotId) -> Option<usize> {
        let slot = &self.slots[id.place()];
        let value = slot.value().filter(|value| value.len() >= Self::IN_PARTS_FROM)?;
        if !self.is_kept || slot.record.is_some() || slot.barrier.is_some() {
            return None;
        }
        let is_journaled = slot.written & UNJOURNALED == 0;
        if is_journaled { Some(value.len()) } else { journaled_of(&self.appended, id) }
    }

    /// The journal knows `journaled` bytes of the value that was just written, so it is told only of the
    /// rest.
    pub(super) fn journal_from(&mut self, id: SlotId, journaled: usize) {
        self.appended.push((id, journaled));
    }

    /// A name has changed, and the journal does not know it yet.
    #[inline]
    fn note(&mut self, id: SlotId) {
        if self.is_kept {
            let slot = &mut self.slots[id.place()];
            if slot.written & UNJOURNALED == 0 {
                slot.written |= UNJOURNALED;
                self.changed.push(id);
            }
        }
    }

    /// The contents of a name are being written now.
    #[inline]
    fn write_now(&mut self, id: SlotId) -> &mut Slot {
        self.note(id);
        let age = self.age;
        let slot = &mut self.slots[id.place()];
        slot.written = age | slot.written & UNJOURNALED;
        slot
    }

    /// The slot at a place below [`Self::places`].
    pub(super) fn at(&self, place: u32) -> Option<(SlotId, &Slot)> {
        Some((SlotId::at(place), self.slots.get(place)?))
    }

    /// As [`Self::at`], to change it.
    pub(super) fn at_mut(&mut self, place: u32) -> Option<&mut Slot> {
        self.slots.get_mut(place)
    }

    /// An exclusive upper bound of the places of slots.
    pub(super) fn places(&self) -> u32 {
        self.slots.end()
    }

    /// Looks `key` up. The result is valid until a name comes or goes.
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

    /// A new slot for `key`, which was looked up and not found.
    #[inline]
    pub(super) fn insert(&mut self, key: Box<[u8]>, Looked { hash, .. }: Looked) -> SlotId {
        self.bytes += key.len() + Self::SLOT_BYTES;
        let place = self.slots.add(|_| Slot {
            key,
            value: None,
            queue: None,
            waiters: WaitList::default(),
            barrier: None,
            written: 0,
            writers: [None; 2],
            record: None,
        });
        self.index.insert(hash, place);
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

    /// The slot, if it still exists. A slot id that was kept may belong to another name by now.
    pub(super) fn get(&self, id: SlotId) -> Option<&Slot> {
        #[cfg(test)]
        super::tests::work::step();
        self.slots.get(id.place())
    }

    /// Replaces the plain value and returns the one before.
    #[inline]
    pub(super) fn set_value(&mut self, id: SlotId, value: Option<Bytes>) -> Option<Bytes> {
        if self.answer.is_some() {
            self.answer = None;
        }
        if !self.appended.is_empty() {
            self.appended.retain(|(other, _)| *other != id);
        }
        self.bytes += value.as_ref().map_or(0, Bytes::len);
        self.plain += usize::from(value.is_some());
        let before = std::mem::replace(&mut self.write_now(id).value, value);
        self.bytes -= before.as_ref().map_or(0, Bytes::len);
        self.plain -= usize::from(before.is_some());
        before
    }

    pub(super) fn push_item(&mut self, id: SlotId, item: Bytes) {
        self.bytes += item.len() + size_of::<Bytes>();
        let slot = self.write_now(id);
        let is_new = slot.queue.is_none();
        slot.queue.get_or_insert_default().items.push_back(item);
        if is_new {
            self.bytes += Queue::BYTES;
        }
    }

    /// Gives the items of a queue their numbers, from `first` on.
    pub(super) fn number_items(&mut self, id: SlotId, first: u64) {
        if let Some(queue) = &mut self.slots[id.place()].queue {
            queue.first = first;
            queue.journaled = queue.next();
        }
    }

    pub(super) fn pop_item(&mut self, id: SlotId) -> Option<Bytes> {
        let queue = self.slots[id.place()].queue.as_mut()?;
        let items = &mut queue.items;
        let item = items.pop_front()?;
        queue.first += 1;
        if left_behind(items.capacity(), 4 * items.len()) > 0 {
            items.shrink_to(2 * items.len());
        }
        self.forget_item(&item);
        self.note(id);
        Some(item)
    }

    /// Takes all items out of a queue. Each still counts as held memory until [`Self::forget_item`].
    pub(super) fn take_items(&mut self, id: SlotId) -> VecDeque<Bytes> {
        self.note(id);
        let Some(queue) = &mut self.slots[id.place()].queue else { return VecDeque::new() };
        queue.first = queue.next();
        std::mem::take(&mut queue.items)
    }

    /// An item that was taken out has been freed.
    pub(super) fn forget_item(&mut self, item: &Bytes) {
        self.bytes -= item.len() + size_of::<Bytes>();
    }

    /// Frees the parts of a slot that are not needed any more. Frees the slot itself if nothing needs it, and
    /// then returns its record.
    pub(super) fn release(&mut self, id: SlotId) -> Option<Box<Record>> {
        let slot = &mut self.slots[id.place()];
        if slot.queue.take_if(|queue| queue.items.is_empty() && queue.offered == 0).is_some() {
            self.bytes -= Queue::BYTES;
            if self.is_kept {
                self.queues_gone.push(slot.key.clone());
            }
        }
        slot.barrier.take_if(|barrier| barrier.arrivals.is_empty());
        if slot.is_needed() {
            return None;
        }
        self.index.remove(self.index.hash(&slot.key), id.place());
        let slot = self.slots.remove(id.place());
        self.bytes -= slot.key.len() + Self::SLOT_BYTES;
        if slot.written & UNJOURNALED != 0 {
            self.names_gone.push(slot.key);
        }
        slot.record
    }

    /// Checks that the kept answer equals what the slots hold, and returns its bytes.
    #[cfg(test)]
    pub(super) fn check_answer(&self) -> usize {
        let Some(answer) = &self.answer else { return 0 };
        let (keys, values) = (answer.keys.as_list(), answer.values.as_list());
        assert_eq!((keys.len(), values.len()), (answer.slots.len(), answer.slots.len()));
        for ((key, value), &id) in keys.iter().zip(values.iter()).zip(&answer.slots) {
            assert_eq!(self.find(key), Some(id));
            assert_eq!(self.slot(id).value().map(|value| &value[..]), Some(value));
        }
        answer.bytes()
    }

    #[cfg(test)]
    pub(super) fn check_places(&self) -> usize {
        self.slots.check()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().map(|(at, slot)| (SlotId::at(at), slot))
    }
}

fn journaled_of(appended: &[(SlotId, usize)], id: SlotId) -> Option<usize> {
    appended.iter().find(|(other, _)| *other == id).map(|(_, journaled)| *journaled)
}
