//! Clients that ask for one key again and again: they wait, although each of their requests is answered at
//! once. They are shown as the waits that they are.
//!
//! Here it is decided what is such a wait, and not only a look at a flag beside some work: its process does
//! nothing else meanwhile, and what it asks for is not there; or others have to add to a number to which it
//! has added, as a barrier does that counts arrivals; or it is refused what it tries to set, as a lock.

use std::collections::HashMap;
use std::time::Duration;

use super::effects::Effects;
use super::keyspace::Slot;
use super::number::parse_counter;
use super::slot::SlotId;
use super::{Process, Store, WaitView, WaitedKey};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::keys::{is_asked_for, is_promised};

/// What a client finds that asks for a key again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// The key is not there.
    Absent,
    /// The key is not there, and the client waits for it each time, until a time-out.
    AbsentAgain,
    /// It has added to this number, and reads it.
    Is(i64),
    /// Its compare-set is refused: another has set the key, such as a lock.
    Held,
    /// It adds to the key and takes that back, as others have added to it, too.
    Shared,
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
    /// What it added to or tried to set last…
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
    /// How often it has read that or was refused since the first time.
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
    /// Whether it is a wait whatever else its process does: it blocks nearly always, or pauses for long.
    fn is_apart(&self) -> bool {
        self.found == Polled::AbsentAgain || is_promised(&self.key)
    }

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

    /// It comes to this slot for the first time.
    #[inline]
    fn begins(&mut self, slot: SlotId, has_added: bool) {
        self.reads[self.next] = Some(Read { slot, times: 0, has_added, noted: 0 });
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

    /// A client has read what the slot `id` holds. Who has added to that waits for others; else it does
    /// something else than to ask in vain.
    #[inline]
    pub(super) fn reads(&mut self, conn: ConnId, id: SlotId, fx: &mut impl Effects) {
        let Some(session) = self.session_mut(conn) else { return };
        if !session.asks.known(id).is_some_and(|read| read.has_added) {
            self.polls_no_more(conn);
        } else if self.comes_again(conn, id, fx) {
            self.reads_again(conn, id);
        }
    }

    #[cold]
    fn reads_again(&mut self, conn: ConnId, id: SlotId) {
        let slot = self.keys.slot(id);
        let number = slot.value().and_then(|value| number_in(value)).filter(|_| is_asked_for(slot.key()));
        if let Some(number) = number {
            self.polls(conn, slot.key().into(), Polled::Is(number), Duration::ZERO);
        }
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
            session.asks.begins(id, delta > 0);
        }
        let had_added = had_added.unwrap_or_default();
        if had_added && delta < 0 && sum > 0 {
            self.is_refused(conn, id, Polled::Shared, fx);
        } else if had_added || delta < 0 || delta == sum {
            // It counts, or has the lock.
            self.polls_no_more(conn);
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
            session.asks.begins(id, false);
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

    /// A client does something else than to ask in vain.
    #[inline]
    pub(super) fn polls_no_more(&mut self, conn: ConnId) {
        if let Some(session) = self.session_mut(conn).filter(|session| !session.asks.open.is_empty()) {
            session.asks.open.retain(Asked::is_apart);
        }
    }

    /// A client has looked for keys of which one is not there.
    #[cold]
    pub(super) fn looks_in_vain<'k>(&mut self, conn: ConnId, keys: impl Iterator<Item = &'k [u8]>) {
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
        let processes = self.doing(&conns, now);
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
            let others = processes.get(&session.process()).into_iter().flatten();
            let did = others.filter(|(other, _)| *other != conn).map(|(_, did)| *did).max();
            let waits_for = |it: &&Asked| it.lasts() && self.is_so(it);
            let alone = |it: &&Asked| it.is_apart() || did.is_none_or(|did| did <= it.since);
            let lasting = session.asks.open.iter().filter(waits_for).filter(alone).take(room);
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

    /// When the processes of these connections did something else than to look for keys: with each of their
    /// connections. One that waits does so now.
    fn doing(&self, conns: &[ConnId], now: Timestamp) -> HashMap<Process, Vec<(ConnId, Timestamp)>> {
        let named = conns.iter().filter_map(|conn| self.session(*conn).filter(|it| it.pid.is_some()));
        let mut doing: HashMap<Process, Vec<_>> = named.map(|it| (it.process(), Vec::new())).collect();
        if doing.is_empty() {
            return doing;
        }
        for session in self.sessions.iter().flatten().filter(|it| it.wait.is_some() || it.used_own_keys) {
            if let Some(with) = doing.get_mut(&session.process()) {
                with.push((session.conn, if session.wait.is_some() { now } else { session.heard }));
            }
        }
        doing
    }

    /// Whether the next one would find the same.
    fn is_so(&self, asked: &Asked) -> bool {
        let slot = self.keys.find(&asked.key).map(|id| self.keys.slot(id));
        match asked.found {
            Polled::Is(number) => slot.and_then(|slot| number_in(slot.value()?)) == Some(number),
            found => found.is_absent() != slot.is_some_and(Slot::is_present),
        }
    }
}

/// The number that is all of a value.
fn number_in(value: &[u8]) -> Option<i64> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    parse_counter(value).filter(|_| digits.iter().all(u8::is_ascii_digit))
}
