//! Which addresses belong together: the ranks of one process group, the nodes of one role exchange.

use std::collections::HashMap;

use crate::store::keyspace::SlotId;

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
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    by_name: HashMap<Box<[u8]>, GroupId>,
    groups: HashMap<GroupId, Group>,
    made: u64,
}

impl Groups {
    /// The group called `name`, which one more name belongs to now.
    pub(super) fn enter(&mut self, name: &[u8]) -> GroupId {
        let id = *self.by_name.entry(name.into()).or_insert_with(|| {
            self.made += 1;
            GroupId(self.made)
        });
        let group = self.groups.entry(id).or_insert_with(|| Group {
            name: name.into(),
            names: 0,
            addresses: Vec::new(),
        });
        group.names += 1;
        id
    }

    /// One name less belongs to the group.
    pub(super) fn leave(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.names -= 1;
        if group.names == 0
            && let Some(group) = self.groups.remove(&id)
        {
            self.by_name.remove(&group.name);
        }
    }

    pub(super) fn exists(&self, id: GroupId) -> bool {
        self.groups.contains_key(&id)
    }

    /// Adds an address and returns its position.
    pub(super) fn add(&mut self, id: GroupId, slot: SlotId) -> u32 {
        let Some(group) = self.groups.get_mut(&id) else { return 0 };
        group.addresses.push(slot);
        group.addresses.len() as u32 - 1
    }

    /// Removes the address at position `at` if it is `slot`. Returns the address that took its position.
    pub(super) fn remove(&mut self, id: GroupId, at: u32, slot: SlotId) -> Option<SlotId> {
        let addresses = &mut self.groups.get_mut(&id)?.addresses;
        if addresses.get(at as usize) != Some(&slot) {
            return None;
        }
        addresses.swap_remove(at as usize);
        addresses.get(at as usize).copied()
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> HashMap<GroupId, usize> {
        assert_eq!(self.by_name.len(), self.groups.len());
        self.groups.iter().map(|(&id, group)| (id, group.names)).collect()
    }

    pub(super) fn addresses(&self, id: GroupId) -> &[SlotId] {
        self.groups.get(&id).map_or(&[], |group| &group.addresses)
    }
}
