//! The nodes of native runs, as the plugin behaves: each node joins, works in the round's store, sends
//! heartbeats, and joins again when it is told to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::agent::Work;
use super::super::mutants::Mutant;
use super::super::plan::{Keeping, MILLI, Micros};
use super::super::runs::NodeFault;
use super::super::server::write_and_list;
use super::calls::{Answer, Caller};
use super::words::Left;
use super::workers::Starter;
use super::{Checked, Event, World};
use rallypoint_protocol::ids::{Label, RunId};
use rallypoint_rendezvous::{
    Action, HeartbeatView, Join, LeaveRequest, NodeInfo, Outcome, Participant, Payload, RankInRound, Report,
    Round, RunRefusal, Wanted,
};
use rallypoint_server::{Ended, Joined};

/// The longest time that a node's request waits at the server.
const WAIT: Micros = 800 * MILLI;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// There is no process.
    Absent,
    /// It joins, perhaps again.
    Joins,
    /// It is in this round.
    Works { place: RankInRound, size: u32, port: Option<u16> },
}

/// The process group of a round, as rallypoint.elastic makes it. It works when all its processes have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// The number of the process with rank 0, and the round, which is counted anew when a run was forgotten.
    number: (u32, u64),
    /// Its processes, in the order of their ranks.
    slots: Vec<u32>,
}

pub(super) struct Node {
    pub(super) run: usize,
    number: usize,
    /// The number of the process. Processes with one id share it.
    born: u32,
    joins: u32,
    /// The number of the process among all processes. It is in the payload of its joins.
    slot: u32,
    group: Option<Group>,
    /// Whether this join was sent before.
    is_retry: bool,
    pub(super) doing: Doing,
    previous: Option<RankInRound>,
    stopped_until: Micros,
    /// How its last process left the run, if it has said so.
    pub(super) left: Option<Left>,
    /// Counts processes, so that events for an earlier process are ignored.
    life: u32,
    /// It was told to continue, and has not asked since the last change.
    pub(super) is_settled: bool,
}

impl Node {
    pub(super) fn new(run: usize, number: usize) -> Self {
        Self {
            run,
            number,
            born: 0,
            joins: 0,
            slot: 0,
            group: None,
            is_retry: false,
            doing: Doing::Absent,
            previous: None,
            stopped_until: 0,
            left: None,
            life: 0,
            is_settled: false,
        }
    }

    pub(super) fn label(&self) -> Label {
        label(&format!("{}-{}", self.name(), self.born))
    }

    /// Its name for people, whichever process it is.
    pub(super) fn name(&self) -> String {
        format!("node-{}-{}", self.run, self.number)
    }

    fn info(&self) -> NodeInfo {
        NodeInfo {
            name: label(&self.name()),
            address: label(&format!("10.0.{}.{}", self.run + 2, self.number + 1)),
            role: None,
            local_world_size: None,
            torch_version: None,
        }
    }

    fn join_id(&self) -> Box<str> {
        self.joins.to_string().into()
    }

    fn payload(&self) -> String {
        format!("{}/{}", self.slot, self.joins)
    }
}

pub(super) fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

pub(super) fn run_id(run: usize) -> RunId {
    RunId::new(format!("run-{run}").as_bytes())
}

impl World {
    fn wanted(&self, run: usize) -> Wanted {
        let plan = &self.plan.runs.runs[run];
        Wanted {
            min_nodes: plan.min,
            max_nodes: plan.max,
            join_timeout: Some(Duration::from_secs(15)),
            last_call: Some(Duration::from_millis(300)),
            keep_alive: Some(Duration::from_millis(500)),
            keep_alive_misses: Some(4),
            // In each second run, a node whose connection closed is lost sooner than a silent one.
            grace: (run % 2 == 1).then_some(Duration::from_millis(500)),
            store: Some(plan.store),
        }
    }

    pub(super) fn node_comes(&mut self, node: usize, same_id: bool) {
        self.runs.processes += 1;
        let it = &mut self.runs.nodes[node];
        it.slot = self.runs.processes;
        it.life += 1;
        if !same_id {
            it.born += 1;
        }
        (it.doing, it.previous, it.left) = (Doing::Joins, None, None);
        it.joins += 1;
        it.is_retry = false;
        let label = it.label();
        trace!(self, "{label} comes");
        self.remember();
        self.node_acts_after(node, 0);
    }

    fn node_acts_after(&mut self, node: usize, after: Micros) {
        let life = self.runs.nodes[node].life;
        self.at(after, Event::NodeActs(node, life));
    }

    fn node_tries_again(&mut self, node: usize) {
        let after = self.runs.random.between(20 * MILLI, 400 * MILLI);
        self.node_acts_after(node, after);
    }

    pub(super) fn node_acts(&mut self, node: usize, life: u32) -> Checked {
        let it = &self.runs.nodes[node];
        if it.life != life || self.has_call(Caller::Node(node)) {
            return Ok(());
        }
        if it.stopped_until > self.now {
            let after = it.stopped_until - self.now;
            self.at(after, Event::NodeActs(node, life));
            return Ok(());
        }
        if let Some(done) = self.node_wakes(node) {
            return done;
        }
        if self.work_of_worker(Starter::Node(node)) == Some(Work::Failed) {
            self.worker_ends(Starter::Node(node))?;
            let it = &mut self.runs.nodes[node];
            it.doing = Doing::Joins;
            it.joins += 1;
            (it.is_retry, it.is_settled) = (false, false);
            trace!(self, "{} joins again, as its rank has failed", self.runs.nodes[node].label());
        }
        let wait = Duration::from_micros(self.runs.random.below(WAIT));
        let it = &self.runs.nodes[node];
        let (doing, run, wanted) = (it.doing, run_id(it.run), self.wanted(it.run));
        let Some(server) = &self.server else {
            if doing != Doing::Absent {
                self.node_tries_again(node);
            }
            return Ok(());
        };
        let rounds = Arc::clone(&server.rounds);
        let it = &self.runs.nodes[node];
        match doing {
            Doing::Absent => Ok(()),
            Doing::Joins => {
                let join = Join {
                    node: it.label(),
                    join_id: it.join_id(),
                    info: it.info(),
                    payload: Payload::new(&it.payload()).ok(),
                    rank: None,
                    watched: true,
                    previous: it.previous,
                    wanted,
                };
                trace!(self, "{} joins ({}), previously {:?}", join.node, join.join_id, join.previous);
                self.call(
                    Caller::Node(node),
                    async move { Answer::Joined(rounds.join(&run, join, wait).await) },
                )
            }
            Doing::Works { place, size, port } => {
                self.visit_store(node, place, port)?;
                let it = &self.runs.nodes[node];
                let report = Report {
                    node: it.label(),
                    join_id: it.join_id(),
                    info: it.info(),
                    place,
                    world_size: size,
                    wanted,
                };
                self.call(Caller::Node(node), async move {
                    Answer::Beat(rounds.heartbeat(&run, report, Action::Continue, wait).await)
                })
            }
        }
    }

    /// What the server tells a node must be true, even if the node never gets the answer.
    pub(super) fn node_is_told(&mut self, node: usize, answer: &mut Answer) -> Checked {
        let it = &self.runs.nodes[node];
        let (who, payload, run) = (it.label(), it.payload(), it.run);
        let truth = &mut self.runs.truths[run];
        match (answer, it.doing) {
            (Answer::Joined(Ok(Joined::Complete { shared, rank })), _) => {
                if self.mutant == Some(Mutant::RankHandedOutTwice) && it.is_retry {
                    *rank = rank.saturating_sub(1);
                }
                let plan = &self.plan.runs.runs[run];
                let mine = (who.as_str(), payload.as_str());
                truth.complete(&shared.round, mine, *rank, shared.store_port(), (plan.min, plan.max))
            }
            (
                Answer::Beat(Ok(HeartbeatView { action: Action::Continue, .. })),
                Doing::Works { place, .. },
            ) => truth.goes_on(who.as_str(), place.round),
            _ => Ok(()),
        }
    }

    pub(super) fn node_joined(&mut self, node: usize, joined: Result<Joined, Ended>) -> Checked {
        let it = &mut self.runs.nodes[node];
        let who = it.label();
        match joined {
            Ok(Joined::Complete { shared, rank }) => {
                let (round, port) = (&shared.round, shared.store_port());
                let place = RankInRound { round: round.number, rank };
                let size = round.participants.len() as u32;
                it.doing = Doing::Works { place, size, port };
                it.previous = Some(place);
                trace!(self, "{who} has rank {rank} of {size} in round {}, store {port:?}", round.number);
                self.tally.rounds += 1;
                self.worker_ends(Starter::Node(node))?;
                self.worker_comes(node);
                self.node_acts_after(node, 10 * MILLI);
                self.node_connects(node, round)?;
                if let Some(away) = self.runs.dies_at_answer.take() {
                    self.crash(self.plan.keeping == Keeping::Disk)?;
                    self.at(away, Event::Start);
                }
            }
            Ok(Joined::Waiting { progress, .. }) => {
                it.is_retry = true;
                trace!(self, "{who} waits: {}", progress.reason);
                self.node_acts_after(node, MILLI);
            }
            Err(why) => {
                trace!(self, "the join of {who} ends: {why}");
                let is_over = match why {
                    Ended::Replaced => return Err(format!("{who} is told: {why}")),
                    Ended::Refused(
                        RunRefusal::JoinTimeout { .. } | RunRefusal::NoStore { .. } | RunRefusal::Left,
                    ) => true,
                    why if self.shortage.may_be_why(&why) => true,
                    other => return Err(format!("{who} is refused: {other}")),
                };
                if is_over {
                    let it = &mut self.runs.nodes[node];
                    it.joins += 1;
                    it.is_retry = false;
                }
                self.node_tries_again(node);
            }
        }
        Ok(())
    }

    /// The node makes the process group of its round. No two groups with one number work at once: their
    /// processes could not tell each other's connections apart.
    fn node_connects(&mut self, node: usize, round: &Round) -> Checked {
        let slot = |it: &Participant| {
            let payload = it.payload.as_ref().map_or("", Payload::as_str);
            payload.split('/').next().and_then(|slot| slot.parse().ok()).unwrap_or_default()
        };
        let slots: Vec<u32> = round.participants.iter().map(slot).collect();
        let first = if self.is(Mutant::GroupNamedByRound) { 0 } else { slots[0] };
        self.runs.nodes[node].group = Some(Group { number: (first, round.number), slots });
        let run = self.runs.nodes[node].run;
        let is_there = |it: &&Node| it.run == run && matches!(it.doing, Doing::Works { .. });
        let with = |slot: &u32| self.runs.nodes.iter().filter(is_there).find(|it| it.slot == *slot);
        let working = self.runs.nodes.iter().filter(is_there).filter_map(|it| {
            let group = it.group.as_ref()?;
            let is_whole =
                group.slots.iter().all(|slot| with(slot).is_some_and(|it| it.group.as_ref() == Some(group)));
            is_whole.then_some(group)
        });
        let mut known = BTreeMap::new();
        for group in working {
            if let Some(other) = known.insert(group.number, group).filter(|other| *other != group) {
                return Err(format!("two groups of run {run} work with one number: {other:?} and {group:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn node_beat(&mut self, node: usize, beat: Result<HeartbeatView, Ended>) -> Checked {
        let it = &mut self.runs.nodes[node];
        let who = it.label();
        match beat {
            Ok(HeartbeatView { action: Action::Continue, .. }) => {
                it.is_settled = true;
                let after = self.runs.random.below(300 * MILLI);
                self.node_acts_after(node, after);
            }
            Ok(HeartbeatView { action: Action::Rejoin, reason, .. }) => {
                it.doing = Doing::Joins;
                it.joins += 1;
                (it.is_retry, it.is_settled) = (false, false);
                trace!(self, "{who} is to join again: {reason}");
                self.worker_ends(Starter::Node(node))?;
                self.node_tries_again(node);
            }
            Ok(HeartbeatView { action: Action::Closed, reason, .. }) => {
                return Err(format!("{who} is told that its run is closed: {reason}"));
            }
            Err(why) if self.shortage.may_be_why(&why) => self.node_acts_after(node, 300 * MILLI),
            Err(why) => return Err(format!("the heartbeat of {who} is refused: {why}")),
        }
        Ok(())
    }

    pub(super) fn node_fault(&mut self, n: usize) -> Checked {
        let (_, fault) = self.plan.runs.faults[n];
        let node = fault.node();
        if self.runs.nodes[node].doing == Doing::Absent {
            return Ok(());
        }
        let who = self.runs.nodes[node].label();
        trace!(self, "FAULT {who}: {fault:?}");
        match fault {
            NodeFault::Die { back, same_id, .. } => {
                self.node_goes(node)?;
                if let Some(after) = back {
                    self.at(after, Event::NodeComes(node, same_id));
                }
            }
            NodeFault::Leave { failed, .. } => {
                // A real agent does not report success while its worker still runs or has not begun.
                let work = self.work_of_worker(Starter::Node(node));
                let failed = failed || (self.plan.runs.has_workers && work != Some(Work::Done));
                let outcome = Some(if failed { Outcome::Failed } else { Outcome::Succeeded });
                let said = LeaveRequest { why: None, outcome };
                let run = run_id(self.runs.nodes[node].run);
                self.node_goes(node)?;
                if let Some(server) = &self.server {
                    self.runs.nodes[node].left = Some(if failed { Left::Failed } else { Left::Succeeded });
                    server.rounds.leave(&run, &who, said);
                }
            }
            NodeFault::Stop { lasts, .. } => {
                self.runs.nodes[node].stopped_until = self.now + lasts;
                self.node_acts_after(node, lasts);
            }
            NodeFault::KillAtAnswer { away, .. } => self.runs.dies_at_answer = Some(away),
            NodeFault::Cut { .. } => {
                if self.drop_calls(Caller::Node(node)) {
                    self.runs.nodes[node].is_retry = true;
                    self.node_tries_again(node);
                }
            }
        }
        Ok(())
    }

    fn node_goes(&mut self, node: usize) -> Checked {
        self.worker_ends(Starter::Node(node))?;
        self.drop_calls(Caller::Node(node));
        let it = &mut self.runs.nodes[node];
        it.life += 1;
        it.stopped_until = 0;
        (it.doing, it.is_settled) = (Doing::Absent, false);
        Ok(())
    }

    /// The node's request is lost, with its connection or with the server.
    pub(super) fn node_is_cut(&mut self, node: usize) {
        let it = &mut self.runs.nodes[node];
        (it.is_retry, it.is_settled) = (true, false);
        if it.doing != Doing::Absent {
            self.node_tries_again(node);
        }
    }

    pub(super) fn is_node_stopped(&self, node: usize) -> bool {
        self.runs.nodes[node].stopped_until > self.now
    }

    /// A node's workers use the store of their round. Workers of another round must not have written there.
    fn visit_store(&mut self, node: usize, place: RankInRound, port: Option<u16>) -> Checked {
        let (Some(port), Some(server)) = (port, &self.server) else { return Ok(()) };
        let Some(listener) = server.stores.listener(port) else { return Ok(()) };
        let (run, round) = (self.runs.nodes[node].run, place.round);
        // A node that is told to leave is not in the round any more, and its worker does not connect again.
        // And a client for which there is no memory is refused.
        let is_over = self.runs.truths[run].last() > Some(round);
        if is_over || self.plan.runs.has_workers || self.shortage.is_there() {
            return Ok(());
        }
        // Keys as workers see them: workers cannot tell to whom the store belongs.
        let found = write_and_list(&listener, format!("round-{run}-{round}/").as_bytes(), place.rank);
        match found.into_iter().find(|key| !key.starts_with(&format!("round-{run}-{round}/"))) {
            Some(key) => Err(format!("workers of run {run} round {round} meet {key} in their store")),
            None => Ok(()),
        }
    }
}
