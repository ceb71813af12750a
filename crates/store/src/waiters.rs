//! Which connection waits for which name, in both directions: each name has a list of its waiters, and each
//! wait has its own entries. So ending a wait costs only the size of that wait, however many others there
//! are.

use smallvec::SmallVec;

use super::chunks::Chunks;
use super::slot::SlotId;
use rallypoint_protocol::ids::{ConnId, Timestamp};

const NONE: u32 = u32::MAX;

/// One connection's place in one name's list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registration {
    pub(super) conn: ConnId,
    pub(super) slot: SlotId,
    before: u32,
    after: u32,
}

/// Where a [`Registration`] is.
pub(super) type RegistrationId = u32;

/// The ends of one name's list, oldest first.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitList {
    first: u32,
    last: u32,
}

impl Default for WaitList {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl WaitList {
    pub(super) const fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// All registrations.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    entries: Chunks<Registration>,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "counts what is in memory; what is subtracted was added when it came"
)]
impl Registrations {
    /// What one registration costs.
    pub(super) const BYTES: usize = size_of::<Registration>() + 8;

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.check();
        self.entries.len()
    }

    /// Bytes held, including free places.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * Self::BYTES + self.entries.left_bytes()
    }

    /// Whether the last in `list` is a registration of `conn`.
    pub(super) fn is_last(&self, list: WaitList, conn: ConnId) -> bool {
        self.entries.get(list.last).is_some_and(|last| last.conn == conn)
    }

    pub(super) fn get(&self, id: RegistrationId) -> Registration {
        self.entries[id]
    }

    /// The oldest in `list`, and whose it is.
    pub(super) fn first(&self, list: WaitList) -> Option<(RegistrationId, ConnId)> {
        self.entries.get(list.first).map(|first| (list.first, first.conn))
    }

    /// The registration belongs to `conn` from now on.
    pub(super) fn hand_over(&mut self, id: RegistrationId, conn: ConnId) {
        self.entries[id].conn = conn;
    }

    pub(super) fn append(&mut self, list: &mut WaitList, conn: ConnId, slot: SlotId) -> RegistrationId {
        let id = self.entries.add(|_| Registration { conn, slot, before: list.last, after: NONE });
        match list.last {
            NONE => list.first = id,
            last => self.entries[last].after = id,
        }
        list.last = id;
        id
    }

    /// Removes `id` from `list`, to which it was appended.
    pub(super) fn remove(&mut self, list: &mut WaitList, id: RegistrationId) {
        #[cfg(test)]
        super::tests::work::step();
        let Registration { before, after, .. } = self.entries.remove(id);
        match before {
            NONE => list.first = after,
            before => self.entries[before].after = after,
        }
        match after {
            NONE => list.last = before,
            after => self.entries[after].before = before,
        }
    }

    /// The connections in `list`, oldest first.
    pub(super) fn iter(&self, list: &WaitList) -> impl Iterator<Item = ConnId> {
        let mut next = list.first;
        std::iter::from_fn(move || {
            #[cfg(test)]
            super::tests::work::step();
            let entry = self.entries.get(next)?;
            next = entry.after;
            Some(entry.conn)
        })
    }
}

/// A wait that is over, with the registrations that are still to be removed.
#[derive(Debug)]
pub(super) struct Ended {
    /// The connection that waited. It does not wait again before its registrations are removed, so each of
    /// them belongs to its present wait or to none.
    pub(super) conn: ConnId,
    pub(super) registrations: RegistrationList,
}

/// The registrations of one wait.
pub(super) type RegistrationList = SmallVec<[RegistrationId; 2]>;

/// The place of a wait that others may join.
pub(super) type SharedId = u32;

/// The one thing a connection waits for.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) since: Timestamp,
    pub(super) on: WaitOn,
}

#[derive(Debug)]
pub(super) enum WaitOn {
    /// WAIT: until no key is missing.
    Keys {
        registrations: RegistrationList,
        missing: u32,
        /// Where others may join this wait.
        shared: Option<SharedId>,
    },
    /// WAIT that has joined another connection's wait for the same keys.
    Shared { registration: RegistrationId, at: SharedId },
    /// BARRIER: until enough have arrived.
    Barrier {
        registration: RegistrationId,
        /// How many of the counted arrivals belong to this connection.
        arrivals: u32,
        /// The life of the count in which these arrivals count.
        life: u32,
        world_size: i64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_through_removals_anywhere() {
        let slot = SlotId::at(0);
        let conn = |n| ConnId::new(n, n);
        for gone in 0..5_usize {
            let (mut all, mut list) = (Registrations::default(), WaitList::default());
            let ids: Vec<_> = (0..5).map(|n| all.append(&mut list, conn(n), slot)).collect();
            all.remove(&mut list, ids[gone]);
            let expected: Vec<_> = (0..5).filter(|&n| n as usize != gone).map(conn).collect();
            assert_eq!(all.iter(&list).collect::<Vec<_>>(), expected);
            for (n, id) in ids.into_iter().enumerate().filter(|&(n, _)| n != gone) {
                assert!(!list.is_empty(), "{n}");
                all.remove(&mut list, id);
            }
            assert!(list.is_empty() && all.len() == 0);
        }
    }
}
