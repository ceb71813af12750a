//! The one place with a lock: one engine holds one store, gives every connection its turn, and hands each
//! reply and wake-up to its connection in the order of the critical section that made it. Only a connection's
//! own task may write to it, so a wake-up for another connection goes into its mailbox. The mailbox is one
//! flag, because a connection waits for one thing and one byte tells it so. The flag is taken under the same
//! lock, before that connection's next request is applied. So a CANCEL_WAIT that comes too late can never
//! overtake the wake-up.
//!
//! Nothing is awaited, logged or formatted while the lock is held. A panic inside it ends the process: a half
//! applied request must not be served.

mod batch;
mod budget;
mod meter;
mod observations;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::core::ids::{ConnId, Timestamp};
use crate::core::journal::{StoreId, StoreImage};
use crate::core::protocol::{Reply, ReplyBuffer, Request};
use crate::core::store::{Cleanup, Progress, Refusal, Stats, Store, WaitView, Walk};
use crate::server::clock::Clock;
use crate::server::journal::{CommitNumber, Journal};
use batch::BatchEffects;
pub use budget::{BufferReservation, MemoryBudget, Reservation};
pub use meter::{BUCKETS, Histogram, Meter, WAIT_BUCKET_FACTOR};
use observations::Observations;
pub use observations::{LongWaits, Seen};

/// Is told at once what the rules for stale keys did, outside the lock. What jobs do is observed another way:
/// [`Engine::take_seen`].
pub trait OnCleanup: Send + Sync {
    /// They did something in the store on port `store`.
    fn cleaned_up(&self, store: u16, cleanup: Cleanup);
}

/// Where wake-ups for one connection are left.
#[derive(Debug)]
struct Mailbox {
    id: ConnId,
    woken: bool,
    /// Set while the connection waits.
    waker: Option<Waker>,
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
    /// The store's bytes as last told to the budget.
    budgeted: usize,
    cleanups: Vec<Cleanup>,
    observations: Observations,
    /// The last commit of this store: what anybody has seen of it is in there.
    commit: CommitNumber,
}

/// Where the changes of a store are kept.
#[derive(Debug)]
pub struct Kept {
    /// The journal.
    pub journal: Arc<Journal>,
    /// The store's number in it.
    pub store: StoreId,
    /// What the store held when the last server ended.
    pub image: Option<StoreImage>,
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

/// What came of a batch.
#[derive(Debug)]
pub struct Submitted {
    /// Requests applied, from the start of the batch. Fewer than given if the replies became too many to go on
    /// before they are sent, if others must have their turn, or if one was refused. The next one may be done in part:
    /// the next batch begins with it.
    pub applied: usize,
    /// Whether others must have their turn before the rest is applied.
    pub worked_enough: bool,
    /// Whether the connection has a wait outstanding: it will be woken through its waker.
    pub waiting: bool,
    /// Why the request after the applied ones was refused.
    pub refusal: Option<Refusal>,
}

impl Engine {
    /// Serves `store` on `port`. What it observes of jobs is kept for [`Self::take_seen`] if `observing`, and what changes
    /// in the journal of `kept`.
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
        };
        let journal = kept.as_ref().map(|kept| (Arc::clone(&kept.journal), kept.store));
        let engine = Arc::new(Self { port, clock, budget, on_cleanup, journal, state: Mutex::new(state) });
        if let Some(Kept { store: id, image, .. }) = kept {
            engine.keep(id, image.as_ref());
        }
        engine
    }

    /// Tells the journal what changes from now on, after the store was made what `image` says.
    fn keep(&self, id: StoreId, image: Option<&StoreImage>) {
        let Some(image) = image else { return self.lock().store.keep_rows(id) };
        self.change(None, |store, now, fx| store.restore(id, image, now, fx));
        // Numbers of connections that the journal may know are not given again.
        self.lock().serial = image.clients.keys().next_back().copied().unwrap_or(0);
        self.settle();
    }

    /// The store's number in the journal.
    pub fn journal_id(&self) -> Option<StoreId> {
        self.journal.as_ref().map(|(_, id)| *id)
    }

    /// Writes into the journal again what the store holds, as far as fits into one critical section. `false` when
    /// `walk` is through.
    pub fn copy(&self, walk: &mut Walk) -> bool {
        /// About a millisecond.
        const AT_ONCE: usize = 128 * 1024;
        let Some((journal, _)) = &self.journal else { return false };
        let mut goes_on = false;
        {
            let mut state = self.lock();
            journal.commit(|out| goes_on = state.store.copy_rows(walk, AT_ONCE, out));
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
        let mut state = self.lock();
        state.serial = state.serial.wrapping_add(1);
        let serial = state.serial;
        let entry = state.mailboxes.vacant_entry();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "each takes a descriptor, and a process has fewer than 2^32"
        )]
        let id = ConnId::new(entry.key() as u32, serial);
        entry.insert(Mailbox { id, woken: false, waker: None });
        state.store.connect(id, SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        Session { engine: Arc::clone(self), id, seen: Cell::default() }
    }

    /// Sizes at this moment.
    pub fn stats(&self) -> Stats {
        self.lock().store.stats()
    }

    /// What was counted so far.
    pub fn meter(&self) -> Meter {
        self.lock().meter.clone()
    }

    /// How long the oldest wait has lasted.
    pub fn oldest_wait(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.lock().store.oldest_wait(now)
    }

    /// Up to `most` outstanding waits, the oldest first.
    pub fn waits(&self, most: usize, keys_each: usize) -> Vec<WaitView> {
        let now = self.clock.now();
        self.lock().store.waits(now, most, keys_each)
    }

    /// What the store has observed since the last call, and the waits that are asked for.
    pub fn take_seen(&self, waits: Option<LongWaits>) -> Seen {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut seen = state.observations.take();
        seen.waits = waits.map(|LongWaits { at_least, most, keys_each }| {
            state.store.long_waits(now, at_least, most, keys_each).0
        });
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

    /// Drops what has been idle for long enough. Cheap when nothing is due.
    pub fn tick(&self) {
        let now = self.clock.now();
        if self.lock().store.next_deadline().is_some_and(|at| at <= now) {
            self.change(None, |store, now, fx| store.tick(now, fx));
        }
        self.settle();
    }

    /// Goes on with what is dropped step by step until nothing is left of it, with the lock free between the steps.
    fn settle(&self) {
        while self.lock().store.is_unsettled() {
            // The lock is not fair: a thread that waits for it must have time to wake up.
            std::thread::sleep(Duration::from_micros(100));
            self.change(None, |_, _, _| ());
        }
    }

    /// Runs a change that no request made; with it the connection `leaving` goes.
    fn change(
        &self,
        leaving: Option<ConnId>,
        change: impl FnOnce(&mut Store, Timestamp, &mut BatchEffects<'_>),
    ) {
        let now = self.clock.now();
        let mut wakers = Vec::new();
        let mut state = self.lock();
        let State { store, mailboxes, meter, cleanups, observations, .. } = &mut *state;
        let mut effects = BatchEffects {
            own: None,
            now,
            out: &mut ReplyBuffer::default(),
            mailboxes,
            meter,
            cleanups,
            observations,
            wakers: &mut wakers,
            counted: usize::MAX,
            reservation: None,
            budget: &self.budget,
        };
        store.begin(&mut effects);
        change(store, now, &mut effects);
        if let Some(id) = leaving {
            mailboxes.try_remove(id.slot());
        }
        self.finish(state, wakers);
    }

    /// Settles the books, unlocks, and then tells everybody else.
    #[inline]
    fn finish(&self, mut state: MutexGuard<'_, State>, wakers: Vec<Waker>) -> CommitNumber {
        #[expect(clippy::arithmetic_side_effects, reason = "bytes in memory")]
        let bytes = state.store.stats().bytes + state.observations.bytes();
        if bytes != state.budgeted {
            self.budget.adjust(state.budgeted, bytes);
            state.budgeted = bytes;
        }
        let cleanups = std::mem::take(&mut state.cleanups);
        if let Some((journal, _)) = &self.journal
            && state.store.has_rows()
        {
            let State { store, commit, .. } = &mut *state;
            *commit = journal.commit(|out| store.take_rows(out));
        }
        let commit = state.commit;
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

/// The engine's end of one connection. Dropping it disconnects.
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

    /// Applies a batch of requests, each with its length on the wire, in order and in one critical section, and
    /// appends the replies to `out`, after a wake-up that came in between.
    ///
    /// `cannot_cancel` is for clients of PyTorch 2.0, which on a time-out simply go on: a request other than
    /// CANCEL_WAIT then ends the outstanding wait, so that its late wake-up cannot shift the replies.
    pub fn submit(
        &self,
        batch: &[(Request<'_>, usize)],
        cannot_cancel: bool,
        out: &mut ReplyBuffer,
        waker: &Waker,
    ) -> Submitted {
        let now = self.engine.clock.now();
        let mut submitted = Submitted { applied: 0, worked_enough: false, waiting: false, refusal: None };
        let mut wakers = Vec::new();
        let mut state = self.engine.lock();
        let room = self.engine.budget.room();
        let State { store, mailboxes, meter, cleanups, observations, budgeted, .. } = &mut *state;
        store.capacity.bytes = budgeted.saturating_add(room).saturating_sub(observations.bytes());
        let unsent = out.len();
        let own = &mut mailboxes[self.id.slot()];
        if std::mem::take(&mut own.woken) {
            out.push(Reply::StopWaiting);
        }
        let own = Some(self.id);
        let mut effects = BatchEffects {
            own,
            now,
            out,
            mailboxes,
            meter,
            cleanups,
            observations,
            wakers: &mut wakers,
            counted: Self::REPLIES_AT_ONCE,
            reservation: None,
            budget: &self.engine.budget,
        };
        store.begin(&mut effects);
        for (request, len) in batch {
            if cannot_cancel && !matches!(request, Request::CancelWait) {
                store.abandon_wait(self.id);
            }
            let cancelled = match request {
                Request::CancelWait => store.waiting_since(self.id),
                _ => None,
            };
            match store.apply(self.id, request, now, &mut effects) {
                Ok(Progress::Done) => {}
                Ok(Progress::Begun) => {
                    submitted.worked_enough = true;
                    break;
                }
                Err(refusal) => {
                    submitted.refusal = Some(refusal);
                    break;
                }
            }
            if let Some(since) = cancelled {
                effects.meter.waits.record(now.since(since));
            }
            submitted.applied = submitted.applied.saturating_add(1);
            effects.meter.received(*len);
            submitted.worked_enough = store.has_worked_enough();
            if submitted.worked_enough || effects.out.len() >= Self::REPLIES_AT_ONCE {
                break;
            }
        }
        submitted.waiting = store.waiting_since(self.id).is_some();
        meter.sent(out.len().saturating_sub(unsent));
        let own = &mut mailboxes[self.id.slot()];
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

    /// Whether what came of the last batch or wake-up may leave: the journal, if there is one, has all that it depends
    /// on. If not, the task is woken when it has.
    #[inline]
    pub fn poll_safe(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.engine.journal {
            Some((journal, _)) => journal.poll_safe(self.seen.get(), cx),
            None => Poll::Ready(()),
        }
    }

    /// Takes the wake-up that ends the outstanding wait, as a reply in `out`; `waker` is told when there is one.
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
