//! Shared waits. Each rank of a job sends the same WAIT: the first one is registered for the keys and stands
//! for all of them. So each further rank costs one registration, however many keys it waits for, and a key
//! that comes costs one step, however many ranks wait for it.

use bytes::Bytes;

use super::chunks::Chunks;
use super::index::Index;
use super::keyspace::Representatives;
use super::slot::SlotId;
use super::waiters::{RegistrationId, RegistrationList, Registrations, SharedId, Wait, WaitList, WaitOn};
use super::{Effects, Store};
use rallypoint_protocol::List;
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// Connections that wait for the same keys.
#[derive(Debug)]
struct Shared {
    /// The list of keys, as it was sent.
    keys: Bytes,
    /// The connection that is registered for the keys.
    first: ConnId,
    /// The connections that joined it, oldest first.
    others: WaitList,
    /// Representatives of the keys.
    representatives: Representatives,
}

/// The waits that others may join.
#[derive(Debug, Default)]
pub(super) struct SharedWaits {
    all: Chunks<Shared>,
    index: Index,
    bytes: usize,
}

#[expect(clippy::arithmetic_side_effects, reason = "counts what is in memory")]
impl SharedWaits {
    const fn bytes_of(keys: usize, representatives: usize) -> usize {
        size_of::<Shared>() + keys + representatives * size_of::<SlotId>()
    }

    /// Bytes of the lists of keys.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.all.left_bytes()
    }

    fn find(&self, keys: List<'_>) -> Option<SharedId> {
        self.index.find(self.index.hash(keys.wire()), |at| self.all[at].keys == keys.wire())
    }

    fn add(&mut self, shared: Shared) -> SharedId {
        self.bytes += Self::bytes_of(shared.keys.len(), shared.representatives.len());
        let hash = self.index.hash(&shared.keys);
        let at = self.all.add(|_| shared);
        self.index.insert(hash, at);
        at
    }

    fn remove(&mut self, at: SharedId) {
        let shared = self.all.remove(at);
        self.bytes -= Self::bytes_of(shared.keys.len(), shared.representatives.len());
        self.index.remove(self.index.hash(&shared.keys), at);
    }

    /// Puts the oldest connection that has joined in the place of the first, and returns it.
    fn take_next(&mut self, at: SharedId, registrations: &mut Registrations) -> Option<ConnId> {
        let others = &mut self.all[at].others;
        let (registration, next) = registrations.first(*others)?;
        registrations.remove(others, registration);
        self.all[at].first = next;
        Some(next)
    }

    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        self.all.check();
        let bytes = |shared: &Shared| Self::bytes_of(shared.keys.len(), shared.representatives.len());
        assert_eq!(self.bytes, self.all.iter().map(|(_, shared)| bytes(shared)).sum::<usize>());
        self.all.len()
    }

    /// The registered connection, and those that joined it.
    #[cfg(test)]
    pub(super) fn members(&self, at: SharedId) -> (ConnId, WaitList) {
        (self.all[at].first, self.all[at].others)
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "steps: no more than there are waiters")]
impl Store {
    /// Waits for fewer keys are not shared.
    const FEWEST_SHARED: usize = 16;

    const fn is_worth_sharing(keys: List<'_>) -> bool {
        Self::FEWEST_SHARED <= keys.len() && keys.len() <= Self::KEYS_AT_ONCE
    }

    /// Whether a shared wait for these keys misses one of them. That needs no look at each key.
    pub(super) fn is_missed(&mut self, keys: List<'_>) -> bool {
        if !Self::is_worth_sharing(keys) {
            return false;
        }
        self.work += keys.wire_len() / Self::BYTES_A_STEP;
        let Some(first) = self.shared.find(keys).map(|at| self.shared.all[at].first) else { return false };
        matches!(self.wait_mut(first), Some(WaitOn::Keys { missing: 1.., .. }))
    }

    /// Lets `conn`, which waits for nothing, join a shared wait for the same keys. Returns whether there is
    /// one.
    pub(super) fn join_wait(
        &mut self,
        conn: ConnId,
        keys: List<'_>,
        now: Timestamp,
        fx: &mut impl Effects,
    ) -> bool {
        if !Self::is_worth_sharing(keys) {
            return false;
        }
        self.work += keys.wire_len() / Self::BYTES_A_STEP;
        let Some(at) = self.shared.find(keys) else { return false };
        let representatives = self.shared.all[at].representatives.clone();
        let Some(&one) = representatives.first() else { return false };
        self.touch_all(conn, &representatives, fx);
        let registration = self.registrations.append(&mut self.shared.all[at].others, conn, one);
        self.begin_wait(conn, Wait { since: now, on: WaitOn::Shared { registration, at } });
        true
    }

    /// `conn` is registered for all of `keys`: lets others join its wait.
    pub(super) fn share_wait(&mut self, conn: ConnId, keys: List<'_>) {
        if !Self::is_worth_sharing(keys) {
            return;
        }
        let registered = self.registrations_of(conn).iter().map(|&id| self.registrations.get(id).slot);
        let representatives = self.representatives(registered);
        if self.room_for(SharedWaits::bytes_of(keys.wire_len(), representatives.len()), 0).is_err() {
            return;
        }
        let keys = Bytes::copy_from_slice(keys.wire());
        let at = self.shared.add(Shared { keys, first: conn, others: WaitList::default(), representatives });
        if let Some(WaitOn::Keys { shared, .. }) = self.wait_mut(conn) {
            *shared = Some(at);
        }
    }

    /// The representatives of `names`: one for each stretch of names that say the same of their user.
    pub(super) fn representatives(&self, names: impl Iterator<Item = SlotId>) -> Representatives {
        let record = |id| self.keys.slot(id).record.as_ref();
        let mut representatives = Representatives::new();
        for id in names {
            let is_represented =
                representatives.last().is_some_and(|&last| match (record(last), record(id)) {
                    (Some(last), Some(record)) => record.has_same_user_as(last),
                    (last, record) => last.is_none() && record.is_none(),
                });
            if !is_represented {
                representatives.push(id);
            }
        }
        representatives
    }

    /// `conn` uses names that have these representatives.
    pub(super) fn touch_all(&mut self, conn: ConnId, representatives: &[SlotId], fx: &mut impl Effects) {
        self.work += representatives.len();
        for &id in representatives {
            self.touch(conn, id, fx);
        }
    }

    /// The connections that joined the wait of `conn`, oldest first.
    pub(super) fn others_of(&self, conn: ConnId) -> Vec<ConnId> {
        match self.session(conn).and_then(|session| session.wait.as_ref()).map(|wait| &wait.on) {
            Some(&WaitOn::Keys { shared: Some(at), .. }) => {
                self.registrations.iter(&self.shared.all[at].others).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The registrations for what `conn` waits for. They may belong to the connection whose wait it has
    /// joined.
    pub(super) fn registrations_of(&self, conn: ConnId) -> &[RegistrationId] {
        let on = |conn| self.session(conn)?.wait.as_ref().map(|wait| &wait.on);
        let first = match on(conn) {
            Some(&WaitOn::Shared { at, .. }) => self.shared.all[at].first,
            _ => conn,
        };
        match on(first) {
            Some(WaitOn::Keys { registrations, .. }) => registrations,
            Some(WaitOn::Barrier { registration, .. } | WaitOn::Shared { registration, .. }) => {
                std::slice::from_ref(registration)
            }
            None => &[],
        }
    }

    /// A connection that had joined a wait stops waiting.
    pub(super) fn leave_shared(&mut self, at: SharedId, registration: RegistrationId) {
        self.registrations.remove(&mut self.shared.all[at].others, registration);
    }

    /// The registered connection stops waiting: the next one takes its place. Returns the registrations if
    /// there is none.
    pub(super) fn hand_over(
        &mut self,
        at: SharedId,
        registrations: RegistrationList,
        missing: u32,
    ) -> Option<RegistrationList> {
        let Some(next) = self.shared.take_next(at, &mut self.registrations) else {
            self.shared.remove(at);
            return Some(registrations);
        };
        self.work += registrations.len();
        for &id in &registrations {
            self.registrations.hand_over(id, next);
        }
        if let Some(on) = self.wait_mut(next) {
            *on = WaitOn::Keys { registrations, missing, shared: Some(at) };
        }
        None
    }

    fn wait_mut(&mut self, conn: ConnId) -> Option<&mut WaitOn> {
        self.session_mut(conn)?.wait.as_mut().map(|wait| &mut wait.on)
    }
}
