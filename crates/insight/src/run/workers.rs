//! The workers' ranks: all of them have met, or some are lost on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::limits::SETTLE;
use super::tracked::TrackedRun;
use super::world::{Lost, Meeting};
use crate::reason::words::all;
use crate::reason::{Code, Finding, Names, RankLoss};
use rallypoint_api::RunState;
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// An agent notices within this time that a worker has ended.
const NOTICED: Duration = Duration::from_secs(5);
/// Processes that are killed together end within this time; an agent that fails takes longer to end after its
/// workers.
const TOGETHER: Duration = Duration::from_millis(100);

impl TrackedRun {
    /// The process that is rank 0 and counts who comes, or that it is not known.
    pub(crate) fn set_host(&mut self, host: Option<ConnId>) {
        if self.life.world.host != host {
            self.life.world.host = host;
            self.touch();
        }
    }

    /// Reports it when all ranks of a meeting have met.
    pub(super) fn check_ranks(&mut self) {
        for at in self.life.world.take_complete() {
            self.tell_complete(at);
        }
    }

    fn tell_complete(&mut self, at: usize) {
        let world = &self.life.world;
        let meeting = &world.meetings()[at];
        let (Some(met), Some((rank, took))) = (meeting.met, meeting.last()) else { return };
        let (ranks, last) = (meeting.joined(), meeting.holder(rank).map(|info| info.label(rank)));
        let is_again = meeting.first_met.is_some();
        if self.state == RunState::Running && world.shown().number == meeting.number {
            self.state_since = met;
        }
        if !self.has_agents() {
            // This line says everything that the line about the start would say.
            self.told.start = self.round.started;
        }
        let last = last.unwrap_or_default();
        let published = match ranks {
            1 => format!("{last} is its only rank, and has published its address"),
            n => format!(
                "{} have published their addresses in {took}; last: {last} (+{took})",
                all(n, "ranks")
            ),
        };
        let reason = Code::RoundComplete.says(published);
        if is_again {
            // A program may make its process group a thousand times.
            return self.moment(met, reason.code.name(), reason.text);
        }
        let mut reason = reason.joined(ranks, Some(ranks)).fact("ranks", ranks);
        reason.is_detail = self.has_agents();
        self.finds(reason, format!("{met:?}"), met);
    }

    /// Reports which ranks ended before all had met.
    pub(super) fn tell_lost_ranks(&mut self, now: Timestamp) {
        for at in 0..self.life.world.meetings().len() {
            let world = &mut self.life.world;
            let first = world.meetings()[at].lost.first().map(|lost| lost.closed.at);
            let Some(first) = first.filter(|first| now.since(*first) >= SETTLE) else { continue };
            let lost = world.take_lost(at);
            // Strangers beside those who have met are none of them.
            let meeting = &world.meetings()[at];
            let shown = world.shown();
            let is_beside =
                shown.number != meeting.number && shown.met.is_some_and(|met| !meeting.gathered_at(met));
            if !is_beside {
                self.tell_lost(at, lost, first);
            }
        }
    }

    /// The rank whose process ended first of all that had met, and when. Nodes that have finished have ended
    /// theirs well.
    pub(super) fn first_ended(&self, until: Timestamp) -> Option<(String, Timestamp)> {
        let is_well = |rank| self.node_of_worker(rank).is_some_and(|node| node.finished);
        let ended = self.life.world.shown().ended_of_met();
        let ended: Vec<_> = ended.filter(|&(rank, _, at)| at <= until && !is_well(rank)).collect();
        // Else they had closed their groups before, and went on.
        let last = ended.iter().map(|&(_, _, at)| at).max().filter(|&at| until.since(at) < NOTICED)?;
        let (rank, info, at) = ended.into_iter().min_by_key(|&(rank, _, at)| (at.min(last), rank))?;
        Some((info.label(rank), at))
    }

    fn tell_lost(&mut self, at: usize, lost: Vec<Lost>, since: Timestamp) {
        // Agents of a native round that is over end their workers, to join the next one.
        let is_over = self.native.as_ref().is_some_and(|native| native.state != RunState::Running);
        let is_finished = self.round.exit_done.is_some();
        if is_finished || is_over || self.life.world.connected.is_empty() && !self.has_agents() {
            // Reported as the end of the run.
            return;
        }
        let meeting = &self.life.world.meetings()[at];
        let (world_size, go_on) = (meeting.size, meeting.met.is_some());
        let hosts = self.life.world.host.is_some() && self.life.world.misses_first();
        let joined = meeting.present().saturating_add(u32::from(hosts));
        let of_nodes = self.by_node(meeting, lost).into_iter();
        let (victims, others): (Vec<_>, Vec<_>) = of_nodes.partition(|node| node.gave_up);
        for (nodes, gave_up) in [(others, false), (victims, true)] {
            if nodes.is_empty() {
                continue;
            }
            let (mut first, mut then, mut unseen) = (Vec::new(), Vec::new(), Vec::new());
            for node in nodes {
                first.extend(node.first);
                then.extend(node.then);
                unseen.extend(node.unseen);
            }
            let times = first.iter().map(|lost| lost.times).max().unwrap_or_default();
            let named = |lost: &[Lost]| Names::of(lost.iter().map(|lost| lost.closed.who.clone()));
            let (ranks, named_then) = (named(&first), named(&then));
            let about = ranks.to_string();
            let closed = first.into_iter().chain(then).map(|lost| lost.closed);
            let reason = RankLoss {
                ranks,
                then: named_then,
                unseen: Names::of(unseen),
                joined,
                world_size,
                gave_up,
                times,
                go_on,
            };
            self.found(Finding::new(reason, about, since).seen(closed));
        }
    }

    /// Ranks that ended, in this order, by their nodes. An agent ends its other workers when one fails: that
    /// is the first of them, unless one has not come, of which it is not known when it ended.
    fn by_node(&self, meeting: &Meeting, lost: Vec<Lost>) -> Vec<LostOfNode> {
        let began = lost.first().map(|lost| lost.closed.at);
        let is_of_round = self.round.completed.is_some_and(|at| began.is_some_and(|began| at <= began));
        let assigned = self.round.assigned.iter().filter(|_| is_of_round);
        let bases: BTreeMap<u32, (u32, u32)> =
            assigned.map(|(&node, ranks)| (ranks.base, (node, ranks.world_size))).collect();
        let gone: BTreeMap<u32, Timestamp> =
            self.participants().filter_map(|node| Some((node.rank?, node.gone?))).collect();
        let ended: BTreeSet<u32> = lost.iter().map(|lost| lost.rank).collect();
        let mut of_nodes: Vec<LostOfNode> = Vec::new();
        let mut at_node: BTreeMap<u32, usize> = BTreeMap::new();
        for lost in lost {
            // The node with the highest first rank that is not above it.
            let node = bases.range(..=lost.rank).next_back().map(|(&base, &(node, size))| (base, node, size));
            let known = node.and_then(|(base, ..)| at_node.get(&base));
            match known.and_then(|&at| of_nodes.get_mut(at)) {
                Some(of_node) if of_node.unseen.is_empty() => of_node.then.push(lost),
                Some(of_node) => of_node.first.push(lost),
                None => {
                    let ranks = node.map(|(base, _, size)| {
                        let next = bases.range(base.saturating_add(1)..).next();
                        base..next.map_or(size, |(&next, _)| next)
                    });
                    let had_come =
                        |rank: &u32| ended.contains(rank) || meeting.had_come(*rank, lost.closed.at);
                    let unseen = ranks.into_iter().flatten().filter(|rank| !had_come(rank));
                    let unseen = unseen.map(|rank| self.rank_label_in(meeting, rank)).collect();
                    at_node.extend(node.map(|(base, ..)| (base, of_nodes.len())));
                    let agent_gone = node.and_then(|(_, node, _)| gone.get(&node)).copied();
                    let gave_up = lost.gave_up;
                    of_nodes.push(LostOfNode {
                        first: vec![lost],
                        then: Vec::new(),
                        unseen,
                        gave_up,
                        agent_gone,
                    });
                }
            }
        }
        of_nodes.iter_mut().for_each(LostOfNode::settle);
        of_nodes
    }
}

/// Ranks of one node that ended before all had met.
struct LostOfNode {
    /// One of these failed.
    first: Vec<Lost>,
    /// What ended after that.
    then: Vec<Lost>,
    /// Its ranks that had not come.
    unseen: Vec<String>,
    /// The first had given up on another just before.
    gave_up: bool,
    agent_gone: Option<Timestamp>,
}

impl LostOfNode {
    /// Ranks that were killed with their agent were not ended by it.
    fn settle(&mut self) {
        let last = self.first.iter().chain(&self.then).map(|lost| lost.closed.at).max();
        if self.agent_gone.zip(last).is_some_and(|(gone, last)| gone <= last + TOGETHER) {
            self.first.append(&mut self.then);
            self.unseen.clear();
        }
    }
}
