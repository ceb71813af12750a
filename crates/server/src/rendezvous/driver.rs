//! Drives the native rendezvous: one lock around all runs, one timer for the next deadline, and the requests
//! that wait here for a change. Nothing is awaited or logged while the lock is held. But stores are opened
//! and closed under it, because no request may see a complete round without its store.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::kept;
use super::parking::{Awaited, Parking, Ticket, Woken};
use crate::clock::{self, Clock, deadline_in, within};
use crate::engine::Reservation;
use crate::journal::Journal;
use crate::limits::RUNS_SHARE;
use crate::observe::expectations;
use crate::stores::{HostLine, RoundStore, StoreHost};
use crate::tcp::Throttle;
use rallypoint_insight::Expectation;
use rallypoint_journal::Image;
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{Label, Nodes, RunId, Timestamp};
use rallypoint_rendezvous::barrier::{Arrival, ArrivalRefusal, ArrivalStanding, Barriers, OpenBarrier};
use rallypoint_rendezvous::{
    Action, Decision, Fact, HeartbeatView, Join, JoinStanding, LeaveRequest, Rendezvous, Report, Round,
    RoundProgress, RunRefusal, RunSnapshot, Unfit, Who,
};

/// A complete round, and the part of the answer that all its nodes share.
#[derive(Debug)]
pub struct SharedRound {
    /// The round.
    pub round: Arc<Round>,
    /// The store of its workers.
    store: Option<RoundStore>,
    listed: OnceLock<Bytes>,
}

impl SharedRound {
    /// The part that stays when no node can ask for the round any more.
    fn without_nodes(&self) -> Self {
        let round = Round { participants: Vec::new(), ..(*self.round).clone() };
        Self { round: Arc::new(round), store: self.store.clone(), listed: OnceLock::new() }
    }

    /// The port of the workers' store.
    pub fn store_port(&self) -> Option<u16> {
        self.store.as_ref().map(RoundStore::port)
    }

    /// The list of participants, made once for all nodes.
    pub fn listed(&self, make: impl FnOnce(&Round) -> Bytes) -> Bytes {
        self.listed.get_or_init(|| make(&self.round)).clone()
    }
}

/// Answer to a join.
#[derive(Debug)]
pub enum Joined {
    /// The round is complete.
    Complete {
        /// The round.
        shared: Arc<SharedRound>,
        /// The node's rank.
        rank: u32,
    },
    /// Not yet.
    Waiting {
        /// The progress of the round.
        progress: RoundProgress,
        /// Whether the node is redundant, because all places of the round are taken.
        redundant: bool,
    },
}

/// Why a request got no answer from its run.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The rendezvous refused it.
    #[error(transparent)]
    Refused(#[from] RunRefusal),
    /// The barrier refused it.
    #[error(transparent)]
    Barrier(#[from] ArrivalRefusal),
    /// A newer request of the same node replaced it.
    #[error("a newer request of this node took the place of this one; are two processes using one node id?")]
    Replaced,
    /// The server is about to end.
    #[error("the server is stopping; try again in a moment")]
    Stopping,
}

/// The events in the runs since the last call.
#[derive(Debug, Default)]
pub struct RoundNews {
    /// The changed runs, as they are now, each with the port of its round's store.
    pub changed: Vec<(RunSnapshot, Option<u16>)>,
    /// The forgotten runs.
    pub forgotten: Vec<RunId>,
    /// The facts, in order.
    pub told: Vec<(RunId, Fact, Timestamp)>,
    /// How many facts were dropped.
    pub lost: u64,
}

#[derive(Debug)]
struct State {
    core: Rendezvous,
    barriers: Barriers,
    /// The most memory that the runs may use; the barriers have an equal limit.
    most_memory: usize,
    runs_memory: Reservation,
    barriers_memory: Reservation,
    parking: Parking,
    rounds: HashMap<RunId, Arc<SharedRound>>,
    told: Vec<(RunId, Fact, Timestamp)>,
    /// How many facts were dropped because nobody took them in time.
    lost: u64,
    /// When the timer will fire.
    armed: Option<Timestamp>,
}

/// A line for the log.
#[derive(Debug)]
enum Line {
    /// A join was refused.
    TurnedAway { run: RunId, node: Label, refusal: RunRefusal },
    /// A line about the server's stores.
    Stores(HostLine),
}

/// Lines that are logged after the unlock.
#[derive(Debug)]
struct Unsaid<'a> {
    lines: Vec<Line>,
    /// Limits repeated joins of broken nodes.
    throttle: &'a Throttle,
}

impl Drop for Unsaid<'_> {
    fn drop(&mut self) {
        for line in self.lines.drain(..) {
            match line {
                Line::TurnedAway { run, node, refusal } => {
                    if let Some(held_back) = self.throttle.pass(0) {
                        let code = refusal.code();
                        tracing::warn!(run.id = %run, %node, code, held_back, "refused a join: {refusal}");
                    }
                }
                Line::Stores(line) => line.log(),
            }
        }
    }
}

/// All runs under their lock. The lines are logged after the unlock: fields are dropped in this order.
#[derive(Debug)]
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    unsaid: Unsaid<'a>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// All runs and barriers of the server.
#[derive(Debug)]
pub struct Rounds {
    clock: Clock,
    /// Opens the rounds' stores.
    stores: Arc<StoreHost>,
    state: Mutex<State>,
    /// Notified when the next deadline has come nearer.
    sooner: Notify,
    throttle: Throttle,
}

impl Rounds {
    /// Restores the runs of the last server. The stores must be restored before.
    pub fn new(stores: Arc<StoreHost>, clock: Clock, before: &Image) -> Self {
        let (config, budget) = (stores.config(), stores.budget());
        let mut state = State {
            core: Rendezvous::new(config.rendezvous, config.max_runs),
            most_memory: config.max_memory / RUNS_SHARE,
            runs_memory: budget.reservation(),
            barriers_memory: budget.reservation(),
            barriers: Barriers::new(config.rendezvous.patience(), config.max_runs),
            parking: Parking::default(),
            rounds: HashMap::default(),
            told: Vec::new(),
            lost: 0,
            armed: None,
        };
        if stores.journal().is_some() {
            state.core.keep_changes();
            state.barriers.keep_changes();
            for (run, expectation) in expectations(before) {
                let Expectation { min, max, .. } = expectation;
                // The run has no nodes yet, so the expectation cannot contradict them.
                let _ = state.core.expect(&RunId::new(run.as_bytes()), Nodes { min, max }, clock.now());
            }
            kept::restore_barriers(&mut state.barriers, before, clock.now());
            for (run, round, store) in kept::restore(&mut state.core, before, &stores, clock.now()) {
                let shared = SharedRound { round, store, listed: OnceLock::new() };
                state.rounds.insert(run, Arc::new(shared));
            }
            state.runs_memory.set(state.core.memory());
            state.barriers_memory.set(state.barriers.memory());
        }
        Self { clock, stores, state: Mutex::new(state), sooner: Notify::new(), throttle: Throttle::new(1) }
    }

    fn lock(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(|_| {
            tracing::error!("the rendezvous is broken by an earlier panic; the process ends");
            std::process::abort()
        });
        Locked { state, unsaid: Unsaid { lines: Vec::new(), throttle: &self.throttle } }
    }

    /// Joins, and waits up to `wait` for the round. If this future is dropped, the node keeps its place for
    /// the keep-alive time.
    pub async fn join(&self, run: &RunId, join: Join, wait: Duration) -> Result<Joined, Ended> {
        if self.stores.is_stopping() {
            return Err(Ended::Stopping);
        }
        let until = deadline_in(wait);
        let node = join.node.clone();
        let mut parked = {
            let mut state = self.lock();
            state.limit_runs();
            let joined = state.core.join(run, join, self.clock.now());
            if joined.is_ok() {
                // A waiting request of this node is older.
                state.parking.replace(&Awaited::Round(run.clone()), &node);
                state.parking.replace(&Awaited::Change(run.clone()), &node);
            }
            self.carry_out(&mut state);
            if let Err(refusal) = joined {
                if !refusal.is_told_with_the_run() {
                    let line = Line::TurnedAway { run: run.clone(), node, refusal: refusal.clone() };
                    state.unsaid.lines.push(line);
                }
                return Err(refusal.into());
            }
            match state.core.standing(run, &node)? {
                JoinStanding::Complete { round, rank } => return Ok(state.complete(run, &round, rank)?),
                JoinStanding::Redundant | JoinStanding::Waiting => {}
            }
            let counts = state.core.park(run, &node);
            self.park(&mut state, Awaited::Round(run.clone()), &node, counts)
        };
        if parked.wait(until).await == Woken::Replaced {
            return Err(Ended::Replaced);
        }
        let answer = self.answer(run, &node);
        drop(parked);
        match answer {
            // The next server at this address forms the round anew.
            Ok(Joined::Waiting { .. }) | Err(Ended::Refused(RunRefusal::NoStore { .. }))
                if self.stores.is_stopping() =>
            {
                Err(Ended::Stopping)
            }
            answer => answer,
        }
    }

    /// The answer to a join at the end of its wait.
    fn answer(&self, run: &RunId, node: &Label) -> Result<Joined, Ended> {
        let state = self.lock();
        let standing = state.core.standing(run, node)?;
        if let JoinStanding::Complete { round, rank } = standing {
            return Ok(state.complete(run, &round, rank)?);
        }
        let progress = state.core.progress(run, node, self.clock.now()).ok_or(Ended::Replaced)?;
        Ok(Joined::Waiting { progress, redundant: standing == JoinStanding::Redundant })
    }

    /// Takes a heartbeat, and waits while the action is still `seen`: up to `wait`, and no longer than the
    /// run's keep-alive allows.
    pub async fn heartbeat(
        &self,
        run: &RunId,
        report: Report,
        seen: Action,
        wait: Duration,
    ) -> Result<HeartbeatView, Ended> {
        let (node, round) = (report.node.clone(), report.place.round);
        let (mut view, until) = {
            let mut state = self.lock();
            state.limit_runs();
            let view = state.core.heartbeat(run, report, self.clock.now());
            self.carry_out(&mut state);
            (view?, deadline_in(wait.min(state.core.hold(run))))
        };
        while view.action == seen && clock::now() < until {
            let mut parked = {
                let mut state = self.lock();
                // The action may have changed in between.
                view = state.core.action(run, &node, round);
                if view.action != seen {
                    break;
                }
                let counts = state.core.park_in_round(run, &node, round);
                self.park(&mut state, Awaited::Change(run.clone()), &node, counts)
            };
            let woken = parked.wait(until).await;
            drop(parked);
            view = self.lock().core.action(run, &node, round);
            if woken == Woken::Replaced {
                // A newer heartbeat or join of the node replaced this one.
                break;
            }
        }
        Ok(view)
    }

    /// Removes a node from its run. `false` if it was not there.
    pub fn leave(&self, run: &RunId, node: &Label, said: LeaveRequest) -> bool {
        let mut state = self.lock();
        let left = state.core.leave(run, node, said, self.clock.now());
        self.carry_out(&mut state);
        left
    }

    /// The identity of `node`, if it is in the run.
    pub fn member(&self, run: &RunId, node: &Label) -> Option<Who> {
        self.lock().core.member(run, node)
    }

    /// Closes a run. `false` if it was closed already.
    pub fn close(&self, run: &RunId, by: &str) -> Result<bool, RunRefusal> {
        let mut state = self.lock();
        let closed = state.core.close(run, by, self.clock.now());
        self.carry_out(&mut state);
        closed
    }

    /// Moves the deadline of the forming round. Returns its number and the time left.
    pub fn extend(&self, run: &RunId, by: Duration) -> Result<(u64, Duration), RunRefusal> {
        let mut state = self.lock();
        let extended = state.core.extend(run, by, self.clock.now());
        self.carry_out(&mut state);
        extended
    }

    /// Sets how many nodes an operator expects in the rounds of a run. Returns the effect, in words, if the
    /// run is known.
    pub fn expect(&self, run: &RunId, nodes: Nodes) -> Result<Option<String>, Unfit> {
        let mut state = self.lock();
        let comes = state.core.expect(run, nodes, self.clock.now());
        self.carry_out(&mut state);
        comes
    }

    /// Arrives at a barrier, and waits up to `wait` for the others.
    pub async fn arrive(
        &self,
        name: &Label,
        arrival: Arrival,
        wait: Duration,
    ) -> Result<ArrivalStanding, Ended> {
        let until = deadline_in(wait);
        let (participant, arrival_id) = (arrival.participant.clone(), arrival.arrival_id.clone());
        let (mut parked, until) = {
            let mut state = self.lock();
            let standing = state.arrive(name, arrival, self.clock.now());
            self.keep(&mut state);
            let standing = standing?;
            let awaited = Awaited::Release(name.clone());
            // Replaces an older request of this participant.
            state.parking.replace(&awaited, &participant);
            let ArrivalStanding::Waiting { left, .. } = standing else { return Ok(standing) };
            let counts = state.barriers.park(name, &participant);
            let parked = self.park(&mut state, awaited, &participant, counts);
            self.rearm(&mut state);
            (parked, until.min(deadline_in(left)))
        };
        if parked.wait(until).await == Woken::Replaced {
            return Err(Ended::Replaced);
        }
        let standing = self.lock().barriers.standing(name, &participant, &arrival_id, self.clock.now());
        drop(parked);
        Ok(standing?)
    }

    /// A run as it is now, with the port of its round's store.
    pub fn snapshot(&self, run: &RunId) -> Option<(RunSnapshot, Option<u16>)> {
        self.lock().snapshot(run, self.clock.now())
    }

    /// The events since the last call.
    pub fn take_news(&self) -> RoundNews {
        let mut state = self.lock();
        let now = self.clock.now();
        let (told, lost) = (std::mem::take(&mut state.told), std::mem::take(&mut state.lost));
        let mut news = RoundNews { told, lost, ..RoundNews::default() };
        for run in state.core.take_changed() {
            match state.snapshot(&run, now) {
                Some(snapshot) => news.changed.push(snapshot),
                None => news.forgotten.push(run),
            }
        }
        news
    }

    /// Shows the runs to a simulation.
    #[cfg(any(test, feature = "sim"))]
    pub fn inspect<T>(&self, look: impl FnOnce(&Rendezvous, &mut Barriers) -> T) -> T {
        let state = &mut *self.lock();
        look(&state.core, &mut state.barriers)
    }

    /// The barriers with waiting participants: their names, how many have arrived, and of how many.
    pub fn barriers(&self) -> Vec<(String, u32, u32)> {
        let state = self.lock();
        state.barriers.waiting().map(|(name, arrived, size)| (name.to_string(), arrived, size)).collect()
    }

    /// The barriers with waiting participants, and who has arrived.
    pub fn open_barriers(&self) -> Vec<OpenBarrier> {
        self.lock().barriers.open(self.clock.now())
    }

    /// Closes a run and forgets it when its last node is gone. `false` if there is no such run.
    pub fn remove(&self, run: &RunId, by: &str) -> bool {
        let mut state = self.lock();
        let removed = state.core.remove(run, by, self.clock.now());
        self.carry_out(&mut state);
        removed
    }

    /// The server stops: wakes the waiting joins, which then answer that.
    pub fn stop(&self) {
        self.lock().parking.wake_joins();
    }

    /// Acts at each deadline, for ever.
    pub async fn keep_time(&self) {
        loop {
            let next = {
                let mut state = self.lock();
                state.armed = state.next_deadline();
                state.armed
            };
            let pause = next.map_or(Duration::MAX, |at| at.since(self.clock.now()));
            if within(deadline_in(pause), self.sooner.notified()).await.is_some() {
                continue;
            }
            let mut state = self.lock();
            state.core.tick(self.clock.now());
            state.barriers.tick(self.clock.now());
            let barriers = state.barriers.memory();
            state.barriers_memory.set(barriers);
            self.carry_out(&mut state);
        }
    }

    /// Parks a request. If it `counts`, the core takes the waiting request as a sign of life.
    fn park(&self, state: &mut State, awaited: Awaited, who: &Label, counts: bool) -> Parked<'_> {
        Parked { rounds: self, ticket: state.parking.park(awaited, who), counts, is_answered: false }
    }

    /// Carries out the decisions of the rendezvous.
    fn carry_out(&self, state: &mut Locked<'_>) {
        let mut over = Vec::new();
        loop {
            let decisions = state.core.take_decisions();
            if decisions.is_empty() {
                break;
            }
            for decision in decisions {
                match decision {
                    Decision::Completed(round) => over.extend(self.complete(state, &round)),
                    Decision::Ended(run, node) => state.parking.wake(&Awaited::Round(run), &node),
                    Decision::Notify(run) => state.parking.wake_all(&Awaited::Change(run)),
                    Decision::Release(run) => {
                        if let Some(store) = state.rounds.get(&run).and_then(|shared| shared.store.as_ref()) {
                            self.stores.release(store);
                        }
                    }
                    Decision::Dissolved(run) => {
                        if let Some(shared) = state.rounds.get_mut(&run) {
                            *shared = Arc::new(shared.without_nodes());
                        }
                    }
                    Decision::Forget(run) => {
                        state.rounds.remove(&run);
                    }
                    Decision::Tell(run, fact) => state.tell(run, fact, self.clock.now()),
                }
            }
        }
        self.keep(state);
        // The journal must have the new round before the store of its predecessor is closed. Otherwise the
        // next server would miss that store, and treat the old round as one that never was.
        for shared in over {
            if let Some(store) = &shared.store {
                self.stores.close_of_round(store);
            }
        }
        let runs = state.core.memory();
        state.runs_memory.set(runs);
        self.rearm(state);
    }

    /// Appends the changes to the journal.
    fn keep(&self, state: &mut State) {
        let Some(journal) = self.stores.journal() else { return };
        let (runs, barriers) = (state.core.take_kept(), state.barriers.take_kept());
        if !runs.is_empty() || !barriers.is_empty() {
            // Encode the rows first: stores wait while a commit is queued.
            let mut rows = Vec::new();
            for change in &runs {
                kept::put(change, &mut rows);
            }
            for (name, release) in &barriers {
                kept::put_barrier(name, release.as_ref(), &mut rows);
            }
            journal.commit(|out| out.append(&mut rows));
        }
    }

    /// Copies the runs and barriers into the journal again, one after the other.
    pub async fn copy(&self) {
        let Some(journal) = self.stores.journal() else { return };
        let runs = self.lock().core.run_ids();
        for run in runs {
            self.copy_run(journal, &run);
            journal.write_queued();
            tokio::task::yield_now().await;
        }
        let barriers = self.lock().barriers.names();
        for name in barriers {
            self.copy_barrier(journal, &name);
            tokio::task::yield_now().await;
        }
    }

    fn copy_run(&self, journal: &Journal, run: &RunId) {
        // Under the lock: a stale copy must not follow a newer change in the journal.
        let mut state = self.lock();
        if let Some(change) = state.core.kept(run) {
            let mut rows = Vec::new();
            kept::put(&change, &mut rows);
            journal.commit(|out| out.append(&mut rows));
        }
    }

    fn copy_barrier(&self, journal: &Journal, name: &Label) {
        let state = self.lock();
        if let Some(release) = state.barriers.kept(name) {
            journal.commit(|out| kept::put_barrier(name, Some(&release), out));
        }
    }

    /// Wakes the timer if its deadline has come nearer.
    fn rearm(&self, state: &mut State) {
        let next = state.next_deadline();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            self.sooner.notify_one();
        }
    }

    /// Opens the round's store, and wakes the joins that waited for the round. Returns the previous round,
    /// whose store must be closed.
    fn complete(&self, state: &mut Locked<'_>, round: &Arc<Round>) -> Option<Arc<SharedRound>> {
        let mut store = None;
        if round.terms.store {
            let held = round.participants.iter().any(|participant| participant.watched);
            let mut said = Vec::new();
            let opened = self.stores.open_for_round(&round.run_id, round.number, held, &mut said);
            state.unsaid.lines.extend(said.into_iter().map(Line::Stores));
            match opened {
                Ok(opened) => store = Some(opened),
                Err(error) => {
                    state.core.no_store(&round.run_id, &error.to_string(), self.clock.now());
                    return None;
                }
            }
        }
        let shared = SharedRound { round: Arc::clone(round), store, listed: OnceLock::new() };
        let last = state.rounds.insert(round.run_id.clone(), Arc::new(shared));
        let awaited = Awaited::Round(round.run_id.clone());
        for participant in &round.participants {
            state.parking.wake(&awaited, &participant.node);
        }
        last
    }
}

impl State {
    /// Keeps a fact for insight, which shows the runs.
    fn tell(&mut self, run: RunId, fact: Fact, now: Timestamp) {
        const MOST: usize = 16_384;
        if self.told.len() < MOST {
            self.told.push((run, fact, now));
        } else {
            self.lost = self.lost.saturating_add(1);
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.core.next_deadline().into_iter().chain(self.barriers.next_deadline()).min()
    }

    fn snapshot(&self, run: &RunId, now: Timestamp) -> Option<(RunSnapshot, Option<u16>)> {
        let snapshot = self.core.snapshot_of(run, now)?;
        let shared = self.rounds.get(run).filter(|shared| shared.round.number == snapshot.round);
        let port = shared.and_then(|shared| shared.store_port());
        Some((snapshot, port))
    }

    /// Limits the growth of the runs to the rest of their share, and of all memory.
    fn limit_runs(&mut self) {
        self.core.limit_memory(self.most_memory.min(self.runs_memory.most()));
    }

    /// Arrives at a barrier. The growth of barriers is limited like the growth of runs.
    fn arrive(
        &mut self,
        name: &Label,
        arrival: Arrival,
        now: Timestamp,
    ) -> Result<ArrivalStanding, ArrivalRefusal> {
        self.barriers.limit_memory(self.most_memory.min(self.barriers_memory.most()));
        let arrived = self.barriers.arrive(name, arrival, now);
        self.barriers_memory.set(self.barriers.memory());
        let (standing, woken) = arrived?;
        for other in woken {
            self.parking.wake(&Awaited::Release(name.clone()), &other);
        }
        Ok(standing)
    }

    /// The answer to a node whose round is complete.
    fn complete(&self, run: &RunId, round: &Round, rank: u32) -> Result<Joined, RunRefusal> {
        // A round that was taken over after a restart has no answer: its joins were answered long ago.
        let shared = self.rounds.get(run).filter(|shared| shared.round.number == round.number);
        let shared = Arc::clone(shared.ok_or(RunRefusal::UnknownRun)?);
        Ok(Joined::Complete { shared, rank })
    }
}

/// A waiting request. It ends with its drop, also when its connection breaks.
struct Parked<'a> {
    rounds: &'a Rounds,
    ticket: Ticket,
    /// Whether it counts as a sign of life: not if the node waits in another request by now.
    counts: bool,
    /// Whether it has waited to the end. If not, its connection broke.
    is_answered: bool,
}

impl Parked<'_> {
    /// Waits until it is woken, or until the deadline.
    async fn wait(&mut self, until: Instant) -> Woken {
        let woken = self.ticket.wait(until).await;
        self.is_answered = true;
        woken
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        if !state.parking.leave(&self.ticket) || !self.counts {
            return;
        }
        let (who, now) = (&self.ticket.who, self.rounds.clock.now());
        match &self.ticket.awaited {
            Awaited::Round(run) | Awaited::Change(run) if self.is_answered => {
                state.core.unpark(run, who, now);
            }
            Awaited::Round(run) | Awaited::Change(run) => state.core.cut(run, who, now),
            Awaited::Release(barrier) => state.barriers.unpark(barrier, who, now),
        }
        // The removal may have made a decision due.
        self.rounds.carry_out(&mut state);
    }
}
