//! The state of a run, for people.

use std::collections::HashSet;

use super::reason::{Did, Sign};
use super::run::{Current, Run, Seat};
use super::{Absent, Label, NodeInfo, Terms};
use rallypoint_protocol::ids::{RunId, Timestamp, count};

/// The state of a run's rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundState {
    /// A round is forming.
    Forming,
    /// A round is forming, has enough nodes, and waits a little for more.
    LastCall,
    /// A round is complete.
    Complete,
    /// A complete round is to be given up: its nodes are told to join again.
    Breaking,
    /// The run is closed.
    Closed,
    /// The run has no nodes.
    Idle,
}

/// Where a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// In the complete round.
    InRound {
        /// Its rank.
        rank: u32,
    },
    /// In the forming round.
    Waiting {
        /// The rank it asked for.
        rank: Option<u32>,
    },
    /// It waits for a place.
    Redundant {
        /// What it waits for.
        waits_for: WaitsFor,
    },
}

/// What a node without a place waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// For any place: all places are taken.
    Place,
    /// The rank it asked for, which another node has.
    Rank(u32),
    /// For the place of its predecessor: the node came anew, and the server still counts on the earlier
    /// process.
    Before,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSnapshot {
    /// Its id.
    pub node: Label,
    /// What it says about itself.
    pub info: NodeInfo,
    /// Its place.
    pub state: NodeState,
    /// Its last sign of life: now while one of its requests waits here.
    pub heard: Timestamp,
    /// Whether its next sign of life is late.
    pub is_late: bool,
    /// Whether its connection closed and no other has come.
    pub is_cut: bool,
    /// Whether it has not been in a round before.
    pub is_new: bool,
    /// Whether it sends heartbeats in a complete round, so that its loss is noticed.
    pub is_watched: bool,
    /// When it joined.
    pub joined: Timestamp,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSnapshot {
    /// The moment of this snapshot.
    pub at: Timestamp,
    /// Its id.
    pub run_id: RunId,
    /// The complete round, or else the forming one, or else the last one.
    pub round: u64,
    /// The state of that round.
    pub state: RoundState,
    /// The terms that hold.
    pub terms: Terms,
    /// Nodes in the complete round.
    pub in_round: u32,
    /// Nodes that wait for the next round.
    pub waiting: u32,
    /// Nodes without a place.
    pub redundant: u32,
    /// All nodes: by rank, then the waiting ones in the order of their joins.
    pub nodes: Vec<NodeSnapshot>,
    /// The first join of the forming round.
    pub forms_since: Option<Timestamp>,
    /// When the forming round closes: in the last call it is then complete with the nodes that are there,
    /// else it is given up if it has too few. `None` while that depends on nodes of the last round.
    pub closes_at: Option<Timestamp>,
    /// When the complete round had its first join, and when it was complete.
    pub complete: Option<(Timestamp, Timestamp)>,
    /// How many nodes the last round had when it became complete.
    pub round_size: u32,
    /// Nodes of a round that was learned after a restart of the server, and that may still report.
    pub unreported: u32,
    /// Nodes of the last round that were dropped when memory was short: they are in no list, and only their
    /// number is known.
    pub let_go: u32,
    /// Nodes of the last round that left because they had done their work.
    pub succeeded: u32,
    /// When the last of them left, if that finished the run.
    pub finished: Option<Timestamp>,
    /// Requested ranks that nobody holds in the forming round, if all nodes ask for a rank. Or the ranks that
    /// have not reported, in a round that was learned after a restart of the server. A few of them.
    pub missing_ranks: Vec<u32>,
    /// Whether the forming round is to be given up soon.
    pub is_expiring: bool,
    /// Nodes that could be in the round and are not.
    pub absent: Vec<Absent>,
    /// What the run waits for, or why the round is to be given up, in words.
    pub reason: String,
}

impl Run {
    pub(super) fn snapshot(&self, now: Timestamp) -> RunSnapshot {
        let successors: HashSet<&Label> = self.successors(now).into_iter().map(|came| came.node).collect();
        let mut nodes: Vec<(u64, NodeSnapshot)> = self
            .walk()
            .filter_map(|(node, member)| {
                let (order, state) = match member.seat {
                    Seat::InRound(rank) => (u64::from(rank), NodeState::InRound { rank }),
                    Seat::Forming => (1 << 40 | member.serial, NodeState::Waiting { rank: member.rank }),
                    Seat::Redundant => {
                        let contended = member.rank.filter(|rank| self.ranks.contains_key(rank));
                        let waits_for = match contended {
                            _ if successors.contains(node) => WaitsFor::Before,
                            Some(rank) => WaitsFor::Rank(rank),
                            None => WaitsFor::Place,
                        };
                        (1 << 50 | member.serial, NodeState::Redundant { waits_for })
                    }
                    Seat::Ended(_) => return None,
                };
                let heard = if member.parked { now } else { member.last_seen };
                let (node, info) = (node.clone(), member.info.clone());
                let (is_late, is_new) = (member.is_silent(now, &self.terms), member.previous.is_none());
                let (joined, is_watched) = (member.joined, member.watched);
                let is_cut = member.cut;
                let shown =
                    NodeSnapshot { node, info, state, heard, is_late, is_cut, is_new, is_watched, joined };
                Some((order, shown))
            })
            .collect();
        nodes.sort_by_key(|(order, _)| *order);
        let current = self.current.as_ref();
        let broken = current.and_then(|c| c.broken.as_ref());
        let state = match (&self.closed, current, &self.forming) {
            (Some(_), ..) => RoundState::Closed,
            (_, Some(_), Some(_)) => RoundState::Breaking,
            (_, Some(_), None) if broken.is_some() => RoundState::Breaking,
            (_, Some(_), None) => RoundState::Complete,
            (_, None, Some(_)) if self.is_last_call() => RoundState::LastCall,
            (_, None, Some(_)) => RoundState::Forming,
            (_, None, None) => RoundState::Idle,
        };
        let are_there = |signs: &[Sign]| signs.iter().all(|it| matches!(it.did, Did::Joined | Did::Rejoined));
        let reason = match (&self.closed, broken, &self.forming) {
            (Some(closed), ..) => format!("closed by {}", closed.by),
            (_, None, None) => String::new(),
            // What the round waits for includes these nodes and all silent ones.
            (_, Some(broken), _) if are_there(&broken.signs) => {
                format!("{broken}; {}", self.waits_in_words(now))
            }
            _ => self.waits_in_words(now),
        };
        let round = match (current, &self.forming) {
            (Some(current), _) => current.round.number,
            (None, Some(_)) => self.next_round(),
            (None, None) => self.last_round,
        };
        RunSnapshot {
            at: now,
            run_id: self.id.clone(),
            round,
            state,
            terms: Terms { max_nodes: self.most_nodes(), ..self.terms },
            in_round: current.map_or(0, |c| c.present),
            waiting: self.joined,
            redundant: count(self.redundant.len()),
            nodes: nodes.into_iter().map(|(_, node)| node).collect(),
            forms_since: self.forming.as_ref().map(|forming| forming.first_join),
            closes_at: self
                .closes_at()
                .filter(|_| self.joined < self.terms.min_nodes || self.expected() == 0),
            complete: current.map(|Current { round, .. }| {
                (Timestamp(round.completed.0.saturating_sub(round.took)), round.completed)
            }),
            round_size: self.work.nodes,
            unreported: current.map_or(0, Current::unreported),
            let_go: self.let_go,
            succeeded: self.work.succeeded,
            finished: self.work.finished,
            absent: self.absent.to_vec(),
            missing_ranks: match (&self.forming, current.and_then(|c| c.adoption.as_ref())) {
                (Some(_), _) => self.missing_ranks(),
                (None, Some(adoption)) => adoption.silent_ranks().collect(),
                (None, None) => Vec::new(),
            },
            is_expiring: self.joined < self.terms.min_nodes
                && self.forming.as_ref().is_some_and(|forming| forming.announce_at.is_none()),
            reason,
        }
    }
}
