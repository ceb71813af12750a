//! The one place with a lock. One engine holds one store, serves its connections in turn, and hands each
//! reply and wake-up to its connection in the order of the critical sections. Only a connection's own task
//! may write to it, so a wake-up for another connection goes into that connection's mailbox. The mailbox is
//! one flag, because a connection waits for one thing at a time and one byte ends the wait. The flag is taken
//! under the same lock, before that connection's next request is applied. So a late CANCEL_WAIT can never
//! overtake the wake-up.
//!
//! Nothing is awaited, logged or formatted while the lock is held. A panic inside the lock ends the process:
//! a half applied request must not be served.

mod batch;
mod budget;
mod linked;
mod meter;
mod observations;
#[cfg(any(test, feature = "sim"))]
pub mod tap;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Clock;
use crate::journal::{CommitNumber, Journal};
use batch::BatchEffects;
pub use budget::{BufferReservation, MemoryBudget, Reservation};
use linked::Resumable;
pub use linked::{LinkSide, LinkedBefore};
pub use meter::{BUCKETS, Histogram, Meter, WAIT_BUCKET_FACTOR};
use observations::Observations;
pub use observations::{LongWaits, Seen};
use rallypoint_journal::{SessionId, StoreId, StoreImage};
use rallypoint_protocol::ids::{ConnId, Timestamp};
use rallypoint_protocol::{Reply, ReplyBuffer, Request};
use rallypoint_store::{self as store, Cleanup, Observed, Progress, Refusal, Stats, Store, WaitView};

/// Hears at once, outside the lock, what the rules for stale keys did. Jobs are observed another way:
/// [`Engine::take_seen`].
pub trait OnCleanup: Send + Sync {
    /// The rules did something in the store on port `store`.
    fn cleaned_up(&self, store: u16, cleanup: Cleanup);
}

/// Wake-ups for one connection.
#[derive(Debug)]
struct Mailbox {
    id: ConnId,
    woken: bool,
    /// Set while the connection waits.
    waker: Option<Waker>,
    /// The journal's view of the connection, if it is a session of a link.
    link: Option<Box<Resumable>>,
}

impl Mailbox {
    fn leave_waker(&mut self, waker: &Waker) {
        if self.waker.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }
}

#[derive(Debug)]
struct State {
    store: Store,
    mailboxes: slab::Slab<Mailbox>,
    serial: u32,
    meter: Meter,
    /// The store's bytes that the budget counts at present.
    budgeted: usize,
    cleanups: Vec<Cleanup>,
    observations: Observations,
    /// The last commit of this store: it contains everything that anybody has seen of the store.
    commit: CommitNumber,
    /// Rows about sessions of links, for the next commit.
    rows: Vec<u8>,
    /// Sessions of the last server, until their links take them.
    resumable: BTreeMap<SessionId, ConnId>,
}

/// Where the changes of a store are kept.
#[derive(Debug)]
pub struct Kept {
    /// The journal.
    pub journal: Arc<Journal>,
    /// The store's number in the journal.
    pub store: StoreId,
    /// The state of the store when the last server ended.
    pub image: Option<StoreImage>,
    /// The sessions of links that the store had then.
    pub linked: Vec<LinkedBefore>,
}

/// A position in the walk through everything that an engine copies into the journal.
#[derive(Debug, Default)]
pub struct Walk {
    store: store::Walk,
    is_through: bool,
    mailbox: usize,
}

/// One store and the connections to it.
pub struct Engine {
    port: u16,
    clock: Clock,
    budget: Arc<MemoryBudget>,
    on_cleanup: Arc<dyn OnCleanup>,
    journal: Option<(Arc<Journal>, StoreId)>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("port", &self.port).finish_non_exhaustive()
    }
}

/// The result of a batch.
#[derive(Debug)]
pub struct Submitted {
    /// Requests applied, from the start of the batch. There may be fewer than were given, for three reasons:
    /// the replies must be sent before more are made, other connections must have their turn, or a request
    /// was refused. The next request may be applied in part: the next batch begins with it.
    pub applied: usize,
    /// Whether other connections must have their turn before the rest is applied.
    pub worked_enough: bool,
    /// Whether the connection has an outstanding wait. Its waker is then called when the wait ends.
    pub waiting: bool,
    /// Why the request behind the applied ones was refused.
    pub refusal: Option<Refusal>,
}

impl Engine {
    /// Serves `store` on `port`. With `observing`, observations of jobs are kept for [`Self::take_seen`].
    /// With `kept`, changes are written to its journal.
    pub fn new(
        port: u16,
        store: Store,
        clock: Clock,
        budget: Arc<MemoryBudget>,
        on_cleanup: Arc<dyn OnCleanup>,
        observing: bool,
        kept: Option<Kept>,
    ) -> Arc<Self> {
        let state = State {
            store,
            mailboxes: slab::Slab::new(),
            serial: 0,
            meter: Meter::default(),
            budgeted: 0,
            cleanups: Vec::new(),
            observations: Observations::new(observing),
            commit: CommitNumber::default(),
            rows: Vec::new(),
            resumable: BTreeMap::new(),
        };
        let journal = kept.as_ref().map(|kept| (Arc::clone(&kept.journal), kept.store));
        let engine = Arc::new(Self { port, clock, budget, on_cleanup, journal, state: Mutex::new(state) });
        if let Some(kept) = kept {
            engine.keep(kept);
        }
        engine
    }

    /// Restores the store from its image, if there is one; from then on every change goes to the journal.
    fn keep(&self, Kept { store: id, image, linked, .. }: Kept) {
        let Some(image) = image else { return self.lock().store.keep_rows(id) };
        {
            let mut state = self.lock();
            let State { mailboxes, resumable, serial, .. } = &mut *state;
            let last = linked.iter().map(|linked| linked.conn).max();
            *serial = last.unwrap_or(0).max(image.last_conn());
            for linked in &linked {
                let link = Some(Box::new(Resumable::before(linked)));
                resumable.insert(linked.id, add_mailbox(mailboxes, linked.conn, link));
            }
        }
        let live: Vec<_> = linked.iter().map(|linked| (linked.conn, linked.client)).collect();
        self.lock().observations.is_restoring = true;
        #[cfg(any(test, feature = "sim"))]
        tap::tell(self.port, tap::Tapped::Restored(&live));
        self.change(None, |store, now, fx| store.restore(id, image, &live, now, fx));
        self.lock().observations.is_restoring = false;
        self.settle();
    }

    /// Takes a session of the last server, if it is known: the client continues over its link.
    pub fn resume(self: &Arc<Self>, id: SessionId) -> Option<Session> {
        let id = self.lock().resumable.remove(&id)?;
        Some(Session { engine: Arc::clone(self), id, seen: Cell::default() })
    }

    /// Ends the sessions of the last server that no link has taken.
    pub fn end_unresumed(self: &Arc<Self>) {
        let unresumed = std::mem::take(&mut self.lock().resumable);
        for id in unresumed.into_values() {
            drop(Session { engine: Arc::clone(self), id, seen: Cell::default() });
        }
    }

    /// The store's number in the journal.
    pub fn journal_id(&self) -> Option<StoreId> {
        self.journal.as_ref().map(|(_, id)| *id)
    }

    /// Copies the store's state into the journal, as much as fits into one critical section. `false` when
    /// `walk` is complete.
    pub fn copy(&self, walk: &mut Walk) -> bool {
        /// About a millisecond of work.
        const AT_ONCE: usize = 128 * 1024;
        let Some((journal, id)) = &self.journal else { return false };
        let mut goes_on = false;
        {
            let mut state = self.lock();
            let State { store, mailboxes, .. } = &mut *state;
            journal.commit(|out| {
                if !walk.is_through {
                    walk.is_through = !store.copy_rows(&mut walk.store, AT_ONCE, out);
                    goes_on = true;
                    return;
                }
                goes_on = copy_links(mailboxes, *id, walk, AT_ONCE, out);
            });
        }
        journal.write_queued();
        goes_on
    }

    /// The port of the store.
    pub fn port(&self) -> u16 {
        self.port
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| {
            tracing::error!(store = self.port, "the store is broken by an earlier panic; the process ends");
            std::process::abort()
        })
    }

    /// Registers a connection.
    pub fn connect(self: &Arc<Self>, addr: SocketAddr) -> Session {
        self.register(addr, None)
    }

    /// Registers a client that came over a link. A journal, if there is one, knows the client by `id`.
    pub fn connect_linked(self: &Arc<Self>, addr: SocketAddr, id: SessionId) -> Session {
        let link = self.journal.is_some().then(|| Box::new(Resumable::new(id, addr)));
        self.register(addr, link)
    }

    fn register(self: &Arc<Self>, addr: SocketAddr, link: Option<Box<Resumable>>) -> Session {
        let mut state = self.lock();
        state.serial = state.serial.wrapping_add(1);
        let State { store, mailboxes, serial, rows, .. } = &mut *state;
        let mut seen = CommitNumber::default();
        let id = add_mailbox(mailboxes, *serial, link);
        #[cfg(any(test, feature = "sim"))]
        tap::tell(self.port, tap::Tapped::Connected(id, addr));
        store.connect(id, SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        if let (Some((_, store)), Some(link)) = (&self.journal, &mailboxes[id.slot()].link) {
            link.put(*store, id.serial(), false, rows);
            seen = self.finish(state, Vec::new());
        }
        Session { engine: Arc::clone(self), id, seen: Cell::new(seen) }
    }

    /// Sizes at this moment.
    pub fn stats(&self) -> Stats {
        self.lock().store.stats()
    }

    /// The counts so far.
    pub fn meter(&self) -> Meter {
        self.lock().meter.clone()
    }

    /// How long the oldest wait has lasted.
    pub fn oldest_wait(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.lock().store.oldest_wait(now)
    }

    /// Up to `most` outstanding waits, oldest first. Before them come the clients that wait by repeated
    /// reads.
    pub fn waits(&self, most: usize, keys_each: usize) -> Vec<WaitView> {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut waits = state.store.counting(now);
        // One that waits for a while each time may do so at this moment.
        let asking = state.store.asking(now).into_iter();
        waits.extend(asking.filter(|wait| state.store.waiting_since(wait.conn).is_none()));
        waits.append(&mut state.store.waits(now, most, keys_each));
        waits
    }

    /// The observations since the last call, the waits if they are asked for, and when each connection of
    /// `heard` last sent a request.
    pub fn take_seen(&self, waits: Option<LongWaits>, heard: &[ConnId]) -> Seen {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut seen = state.observations.take();
        seen.waits = waits.map(|LongWaits { at_least, most, keys_each }| {
            state.store.long_waits(now, at_least, most, keys_each).0
        });
        seen.heard = state.store.heard(heard);
        self.finish(state, Vec::new());
        seen
    }

    /// Empties the store.
    pub fn reset(&self) {
        self.change(None, |store, _, fx| store.reset(fx));
        self.settle();
    }

    /// Drops the keys of one run's rendezvous; returns how many there were.
    pub fn drop_run(&self, run_id: &[u8]) -> usize {
        let mut before = 0;
        self.change(None, |store, _, fx| {
            before = store.dropped();
            store.drop_run(run_id, fx);
        });
        self.settle();
        let dropped = self.lock().store.dropped().saturating_sub(before);
        usize::try_from(dropped).unwrap_or(usize::MAX)
    }

    /// Drops whatever has been idle for long enough. Cheap when nothing is due.
    pub fn tick(&self) {
        let now = self.clock.now();
        if self.lock().store.next_deadline().is_some_and(|at| at <= now) {
            self.change(None, |store, now, fx| store.tick(now, fx));
        }
        self.settle();
    }

    /// Continues step-by-step drops until nothing is left of them. The lock is free between the steps.
    fn settle(&self) {
        while self.lock().store.is_unsettled() {
            // The lock is not fair: a waiting thread needs time to wake up.
            std::thread::sleep(Duration::from_micros(100));
            self.change(None, |_, _, _| ());
        }
    }

    /// Runs a change that no request made. The connection `leaving`, if given, is removed with it.
    fn change(
        &self,
        leaving: Option<ConnId>,
        change: impl FnOnce(&mut Store, Timestamp, &mut BatchEffects<'_>),
    ) {
        let now = self.clock.now();
        let mut wakers = Vec::new();
        let mut state = self.lock();
        let State { store, mailboxes, meter, cleanups, observations, rows, .. } = &mut *state;
        let mut effects = BatchEffects {
            own: None,
            now,
            out: &mut ReplyBuffer::default(),
            mailboxes,
            meter,
            cleanups,
            observations,
            wakers: &mut wakers,
            rows,
            counted: usize::MAX,
            reservation: None,
            budget: &self.budget,
        };
        store.begin(&mut effects);
        #[cfg(any(test, feature = "sim"))]
        if let Some(id) = leaving {
            tap::tell(self.port, tap::Tapped::Left(id));
        }
        change(store, now, &mut effects);
        if let Some(id) = leaving
            && let Some(Mailbox { link: Some(link), .. }) = mailboxes.try_remove(id.slot())
        {
            link.put_over(rows);
        }
        self.finish(state, wakers);
    }

    /// Updates the budget, unlocks, and then wakes the other connections and reports the cleanups.
    #[inline]
    fn finish(&self, mut state: MutexGuard<'_, State>, wakers: Vec<Waker>) -> CommitNumber {
        #[expect(clippy::arithmetic_side_effects, reason = "bytes in memory")]
        let bytes = state.store.bytes() + state.observations.bytes();
        if bytes != state.budgeted {
            self.budget.adjust(state.budgeted, bytes);
            state.budgeted = bytes;
        }
        let cleanups = std::mem::take(&mut state.cleanups);
        if let Some((journal, _)) = &self.journal
            && (state.store.has_rows() || !state.rows.is_empty())
        {
            let State { store, commit, rows, .. } = &mut *state;
            *commit = journal.commit(|out| {
                store.take_rows(out);
                out.append(rows);
            });
        }
        let commit = state.commit;
        #[cfg(any(test, feature = "sim"))]
        tap::tell(self.port, tap::Tapped::Committed(commit));
        drop(state);
        for waker in wakers {
            waker.wake();
        }
        for cleanup in cleanups {
            self.on_cleanup.cleaned_up(self.port, cleanup);
        }
        commit
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let budgeted = self.lock().budgeted;
        self.budget.adjust(budgeted, 0);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "each takes memory, and a process has room for fewer than 2^32"
)]
fn add_mailbox(mailboxes: &mut slab::Slab<Mailbox>, serial: u32, link: Option<Box<Resumable>>) -> ConnId {
    let entry = mailboxes.vacant_entry();
    let id = ConnId::new(entry.key() as u32, serial);
    entry.insert(Mailbox { id, woken: false, waker: None, link });
    id
}

/// Appends the sessions of links and how far they have come, about `enough` bytes. `false` when the walk is
/// complete.
fn copy_links(
    mailboxes: &slab::Slab<Mailbox>,
    store: StoreId,
    walk: &mut Walk,
    enough: usize,
    out: &mut Vec<u8>,
) -> bool {
    /// Most places to look at in one step: many may be empty.
    const MOST_LOOKS: usize = 16 * 1024;
    let full = out.len().saturating_add(enough);
    for _ in 0..MOST_LOOKS {
        if out.len() >= full {
            return true;
        }
        if walk.mailbox >= mailboxes.capacity() {
            return false;
        }
        if let Some(Mailbox { id, woken, link: Some(link), .. }) = mailboxes.get(walk.mailbox) {
            link.put(store, id.serial(), *woken, out);
        }
        walk.mailbox = walk.mailbox.saturating_add(1);
    }
    true
}

/// The engine's side of one connection. Dropping it disconnects.
#[derive(Debug)]
pub struct Session {
    engine: Arc<Engine>,
    id: ConnId,
    /// The last commit that its replies may depend on.
    seen: Cell<CommitNumber>,
}

impl Session {
    /// When this many bytes of replies have gathered, the rest of a batch waits until they are sent.
    const REPLIES_AT_ONCE: usize = 256 * 1024;

    /// The connection's id.
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Applies a batch of requests, each with its length on the wire, in order and in one critical section.
    /// Appends the replies to `out`, behind a wake-up that came since the last call.
    ///
    /// `cannot_cancel` is for clients of PyTorch 2.0, which simply go on after a time-out: a request other
    /// than CANCEL_WAIT then ends the outstanding wait, so that a late wake-up cannot shift the replies.
    /// `side` comes from the link, if this connection is a session of one.
    pub fn submit(
        &self,
        batch: &[(Request<'_>, usize)],
        cannot_cancel: bool,
        side: Option<&LinkSide>,
        out: &mut ReplyBuffer,
        waker: &Waker,
    ) -> Submitted {
        let now = self.engine.clock.now();
        let mut wakers = Vec::new();
        let mut state = self.engine.lock();
        let room = self.engine.budget.room();
        let State { store, mailboxes, meter, cleanups, observations, budgeted, rows, .. } = &mut *state;
        store.capacity.bytes = budgeted.saturating_add(room).saturating_sub(observations.bytes());
        let unsent = out.len();
        let own = &mut mailboxes[self.id.slot()];
        if std::mem::take(&mut own.woken) {
            out.push(Reply::StopWaiting);
        }
        // Taken out while the other connections' mailboxes are borrowed.
        let mut link = own.link.take();
        let unsaid = out.len();
        if let (Some(link), Some(side)) = (&mut link, side) {
            link.hear(side);
        }
        let mut effects = BatchEffects {
            own: Some(self.id),
            now,
            out,
            mailboxes,
            meter,
            cleanups,
            observations,
            wakers: &mut wakers,
            rows,
            counted: Self::REPLIES_AT_ONCE,
            reservation: None,
            budget: &self.engine.budget,
        };
        store.begin(&mut effects);
        let mut submitted = self.apply(store, batch, cannot_cancel, link.as_deref_mut(), &mut effects);
        submitted.waiting = store.waiting_since(self.id).is_some();
        meter.sent(out.len().saturating_sub(unsent));
        if let Some(link) = &mut link {
            out.pieces_from(unsaid).for_each(|piece| link.reply(piece, rows));
            link.put_reached(rows);
        }
        let own = &mut mailboxes[self.id.slot()];
        own.link = link;
        if submitted.waiting {
            own.leave_waker(waker);
        } else {
            own.waker = None;
        }
        let took = self.engine.clock.now().since(now);
        meter.record(batch[..submitted.applied].iter().map(|(request, _)| request.op()), took);
        self.seen.set(self.engine.finish(state, wakers));
        submitted
    }

    /// Applies requests until another connection must have its turn, or a request is refused.
    #[inline]
    fn apply(
        &self,
        store: &mut Store,
        batch: &[(Request<'_>, usize)],
        cannot_cancel: bool,
        mut link: Option<&mut Resumable>,
        effects: &mut BatchEffects<'_>,
    ) -> Submitted {
        let mut submitted = Submitted { applied: 0, worked_enough: false, waiting: false, refusal: None };
        for (request, len) in batch {
            if cannot_cancel && !matches!(request, Request::CancelWait) {
                store.abandon_wait(self.id);
                if let Some(link) = link.as_deref_mut().filter(|_| store.waiting_since(self.id).is_none()) {
                    link.wait_is_over();
                }
            }
            let cancelled = match request {
                Request::CancelWait => store.waiting_since(self.id),
                _ => None,
            };
            let answered = effects.out.len();
            if let Some(link) = link.as_deref().filter(|link| link.begun > 0) {
                store.go_on(self.id, request, usize::try_from(link.begun).unwrap_or(usize::MAX));
            }
            #[cfg(any(test, feature = "sim"))]
            let before = store.done(self.id, request);
            match store.apply(self.id, request, effects.now, effects) {
                Ok(Progress::Done) => {}
                Ok(Progress::Begun) => {
                    let done = store.done(self.id, request);
                    #[cfg(any(test, feature = "sim"))]
                    tap::tell(self.engine.port, tap::Tapped::Begun(self.id, request, before..done));
                    if let Some(link) = link.as_deref_mut() {
                        link.began(done as u64, effects.out.len() > answered);
                    }
                    submitted.worked_enough = true;
                    break;
                }
                Err(refusal) => {
                    submitted.refusal = Some(refusal);
                    break;
                }
            }
            if let Some(since) = cancelled {
                effects.meter.waits.record(effects.now.since(since));
            }
            submitted.applied = submitted.applied.saturating_add(1);
            #[cfg(any(test, feature = "sim"))]
            tap::tell(self.engine.port, tap::Tapped::Applied(self.id, request, before));
            if let Some(link) = link.as_deref_mut() {
                link.took(*len, store.waiting_since(self.id).is_some());
            }
            effects.meter.received(*len);
            submitted.worked_enough = store.has_worked_enough();
            if submitted.worked_enough || effects.out.len() >= Self::REPLIES_AT_ONCE {
                break;
            }
        }
        submitted
    }

    /// Whether the results of the last batch or wake-up may leave: the journal, if there is one, has
    /// everything that they depend on. If not, the task is woken when it has.
    #[inline]
    pub fn poll_safe(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.engine.journal {
            Some((journal, _)) => journal.poll_safe(self.seen.get(), cx),
            None => Poll::Ready(()),
        }
    }

    /// Records that the client is lost with its link, or because its host does not answer. Call it before the
    /// session is dropped.
    pub fn cut_off(&self, link: Option<&str>) {
        let now = self.engine.clock.now();
        let mut state = self.engine.lock();
        if state.observations.enabled {
            state.observations.push(now, Observed::CutOff { conn: self.id, link: link.map(Box::from) });
        }
    }

    /// Takes the wake-up that ends the outstanding wait, as a reply in `out`. If there is none yet, `waker`
    /// is called when it comes.
    pub fn poll_wake_up(&self, out: &mut ReplyBuffer, waker: &Waker) -> Poll<()> {
        let mut state = self.engine.lock();
        let own = &mut state.mailboxes[self.id.slot()];
        if !std::mem::take(&mut own.woken) {
            own.leave_waker(waker);
            return Poll::Pending;
        }
        self.seen.set(state.commit);
        let unsent = out.len();
        out.push(Reply::StopWaiting);
        state.meter.sent(out.len().saturating_sub(unsent));
        Poll::Ready(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.change(Some(id), |store, now, fx| store.disconnect(id, now, fx));
    }
}
