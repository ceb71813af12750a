//! Which addresses belong together: the ranks of one process group, the nodes of one role exchange.

use hashbrown::HashMap;

use super::ranges::RangeSet;
use crate::core::ids::count;
use crate::core::store::slot::SlotId;

/// A group. Never reused, so what a connection remembers of a group that is gone harms nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupId(u64);

#[derive(Debug)]
struct Group {
    name: Box<[u8]>,
    /// Names that belong to it, with or without a value.
    names: usize,
    /// Those that hold a value.
    addresses: Vec<SlotId>,
    /// Members whose address a writer of the group may have read.
    read: RangeSet,
    /// Changes when something was taken out of `read`; never 0.
    state: u32,
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    by_name: HashMap<Box<[u8]>, GroupId>,
    by_id: HashMap<GroupId, Group>,
    made: u64,
    bytes: usize,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "counts what is in memory; what is subtracted was added when it came"
)]
impl Groups {
    /// What a group costs beside the bytes of its name and of what was read, roughly.
    const BYTES: usize = 2 * size_of::<Group>() + 128;

    /// What a group of this name costs at first.
    pub(super) const fn bytes_of(name: &[u8]) -> usize {
        Self::BYTES + 2 * name.len()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The group called `name`, which one more name belongs to now.
    pub(super) fn enter(&mut self, name: &[u8]) -> GroupId {
        let id = *self.by_name.entry_ref(name).or_insert_with(|| {
            self.made += 1;
            self.bytes += Self::bytes_of(name);
            GroupId(self.made)
        });
        let group = self.by_id.entry(id).or_insert_with(|| Group {
            name: name.into(),
            names: 0,
            addresses: Vec::new(),
            read: RangeSet::default(),
            state: 1,
        });
        group.names += 1;
        id
    }

    /// One name less belongs to the group.
    pub(super) fn leave(&mut self, id: GroupId) {
        let Some(group) = self.by_id.get_mut(&id) else { return };
        group.names -= 1;
        if group.names == 0
            && let Some(group) = self.by_id.remove(&id)
        {
            self.by_name.remove(&group.name);
            self.bytes -= Self::bytes_of(&group.name) + group.read.bytes();
        }
    }

    pub(super) fn exists(&self, id: GroupId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Adds an address and returns its position.
    pub(super) fn add(&mut self, id: GroupId, slot: SlotId) -> u32 {
        let Some(group) = self.by_id.get_mut(&id) else { return 0 };
        let at = count(group.addresses.len());
        group.addresses.push(slot);
        at
    }

    /// Removes the address at position `at` if it is `slot`. Returns the address that took its position.
    pub(super) fn remove(&mut self, id: GroupId, at: u32, slot: SlotId) -> Option<SlotId> {
        let addresses = &mut self.by_id.get_mut(&id)?.addresses;
        if addresses.get(at as usize) != Some(&slot) {
            return None;
        }
        addresses.swap_remove(at as usize);
        addresses.get(at as usize).copied()
    }

    /// Somebody has read the address of `member`.
    pub(super) fn note_read(&mut self, id: GroupId, member: u32) {
        if let Some(group) = self.by_id.get_mut(&id) {
            self.bytes -= group.read.bytes();
            group.read.insert(member);
            self.bytes += group.read.bytes();
        }
    }

    /// A writer of the group has read the addresses of `members` before it wrote its own. `noted` is what the last call
    /// for it returned, at first 0: where nothing was taken out since, all of them are in already.
    pub(super) fn note_reads(&mut self, id: GroupId, members: &RangeSet, noted: u32) -> u32 {
        let Some(group) = self.by_id.get_mut(&id) else { return noted };
        if noted != group.state {
            self.bytes -= group.read.bytes();
            group.read.extend(members);
            self.bytes += group.read.bytes();
        }
        group.state
    }

    /// What the writers of the group's addresses have read, after those that were paired with others have gone.
    pub(super) fn set_reads(&mut self, id: GroupId, members: RangeSet) {
        if let Some(group) = self.by_id.get_mut(&id) {
            self.bytes -= group.read.bytes();
            group.read = members;
            self.bytes += group.read.bytes();
            group.state = group.state.wrapping_add(1).max(1);
        }
    }

    /// Whether a writer of the group may have read the address of one of `members`, which are sorted. Spares most
    /// writes the search for those who did.
    pub(super) fn was_read(&self, id: GroupId, members: &[u32]) -> bool {
        self.by_id.get(&id).is_some_and(|group| group.read.contains_any(members))
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> std::collections::HashMap<GroupId, usize> {
        let bytes = |group: &Group| Self::bytes_of(&group.name) + group.read.bytes();
        assert_eq!(self.bytes, self.by_id.values().map(bytes).sum::<usize>());
        assert_eq!(self.by_name.len(), self.by_id.len());
        self.by_id.iter().map(|(&id, group)| (id, group.names)).collect()
    }

    pub(super) fn addresses(&self, id: GroupId) -> &[SlotId] {
        self.by_id.get(&id).map_or(&[], |group| &group.addresses)
    }
}
