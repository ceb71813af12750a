//! Clients that ask for one key again and again: they wait, although each of their requests is answered at
//! once. Barriers are made like that which count arrivals, and whatever does not want to block. They are
//! shown as the waits that they are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::effects::Effects;
use super::keyspace::Slot;
use super::number::parse_counter;
use super::slot::SlotId;
use super::{List, Store, WaitView, WaitedKey};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::{is_asked_for, is_of_program, is_promised};

/// What a client finds that asks for a key again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// The key is not there.
    Absent,
    /// The key is not there, and the client waits for it each time, until a time-out.
    AbsentAgain,
    /// It looks whether the key is there, and it is.
    There,
    /// It reads this number.
    Is(i64),
    /// It reads the same value, which is no number and has this fingerprint.
    Same(u64),
    /// Its compare-set is refused: another has set the key, such as a lock.
    Held,
    /// It adds to the key and takes that back, as others have added to it, too.
    Shared,
    /// It reads that the queue has so many items.
    Items(usize),
}

impl Polled {
    /// The key is not there.
    pub const fn is_absent(self) -> bool {
        matches!(self, Self::Absent | Self::AbsentAgain)
    }
}

/// What a connection asks for.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// What it read, looked for or tried to set last…
    reads: [Option<Read>; Self::MOST],
    /// …of which the next one takes the place of this.
    next: usize,
    /// When it was last told that it gave up on a key of no job.
    gave_up: Option<Timestamp>,
    /// The keys that it asks for again and again.
    open: Vec<Asked>,
    /// It is among those that [`Store::asking`] looks at.
    is_listed: bool,
}

/// A slot that a connection comes to.
#[derive(Debug)]
struct Read {
    slot: SlotId,
    /// How often it has done so since the first time.
    times: u8,
    /// It has added to that, and not taken anything back since.
    has_added: bool,
    /// The second after that in which it was last noted that it does so again and again.
    noted: u64,
}

/// A key that a connection asks for.
#[derive(Debug)]
struct Asked {
    key: WaitedKey,
    found: Polled,
    /// The first and the last time that it was seen to find that.
    since: Timestamp,
    last: Timestamp,
    /// How long it had waited at the first time.
    waited: Duration,
}

impl Asked {
    /// Whether it still asks for it. Who waits for what is promised pauses for longer.
    fn is_recent(&self, now: Timestamp) -> bool {
        now.since(self.last) < Duration::from_millis(if is_promised(&self.key) { 10_000 } else { 2500 })
    }

    /// It has not asked only once.
    fn lasts(&self) -> bool {
        is_promised(&self.key) || self.last.since(self.since) >= Duration::from_secs(1)
    }
}

impl Asks {
    /// A poll is noted so often.
    const EVERY: Duration = Duration::from_secs(1);
    /// Who has read a key less often may only have looked.
    const OFTEN: u8 = 3;
    /// Keys that one connection asks for.
    const MOST: usize = 4;

    #[inline]
    fn known(&mut self, slot: SlotId) -> Option<&mut Read> {
        self.reads.iter_mut().flatten().find(|read| read.slot == slot)
    }

    /// It asks for what this slot holds, for the first time.
    #[inline]
    fn begins(&mut self, slot: SlotId) {
        self.reads[self.next] = Some(Read { slot, times: 0, has_added: false, noted: 0 });
        self.next = self.next.wrapping_add(1) % Self::MOST;
    }

    /// Whether it is to be told that it gives up on a key of no job: once a second.
    pub(super) fn may_give_up(&mut self, now: Timestamp) -> bool {
        let is_due = self.gave_up.is_none_or(|last| now.since(last) >= Self::EVERY);
        self.gave_up = if is_due { Some(now) } else { self.gave_up };
        is_due
    }

    /// Whether it was just noted that it asks for this key.
    fn is_noted(&self, key: &[u8], now: Timestamp) -> bool {
        self.open.iter().any(|it| *it.key == *key && now.since(it.last) < Self::EVERY)
    }
}

impl Store {
    /// Further connections that ask for keys again and again are not looked at…
    const MOST_ASKING: usize = 4096;
    /// …and further keys not shown.
    const MOST_ASKED: usize = 512;

    /// A client has read what the slot `id` holds, and is shown when it does so again and again.
    #[inline]
    pub(super) fn reads(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) {
        if self.comes_again(conn, id, fx) {
            self.reads_again(conn, id);
        }
    }

    #[cold]
    fn reads_again(&mut self, conn: ConnId, id: SlotId) {
        let slot = self.keys.slot(id);
        let (Some(value), key) = (slot.value(), slot.key()) else { return };
        let found = match number_in(value) {
            Some(number) if is_asked_for(key) => Polled::Is(number),
            None if is_of_program(key) => Polled::Same(fingerprint(value)),
            _ => return,
        };
        self.polls(conn, key.into(), found, Duration::ZERO);
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
        let known = session.asks.known(id);
        let had_added = known.map(|read| std::mem::replace(&mut read.has_added, delta > 0));
        if had_added.is_none() {
            session.asks.begins(id);
        }
        if had_added.is_none() || delta == sum {
            self.polls_no_more(conn);
        } else if had_added == Some(true) && delta < 0 && sum > 0 {
            self.is_refused(conn, id, Polled::Shared, fx);
        }
    }

    /// A client did not get what another has, such as a lock.
    #[cold]
    pub(super) fn is_refused(&mut self, conn: ConnId, id: SlotId, found: Polled, fx: &mut impl Effects) {
        if is_asked_for(self.keys.slot(id).key()) && self.comes_again(conn, id, fx) {
            let key = self.keys.slot(id).key().into();
            self.polls(conn, key, found, Duration::ZERO);
        }
    }

    /// Whether it is to be noted that a client comes to the slot `id` again and again.
    #[inline]
    fn comes_again(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) -> bool {
        if !fx.observes() {
            return false;
        }
        let Some(session) = self.session_mut(conn) else { return false };
        let second = session.heard.0.as_secs();
        let Some(read) = session.asks.known(id) else {
            session.asks.begins(id);
            self.polls_no_more(conn);
            return false;
        };
        read.times = read.times.saturating_add(1);
        let is_due = read.times >= Asks::OFTEN && second >= read.noted;
        if is_due {
            // Whether it is one to be shown is looked at so often, too.
            read.noted = second.saturating_add(1);
        }
        is_due
    }

    /// A client asks how many items the queue in the slot `id` has.
    pub(super) fn counts_items(&mut self, conn: ConnId, id: SlotId, items: usize, fx: &mut impl Effects) {
        if items > 0 {
            self.finds_slot(conn, id);
        }
        if self.comes_again(conn, id, fx) && is_of_program(self.keys.slot(id).key()) {
            let key = self.keys.slot(id).key().into();
            self.polls(conn, key, Polled::Items(items), Duration::ZERO);
        }
    }

    /// A client found what it had asked for in vain again and again: these keys are there.
    #[inline]
    pub(super) fn finds<'k>(&mut self, conn: ConnId, keys: impl Iterator<Item = &'k [u8]>) {
        let Some(session) = self.session_mut(conn).filter(|session| !session.asks.open.is_empty()) else {
            return;
        };
        for key in keys {
            session.asks.open.retain(|it| !it.found.is_absent() || *it.key != *key);
        }
    }

    /// As [`Self::finds`], of a client that waited for the key of the slot `id`.
    pub(super) fn finds_slot(&mut self, conn: ConnId, id: SlotId) {
        if self.session(conn).is_some_and(|session| !session.asks.open.is_empty()) {
            let key: WaitedKey = self.keys.slot(id).key().into();
            self.finds(conn, std::iter::once(&*key));
        }
    }

    /// A client does something else than what it did again and again with a key that is there.
    #[inline]
    pub(super) fn polls_no_more(&mut self, conn: ConnId) {
        if let Some(session) = self.session_mut(conn).filter(|session| !session.asks.open.is_empty()) {
            session.asks.open.retain(|it| it.found.is_absent());
        }
    }

    /// A client has looked for keys of which one is not there.
    #[cold]
    pub(super) fn looks_in_vain<'k>(&mut self, conn: ConnId, keys: impl Iterator<Item = &'k [u8]>) {
        let Some(session) = self.session_mut(conn) else { return };
        if session.asks.open.iter().any(|it| it.found == Polled::There) {
            session.asks.reads = Default::default();
            self.polls_no_more(conn);
        }
        let mut some = keys.take(Asks::MOST);
        let Some(key) = some.find(|key| is_asked_for(key) && !self.is_present(key)) else { return };
        if self.session(conn).is_some_and(|session| !session.asks.is_noted(key, session.heard)) {
            self.polls(conn, key.into(), Polled::Absent, Duration::ZERO);
        }
    }

    /// A client has waited for so long for a key that is not there, and has given up. It may try again.
    #[cold]
    pub(super) fn waits_in_vain(&mut self, conn: ConnId, key: WaitedKey, waited: Duration) {
        const NO_LOOK: Duration = Duration::from_millis(500);
        if is_asked_for(&key) {
            let found = if waited < NO_LOOK { Polled::Absent } else { Polled::AbsentAgain };
            self.polls(conn, key, found, waited);
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
        let known = id.filter(|id| session.asks.known(*id).is_some());
        if let (None, Some(id)) = (known, id) {
            session.asks.begins(id);
        }
        self.finds(conn, keys.iter());
        match (known, keys.iter().next()) {
            (Some(id), Some(key)) if self.comes_again(conn, id, fx) && is_of_program(key) => {
                self.polls(conn, key.into(), Polled::There, Duration::ZERO);
            }
            (Some(_), _) => {}
            (None, _) => self.polls_no_more(conn),
        }
    }

    fn polls(&mut self, conn: ConnId, key: WaitedKey, found: Polled, waited: Duration) {
        let has_room = self.asking.len() < Self::MOST_ASKING;
        let Some(session) = self.session_mut(conn).filter(|session| !session.is_probe) else { return };
        let (now, asks) = (session.heard, &mut session.asks);
        asks.open.retain(|it| it.is_recent(now) && (it.key != key || it.found == found));
        if let Some(it) = asks.open.iter_mut().find(|it| it.key == key) {
            it.last = now;
        } else if asks.open.len() < Asks::MOST {
            asks.open.push(Asked { key, found, since: now, last: now, waited });
        }
        if has_room && !std::mem::replace(&mut asks.is_listed, true) {
            self.asking.push(conn);
        }
    }

    /// The connections that ask for keys again and again, shown as waits for them: so many.
    pub fn asking(&mut self, now: Timestamp) -> Vec<WaitView> {
        let mut waits = Vec::new();
        let mut conns = std::mem::take(&mut self.asking);
        conns.retain(|&conn| {
            // It may wait for one at this moment.
            let registrations = self.registrations_of(conn).iter().take(Asks::MOST);
            let blocked: Vec<WaitedKey> = registrations
                .map(|&id| self.keys.slot(self.registrations.get(id).slot).key().into())
                .collect();
            let Some(session) = self.session_mut(conn) else { return false };
            for it in &mut session.asks.open {
                it.last = if blocked.contains(&it.key) { now } else { it.last };
            }
            session.asks.open.retain(|it| it.is_recent(now));
            session.asks.is_listed = !session.asks.open.is_empty();
            let Some(session) = self.session(conn).filter(|session| session.asks.is_listed) else {
                return false;
            };
            let room = Self::MOST_ASKED.saturating_sub(waits.len());
            let lasting = session.asks.open.iter().filter(|it| it.lasts() && self.is_so(it)).take(room);
            waits.extend(lasting.map(|it| {
                let waited = now.since(it.since).saturating_add(it.waited);
                let polled = Some(it.found);
                WaitView { polled, ..WaitView::new(conn, session.peer, session.pid, waited, it.key.clone()) }
            }));
            true
        });
        self.asking = conns;
        waits
    }

    /// Whether the next one would find the same.
    fn is_so(&self, asked: &Asked) -> bool {
        let slot = self.keys.find(&asked.key).map(|id| self.keys.slot(id));
        let is_present = slot.is_some_and(Slot::is_present);
        match asked.found {
            Polled::Absent | Polled::AbsentAgain => !is_present,
            Polled::Is(number) => slot.and_then(|slot| number_in(slot.value()?)) == Some(number),
            Polled::Items(items) => slot.is_some_and(|slot| slot.queue_len() == items),
            Polled::Same(is) => slot.and_then(|slot| Some(fingerprint(slot.value()?))) == Some(is),
            _ => is_present,
        }
    }
}

/// What tells a value from others: its length and its beginning.
fn fingerprint(value: &[u8]) -> u64 {
    const READ: usize = 256;
    let mut hasher = DefaultHasher::new();
    (value.len(), value.get(..READ).unwrap_or(value)).hash(&mut hasher);
    hasher.finish()
}

/// The number that is all of a value.
fn number_in(value: &[u8]) -> Option<i64> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    parse_counter(value).filter(|_| digits.iter().all(u8::is_ascii_digit))
}
