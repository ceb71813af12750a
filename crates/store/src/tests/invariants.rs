//! What must hold between any two requests, checked by counting everything anew.

use bytes::Bytes;

use super::super::keyspace::{KeySpace, Queue};
use super::super::slot::SlotId;
use super::super::waiters::{RegistrationId, WaitOn};
use super::super::{Session, Store};
use rallypoint_protocol::ids::ConnId;

impl Store {
    pub(super) fn check_invariants(&self) {
        self.check_sizes();
        self.check_slots();
        self.check_registrations();
        self.check_waits();
        self.check_offers();
        self.stale.check_invariants(&self.keys, |conn| self.session(conn).is_some());
    }

    /// Nothing is left, after all clients have left and all keys are deleted.
    pub(super) fn assert_empty(&self) {
        assert_eq!(self.stats(), super::super::Stats::default());
        assert_eq!(self.keys.names(), 0, "names");
        assert_eq!(self.registrations.len(), 0, "registrations");
        assert_eq!(self.shared.check(), 0, "shared waits");
        self.stale.assert_empty();
    }

    fn live(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().flatten()
    }

    fn check_sizes(&self) {
        let (mut names, mut plain, mut bytes) = (0, 0, 0);
        for (id, slot) in self.keys.iter() {
            assert_eq!(self.keys.find(slot.key()), Some(id), "the index finds each name");
            names += 1;
            plain += usize::from(slot.value().is_some());
            bytes += KeySpace::SLOT_BYTES + slot.key().len() + slot.value().map_or(0, Bytes::len);
            let items = slot.queue.iter().flat_map(|queue| &queue.items);
            bytes += items.map(|item| item.len() + size_of::<Bytes>()).sum::<usize>();
            bytes += slot.queue.as_ref().map_or(0, |_| Queue::BYTES);
        }
        bytes += self.keys.check_places() + self.keys.check_answer();
        assert_eq!((self.keys.names(), self.keys.plain(), self.keys.bytes()), (names, plain, bytes));
        assert_eq!(self.connections, self.live().count());
        assert_eq!(self.waiting, self.live().filter(|session| session.wait.is_some()).count());
        assert!(self.to_wake.is_empty());
    }

    /// Each slot is needed, and so is each of its parts.
    fn check_slots(&self) {
        for (_, slot) in self.keys.iter() {
            let queue = slot.queue.as_ref();
            assert!(queue.is_none_or(|queue| !queue.items.is_empty() || queue.offered > 0), "an empty queue");
            let barrier = slot.barrier.as_ref();
            assert!(barrier.is_none_or(|barrier| !barrier.arrivals.is_empty()), "a barrier without arrivals");
            let is_used = slot.value().is_some() || queue.is_some() || barrier.is_some();
            assert!(is_used || !slot.waiters.is_empty(), "an unused slot");
        }
    }

    /// The lists of names and the waits of connections contain the same registrations.
    fn check_registrations(&self) {
        let mut listed = 0;
        for (id, slot) in self.keys.iter() {
            for conn in self.registrations.iter(&slot.waiters) {
                listed += 1;
                let ended = self.ended.iter().filter(|ended| ended.conn == conn);
                if ended.flat_map(|ended| self.slots_at(&ended.registrations)).any(|slot| slot == id) {
                    continue;
                }
                let on = self.wait_of(conn);
                assert!(matches!(on, Some(WaitOn::Keys { .. })), "{conn:?} does not wait");
                assert!(
                    self.slots_of(on).any(|slot| slot == id),
                    "{conn:?} does not wait for {:?}",
                    slot.key()
                );
            }
            for conn in slot.barrier.iter().flat_map(|barrier| self.registrations.iter(&barrier.arrivals)) {
                let on = self.wait_of(conn);
                assert!(matches!(on, Some(WaitOn::Barrier { .. })), "{conn:?} is at no barrier");
                assert!(self.slots_of(on).any(|slot| slot == id), "{conn:?} is not at {:?}", slot.key());
                listed += 1;
            }
        }
        let mut shared = 0;
        for session in self.live() {
            match self.wait_of(session.conn) {
                Some(&WaitOn::Keys { shared: Some(at), .. }) => {
                    let (first, others) = self.shared.members(at);
                    assert_eq!(first, session.conn);
                    for other in self.registrations.iter(&others) {
                        let waits =
                            matches!(self.wait_of(other), Some(&WaitOn::Shared { at: its, .. }) if its == at);
                        assert!(waits, "{other:?} does not wait with {first:?}");
                        listed += 1;
                    }
                    shared += 1;
                }
                Some(&WaitOn::Shared { at, .. }) => {
                    let (_, others) = self.shared.members(at);
                    assert!(self.registrations.iter(&others).any(|other| other == session.conn));
                }
                _ => {}
            }
        }
        assert_eq!(shared, self.shared.check(), "each shared wait has who stands for it");
        let waited: usize =
            self.live().map(|session| self.slots_of(self.wait_of(session.conn)).count()).sum();
        let ended: usize = self.ended.iter().map(|ended| ended.registrations.len()).sum();
        assert_eq!((listed, waited + ended), (self.registrations.len(), self.registrations.len()));
    }

    fn wait_of(&self, conn: ConnId) -> Option<&WaitOn> {
        self.session(conn)?.wait.as_ref().map(|wait| &wait.on)
    }

    fn slots_of(&self, on: Option<&WaitOn>) -> impl Iterator<Item = SlotId> {
        let ids: &[RegistrationId] = match on {
            None => &[],
            Some(WaitOn::Keys { registrations, .. }) => registrations,
            Some(WaitOn::Barrier { registration, .. } | WaitOn::Shared { registration, .. }) => {
                std::slice::from_ref(registration)
            }
        };
        self.slots_at(ids)
    }

    fn slots_at(&self, ids: &[RegistrationId]) -> impl Iterator<Item = SlotId> {
        ids.iter().map(|&id| self.registrations.get(id).slot)
    }

    /// No waiter is left whose condition holds, unless the items that it could get are offered to others.
    fn check_waits(&self) {
        for session in self.live() {
            let Some(WaitOn::Keys { registrations, missing, .. }) =
                session.wait.as_ref().map(|wait| &wait.on)
            else {
                continue;
            };
            let slots = || registrations.iter().map(|&id| self.keys.slot(self.registrations.get(id).slot));
            let absent = slots().filter(|slot| !slot.is_present()).count();
            let begun = usize::from(self.has_begun(session.conn));
            assert_eq!(
                *missing as usize,
                absent + begun,
                "{:?} counts its missing keys wrongly",
                session.conn
            );
            let is_offered_away = slots().any(|slot| {
                slot.value().is_none() && slot.queue.as_ref().is_some_and(|queue| queue.offered > 0)
            });
            assert!(absent + begun > 0 || is_offered_away, "{:?} waits for nothing", session.conn);
        }
    }

    fn check_offers(&self) {
        let mut offers = 0;
        for (id, slot) in self.keys.iter() {
            let counted = slot.queue.as_ref().map_or(0, |queue| queue.offered) as usize;
            let woken = self.live().filter(|session| session.offered == Some(id)).count();
            assert_eq!(woken, counted, "offers of {:?}", slot.key());
            offers += counted;
        }
        let mut with_offer = self.live().filter(|session| session.offered.is_some());
        assert!(with_offer.all(|session| session.wait.is_none()), "a connection with an offer waits");
        assert_eq!(self.live().filter(|session| session.offered.is_some()).count(), offers);
    }
}
