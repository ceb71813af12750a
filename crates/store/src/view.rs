//! What the store shows of itself: its sizes, and which connection waits for what.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::counting::Counted;
use super::deleted::KeyPast;
use super::polls::Polled;
use super::similar::{Similar, is_told};
use super::waiters::WaitOn;
use super::{Session, Store};
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// Sizes at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Plain keys.
    pub keys: usize,
    /// Bytes of names, values, queues and waits.
    pub bytes: usize,
    /// Connections.
    pub connections: usize,
    /// Connections with an outstanding WAIT or BARRIER.
    pub waiters: usize,
}

/// One outstanding WAIT or BARRIER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitView {
    /// Who waits.
    pub conn: ConnId,
    /// Its address.
    pub peer: SocketAddr,
    /// The client's process id, if it has said it.
    pub pid: Option<u32>,
    /// How long it has waited.
    pub waited: Duration,
    /// `None` for a WAIT; the awaited number of arrivals for a BARRIER.
    pub barrier_size: Option<i64>,
    /// How many keys the wait names, each counted once.
    pub keys: usize,
    /// The missing keys, at most as many as were asked for; for a BARRIER its key. Empty if the waits have so
    /// many keys that a search for the missing ones would take too long.
    pub missing: Vec<WaitedKey>,
    /// A key that is there and is similar to the first missing key, if that is a program's own. Only from
    /// [`Store::long_waits`].
    pub similar: Option<Similar>,
    /// The past of the first missing key. Only from [`Store::long_waits`].
    pub past: KeyPast,
    /// How many have arrived at the barrier that is waited at by this key. Only from [`Store::long_waits`].
    pub arrived: Option<u32>,
    /// What the host of a job has read. See [`Store::counting`].
    pub counted: Option<Counted>,
    /// What a client finds that does not block. See [`Store::asking`].
    pub polled: Option<Polled>,
}

/// The bytes of an awaited key.
pub type WaitedKey = Box<[u8]>;

impl WaitView {
    /// A wait for one key, with no more than that.
    pub fn new(conn: ConnId, peer: SocketAddr, pid: Option<u32>, waited: Duration, key: WaitedKey) -> Self {
        let (barrier_size, keys, missing, past) = (None, 1, vec![key], KeyPast::NotKnown);
        let (similar, arrived, counted, polled) = (None, None, None, None);
        Self { conn, peer, pid, waited, barrier_size, keys, missing, similar, past, arrived, counted, polled }
    }
}

impl Store {
    /// Keys looked at for all waits that are shown together.
    const MOST_LOOKS: usize = 64 * 1024;
    /// Names looked at to find similar ones, for all waits together.
    const MOST_SIMILAR_LOOKS: usize = 4096;

    /// Sizes at this moment.
    pub fn stats(&self) -> Stats {
        Stats {
            keys: self.keys.plain(),
            bytes: self.bytes(),
            connections: self.connections,
            waiters: self.waiting,
        }
    }

    /// The time of the last request of each of these connections.
    pub fn heard(&self, conns: &[ConnId]) -> Vec<(ConnId, Timestamp)> {
        conns.iter().filter_map(|&conn| Some((conn, self.session(conn)?.heard))).collect()
    }

    /// How long the oldest wait has lasted.
    pub fn oldest_wait(&self, now: Timestamp) -> Option<Duration> {
        self.waits_since().map(|(_, since)| now.since(since)).max()
    }

    /// Up to `most` outstanding waits, the oldest first, each with up to `keys_each` of its missing keys. It
    /// walks over all connections, but sorts only what it shows.
    pub fn waits(&self, now: Timestamp, most: usize, keys_each: usize) -> Vec<WaitView> {
        let age = |&(session, since): &(&Session, Timestamp)| (since, session.conn);
        let mut sessions: Vec<(&Session, Timestamp)> = self.waits_since().collect();
        if most < sessions.len() {
            sessions.select_nth_unstable_by_key(most, age);
            sessions.truncate(most);
        }
        sessions.sort_unstable_by_key(age);
        let mut looks = Self::MOST_LOOKS;
        sessions
            .into_iter()
            .filter_map(|(session, _)| self.view(session, now, keys_each, &mut looks))
            .collect()
    }

    /// Up to `most` waits that have lasted for `at_least`, in no order, each with up to `keys_each` of its
    /// missing keys; and the waits of [`Self::counting`] and [`Self::asking`]. Also returns how
    /// many such waits there are. Leaves out clients that only look ([`rallypoint_protocol::PROBE`]). It
    /// walks over all connections, without sorting.
    pub fn long_waits(
        &mut self,
        now: Timestamp,
        at_least: Duration,
        most: usize,
        keys_each: usize,
    ) -> (Vec<WaitView>, usize) {
        let mut shown = self.counting(now);
        shown.append(&mut self.asking(now));
        let mut others = 0;
        if self.waiting > 0 {
            let mut looks = Self::MOST_LOOKS;
            let mut long = self
                .waits_since()
                .filter(|&(session, since)| session.counting.is_some() || now.since(since) >= at_least)
                .filter(|(session, _)| !session.is_probe);
            let views = long.by_ref().take(most);
            shown.extend(views.filter_map(|(session, _)| self.view(session, now, keys_each, &mut looks)));
            others = long.count();
        }
        self.add_similar(&mut shown);
        let total = shown.len().saturating_add(others);
        (shown, total)
    }

    /// For waits on a key of a program: adds the key that the client may have meant, the past of the awaited
    /// key, and how many have arrived if it ends a barrier.
    fn add_similar(&self, waits: &mut [WaitView]) {
        let mut looks = Self::MOST_SIMILAR_LOOKS;
        let mut known: HashMap<WaitedKey, (Option<Similar>, KeyPast)> = HashMap::new();
        for wait in waits.iter_mut().filter(|wait| wait.barrier_size.is_none() && wait.counted.is_none()) {
            let Some(key) = wait.missing.first() else { continue };
            let is_of_program = is_told(key);
            if is_of_program || wait.polled.is_some() {
                let known = known.entry(key.clone()).or_insert_with(|| {
                    let is_absent = is_of_program && wait.polled.is_none_or(Polled::is_absent);
                    let similar = if is_absent { self.similar_to(key, &mut looks) } else { None };
                    let slot =
                        self.keys.find(key).map(|id| self.keys.slot(id)).filter(|slot| slot.is_present());
                    let writer = slot.and_then(|slot| slot.writers().next());
                    (similar, writer.map_or_else(|| self.deleted.past_of(key), KeyPast::Written))
                });
                (wait.similar, wait.past) = known.clone();
            }
            // What counts arrivals: of torch's own barriers, and of those of torch.distributed.elastic.
            let elastic = || Some([key.strip_suffix(b"last_member")?, b"num_members"].concat());
            let counter = key.strip_suffix(b":last_worker").map(<[u8]>::to_vec).or_else(elastic);
            wait.arrived = counter.and_then(|counter| self.count(&counter));
        }
    }

    fn count(&self, key: &[u8]) -> Option<u32> {
        let value = self.keys.slot(self.keys.find(key)?).value()?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    fn waits_since(&self) -> impl Iterator<Item = (&Session, Timestamp)> {
        self.sessions.iter().flatten().filter_map(|session| Some((session, session.wait.as_ref()?.since)))
    }

    #[expect(clippy::arithmetic_side_effects, reason = "no more are looked at than there are looks left")]
    fn view(
        &self,
        session: &Session,
        now: Timestamp,
        keys_each: usize,
        looks: &mut usize,
    ) -> Option<WaitView> {
        let wait = session.wait.as_ref()?;
        let slot_of = |&id: &u32| self.keys.slot(self.registrations.get(id).slot);
        let (barrier_size, keys, missing) = match &wait.on {
            WaitOn::Barrier { registration, world_size, .. } => {
                (Some(*world_size), 1, vec![slot_of(registration).key().into()])
            }
            WaitOn::Keys { .. } | WaitOn::Shared { .. } => {
                let registrations = self.registrations_of(session.conn);
                let most = *looks;
                let looked_at = registrations.iter().take(most).inspect(|_| *looks -= 1);
                let missing = looked_at.map(slot_of).filter(|slot| !slot.is_present());
                (None, registrations.len(), missing.take(keys_each).map(|slot| slot.key().into()).collect())
            }
        };
        // If `init/` is not there, as after a reset, the host of a job waits for it before it reads it.
        let waited = now.since(wait.since);
        let is_count =
            barrier_size.is_none() && missing.first().is_some_and(|key: &WaitedKey| **key == *b"init/");
        Some(WaitView {
            conn: session.conn,
            peer: session.peer,
            pid: session.pid,
            waited,
            barrier_size,
            keys,
            missing,
            similar: None,
            past: KeyPast::default(),
            arrived: None,
            counted: is_count.then_some(Counted { clients: 0, unchanged: waited, ago: Duration::ZERO }),
            polled: None,
        })
    }

    /// The names of up to `most` plain keys.
    #[cfg(test)]
    pub(super) fn key_names(&self, most: usize) -> Vec<Box<[u8]>> {
        let plain = self.keys.iter().filter(|(_, slot)| slot.value().is_some());
        plain.take(most).map(|(_, slot)| slot.key().into()).collect()
    }

    /// Address and process id of a connection, if it is still there.
    pub fn peer(&self, conn: ConnId) -> Option<(SocketAddr, Option<u32>)> {
        self.session(conn).map(|session| (session.peer, session.pid))
    }
}
