//! Clients that ask for one key again and again: they wait, although each of their requests is answered at
//! once. Barriers are made like that which count arrivals, and whatever does not want to block.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::effects::{Effects, Observed, Polled};
use super::number::parse_counter;
use super::slot::SlotId;
use super::{List, Store};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::{is_asked_for, is_of_program};

/// What a connection asks for.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// The slot that it read, looked for or tried to set last…
    read: Option<SlotId>,
    /// …and how often it has done so since.
    times: u8,
    /// It has added to that, and not taken anything back since.
    has_added: bool,
    /// When it was last told to ask for one key again and again…
    told: Option<Timestamp>,
    /// …and what it found then, until it was told that this has ended.
    open: Option<Polled>,
}

impl Asks {
    /// A poll is told so often.
    const EVERY: Duration = Duration::from_secs(1);
    /// Who has read a key less often may only have looked.
    const OFTEN: u8 = 3;

    /// It asks for what this slot holds from now on.
    fn turn_to(&mut self, slot: Option<SlotId>) {
        (self.read, self.times, self.has_added) = (slot, 0, false);
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.told.is_none_or(|last| now.since(last) >= Self::EVERY)
    }
}

impl Store {
    /// A client has read what the slot `id` holds, and is told when it does so again and again.
    #[inline]
    pub(super) fn reads(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) {
        if self.comes_again(conn, id, fx) {
            self.reads_again(conn, id, fx);
        }
    }

    #[cold]
    fn reads_again(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) {
        /// The beginning and the length tell a longer value from others.
        const READ: usize = 256;
        let slot = self.keys.slot(id);
        let (Some(value), key) = (slot.value(), slot.key()) else { return };
        let found = match parse_counter(value) {
            Some(number) if is_asked_for(key) => Polled::Is(number),
            None if is_of_program(key) => {
                let mut hasher = DefaultHasher::new();
                (value.len(), value.get(..READ).unwrap_or(value)).hash(&mut hasher);
                Polled::Same(hasher.finish())
            }
            _ => return,
        };
        self.polls(conn, key.into(), found, Duration::ZERO, fx);
    }

    /// A client has added `delta` to a number that is `sum` now. Who takes back what it added, again and
    /// again while others have added, too, tries to get a lock.
    #[inline]
    pub(super) fn adds(&mut self, conn: ConnId, id: SlotId, delta: i64, sum: i64, fx: &mut impl Effects) {
        if delta == 0 {
            return self.reads(conn, id, fx);
        }
        if !fx.observes() {
            return;
        }
        let Some(session) = self.session_mut(conn) else { return };
        let is_other = session.asks.read != Some(id);
        if is_other {
            session.asks.turn_to(Some(id));
        }
        let had_added = std::mem::replace(&mut session.asks.has_added, delta > 0);
        if is_other || delta == sum {
            self.polls_no_more(conn, fx);
        } else if had_added && delta < 0 && sum > 0 {
            self.is_refused(conn, id, Polled::Shared, fx);
        }
    }

    /// A client did not get what another has, such as a lock.
    #[cold]
    pub(super) fn is_refused(&mut self, conn: ConnId, id: SlotId, found: Polled, fx: &mut impl Effects) {
        if is_asked_for(self.keys.slot(id).key()) && self.comes_again(conn, id, fx) {
            let key = self.keys.slot(id).key().into();
            self.polls(conn, key, found, Duration::ZERO, fx);
        }
    }

    /// Whether it is to be told that a client comes to the slot `id` again and again.
    #[inline]
    fn comes_again(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) -> bool {
        if !fx.observes() {
            return false;
        }
        let Some(session) = self.session_mut(conn) else { return false };
        if session.asks.read != Some(id) {
            session.asks.turn_to(Some(id));
            self.polls_no_more(conn, fx);
            return false;
        }
        session.asks.times = session.asks.times.saturating_add(1);
        let is_due = session.asks.times >= Asks::OFTEN && session.asks.is_due(session.heard);
        if is_due {
            // Whether it is one to be told of is looked at so often, too.
            session.asks.told = Some(session.heard);
        }
        is_due
    }

    /// A client found what it had asked for in vain again and again: these keys are there.
    #[inline]
    pub(super) fn finds<'k>(
        &mut self,
        conn: ConnId,
        keys: impl Iterator<Item = &'k [u8]>,
        fx: &mut impl Effects,
    ) {
        let in_vain = |open: &mut Polled| *open == Polled::Absent;
        if self.session_mut(conn).is_some_and(|session| session.asks.open.take_if(in_vain).is_some()) {
            keys.for_each(|key| fx.observe(Observed::PollEnds { conn, key: Some(key.into()) }));
        }
    }

    /// As [`Self::finds`], of a client that waited for the key of the slot `id`.
    pub(super) fn finds_slot(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) {
        if self.session(conn).is_some_and(|session| session.asks.open.is_some()) {
            let key: Box<[u8]> = self.keys.slot(id).key().into();
            self.finds(conn, std::iter::once(&*key), fx);
        }
    }

    /// A client does something else than what it did again and again.
    #[inline]
    pub(super) fn polls_no_more(&mut self, conn: ConnId, fx: &mut impl Effects) {
        if self.session_mut(conn).is_some_and(|session| session.asks.open.take().is_some()) {
            fx.observe(Observed::PollEnds { conn, key: None });
        }
    }

    /// A client has looked for a key that is not there.
    #[cold]
    pub(super) fn looks_in_vain(&mut self, conn: ConnId, keys: List<'_>, fx: &mut impl Effects) {
        if let Some(session) = self.session_mut(conn)
            && session.asks.open == Some(Polled::There)
        {
            session.asks.read = None;
            self.polls_no_more(conn, fx);
        }
        if self.session(conn).is_some_and(|session| session.asks.is_due(session.heard))
            && let Some(key) = keys.iter().find(|key| is_asked_for(key) && !self.is_present(key))
        {
            self.polls(conn, key.into(), Polled::Absent, Duration::ZERO, fx);
        }
    }

    /// A client has waited for a key that is not there, and has given up.
    #[cold]
    pub(super) fn waits_in_vain(
        &mut self,
        conn: ConnId,
        key: Box<[u8]>,
        waited: Duration,
        fx: &mut impl Effects,
    ) {
        if self.session(conn).is_some_and(|session| session.asks.is_due(session.heard)) {
            self.polls(conn, key, Polled::Absent, waited, fx);
        }
    }

    /// A client has looked for keys, and they are there; `id` is the slot of the only one. Who looks for one
    /// again and again waits until it is gone, as a lock.
    #[inline]
    pub(super) fn looks_well(
        &mut self,
        conn: ConnId,
        id: Option<SlotId>,
        keys: List<'_>,
        fx: &mut impl Effects,
    ) {
        let Some(session) = self.session_mut(conn) else { return };
        if let (Some(id), Some(key)) = (id.filter(|id| session.asks.read == Some(*id)), keys.iter().next()) {
            if self.comes_again(conn, id, fx) && is_of_program(key) {
                self.polls(conn, key.into(), Polled::There, Duration::ZERO, fx);
            }
            return;
        }
        session.asks.turn_to(id);
        self.finds(conn, keys.iter(), fx);
        self.polls_no_more(conn, fx);
    }

    fn polls(
        &mut self,
        conn: ConnId,
        key: Box<[u8]>,
        found: Polled,
        waited: Duration,
        fx: &mut impl Effects,
    ) {
        let past = self.deleted.past_of(&key);
        let Some(session) = self.session_mut(conn).filter(|session| !session.is_probe) else { return };
        (session.asks.told, session.asks.open) = (Some(session.heard), Some(found));
        fx.observe(Observed::Polls { conn, key, found, waited, past });
    }
}
