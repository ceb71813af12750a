//! The native rendezvous: which nodes form the next round of a run, with which ranks, and until when.
//!
//! A pure function of what happened and when: it reads no clock, locks and logs nothing, and knows neither
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)]
//! HTTP nor the store. `server::rendezvous` gives it events with the present time and carries out its
//! [`Decision`]s.
//!
//! A *run* is one job. Its nodes join a round, which *forms* until it has enough nodes. Then the *round* is
//! complete, and each node has a rank. Nodes that come later wait for the next round. When nodes wait, or a
//! node of the round is lost or joins again, the other nodes are told to join again. The next round is
//! complete when no node of the last round is expected any more. While a round lives, no other round of its
//! run is complete.

mod absent;
mod adoption;
pub mod barrier;
mod expected;
mod forming;
pub mod gate;
mod join;
mod kept;
mod looks;
mod node;
mod reason;
mod redundant;
mod round;
mod run;
mod snapshot;
mod successor;
mod terms;

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

pub use absent::{Absent, Fate};
pub use adoption::Report;
pub use expected::Unfit;
pub use kept::{KeptChange, MemberRecord, RunRecord};
pub use node::{Join, LeaveRequest, LongPayload, NodeInfo, Outcome, Payload, RankInRound};
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{Label, RunId, Timestamp};
use reason::Break;
pub use reason::{Did, Fact, RunRefusal, Sign, What, Who, Why};
pub use round::{Participant, Round};
use run::Run;
pub use run::{Action, HeartbeatView, JoinStanding, RoundProgress};
pub use snapshot::{NodeSnapshot, NodeState, RoundState, RunSnapshot, WaitsFor};
pub use terms::{Difference, Terms, Wanted};

/// How long a run without live nodes is shown before it is forgotten.
const RETENTION: Duration = Duration::from_hours(1);

/// Gives memory back if the map was once much larger. The cost is spread over the removed entries.
fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(map.len().saturating_mul(2));
    }
}

/// What the shell has to do.
#[derive(Debug, Clone)]
pub enum Decision {
    /// A round is complete: open its store, close the store of the last round, and answer its nodes. If there
    /// is no store, call [`Rendezvous::no_store`] before anything else.
    Completed(Arc<Round>),
    /// A node's join ended without a round: answer it.
    Ended(RunId, Label),
    /// The action for the nodes of the run's round has changed: answer their heartbeats.
    Notify(RunId),
    /// The run is closed, or its round has no nodes: its store ends with its last client.
    Release(RunId),
    /// The run's round has no nodes any more, so none will ask for its list.
    Dissolved(RunId),
    /// The run is forgotten.
    Forget(RunId),
    /// Report this fact to people.
    Tell(RunId, Fact),
}

/// All runs.
#[derive(Debug)]
pub struct Rendezvous {
    defaults: Terms,
    max_runs: usize,
    /// Bytes that all runs may take.
    max_memory: usize,
    /// Bytes that all runs take.
    memory: usize,
    runs: HashMap<RunId, Run>,
    /// When each run wants its next tick.
    timers: BTreeSet<(Timestamp, RunId)>,
    decisions: Vec<Decision>,
    /// Runs that have changed since they were last shown.
    changed: BTreeSet<RunId>,
    /// Runs that have changed since the journal was last told. `None` without a journal.
    unkept: Option<BTreeSet<RunId>>,
    /// How many nodes operators expect in the rounds of these runs. A run may be still unknown.
    expected: HashMap<RunId, u32>,
    /// Runs that were forgotten, with an upper bound of the nodes that the journal knows of each.
    gone: Vec<(RunId, u32)>,
}

impl Rendezvous {
    /// Without runs. `defaults` are for terms that a run's first join leaves open.
    pub fn new(defaults: Terms, max_runs: usize) -> Self {
        Self {
            defaults,
            max_runs,
            max_memory: usize::MAX,
            memory: 0,
            runs: HashMap::default(),
            timers: BTreeSet::new(),
            decisions: Vec::new(),
            changed: BTreeSet::new(),
            unkept: None,
            expected: HashMap::default(),
            gone: Vec::new(),
        }
    }

    /// Sets how many bytes all runs may take.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.max_memory = bytes;
    }

    /// Bytes that all runs take, including the places where they are shown.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// A node joins, or asks again. After the shell has carried out the decisions that follow,
    /// [`Self::standing`] says how the join stands.
    pub fn join(&mut self, run: &RunId, join: Join, now: Timestamp) -> Result<(), RunRefusal> {
        join.wanted.check()?;
        join.previous.map_or(Ok(()), RankInRound::check)?;
        if !self.runs.contains_key(run) {
            self.make_room(run, now)?;
            self.begin(Run::new(run.clone(), join.wanted.settle(&self.defaults), now));
        }
        self.make_memory(run, &join.node, join.payload.as_ref(), now)?;
        let (defaults, who, node) = (self.defaults, join.info.who(), join.node.clone());
        let joined = self.with(run, |run, out| {
            run.join(join, &defaults, now, out).inspect_err(|why| {
                if why.is_about_the_node() {
                    run.absent.note(Absent {
                        node,
                        who: who.clone(),
                        rank: None,
                        fate: Fate::Refused,
                        heard: now,
                    });
                    run.publish(run.last_round, What::Refused { who, why: why.clone() }, Vec::new(), out);
                }
            })
        });
        joined.unwrap_or(Err(RunRefusal::UnknownRun))
    }

    /// From now on, a poll of the join waits at the server: the node is alive until [`Self::unpark`]. `false`
    /// if there is no such node.
    pub fn park(&mut self, run: &RunId, node: &Label) -> bool {
        self.with(run, |run, _| run.park(node)).unwrap_or(false)
    }

    /// As [`Self::park`], for a heartbeat, if the node is in that round. `false` if it is not.
    pub fn park_in_round(&mut self, run: &RunId, node: &Label, round: u64) -> bool {
        self.with(run, |run, _| run.is_in_round(node, round) && run.park(node)).unwrap_or(false)
    }

    /// The poll has ended: the node must send another sign of life in time.
    pub fn unpark(&mut self, run: &RunId, node: &Label, now: Timestamp) {
        self.with(run, |run, out| {
            run.unpark(node, now);
            run.settle(now, out);
        });
    }

    /// As [`Self::unpark`], because the connection of the poll broke. A living node comes again at once, so a
    /// node that does not is reported.
    pub fn cut(&mut self, run: &RunId, node: &Label, now: Timestamp) {
        self.with(run, |run, _| run.cut(node, now));
    }

    /// How the join of `node` stands. An error says how it ended.
    pub fn standing(&self, run: &RunId, node: &Label) -> Result<JoinStanding, RunRefusal> {
        self.runs.get(run).ok_or(RunRefusal::UnknownRun)?.standing(node)
    }

    /// The progress of the round that `node` waits for.
    pub fn progress(&self, run: &RunId, node: &Label, now: Timestamp) -> Option<RoundProgress> {
        self.runs.get(run)?.progress(node, now)
    }

    /// A node of a round shows that it is alive. If the run or its round is unknown, this server was
    /// restarted, and it takes over the round from the report.
    pub fn heartbeat(
        &mut self,
        run: &RunId,
        report: Report,
        now: Timestamp,
    ) -> Result<HeartbeatView, RunRefusal> {
        report.check()?;
        if !self.runs.contains_key(run) {
            if !report.place.can_be_learned() {
                return Ok(HeartbeatView::forgotten());
            }
            self.make_room(run, now)?;
            let terms = report.wanted.settle(&self.defaults);
            self.begin(Run::new(run.clone(), terms, now));
        }
        self.make_memory(run, &report.node, None, now)?;
        self.with(run, |run, out| run.heartbeat(report, now, out)).ok_or(RunRefusal::UnknownRun)
    }

    /// How long a heartbeat of a node of this run may wait.
    pub fn hold(&self, run: &RunId) -> Duration {
        self.runs.get(run).map_or(self.defaults.hold(), |run| run.terms.hold())
    }

    /// What the node has to do. Does not count as a sign of life.
    pub fn action(&self, run: &RunId, node: &Label, round: u64) -> HeartbeatView {
        match self.runs.get(run) {
            Some(run) => run.action(node, round),
            None => HeartbeatView::forgotten(),
        }
    }

    /// A node leaves. `false` if it was not in the run.
    pub fn leave(&mut self, run: &RunId, node: &Label, said: LeaveRequest, now: Timestamp) -> bool {
        self.with(run, |run, out| run.leave(node, said, now, out)).unwrap_or(false)
    }

    /// Name and address of `node`, if it is in the run. Only such a node may close the run.
    pub fn member(&self, run: &RunId, node: &Label) -> Option<Who> {
        let run = self.runs.get(run).filter(|run| run.is_live(node))?;
        run.members.get(node).map(|member| member.info.who())
    }

    /// Closes the run: waiting nodes are refused. `false` if it was closed already.
    pub fn close(&mut self, run: &RunId, by: &str, now: Timestamp) -> Result<bool, RunRefusal> {
        self.with(run, |run, out| run.close(by, now, out)).ok_or(RunRefusal::UnknownRun)
    }

    /// Moves the deadline of the forming round. Returns the round's number and the time left.
    pub fn extend(
        &mut self,
        run: &RunId,
        by: Duration,
        now: Timestamp,
    ) -> Result<(u64, Duration), RunRefusal> {
        self.with(run, |run, out| run.extend(by, now, out)).unwrap_or(Err(RunRefusal::UnknownRun))
    }

    /// The round that was just completed has no store: its nodes get this error, and the round is over.
    pub fn no_store(&mut self, run: &RunId, why: &str, now: Timestamp) {
        self.with(run, |run, out| run.no_store(why, now, out));
    }

    /// When [`Self::tick`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due at this time.
    pub fn tick(&mut self, now: Timestamp) {
        let due: Vec<RunId> =
            self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id.clone()).collect();
        for id in due {
            self.with(&id, |run, out| run.tick(now, out));
            if self.runs.get(&id).is_some_and(|run| run.is_forgettable(now)) {
                self.forget(&id);
            }
        }
    }

    /// What the shell has to do, in this order.
    pub fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// All runs as they are now, sorted by id.
    pub fn snapshot(&self, now: Timestamp) -> Vec<RunSnapshot> {
        let mut runs: Vec<_> = self.runs.values().map(|run| run.snapshot(now)).collect();
        runs.sort_by(|a, b| a.run_id.cmp(&b.run_id));
        runs
    }

    /// A run as it is now.
    pub fn snapshot_of(&self, run: &RunId, now: Timestamp) -> Option<RunSnapshot> {
        self.runs.get(run).map(|run| run.snapshot(now))
    }

    /// The runs that changed since the last call, including forgotten ones.
    pub fn take_changed(&mut self) -> BTreeSet<RunId> {
        std::mem::take(&mut self.changed)
    }

    /// Closes the run, and forgets it as soon as it has no nodes. `false` if there is no such run.
    pub fn remove(&mut self, run: &RunId, by: &str, now: Timestamp) -> bool {
        self.expected.remove(run);
        let removed = self.with(run, |run, out| {
            run.close(by, now, out);
            run.forget_soon();
        });
        if self.runs.get(run).is_some_and(|run| run.is_forgettable(now)) {
            self.forget(run);
        }
        removed.is_some()
    }

    /// Changes a run, and updates what is known of it outside: timer, memory, changes.
    fn with<T>(&mut self, id: &RunId, act: impl FnOnce(&mut Run, &mut Vec<Decision>) -> T) -> Option<T> {
        let run = self.runs.get_mut(id)?;
        let (before, outline) = (run.check_at(), run.outline());
        let kept = self.unkept.is_some().then(|| run.kept_mark());
        self.memory = self.memory.saturating_sub(run.memory());
        let done = act(run, &mut self.decisions);
        run.notify_if_changed(&mut self.decisions);
        let after = run.check_at();
        self.memory = self.memory.saturating_add(run.memory());
        if outline != run.outline() {
            self.changed.insert(id.clone());
        }
        match &mut self.unkept {
            Some(unkept) if !run.moved.is_empty() || kept != Some(run.kept_mark()) => {
                unkept.insert(id.clone());
            }
            Some(_) => {}
            None => run.moved.clear(),
        }
        if before != after || after.is_none() {
            if let Some(at) = before {
                self.timers.remove(&(at, id.clone()));
            }
            if let Some(at) = after {
                self.timers.insert((at, id.clone()));
            }
        }
        Some(done)
    }

    /// Forgets a run, if there are too many for another one.
    fn make_room(&mut self, newcomer: &RunId, now: Timestamp) -> Result<(), RunRefusal> {
        if self.runs.len() < self.max_runs {
            return Ok(());
        }
        let other =
            self.dispensable(newcomer, now).ok_or(RunRefusal::TooManyRuns { limit: self.max_runs })?;
        self.forget(&other);
        Ok(())
    }

    /// The run that makes room for `newcomer`: the one that has been without nodes the longest, or else the
    /// one whose nodes have been silent the longest. How long they may be silent is decided here by the
    /// server's own limit, not by the run's terms.
    fn dispensable(&self, newcomer: &RunId, now: Timestamp) -> Option<RunId> {
        let others = || self.runs.values().filter(|run| run.id() != newcomer);
        let idlest = others().filter_map(|run| Some((run.idle_since()?, run.id()))).min();
        let silent = || {
            let silent = others().filter_map(|run| Some((run.silent_since()?, run.id())));
            silent.min().filter(|(since, _)| now.since(*since) >= self.defaults.patience())
        };
        idlest.or_else(silent).map(|(_, id)| id.clone())
    }

    /// Makes memory free for `node`, if it is new. First it drops the nodes of runs that are over, the oldest
    /// run first, and only their number stays known. Then it drops whole runs.
    fn make_memory(
        &mut self,
        run: &RunId,
        node: &Label,
        payload: Option<&Payload>,
        now: Timestamp,
    ) -> Result<(), RunRefusal> {
        /// An upper bound of the bytes of a node with the longest texts, without its payload.
        const NODE: usize = 8192;
        // A payload is kept for the node's next round, and with its round.
        let payload = payload.map_or(0, Payload::memory).saturating_mul(2);
        if self.runs.get(run).is_some_and(|run| run.members.contains_key(node)) {
            return Ok(());
        }
        while self.memory.saturating_add(NODE).saturating_add(payload) > self.max_memory {
            let over = self.runs.values().filter_map(|run| Some((run.shrinks_since()?, run.id())));
            if let Some(oldest) = over.min().map(|(_, id)| id.clone()) {
                self.with(&oldest, |run, out| run.summarize(now, out));
            } else {
                let other = self.dispensable(run, now).ok_or(RunRefusal::NoMemory)?;
                self.forget(&other);
            }
        }
        Ok(())
    }

    fn begin(&mut self, mut run: Run) {
        run.size = self.expected.get(run.id()).copied();
        self.memory = self.memory.saturating_add(run.memory());
        self.runs.insert(run.id().clone(), run);
    }

    fn forget(&mut self, id: &RunId) {
        let Some(run) = self.runs.remove(id) else { return };
        self.memory = self.memory.saturating_sub(run.memory());
        self.changed.insert(id.clone());
        if self.unkept.is_some() {
            self.gone.push((id.clone(), run.most_kept));
        }
        if let Some(at) = run.check_at() {
            self.timers.remove(&(at, id.clone()));
        }
        self.decisions.push(Decision::Release(id.clone()));
        self.decisions.push(Decision::Forget(id.clone()));
    }
}

#[cfg(test)]
mod tests;
