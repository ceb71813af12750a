//! One run: its nodes, the round they are in, and what each event means for them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::absent::{Absent, Absentees, Fate};
use super::looks::look;
use super::redundant::Redundant;
use super::round::{Adoption, Forming};
use super::{
    Break, Decision, Did, Fact, Label, LeaveRequest, NodeInfo, Outcome, Participant, Payload, RETENTION,
    Round, RunRefusal, Sign, Terms, What, Who, Why,
};
use rallypoint_map::HashMap;
use rallypoint_protocol::ids::{RunId, Timestamp, count, counted};

/// How long the end of a join is kept for the join's retries.
const ENDED_KEPT: Duration = Duration::from_mins(1);
/// When a node is reported whose poll broke and that has not come again. Nodes whose polls broke within a
/// second after it are reported with it.
const PUBLISH_CUT_AFTER: Duration = Duration::from_secs(3);
const CUT_AT_LEAST: Duration = Duration::from_secs(2);
/// A node that is alive comes again within this time after its poll broke.
const COMES_AGAIN: Duration = Duration::from_millis(250);
/// How long the report that a node left or failed waits for nodes that follow it.
const PUBLISH_DEPARTED_AFTER: Duration = Duration::from_secs(2);
/// If a round is over this soon after a restart of the server, the restart may be the cause.
const RESTART_IS_CAUSE_WITHIN: Duration = Duration::from_secs(30);
/// If the server checks its nodes later than this, the server itself was stopped, and no node is lost for its
/// silence.
const OWN_LAG: Duration = Duration::from_secs(2);

/// How a node's join stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinStanding {
    /// It has a place in the round that forms.
    Waiting,
    /// It waits for a free place.
    Redundant,
    /// The round is complete.
    Complete {
        /// The round.
        round: Arc<Round>,
        /// The node's rank.
        rank: u32,
    },
}

/// The progress of the round that a node waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundProgress {
    /// Its number.
    pub round: u64,
    /// Nodes that have a place.
    pub joined: u32,
    /// The least number of nodes.
    pub min_nodes: u32,
    /// The greatest number of nodes.
    pub max_nodes: u32,
    /// Requested ranks that nobody holds, if all nodes ask for a rank. A few of them.
    pub missing_ranks: Vec<u32>,
    /// Nodes of the last round that have not joined again. A few of them.
    pub missing_nodes: Vec<String>,
    /// Time since the node's join.
    pub waited: Duration,
    /// Time until the deadline.
    pub left: Option<Duration>,
    /// What the node waits for.
    pub reason: String,
}

/// What a node of a complete round has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Go on.
    Continue,
    /// Stop the workers and join again.
    Rejoin,
    /// Stop: the run is closed.
    Closed,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatView {
    /// What to do.
    pub action: Action,
    /// Why.
    pub reason: String,
    /// Nodes that wait for the next round.
    pub waiting: u32,
}

impl HeartbeatView {
    pub(super) fn forgotten() -> Self {
        Self { action: Action::Rejoin, reason: RunRefusal::UnknownRun.to_string(), waiting: 0 }
    }
}

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seat {
    /// In the forming round.
    Forming,
    /// It waits for a place.
    Redundant,
    /// In the current round.
    InRound(u32),
    /// Its join has ended. Kept for retries.
    Ended(RunRefusal),
}

/// A node of the run.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) info: NodeInfo,
    pub(super) payload: Option<Payload>,
    pub(super) join_id: Box<str>,
    pub(super) rank: Option<u32>,
    pub(super) watched: bool,
    pub(super) previous: Option<u32>,
    pub(super) seat: Seat,
    /// Whether one of its polls waits at the server: then it is alive.
    pub(super) parked: bool,
    /// The connection of its last poll broke, and it has not come again.
    pub(super) cut: bool,
    /// Nothing has come from it since the server was restarted.
    pub(super) unheard: bool,
    /// Its silence was already reported, or has a known cause: the server itself was stopped.
    pub(super) silence_published: bool,
    pub(super) last_seen: Timestamp,
    pub(super) joined: Timestamp,
    /// Its position in the order of joins.
    pub(super) serial: u64,
}

impl Member {
    /// A node that is already in a round when this server first hears of it.
    pub(super) fn in_round(
        info: NodeInfo,
        join_id: Box<str>,
        watched: bool,
        rank: u32,
        now: Timestamp,
    ) -> Self {
        Self {
            info,
            payload: None,
            join_id,
            rank: None,
            watched,
            previous: Some(rank),
            seat: Seat::InRound(rank),
            parked: false,
            cut: false,
            unheard: false,
            silence_published: true,
            last_seen: now,
            joined: now,
            serial: 0,
        }
    }

    /// Whether nothing but signs of life shows that it is there.
    pub(super) fn may_be_late(&self) -> bool {
        let counts = match self.seat {
            Seat::InRound(_) => self.watched,
            Seat::Forming | Seat::Redundant => true,
            Seat::Ended(_) => false,
        };
        counts && !self.parked
    }

    /// Whether its connection broke so long ago that a living node would have come again.
    pub(super) fn is_cut_off(&self, now: Timestamp) -> bool {
        self.cut && !self.parked && now.since(self.last_seen) > COMES_AGAIN
    }

    /// Whether its connection broke, or its sign of life is late.
    pub(super) fn may_be_dead(&self, now: Timestamp, terms: &Terms) -> bool {
        self.may_be_late() && self.cut || self.is_silent(now, terms)
    }

    /// When it is lost, if nothing comes from it.
    pub(super) fn given_up(&self, terms: &Terms) -> Timestamp {
        let patience = match (self.cut, self.unheard) {
            (true, _) => terms.grace(),
            (_, true) => terms.restart_grace(),
            _ => terms.patience(),
        };
        self.last_seen + patience
    }

    /// Whether its sign of life is late.
    pub(super) fn is_silent(&self, now: Timestamp, terms: &Terms) -> bool {
        let due = if self.cut { CUT_AT_LEAST } else { terms.late_after() };
        self.may_be_late() && now.since(self.last_seen) >= due
    }

    /// The node with its rank, for people. `None` if its join has ended.
    pub(super) fn label(&self) -> Option<String> {
        match self.seat {
            Seat::InRound(rank) => Some(format!("{}, rank {rank}", self.info.who())),
            Seat::Forming | Seat::Redundant => Some(self.info.who().to_string()),
            Seat::Ended(_) => None,
        }
    }

    /// How it was seen that it is gone. `None` if its join has ended.
    fn sign(&self, now: Timestamp) -> Option<Sign> {
        let did = match (self.cut, self.unheard) {
            (true, _) => Did::Closed,
            (_, true) => Did::NotBack,
            _ => Did::Silent,
        };
        Some(Sign { did, node: self.label()?, ago: now.since(self.last_seen), why: None })
    }

    pub(super) fn memory(&self, node: &Label) -> usize {
        /// Bytes of a member and of the node that is shown of it, which has the name once more.
        const MEMBER: usize = 768;
        let texts = [node.as_str(), self.info.name.as_str(), &*self.join_id].map(str::len);
        let payload = self.payload.as_ref().map_or(0, |payload| payload.as_str().len());
        [MEMBER, self.info.text_len(), payload].into_iter().chain(texts).sum()
    }
}

/// The complete round.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) round: Arc<Round>,
    /// Nodes that are still in it.
    pub(super) present: u32,
    /// Nodes that are still in it and send heartbeats.
    pub(super) watched: u32,
    /// Why it is to be given up.
    pub(super) broken: Option<Break>,
    /// Bytes of the list of its nodes.
    pub(super) memory: usize,
    /// Set if it was learned from its nodes after a restart of the server.
    pub(super) adoption: Option<Adoption>,
}

/// What the nodes of the round have been told to do. They are told again when it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Signal {
    closed: bool,
    broken: bool,
    nodes_wait: bool,
    round: u64,
}

/// The part of a run that people see, in a few values: if they change, the run has changed.
#[derive(Debug, PartialEq)]
pub(super) struct Outline {
    signal: Signal,
    serials: u64,
    joined: u32,
    redundant: usize,
    present: u32,
    unreported: u32,
    most_nodes: u32,
    deadline: Option<Timestamp>,
    is_expiring: bool,
    last_call: bool,
    is_idle: bool,
    absent: usize,
    silences: u64,
    silent: usize,
}

/// How many nodes of the last round have done their work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Work {
    /// Nodes of the round.
    pub(super) nodes: u32,
    /// Nodes that left because their work was done.
    pub(super) succeeded: u32,
    /// When the last of these left, if all nodes have.
    pub(super) finished: Option<Timestamp>,
    /// Whether one of the nodes has failed.
    pub(super) failed: bool,
}

/// The first node of a round that failed or left, and the nodes that followed it within moments.
#[derive(Debug)]
struct Departures {
    at: Timestamp,
    round: u64,
    nodes: Vec<(Timestamp, Sign)>,
}

impl Departures {
    fn begin(sign: Sign, round: u64, now: Timestamp) -> Self {
        Self { at: now, round, nodes: vec![(now, sign)] }
    }

    /// Another node follows: its own reason is not told, as there may be many.
    fn follow(&mut self, sign: Sign, now: Timestamp) {
        const MOST: usize = 64;
        if self.nodes.len() <= MOST {
            self.nodes.push((now, Sign { why: None, ..sign }));
        }
    }

    fn signs(self, now: Timestamp) -> Vec<Sign> {
        self.nodes.into_iter().map(|(at, sign)| Sign { ago: now.since(at), ..sign }).collect()
    }

    fn are_due(&mut self, now: Timestamp) -> bool {
        now.since(self.at) >= PUBLISH_DEPARTED_AFTER
    }
}

#[derive(Debug)]
pub(super) struct Closed {
    pub(super) by: String,
    pub(super) at: Timestamp,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) terms: Terms,
    /// The node whose terms hold.
    pub(super) settled_by: Option<Who>,
    /// The terms come from a report, which contains only the numbers of nodes. The other terms are defaults.
    pub(super) terms_are_learned: bool,
    /// The greatest number that a round has had.
    pub(super) last_round: u64,
    /// The number of a complete round of which nothing else is known after a restart. Its nodes may report
    /// it.
    pub(super) unreported: Option<u64>,
    pub(super) members: HashMap<Label, Member>,
    pub(super) current: Option<Current>,
    pub(super) forming: Option<Forming>,
    pub(super) closed: Option<Closed>,
    pub(super) work: Work,
    /// Members in the forming round.
    pub(super) joined: u32,
    /// Members in the forming round that asked for a rank.
    pub(super) with_rank: u32,
    /// Members without a place.
    pub(super) redundant: Redundant,
    /// The node that holds each requested rank. A holder is in the forming round, or is watched in the
    /// current one.
    pub(super) ranks: HashMap<u32, Label>,
    pub(super) serials: u64,
    signal: Signal,
    /// Members with a poll that waits at the server.
    pub(super) parked: u32,
    /// The last sign of life of any node.
    heard: Timestamp,
    /// Bytes of the members.
    pub(super) members_memory: usize,
    /// Nodes of the last round that were dropped to make room. Only their number is known.
    pub(super) let_go: u32,
    /// Whether the store of a round is open and in use.
    pub(super) holds_store: bool,
    /// Ranks of the current round whose nodes have changed since the journal was last told.
    pub(super) moved: Vec<u32>,
    /// The journal knows no rank from this one on.
    pub(super) most_kept: u32,
    /// Since when no node has been there.
    pub(super) idle_since: Option<Timestamp>,
    /// The run is forgotten as soon as it has no nodes.
    pub(super) forget_soon: bool,
    /// How many nodes an operator expects in a round.
    pub(super) size: Option<u32>,
    /// How much more time an operator gave the forming round, or the next one, if a restart came between.
    pub(super) more_time: Duration,
    /// No member is late before this time.
    members_check: Option<Timestamp>,
    /// Nodes whose polls broke just now, and when.
    cut: Vec<(Timestamp, Label)>,
    /// Members of the forming round that may be dead. The round is not complete before they are heard or
    /// given up.
    pub(super) doubtful: BTreeSet<Label>,
    /// Goes up when the silence of nodes is reported, and when it ends after that.
    silences: u64,
    /// How many nodes were silent at the last check, reported or not.
    silent: usize,
    /// When the server was restarted, if the run is older than that.
    pub(super) restarted: Option<Timestamp>,
    /// Nodes of the round that have just failed, and are not reported yet.
    failures: Option<Departures>,
    /// Nodes that have just left and ended the round, and are not reported yet.
    leavers: Option<Departures>,
    /// Nodes that could be in the forming round and are not.
    pub(super) absent: Absentees,
}

/// How long ago the server was restarted, if the restart may be the cause.
fn caused_by_restart(restarted: Timestamp, now: Timestamp) -> Option<Duration> {
    Some(now.since(restarted)).filter(|ago| *ago < RESTART_IS_CAUSE_WITHIN)
}

/// How it was seen that these are gone: first those whose connections closed, by name.
pub(super) fn signs_of<'m>(members: impl Iterator<Item = &'m Member>, now: Timestamp) -> Vec<Sign> {
    let mut signs: Vec<Sign> = members.filter_map(|member| member.sign(now)).collect();
    signs.sort_unstable();
    signs
}

impl Run {
    pub(super) fn new(id: RunId, terms: Terms, now: Timestamp) -> Self {
        Self {
            id,
            terms,
            settled_by: None,
            terms_are_learned: false,
            last_round: 0,
            unreported: None,
            members: HashMap::default(),
            current: None,
            forming: None,
            closed: None,
            work: Work::default(),
            joined: 0,
            with_rank: 0,
            redundant: Redundant::default(),
            ranks: HashMap::default(),
            serials: 0,
            signal: Signal::default(),
            parked: 0,
            heard: now,
            members_memory: 0,
            let_go: 0,
            holds_store: false,
            moved: Vec::new(),
            most_kept: 0,
            idle_since: Some(now),
            forget_soon: false,
            size: None,
            more_time: Duration::ZERO,
            members_check: None,
            cut: Vec::new(),
            doubtful: BTreeSet::new(),
            silences: 0,
            silent: 0,
            restarted: None,
            failures: None,
            leavers: None,
            absent: Absentees::default(),
        }
    }

    /// All members. Walking through them is what makes a large run expensive.
    pub(super) fn walk(&self) -> impl Iterator<Item = (&Label, &Member)> {
        self.members.iter().inspect(|_| look())
    }

    pub(super) fn id(&self) -> &RunId {
        &self.id
    }

    pub(super) fn idle_since(&self) -> Option<Timestamp> {
        self.idle_since
    }

    /// Bytes of the run, here and wherever it is shown, as measured with runs of 2 and of 500 nodes.
    pub(super) fn memory(&self) -> usize {
        const RUN: usize = 8192;
        let round = self.current.as_ref().map_or(0, |current| current.memory);
        [RUN, self.members_memory, round].into_iter().sum()
    }

    /// Since when the run has been over, if dropping its nodes makes room.
    pub(super) fn shrinks_since(&self) -> Option<Timestamp> {
        self.idle_since.filter(|_| self.parked == 0 && !self.members.is_empty())
    }

    /// Drops the nodes of a run that is over. Their number stays known.
    pub(super) fn summarize(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let let_go = self.current.as_ref().map_or(0, |current| current.present);
        self.clear();
        self.let_go = self.let_go.saturating_add(let_go);
        self.settle(now, out);
    }

    /// Drops all members.
    pub(super) fn clear(&mut self) {
        self.absent.clear();
        for node in self.walk().map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.vacate(&node);
        }
    }

    /// Adds a member.
    pub(super) fn seat(&mut self, node: Label, member: Member) {
        self.members_memory = self.members_memory.saturating_add(member.memory(&node));
        self.members.insert(node, member);
    }

    /// Since when all nodes have been silent, if none of their requests waits here.
    pub(super) fn silent_since(&self) -> Option<Timestamp> {
        (self.parked == 0).then_some(self.heard)
    }

    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.idle_since.is_some_and(|since| now.since(since) >= self.retention())
    }

    /// How long a run without nodes is shown. It answers the retries of joins that have ended.
    fn retention(&self) -> Duration {
        match (self.forget_soon, self.members.is_empty()) {
            (false, _) => RETENTION,
            (true, false) => ENDED_KEPT,
            (true, true) => Duration::ZERO,
        }
    }

    pub(super) fn forget_soon(&mut self) {
        (self.forget_soon, self.size) = (true, None);
    }

    pub(super) fn outline(&self) -> Outline {
        let current = self.current.as_ref();
        Outline {
            signal: self.signal_now(),
            serials: self.serials,
            joined: self.joined,
            redundant: self.redundant.len(),
            present: current.map_or(0, |current| current.present),
            unreported: current.map_or(0, Current::unreported),
            most_nodes: self.most_nodes(),
            deadline: self.forming.as_ref().map(|forming| forming.deadline),
            is_expiring: self.forming.as_ref().is_some_and(|forming| forming.announce_at.is_none()),
            last_call: self.is_last_call(),
            is_idle: self.idle_since.is_some(),
            absent: self.absent.len(),
            silences: self.silences,
            silent: self.silent,
        }
    }

    /// The next time to look at this run.
    pub(super) fn check_at(&self) -> Option<Timestamp> {
        let forming = self.forming.as_ref().map(|forming| forming.check_at(self.doubtful.is_empty()));
        let adoption = self.current.as_ref().and_then(|c| c.adoption.as_ref()).and_then(Adoption::check_at);
        let idle = self.idle_since.map(|since| since + self.retention());
        let cut = self.cut.first().map(|(at, _)| *at + PUBLISH_CUT_AFTER);
        let departed =
            self.failures.iter().chain(&self.leavers).map(|departed| departed.at + PUBLISH_DEPARTED_AFTER);
        [forming, adoption, idle, self.members_check, cut].into_iter().flatten().chain(departed).min()
    }

    /// The number of the forming round, or of the next one.
    pub(super) fn next_round(&self) -> u64 {
        self.last_round.saturating_add(1)
    }

    /// Nodes of the current round that are still expected to join again.
    pub(super) fn expected(&self) -> u32 {
        self.current.as_ref().map_or(0, |c| c.watched.saturating_add(c.unreported()))
    }

    /// Nodes that are waiting, or are expected to join again.
    pub(super) fn live(&self) -> usize {
        (self.joined.saturating_add(self.expected()) as usize).saturating_add(self.redundant.len())
    }

    pub(super) fn has_place(&self) -> bool {
        self.joined.saturating_add(self.expected()) < self.most_nodes()
    }

    pub(super) fn is_live(&self, node: &Label) -> bool {
        self.members.get(node).is_some_and(|member| !matches!(member.seat, Seat::Ended(_)))
    }

    /// Removes a member from its place.
    pub(super) fn vacate(&mut self, node: &Label) -> Option<Member> {
        let member = self.members.remove(node)?;
        self.parked = self.parked.saturating_sub(member.parked.into());
        self.doubtful.remove(node);
        self.members_memory = self.members_memory.saturating_sub(member.memory(node));
        match member.seat {
            Seat::Forming => {
                self.joined = self.joined.saturating_sub(1);
                self.with_rank = self.with_rank.saturating_sub(member.rank.is_some().into());
            }
            Seat::Redundant => {
                self.redundant.remove(member.serial, member.rank);
            }
            Seat::InRound(rank) => {
                self.moved.push(rank);
                if let Some(current) = &mut self.current {
                    current.present = current.present.saturating_sub(1);
                    current.watched = current.watched.saturating_sub(member.watched.into());
                }
            }
            Seat::Ended(_) => {}
        }
        if let Some(rank) = member.rank
            && self.ranks.get(&rank) == Some(node)
        {
            self.ranks.remove(&rank);
            self.redundant.rank_changed(rank, false);
        }
        super::give_back(&mut self.members);
        super::give_back(&mut self.ranks);
        Some(member)
    }

    /// The current round is to be given up. People see the first reason.
    pub(super) fn break_round(&mut self, why: Break, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(current) = &mut self.current else { return };
        if current.broken.is_none() && !current.is_empty() {
            current.broken = Some(why.clone());
            let round = current.round.number;
            let Break { why, signs } = why;
            let lost = if why == Why::Lost { count(signs.len()) } else { 0 };
            let left = current.present.saturating_add(current.unreported()).saturating_sub(lost);
            let restarted = self.restarted.filter(|_| why == Why::Rejoined);
            let restarted = restarted.and_then(|at| caused_by_restart(at, now));
            // A node that leaves is reported later, with the nodes that follow it.
            if why != Why::Left {
                self.publish(round, What::Broken { why, left, restarted }, signs, out);
            }
        }
    }

    /// A node's join has ended. Its retries get the reason.
    pub(super) fn end(&mut self, node: &Label, why: RunRefusal, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(mut member) = self.vacate(node) else { return };
        member.seat = Seat::Ended(why);
        member.parked = false;
        member.last_seen = now;
        self.seat(node.clone(), member);
        self.watch_for(now);
        out.push(Decision::Ended(self.id.clone(), node.clone()));
    }

    pub(super) fn park(&mut self, node: &Label) -> bool {
        self.set_parked(node, true).is_some()
    }

    pub(super) fn set_parked(&mut self, node: &Label, parked: bool) -> Option<&mut Member> {
        let member = self.members.get_mut(node)?;
        self.parked = self.parked.saturating_add(parked.into()).saturating_sub(member.parked.into());
        if member.cut || member.silence_published {
            self.silences = self.silences.saturating_add(1);
        }
        self.doubtful.remove(node);
        member.parked = parked;
        (member.cut, member.unheard, member.silence_published) = (false, false, false);
        Some(member)
    }

    pub(super) fn is_in_round(&self, node: &Label, round: u64) -> bool {
        let is_current = self.current.as_ref().is_some_and(|c| c.round.number == round);
        is_current && self.members.get(node).is_some_and(|m| matches!(m.seat, Seat::InRound(_)))
    }

    pub(super) fn unpark(&mut self, node: &Label, now: Timestamp) {
        if let Some(member) = self.set_parked(node, false) {
            member.last_seen = now;
            self.watch_for(now);
        }
    }

    /// The connection of the node's poll broke.
    pub(super) fn cut(&mut self, node: &Label, now: Timestamp) {
        const MOST: usize = 4096;
        self.unpark(node, now);
        if let Some(member) = self.members.get_mut(node) {
            member.cut = true;
            if member.seat == Seat::Forming {
                self.doubtful.insert(node.clone());
            }
            let lost = member.given_up(&self.terms);
            self.members_check = self.members_check.map(|check| check.min(lost));
        }
        if self.cut.len() < MOST {
            self.cut.push((now, node.clone()));
        }
    }

    /// Reports the nodes that have not come again since their polls broke.
    fn publish_cut(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        if self.cut.first().is_none_or(|(at, _)| now.since(*at) < PUBLISH_CUT_AFTER) {
            return;
        }
        let due = self.cut.partition_point(|(at, _)| now.since(*at) >= CUT_AT_LEAST);
        let due: Vec<_> = self.cut.drain(..due).collect();
        // If a node without heartbeats is in a complete round, its silence means nothing.
        let silent = due.iter().filter_map(|(at, node)| {
            let is_it = |member: &&Member| member.cut && member.last_seen == *at && member.may_be_late();
            self.members.get(node).filter(is_it)
        });
        let mut signs = signs_of(silent, now);
        if signs.is_empty() {
            return;
        }
        signs.dedup();
        let again = self.successors_of(now, |predecessor| due.iter().any(|(_, node)| node == predecessor));
        self.silences = self.silences.saturating_add(1);
        self.publish(self.last_round, What::Silent { again, patience: self.terms.grace() }, signs, out);
    }

    /// Reports the nodes that are late though their requests were answered: they are stopped, cut off or
    /// slow. Nodes that are about to be late are reported with them.
    fn publish_silent(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let Terms { keep_alive, .. } = self.terms;
        let silence = |member: &Member| {
            let is_news = member.may_be_late() && !member.cut && !member.silence_published;
            is_news.then(|| now.since(member.last_seen)).filter(|silence| *silence >= keep_alive)
        };
        let silences = || self.walk().filter_map(|(node, member)| Some((silence(member)?, node)));
        let late = self.terms.late_after();
        if !silences().any(|(silence, _)| silence >= late) {
            return;
        }
        let silent: Vec<Label> = silences().map(|(_, node)| node.clone()).collect();
        let again = self.successors_of(now, |predecessor| silent.contains(predecessor));
        let signs = signs_of(silent.iter().filter_map(|node| self.members.get(node)), now);
        for node in &silent {
            if let Some(member) = self.members.get_mut(node) {
                member.silence_published = true;
            }
        }
        self.silences = self.silences.saturating_add(1);
        self.publish(self.last_round, What::Silent { again, patience: self.terms.patience() }, signs, out);
    }

    /// Counts the silent nodes, and finds the nodes of the forming round that may be dead.
    fn look_for_silent(&mut self, now: Timestamp) {
        let (mut silent, mut doubtful) = (0_usize, BTreeSet::new());
        for (node, member) in self.walk() {
            silent = silent.saturating_add(member.is_silent(now, &self.terms).into());
            if member.seat == Seat::Forming && member.may_be_dead(now, &self.terms) {
                doubtful.insert(node.clone());
            }
        }
        (self.silent, self.doubtful) = (silent, doubtful);
    }

    /// The successors of the nodes for which `is_predecessor` holds.
    fn successors_of(&self, now: Timestamp, is_predecessor: impl Fn(&Label) -> bool) -> Vec<String> {
        let successors =
            self.successors(now).into_iter().filter(|successor| is_predecessor(successor.predecessor));
        successors.map(|successor| successor.member.info.who().to_string()).collect()
    }

    /// A member has just shown that it is alive. Sets the time from which it may be late again.
    pub(super) fn watch_for(&mut self, now: Timestamp) {
        self.heard = now;
        let at = now + self.terms.late_after().min(self.terms.restart_grace()).min(ENDED_KEPT);
        self.members_check = Some(self.members_check.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn standing(&self, node: &Label) -> Result<JoinStanding, RunRefusal> {
        let member = self.members.get(node).ok_or(RunRefusal::Left)?;
        match (&member.seat, &self.current) {
            (Seat::InRound(rank), Some(current)) => {
                Ok(JoinStanding::Complete { round: Arc::clone(&current.round), rank: *rank })
            }
            (Seat::Ended(why), _) => Err(why.clone()),
            (Seat::Redundant, _) => Ok(JoinStanding::Redundant),
            _ => Ok(JoinStanding::Waiting),
        }
    }

    pub(super) fn action(&self, node: &Label, round: u64) -> HeartbeatView {
        let waiting = self.joined;
        let view = |action, reason: String| HeartbeatView { action, reason, waiting };
        if let Some(closed) = &self.closed {
            return view(Action::Closed, format!("the run was closed by {}", closed.by));
        }
        match &self.current {
            Some(current) if self.is_in_round(node, round) => match &current.broken {
                Some(why) => view(Action::Rejoin, why.to_string()),
                None if waiting > 0 => {
                    let nodes = counted(waiting, "node waits", "nodes wait");
                    view(Action::Rejoin, format!("{nodes} for the next round"))
                }
                None => view(Action::Continue, "the round goes on".into()),
            },
            Some(current) if current.round.number > round => {
                view(Action::Rejoin, format!("round {} has taken its place", current.round.number))
            }
            _ => view(
                Action::Rejoin,
                "this node is not in that round: it left, joined again, or was lost".into(),
            ),
        }
    }

    pub(super) fn leave(
        &mut self,
        node: &Label,
        said: LeaveRequest,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> bool {
        if !self.is_live(node) {
            return false;
        }
        let missing = self.missing(now);
        let Some(member) = self.vacate(node) else { return false };
        if let Seat::InRound(rank) = member.seat {
            let who = member.info.who();
            match said.outcome {
                Some(Outcome::Succeeded) => self.count_success(now, out),
                outcome => {
                    self.note_absent(node, who.clone(), Some(rank), Fate::Left, now);
                    let did = |did| Sign { why: said.why, ..Sign::now(did, &format!("{who}, rank {rank}")) };
                    if self.closed.is_none() {
                        self.note_leaver(did(Did::Left), now, out);
                    } else if outcome == Some(Outcome::Failed) {
                        // An agent that fails closes the run before it leaves.
                        self.note_failure(did(Did::Failed), now);
                    }
                }
            }
        } else {
            if member.seat == Seat::Forming {
                let who = member.info.who();
                if self.joined == 0 && said.outcome.is_none() && self.closed.is_none() && self.expected() == 0
                {
                    // While nodes wait, each of them gets this reason in its answer. After the last node
                    // nobody does.
                    let began = self.forming.as_ref().map_or(now, |forming| forming.first_join);
                    let what = What::GivenUp { after: now.since(began), missing };
                    let last = Sign { why: said.why, ..Sign::now(Did::Left, &who) };
                    self.publish(self.next_round(), what, vec![last], out);
                }
                self.note_absent(node, who, None, Fate::Left, now);
            }
            out.push(Decision::Ended(self.id.clone(), node.clone()));
        }
        self.settle(now, out);
        true
    }

    pub(super) fn note_absent(
        &mut self,
        node: &Label,
        who: Who,
        rank: Option<u32>,
        fate: Fate,
        heard: Timestamp,
    ) {
        self.absent.note(Absent { node: node.clone(), who, rank, fate, heard });
    }

    /// A node has failed in a round whose run is closed, and other nodes are left alone.
    fn note_failure(&mut self, failed: Sign, now: Timestamp) {
        if let Some(failures) = &mut self.failures {
            failures.follow(failed, now);
        } else if self.current.as_ref().is_some_and(|current| current.present > 0)
            && !std::mem::replace(&mut self.work.failed, true)
        {
            self.failures = Some(Departures::begin(failed, self.last_round, now));
        }
    }

    /// A node of the round has left. The round is over because of it, if it was not over before.
    fn note_leaver(&mut self, left: Sign, now: Timestamp, out: &mut Vec<Decision>) {
        if self.current.as_ref().is_some_and(|current| current.broken.is_none()) {
            // Report the leavers of an earlier round first.
            let leavers = self.leavers.take();
            self.publish_leavers(leavers, now, out);
            self.break_round(Break { why: Why::Left, signs: vec![left.clone()] }, now, out);
            self.leavers = Some(Departures::begin(left, self.last_round, now));
        } else if let Some(leavers) = &mut self.leavers {
            leavers.follow(left, now);
        }
    }

    fn publish_leavers(&self, leavers: Option<Departures>, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(leavers) = leavers else { return };
        // Some nodes of the round have joined again by now.
        let is_of_round = |(_, member): &(&Label, &Member)| match member.seat {
            Seat::InRound(_) => true,
            Seat::Forming | Seat::Redundant => member.previous.is_some(),
            Seat::Ended(_) => false,
        };
        let left = count(self.walk().filter(is_of_round).count());
        let restarted = self.restarted.and_then(|restarted| caused_by_restart(restarted, leavers.at));
        let what = What::Broken { why: Why::Left, left, restarted };
        self.publish(leavers.round, what, leavers.signs(now), out);
    }

    fn publish_failures(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(failures) = self.failures.take_if(|failures| failures.are_due(now)) else { return };
        // A node whose connection broke is dead, or is reported with the dead ones.
        let in_round = |(_, member): &(&Label, &Member)| {
            matches!(member.seat, Seat::InRound(_)) && !member.cut && !member.unheard
        };
        let mut others: Vec<String> =
            self.walk().filter(in_round).map(|(_, member)| member.info.who().to_string()).collect();
        others.sort_unstable();
        self.publish(failures.round, What::Gone { others }, failures.signs(now), out);
    }

    /// A node of the current round has done its work. The run has finished when all of them have.
    fn count_success(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(current) = &self.current else { return };
        let ran = now.since(current.round.completed);
        self.work.succeeded = self.work.succeeded.saturating_add(1);
        if self.work.succeeded == self.work.nodes {
            self.work.finished = Some(now);
            self.publish(self.last_round, What::Finished { nodes: self.work.nodes, ran }, Vec::new(), out);
        }
    }

    pub(super) fn close(&mut self, by: &str, now: Timestamp, out: &mut Vec<Decision>) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.closed = Some(Closed { by: by.to_owned(), at: now });
        self.publish(self.last_round, What::Closed(by.to_owned()), Vec::new(), out);
        let waiting: Vec<(Label, bool)> = self
            .walk()
            .filter(|(_, member)| matches!(member.seat, Seat::Forming | Seat::Redundant))
            .map(|(node, member)| (node.clone(), member.seat == Seat::Redundant))
            .collect();
        for (node, redundant) in waiting {
            let (run, by) = (self.id.clone(), by.to_owned());
            let why =
                if redundant { RunRefusal::GracefulExit { run, by } } else { RunRefusal::Closed { run, by } };
            self.end(&node, why, now, out);
        }
        self.settle(now, out);
        true
    }

    /// Does what is due at this time, and looks at all members before their time.
    pub(super) fn check_members(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        self.members_check = Some(self.members_check.map_or(now, |check| check.min(now)));
        self.tick(now, out);
    }

    /// Does what is due at this time. Nodes that were silent for too long are lost.
    pub(super) fn tick(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        let terms = self.terms;
        let (late, patience) = (terms.late_after(), terms.patience());
        let over = |member: &Member| match member.seat {
            Seat::Ended(_) => Some(member.last_seen + ENDED_KEPT),
            _ => member.may_be_late().then(|| member.given_up(&terms)),
        };
        if let Some(at) = self.members_check.filter(|at| *at <= now) {
            if now.since(at) > OWN_LAG {
                // The server itself was stopped, and heard nobody.
                for member in self.members.values_mut() {
                    (member.last_seen, member.silence_published) = (now, true);
                }
            }
            let gone: Vec<Label> = self
                .walk()
                .filter(|(_, member)| over(member).is_some_and(|at| at <= now))
                .map(|(node, _)| node.clone())
                .collect();
            let is_over = self.current.as_ref().is_some_and(|current| current.broken.is_some());
            if self.closed.is_some() || is_over {
                self.publish_lost(|member| over(member).is_some_and(|at| at <= now), now, out);
            }
            let successors = if gone.is_empty() { Vec::new() } else { self.successors(now) };
            let replaced: HashSet<Label> =
                successors.into_iter().map(|successor| successor.predecessor.clone()).collect();
            for node in gone {
                self.lose(&node, replaced.contains(&node), now, out);
            }
            self.publish_silent(now, out);
            self.look_for_silent(now);
            let next = |member: &Member| {
                let is_published = member.silence_published && member.last_seen + late <= now;
                let can_be_published =
                    !is_published && !member.cut && late < patience && member.may_be_late();
                if can_be_published { Some(member.last_seen + late) } else { over(member) }
            };
            self.members_check = self.walk().filter_map(|(_, member)| next(member)).min();
        }
        self.publish_cut(now, out);
        self.publish_failures(now, out);
        let leavers = self.leavers.take_if(|leavers| leavers.are_due(now));
        self.publish_leavers(leavers, now, out);
        self.end_adoption(now, out);
        self.settle(now, out);
    }

    /// A node is lost. If it `is_replaced`, it is not absent: its successor gets its place.
    pub(super) fn lose(&mut self, node: &Label, is_replaced: bool, now: Timestamp, out: &mut Vec<Decision>) {
        if self.closed.is_none() && self.current.as_ref().is_some_and(|current| current.broken.is_none()) {
            self.break_for_lost(node, now, out);
        }
        let Some(member) = self.vacate(node) else { return };
        let (who, fate) = (member.info.who(), if member.cut { Fate::Closed } else { Fate::Lost });
        match member.seat {
            Seat::InRound(rank) if !is_replaced => {
                self.note_absent(node, who, Some(rank), fate, member.last_seen);
            }
            Seat::Forming | Seat::Redundant => {
                if member.seat == Seat::Forming {
                    self.note_absent(node, who, None, fate, member.last_seen);
                }
                let signs = member.sign(now).into_iter().collect();
                self.publish(self.next_round(), What::Gone { others: Vec::new() }, signs, out);
            }
            Seat::InRound(_) | Seat::Ended(_) => {}
        }
    }

    /// Reports lost nodes of a closed run, or of a round that is over: nobody is told to join again for them.
    /// Nodes that have been silent since a restart of the server may have ended well meanwhile, if the run is
    /// closed. Nodes that ended the round were already reported with it.
    fn publish_lost(&self, is_lost: impl Fn(&Member) -> bool, now: Timestamp, out: &mut Vec<Decision>) {
        let in_round = |(_, member): &(&Label, &Member)| matches!(member.seat, Seat::InRound(_));
        let (lost, there): (Vec<_>, Vec<_>) =
            self.walk().filter(in_round).map(|(_, member)| member).partition(|member| is_lost(member));
        let (unheard, lost): (Vec<_>, Vec<_>) = lost.into_iter().partition(|member| member.unheard);
        if let (Some(at), None) = (self.restarted, &self.closed) {
            let not_back = |sign| Sign { did: Did::NotBack, ago: now.since(at), ..sign };
            let signs: Vec<Sign> = signs_of(unheard.into_iter(), now).into_iter().map(not_back).collect();
            if !signs.is_empty() {
                self.publish(self.last_round, What::Gone { others: Vec::new() }, signs, out);
            }
        }
        let published = self.current.as_ref().and_then(|current| current.broken.as_ref());
        let published = published.filter(|broken| broken.why == Why::Lost).map(|broken| &broken.signs);
        let is_published =
            |sign: &Sign| published.is_some_and(|all| all.iter().any(|it| it.node == sign.node));
        let mut lost = signs_of(lost.into_iter(), now);
        lost.retain(|sign| !is_published(sign));
        if lost.is_empty() {
            return;
        }
        // The other nodes of a round that is over join again, so only those of a closed run are named.
        let is_there = |member: &&Member| !member.cut && !member.unheard;
        let there = there.into_iter().filter(is_there).filter(|_| self.closed.is_some());
        let mut others: Vec<String> = there.map(|member| member.info.who().to_string()).collect();
        others.sort_unstable();
        self.publish(self.last_round, What::Gone { others }, lost, out);
    }

    /// Gives up the round because a node is lost. Names the nodes that fell silent together with it.
    fn break_for_lost(&mut self, lost: &Label, now: Timestamp, out: &mut Vec<Decision>) {
        let is_in_round = |member: &Member| matches!(member.seat, Seat::InRound(_));
        if !self.members.get(lost).is_some_and(is_in_round) {
            return;
        }
        let silent = self.walk().filter(|(_, member)| is_in_round(member) && member.may_be_late());
        let soon = now + self.terms.hold();
        let together = silent.filter(|(node, member)| *node == lost || member.given_up(&self.terms) <= soon);
        let signs = signs_of(together.map(|(_, member)| member), now);
        self.break_round(Break { why: Why::Lost, signs }, now, out);
    }

    /// Does everything that follows from an event: places, rounds, and what ends.
    pub(super) fn settle(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        self.promote(now, out);
        loop {
            self.advance(now, out);
            // A round that was completed or given up may have freed places.
            if !self.promote(now, out) {
                break;
            }
        }
        if self.current.as_ref().is_some_and(Current::is_empty) {
            self.dissolve(out);
        }
        let is_idle = self.live() == 0;
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
        let is_over = self.closed.is_some() || (is_idle && self.current.is_none());
        if is_over && std::mem::take(&mut self.holds_store) {
            out.push(Decision::Release(self.id.clone()));
        }
    }

    /// No node is in the round any more.
    pub(super) fn dissolve(&mut self, out: &mut Vec<Decision>) {
        if self.current.take().is_some() {
            out.push(Decision::Dissolved(self.id.clone()));
        }
    }

    /// The round is complete with these nodes, by rank.
    pub(super) fn enter(&mut self, round: Round, nodes: &[Label], out: &mut Vec<Decision>) {
        // A node that is still in the last round is not in the new one. The answers to its heartbeats say so.
        let stragglers: Vec<Label> =
            self.walk().filter(|(_, m)| matches!(m.seat, Seat::InRound(_))).map(|(n, _)| n.clone()).collect();
        for node in stragglers {
            self.vacate(&node);
        }
        let round = Arc::new(round);
        let mut watched = 0;
        for (rank, node) in (0..).zip(nodes) {
            let Some(member) = self.members.get_mut(node) else { continue };
            member.seat = Seat::InRound(rank);
            member.previous = Some(rank);
            watched = u32::saturating_add(watched, member.watched.into());
            if let Some(rank) = member.rank.filter(|_| !member.watched) {
                // Its end will not be noticed, so its successor may have the rank at once.
                self.ranks.remove(&rank);
                self.redundant.rank_changed(rank, false);
            }
        }
        self.joined = 0;
        self.with_rank = 0;
        (self.forming, self.more_time) = (None, Duration::ZERO);
        self.doubtful.clear();
        self.absent.clear();
        self.last_round = round.number;
        self.unreported = None;
        self.holds_store = self.terms.store;
        self.work = Work { nodes: count(nodes.len()), ..Work::default() };
        self.moved = (0..count(nodes.len())).collect();
        self.let_go = 0;
        self.current = Some(Current {
            memory: round.participants.iter().map(Participant::memory).sum(),
            round: Arc::clone(&round),
            present: count(nodes.len()),
            watched,
            broken: None,
            adoption: None,
        });
        out.push(Decision::Completed(round));
    }

    pub(super) fn no_store(&mut self, why: &str, now: Timestamp, out: &mut Vec<Decision>) {
        let Some(round) = self.current.as_ref().map(|c| c.round.number) else { return };
        self.holds_store = false;
        self.publish(round, What::NoStore(why.to_owned()), Vec::new(), out);
        let nodes: Vec<Label> =
            self.walk().filter(|(_, m)| matches!(m.seat, Seat::InRound(_))).map(|(n, _)| n.clone()).collect();
        for node in nodes {
            self.end(
                &node,
                RunRefusal::NoStore { run: self.id.clone(), round, why: why.to_owned() },
                now,
                out,
            );
        }
        self.settle(now, out);
    }

    fn signal_now(&self) -> Signal {
        Signal {
            closed: self.closed.is_some(),
            broken: self.current.as_ref().is_some_and(|c| c.broken.is_some()),
            nodes_wait: self.joined > 0,
            round: self.current.as_ref().map_or(0, |c| c.round.number),
        }
    }

    pub(super) fn notify_if_changed(&mut self, out: &mut Vec<Decision>) {
        let signal = self.signal_now();
        if signal != self.signal {
            self.signal = signal;
            out.push(Decision::Notify(self.id.clone()));
        }
    }

    pub(super) fn publish(&self, round: u64, what: What, signs: Vec<Sign>, out: &mut Vec<Decision>) {
        out.push(Decision::Tell(self.id.clone(), Fact { round, what, signs }));
    }

    /// The node is alive. Returns whether it is in this round.
    pub(super) fn seen_in_round(
        &mut self,
        node: &Label,
        round: u64,
        now: Timestamp,
        out: &mut Vec<Decision>,
    ) -> bool {
        let here = self.is_in_round(node, round);
        if !here {
            return false;
        }
        let Some(member) = self.set_parked(node, false) else { return false };
        member.last_seen = now;
        self.watch_for(now);
        self.refuse_contenders(node, now, out);
        true
    }
}
