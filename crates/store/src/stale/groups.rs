//! Which addresses belong together: the ranks of one process group, the nodes of one role exchange.

use super::members::Members;
use super::ranges::RangeSet;
use crate::chunks::Chunks;
use crate::index::Index;
use crate::slot::SlotId;

/// Identifies a group. Ids hardly ever repeat, so notes on a group that is gone do no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupId {
    place: u32,
    /// How many groups were made before this one.
    made: u32,
}

/// Addresses of one group, each of another rank, that a client reads together.
#[derive(Debug)]
pub(crate) struct WholeGroup {
    pub(super) group: GroupId,
    pub(super) ranks: RangeSet,
}

impl WholeGroup {
    /// Bytes of the set of ranks.
    pub(crate) fn bytes(&self) -> usize {
        self.ranks.bytes()
    }
}

#[derive(Debug)]
struct Group {
    id: GroupId,
    name: Box<[u8]>,
    /// Names that belong to it, with or without a value.
    names: usize,
    /// Names that hold a value.
    addresses: Members,
    /// Members whose address a writer of the group may have read.
    read: RangeSet,
    /// Changes when something is taken out of `read`. Never 0.
    state: u32,
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    index: Index,
    all: Chunks<Group>,
    made: u32,
    bytes: usize,
    /// Names of groups that are gone. Kept only where there is a journal.
    gone: Option<Vec<Box<[u8]>>>,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "counts what is in memory; what is subtracted was added when it came"
)]
impl Groups {
    /// What a group costs beside the bytes of its name and of what was read, roughly.
    const BYTES: usize = 2 * size_of::<Group>() + 64;

    /// What a group of this name costs at first.
    pub(super) const fn bytes_of(name: &[u8]) -> usize {
        Self::BYTES + name.len()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.all.left_bytes()
    }

    fn get(&self, id: GroupId) -> Option<&Group> {
        self.all.get(id.place).filter(|group| group.id == id)
    }

    /// The group called `name`, made if there is none. One more name belongs to it now.
    pub(super) fn enter(&mut self, name: &[u8]) -> GroupId {
        let hash = self.index.hash(name);
        if let Some(place) = self.index.find(hash, |place| *self.all[place].name == *name) {
            let group = &mut self.all[place];
            group.names += 1;
            return group.id;
        }
        self.made = self.made.wrapping_add(1);
        self.bytes += Self::bytes_of(name);
        let made = self.made;
        let place = self.all.add(|place| Group {
            id: GroupId { place, made },
            name: name.into(),
            names: 1,
            addresses: Members::default(),
            read: RangeSet::default(),
            state: 1,
        });
        self.index.insert(hash, place);
        GroupId { place, made }
    }

    /// Keeps the group until [`Self::leave`], even if no name belongs to it.
    pub(super) fn hold(&mut self, id: GroupId) {
        if let Some(group) = find(&mut self.all, id) {
            group.names += 1;
        }
    }

    /// A name leaves the group. The last one takes the group with it.
    pub(super) fn leave(&mut self, id: GroupId) {
        let Some(group) = find(&mut self.all, id) else { return };
        group.names -= 1;
        if group.names == 0 {
            let group = self.all.remove(id.place);
            self.index.remove(self.index.hash(&group.name), id.place);
            self.bytes -= Self::bytes_of(&group.name) + group.read.bytes();
            if let Some(gone) = &mut self.gone {
                gone.push(group.name);
            }
        }
    }

    /// From now on, the names of removed groups are kept for [`Self::take_gone`].
    pub(super) fn keep_gone(&mut self) {
        self.gone = Some(Vec::new());
    }

    pub(super) fn has_gone(&self) -> bool {
        self.gone.as_ref().is_some_and(|gone| !gone.is_empty())
    }

    /// The names of the groups that have gone since the last call.
    pub(super) fn take_gone(&mut self) -> Vec<Box<[u8]>> {
        self.gone.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn name(&self, id: GroupId) -> Option<&[u8]> {
        Some(&self.get(id)?.name)
    }

    /// The group called `name`, if there is one.
    pub(super) fn find(&self, name: &[u8]) -> Option<GroupId> {
        let place = self.index.find(self.index.hash(name), |place| *self.all[place].name == *name)?;
        Some(self.all[place].id)
    }

    pub(super) fn exists(&self, id: GroupId) -> bool {
        self.get(id).is_some()
    }

    /// Adds an address and returns its position.
    pub(super) fn add(&mut self, id: GroupId, slot: SlotId) -> u32 {
        find(&mut self.all, id).map_or(0, |group| group.addresses.add(slot))
    }

    /// Removes the address at position `at` if it is `slot`. Returns the address that took its position.
    pub(super) fn remove(&mut self, id: GroupId, at: u32, slot: SlotId) -> Option<SlotId> {
        find(&mut self.all, id)?.addresses.remove(at, slot)
    }

    /// Notes that somebody has read the addresses that `add` adds.
    pub(super) fn note_read(&mut self, id: GroupId, add: impl FnOnce(&mut RangeSet)) {
        if let Some(group) = find(&mut self.all, id) {
            self.bytes -= group.read.bytes();
            add(&mut group.read);
            self.bytes += group.read.bytes();
        }
    }

    /// A writer of the group has read the addresses of `members` before it wrote its own. `noted` is what the
    /// last call for it returned, at first 0: where nothing was taken out since, all of them are in already.
    pub(super) fn note_reads(&mut self, id: GroupId, members: &RangeSet, noted: u32) -> u32 {
        let Some(group) = find(&mut self.all, id) else { return noted };
        if noted != group.state {
            self.bytes -= group.read.bytes();
            group.read.extend(members);
            self.bytes += group.read.bytes();
        }
        group.state
    }

    /// What the writers of the group's addresses have read, after those that were paired with others have
    /// gone.
    pub(super) fn set_reads(&mut self, id: GroupId, members: RangeSet) {
        if let Some(group) = find(&mut self.all, id) {
            self.bytes -= group.read.bytes();
            group.read = members;
            self.bytes += group.read.bytes();
            group.state = group.state.wrapping_add(1).max(1);
        }
    }

    /// Whether a writer of the group may have read the address of one of `members`, which are sorted. Spares
    /// most writes the search for those who did.
    pub(super) fn was_read(&self, id: GroupId, members: &[u32]) -> bool {
        self.get(id).is_some_and(|group| group.read.contains_any(members))
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> std::collections::HashMap<GroupId, usize> {
        let bytes = |group: &Group| Self::bytes_of(&group.name) + group.read.bytes();
        self.all.check();
        assert_eq!(self.bytes, self.all.iter().map(|(_, group)| bytes(group)).sum::<usize>());
        for (place, group) in self.all.iter() {
            let found = self.index.find(self.index.hash(&group.name), |at| at == place);
            assert_eq!(found, Some(group.id.place), "the index finds each group");
        }
        self.all.iter().map(|(_, group)| (group.id, group.names)).collect()
    }

    pub(super) fn addresses(&self, id: GroupId) -> &[SlotId] {
        self.get(id).map_or(&[], |group| group.addresses.as_slice())
    }
}

fn find(all: &mut Chunks<Group>, id: GroupId) -> Option<&mut Group> {
    all.get_mut(id.place).filter(|group| group.id == id)
}
