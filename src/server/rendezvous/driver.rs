//! Drives the native rendezvous: one lock around all runs, one timer for the next deadline, and the requests that wait
//! here until something has changed for them.
//!
//! A waiting request is one entry and one oneshot channel. It is woken once, by what it waits for, and then reads how it
//! stands. Nothing is awaited while the lock is held; opening and closing a store is, because no request may see a round
//! that is complete and has no store yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::config::ServerConfig;
use crate::core::ids::{Label, RunId, Timestamp};
use crate::core::rendezvous::barrier::{Arrival, ArrivalRefusal, ArrivalStanding, Barriers};
use crate::core::rendezvous::{
    Action, Decision, Fact, HeartbeatView, Join, JoinStanding, LeaveRequest, Rendezvous, Report, Round,
    RoundProgress, RunRefusal, RunSnapshot,
};
use crate::server::engine::{Clock, MemoryBudget, Reservation};
use crate::server::tcp::Throttle;
use crate::server::{Server, deadline_in};

/// Runs, barriers, gates and what is shown of them may each take this part of the memory.
pub(in crate::server) const RUNS_SHARE: usize = 8;

/// A complete round and what all its nodes are told alike.
#[derive(Debug)]
pub struct SharedRound {
    /// The round.
    pub round: Arc<Round>,
    /// The port of its workers' store.
    pub store_port: Option<u16>,
    listed: OnceLock<Bytes>,
}

impl SharedRound {
    /// What stays when nobody can ask for the nodes any more.
    fn without_nodes(&self) -> Self {
        let round = Round { participants: Vec::new(), ..(*self.round).clone() };
        Self { round: Arc::new(round), store_port: self.store_port, listed: OnceLock::new() }
    }

    /// The list of participants, made once for all that ask.
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
        /// How far it is.
        progress: RoundProgress,
        /// Whether the node has no place.
        redundant: bool,
    },
}

/// Why a request was not answered by its run.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The rendezvous turned it away.
    #[error(transparent)]
    Refused(#[from] RunRefusal),
    /// The barrier turned it away.
    #[error(transparent)]
    Barrier(#[from] ArrivalRefusal),
    /// A newer request of the same node took its place.
    #[error("a newer request of this node took the place of this one; are two processes using one node id?")]
    Replaced,
    /// The server is about to end.
    #[error("the server is stopping; try again in a moment")]
    Stopping,
}

/// What happened in the runs since it was last asked.
#[derive(Debug, Default)]
pub(in crate::server) struct RoundNews {
    /// The runs that changed as they are now, with the port of their round's store.
    pub(in crate::server) changed: Vec<(RunSnapshot, Option<u16>)>,
    /// The runs that are not known any more.
    pub(in crate::server) forgotten: Vec<RunId>,
    /// What there is to tell, in order.
    pub(in crate::server) told: Vec<(RunId, Fact, Timestamp)>,
    /// What was not kept.
    pub(in crate::server) lost: u64,
}

/// A request that waits here.
#[derive(Debug)]
struct Poll {
    ticket: u64,
    /// `None` once it is woken.
    tell: Option<oneshot::Sender<()>>,
}

impl Poll {
    fn wake(&mut self) {
        if let Some(tell) = self.tell.take() {
            // A request that is gone takes itself out.
            let _ = tell.send(());
        }
    }
}

/// What a waiting request is to be found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Waits {
    Join(RunId, Label),
    Barrier(Label, Label),
}

#[derive(Debug)]
struct State {
    core: Rendezvous,
    barriers: Barriers,
    /// The most that the runs may take of the memory, and the barriers.
    most_memory: usize,
    runs_memory: Reservation,
    barriers_memory: Reservation,
    polls: HashMap<Waits, Poll>,
    /// Heartbeats by run, because all of a run's are woken together.
    heartbeats: HashMap<RunId, HashMap<Label, Poll>>,
    rounds: HashMap<RunId, Arc<SharedRound>>,
    tickets: u64,
    told: Vec<(RunId, Fact, Timestamp)>,
    /// Facts that nobody took in time.
    lost: u64,
    /// When the timer will fire.
    armed: Option<Timestamp>,
}

/// All runs and barriers of the server.
#[derive(Debug)]
pub struct Rounds {
    clock: Clock,
    state: Mutex<State>,
    /// The next deadline has come nearer.
    sooner: Notify,
    /// Broken nodes could repeat their joins.
    throttle: Throttle,
}

impl Rounds {
    pub(in crate::server) fn new(config: &ServerConfig, clock: Clock, budget: &Arc<MemoryBudget>) -> Self {
        let state = State {
            core: Rendezvous::new(config.rendezvous, config.max_runs),
            most_memory: config.max_memory / RUNS_SHARE,
            runs_memory: budget.reservation(),
            barriers_memory: budget.reservation(),
            barriers: Barriers::new(config.rendezvous.patience(), config.max_runs),
            polls: HashMap::new(),
            heartbeats: HashMap::new(),
            rounds: HashMap::new(),
            tickets: 0,
            told: Vec::new(),
            lost: 0,
            armed: None,
        };
        Self { clock, state: Mutex::new(state), sooner: Notify::new(), throttle: Throttle::new(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| {
            tracing::error!("the rendezvous is broken by an earlier panic; the process ends");
            std::process::abort()
        })
    }

    /// Joins, and waits up to `wait` for the round. Dropped, it keeps the node's place for the keep-alive's time.
    pub async fn join(
        &self,
        server: &Server,
        run: &RunId,
        join: Join,
        wait: Duration,
    ) -> Result<Joined, Ended> {
        if server.is_stopping() {
            return Err(Ended::Stopping);
        }
        let until = deadline_in(wait);
        let node = join.node.clone();
        let key = Waits::Join(run.clone(), node.clone());
        let (waiting, parked) = {
            let mut state = self.lock();
            let now = self.clock.now();
            state.limit_runs();
            let joined = state.core.join(run, join, now);
            if joined.is_ok() {
                // Whatever waits here for this node is an older request.
                state.polls.remove(&key);
                if let Some(polls) = state.heartbeats.get_mut(run) {
                    polls.remove(&node);
                }
            }
            self.carry_out(&mut state, server);
            if let Err(refusal) = &joined {
                self.log_refusal(run, &node, refusal);
            }
            if let Some(done) = state.joined(run, &node, joined, None)? {
                return Ok(done);
            }
            state.core.park(run, &node);
            let waiting = state.enter(key.clone());
            (waiting.0, Parked { rounds: self, key, ticket: waiting.1 })
        };
        let woken = tokio::time::timeout_at(until, waiting).await;
        if matches!(woken, Ok(Err(_))) {
            return Err(Ended::Replaced);
        }
        let mut state = self.lock();
        let standing = state.core.standing(run, &node);
        let done = state.joined(run, &node, standing, Some(self.clock.now()));
        drop(state);
        drop(parked);
        match done {
            // Whoever stands behind this server next forms the round anew.
            Ok(Some(Joined::Waiting { .. })) | Err(Ended::Refused(RunRefusal::NoStore { .. }))
                if server.is_stopping() =>
            {
                Err(Ended::Stopping)
            }
            done => done?.ok_or(Ended::Replaced),
        }
    }

    /// Takes a heartbeat, and waits up to `wait` while there is nothing else to do than `seen`.
    pub async fn heartbeat(
        &self,
        server: &Server,
        run: &RunId,
        report: Report,
        seen: Action,
        wait: Duration,
    ) -> Result<HeartbeatView, Ended> {
        let until = deadline_in(wait);
        let (node, round) = (report.node.clone(), report.place.round);
        let mut view = {
            let mut state = self.lock();
            state.limit_runs();
            let view = state.core.heartbeat(run, report, self.clock.now());
            self.carry_out(&mut state, server);
            view?
        };
        while view.action == seen && Instant::now() < until {
            let (waiting, parked) = {
                let mut state = self.lock();
                // It may have changed since it was looked at.
                view = state.core.action(run, &node, round);
                if view.action != seen {
                    break;
                }
                let counts = state.core.park_in_round(run, &node, round);
                let (waiting, ticket) = state.enter_heartbeat(run, &node);
                (waiting, ParkedHeartbeat { rounds: self, run, node: &node, ticket, counts })
            };
            let woken = tokio::time::timeout_at(until, waiting).await;
            drop(parked);
            if matches!(woken, Ok(Err(_))) {
                // A newer heartbeat or join of the node is here.
                return Ok(self.lock().core.action(run, &node, round));
            }
            view = self.lock().core.action(run, &node, round);
        }
        Ok(view)
    }

    /// A node goes. `false` if it was not there.
    pub fn leave(&self, server: &Server, run: &RunId, node: &Label, said: LeaveRequest) -> bool {
        let mut state = self.lock();
        let left = state.core.leave(run, node, said, self.clock.now());
        self.carry_out(&mut state, server);
        left
    }

    /// Whether `node` is in the run.
    pub fn is_member(&self, run: &RunId, node: &Label) -> bool {
        self.lock().core.is_member(run, node)
    }

    /// Closes a run. `false` if it was closed already.
    pub fn close(&self, server: &Server, run: &RunId, by: &str) -> Result<bool, RunRefusal> {
        let mut state = self.lock();
        let closed = state.core.close(run, by, self.clock.now());
        self.carry_out(&mut state, server);
        closed
    }

    /// Moves the deadline of the round that forms; returns its number and the time left.
    pub fn extend(&self, server: &Server, run: &RunId, by: Duration) -> Result<(u64, Duration), RunRefusal> {
        let mut state = self.lock();
        let extended = state.core.extend(run, by, self.clock.now());
        self.carry_out(&mut state, server);
        extended
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
        let key = Waits::Barrier(name.clone(), participant.clone());
        let (waiting, parked) = {
            let mut state = self.lock();
            let standing = state.arrive(name, arrival, self.clock.now())?;
            // The same participant's older request.
            state.polls.remove(&key);
            let ArrivalStanding::Waiting { left, .. } = standing else { return Ok(standing) };
            state.barriers.park(name, &participant);
            let (waiting, ticket) = state.enter(key.clone());
            self.rearm(&mut state);
            let until = until.min(deadline_in(left));
            (tokio::time::timeout_at(until, waiting), Parked { rounds: self, key, ticket })
        };
        let woken = waiting.await;
        if matches!(woken, Ok(Err(_))) {
            return Err(Ended::Replaced);
        }
        let standing = self.lock().barriers.standing(name, &participant, &arrival_id, self.clock.now());
        drop(parked);
        Ok(standing?)
    }

    /// A run as it is now, with the port of its round's store.
    pub(in crate::server) fn snapshot(&self, run: &RunId) -> Option<(RunSnapshot, Option<u16>)> {
        self.lock().snapshot(run, self.clock.now())
    }

    /// What happened since the last call.
    pub(in crate::server) fn take_news(&self) -> RoundNews {
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

    /// The barriers that somebody waits at: how many have arrived, of how many.
    pub fn barriers(&self) -> Vec<(String, u32, u32)> {
        let state = self.lock();
        state.barriers.waiting().map(|(name, arrived, size)| (name.to_string(), arrived, size)).collect()
    }

    /// Closes a run and forgets it when its last node is gone. `false` if there is no such run.
    pub(in crate::server) fn remove(&self, server: &Server, run: &RunId, by: &str) -> bool {
        let mut state = self.lock();
        let removed = state.core.remove(run, by, self.clock.now());
        self.carry_out(&mut state, server);
        removed
    }

    /// The server stops: joins that wait are answered so.
    pub(in crate::server) fn stop(&self) {
        let mut state = self.lock();
        let joins = state.polls.iter_mut().filter(|(waits, _)| matches!(waits, Waits::Join(..)));
        joins.for_each(|(_, poll)| poll.wake());
    }

    /// Lets deadlines pass, for ever.
    pub(in crate::server) async fn keep_time(&self, server: &Server) {
        loop {
            let next = {
                let mut state = self.lock();
                state.armed = state.next_deadline();
                state.armed
            };
            let pause = next.map(|at| at.since(self.clock.now()));
            tokio::select! {
                () = self.sooner.notified() => continue,
                () = sleep(pause) => {}
            }
            let mut state = self.lock();
            state.core.tick(self.clock.now());
            state.barriers.tick(self.clock.now());
            let barriers = state.barriers.memory();
            state.barriers_memory.set(barriers);
            self.carry_out(&mut state, server);
        }
    }

    /// Does what the rendezvous has decided.
    fn carry_out(&self, state: &mut State, server: &Server) {
        loop {
            let decisions = state.core.take_decisions();
            if decisions.is_empty() {
                break;
            }
            for decision in decisions {
                match decision {
                    Decision::Completed(round) => self.complete(state, server, &round),
                    Decision::Ended(run, node) => state.wake(&Waits::Join(run, node)),
                    Decision::Notify(run) => {
                        state
                            .heartbeats
                            .get_mut(&run)
                            .into_iter()
                            .flatten()
                            .for_each(|(_, poll)| poll.wake());
                    }
                    Decision::Release(run) => {
                        if let Some(shared) = state.rounds.get(&run)
                            && let Some(port) = shared.store_port
                        {
                            server.release_of_round(port, &run, shared.round.number);
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
        let runs = state.core.memory();
        state.runs_memory.set(runs);
        self.rearm(state);
    }

    /// Wakes the timer if its deadline has come nearer.
    fn rearm(&self, state: &mut State) {
        let next = state.next_deadline();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            self.sooner.notify_one();
        }
    }

    /// Opens the round's store, closes the last round's, and wakes those who waited for it.
    fn complete(&self, state: &mut State, server: &Server, round: &Arc<Round>) {
        let (run, number) = (&round.run_id, round.number);
        let mut store_port = None;
        if round.terms.store {
            let held = round.participants.iter().any(|participant| participant.watched);
            match server.open_for_round(run, number, held) {
                Ok(port) => store_port = Some(port),
                Err(error) => {
                    state.core.no_store(run, &error.to_string(), self.clock.now());
                    return;
                }
            }
        }
        let shared = SharedRound { round: Arc::clone(round), store_port, listed: OnceLock::new() };
        let last = state.rounds.insert(run.clone(), Arc::new(shared));
        if let Some(last) = last
            && let Some(port) = last.store_port
        {
            server.close_of_round(port, run, last.round.number);
        }
        for participant in &round.participants {
            state.wake(&Waits::Join(run.clone(), participant.node.clone()));
        }
    }

    fn log_refusal(&self, run: &RunId, node: &Label, refusal: &RunRefusal) {
        if let Some(held_back) = self.throttle.pass(0) {
            let code = refusal.code();
            tracing::warn!(run.id = %run, %node, code, held_back, "turned away a join: {refusal}");
        }
    }
}

async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

impl State {
    /// Keeps a fact for whoever shows the runs.
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
        let port = shared.and_then(|shared| shared.store_port);
        Some((snapshot, port))
    }

    /// Registers a waiting request, in place of an older one of the same.
    fn enter(&mut self, key: Waits) -> (oneshot::Receiver<()>, u64) {
        let (poll, waiting, ticket) = self.poll();
        self.polls.insert(key, poll);
        (waiting, ticket)
    }

    fn enter_heartbeat(&mut self, run: &RunId, node: &Label) -> (oneshot::Receiver<()>, u64) {
        let (poll, waiting, ticket) = self.poll();
        self.heartbeats.entry(run.clone()).or_default().insert(node.clone(), poll);
        (waiting, ticket)
    }

    fn poll(&mut self) -> (Poll, oneshot::Receiver<()>, u64) {
        let (tell, waiting) = oneshot::channel();
        self.tickets = self.tickets.wrapping_add(1);
        (Poll { ticket: self.tickets, tell: Some(tell) }, waiting, self.tickets)
    }

    /// Runs may grow by what is left of their part, and of the whole.
    fn limit_runs(&mut self) {
        self.core.limit_memory(self.most_memory.min(self.runs_memory.most()));
    }

    /// Arrives at a barrier. Barriers may grow like runs.
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
            self.wake(&Waits::Barrier(name.clone(), other));
        }
        Ok(standing)
    }

    fn wake(&mut self, key: &Waits) {
        if let Some(poll) = self.polls.get_mut(key) {
            poll.wake();
        }
    }

    /// The answer to a join that stands so; one that waits is answered only if `now` is given.
    fn joined(
        &mut self,
        run: &RunId,
        node: &Label,
        standing: Result<JoinStanding, RunRefusal>,
        now: Option<Timestamp>,
    ) -> Result<Option<Joined>, Ended> {
        // Completing may have failed for want of a store after the join was taken.
        let standing = standing.and_then(|_| self.core.standing(run, node))?;
        let redundant = match standing {
            JoinStanding::Complete { round, rank } => {
                // A round that was learned after a restart has no answer any more: its join was answered long ago.
                let shared = self.rounds.get(run).filter(|shared| shared.round.number == round.number);
                let shared = Arc::clone(shared.ok_or(RunRefusal::UnknownRun)?);
                return Ok(Some(Joined::Complete { shared, rank }));
            }
            JoinStanding::Redundant => true,
            JoinStanding::Waiting => false,
        };
        let progress = now.and_then(|now| self.core.progress(run, node, now));
        Ok(progress.map(|progress| Joined::Waiting { progress, redundant }))
    }
}

/// A request that waits for a round or a barrier. Dropped, also because its connection broke, it is over.
struct Parked<'a> {
    rounds: &'a Rounds,
    key: Waits,
    ticket: u64,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        if state.polls.get(&self.key).is_none_or(|poll| poll.ticket != self.ticket) {
            return;
        }
        state.polls.remove(&self.key);
        let now = self.rounds.clock.now();
        match &self.key {
            Waits::Join(run, node) => state.core.unpark(run, node, now),
            Waits::Barrier(name, participant) => state.barriers.unpark(name, participant, now),
        }
        self.rounds.rearm(&mut state);
    }
}

/// A heartbeat that waits.
struct ParkedHeartbeat<'a> {
    rounds: &'a Rounds,
    run: &'a RunId,
    node: &'a Label,
    ticket: u64,
    /// Whether it says that the node is alive: not if the node is elsewhere by now.
    counts: bool,
}

impl Drop for ParkedHeartbeat<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        let Some(polls) = state.heartbeats.get_mut(self.run) else { return };
        if polls.get(self.node).is_none_or(|poll| poll.ticket != self.ticket) {
            return;
        }
        polls.remove(self.node);
        if polls.is_empty() {
            state.heartbeats.remove(self.run);
        }
        if self.counts {
            state.core.unpark(self.run, self.node, self.rounds.clock.now());
            self.rounds.rearm(&mut state);
        }
    }
}
