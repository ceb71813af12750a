//! The c10d backend: rounds as the rendezvous state shows them.

use std::collections::HashMap;

use super::facts::{Departure, Dying, FormerNode, LeftNode, Sign, Stage};
use super::limits::MOST_NODES;
use super::memory::Room;
use super::node::{Before, Membership, NodeId, TrackedNode};
use super::tracked::TrackedRun;
use crate::expect::Plan;
use crate::missing::missing;
use crate::presence::Place;
use crate::reason::words::{if_any, of_expected};
use crate::reason::{Code, Evidence, Finding, Last, Names, Reason, Unit};
use crate::totals::Tally;
use rallypoint_api::{Expected, Seen, Severity};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};
use rallypoint_protocol::rendezvous_state::{Node as Desc, RendezvousState, UtcMicros};

/// What a new state changes: nodes by their place in the list of all.
#[derive(Default)]
struct Relisted {
    joined: Vec<usize>,
    changed: Vec<usize>,
    /// Nodes that have put themselves on the wait list.
    waiting: Vec<usize>,
    /// For each node that was known before: whether the state still has it.
    is_listed: Vec<bool>,
    /// How many participants there is no room for.
    untold: u32,
}

impl TrackedRun {
    /// A new version of torchrun's c10d state, which `conn` wrote.
    pub(super) fn fold_state(
        &mut self,
        state: &RendezvousState,
        conn: ConnId,
        wrote: &Evidence,
        plan: &Plan,
        room: &mut Room,
    ) {
        let now = wrote.at;
        let was_in: Vec<bool> = self.life.nodes.iter().map(TrackedNode::is_participant).collect();
        // Who closes the run may take all others out with that, and itself: the next round begins with nobody
        // in it, and nobody can join. It is this one that has ended.
        let is_end = state.closed && state.participants.is_empty();
        // Who is in no list any more was in this one.
        let round_before = self.round.number;
        let has_moved = self.has_state && state.round != self.round.number && !is_end;
        if has_moved {
            self.leave_round(state);
        }
        self.round.reset = None;
        if has_moved || !std::mem::replace(&mut self.has_state, true) {
            self.round.number = state.round;
        }
        let was_complete = self.round.completed.is_some();
        let Relisted { joined, changed, waiting, mut is_listed, untold } =
            self.place_nodes(state, conn, now, plan, room);
        if let [at] = changed[..]
            && self.node_of(conn).is_none()
            && self.life.nodes[at].conn.is_none()
        {
            self.life.nodes[at].conn = Some(conn);
        }
        self.round.let_go = untold;
        if !joined.is_empty() {
            self.round.started.get_or_insert(now);
        }
        self.tell_joins(&joined);
        self.round.deadline = state.deadline.map(UtcMicros::as_secs_f64);
        let participants = count(state.participants.len());
        if participants > self.round.most_joined {
            self.round.most_joined = participants;
            self.round.most_present = Names::of(self.participants().map(|node| node.name.clone()));
        }
        if let [last] = joined[..] {
            let goes_on = !state.complete && state.deadline.is_none();
            self.life.nodes[last].asks_not_for = goes_on.then_some(participants);
        }
        if state.complete && !was_complete {
            // A round that is complete when its last call is over gets no new node with that write.
            if let ([last], false) = (&joined[..], self.round.is_of_before) {
                self.round.filled_by = Some(self.life.nodes[*last].label());
            }
            self.complete(now);
        } else if state.complete && self.round.group == Some(participants) {
            self.tell_other_number(&waiting, participants, wrote);
        }
        if state.closed && self.round.closed.is_none() {
            self.close(conn, wrote, plan);
        }
        self.tell_removals(&was_in, &is_listed, round_before, conn, wrote);
        self.keep_beside(&mut is_listed, conn, participants);
        self.let_go_of_unlisted(&is_listed, conn, round_before, now);
    }

    /// Another round begins: who was gone before this one began is forgotten, and all nodes join again.
    fn leave_round(&mut self, state: &RendezvousState) {
        let began = self.round.started.unwrap_or_default();
        self.life.earlier.retain(|former| former.last_seen() >= began);
        let waiting = self.life.nodes.iter().filter(|node| node.membership == Membership::WaitList);
        self.life.awaited_since = waiting.map(|node| node.membership_since).min();
        let (closed, closed_by) = (self.round.closed, self.round.closed_by.take());
        self.begin_round(state.round);
        // A run that is closed stays so, and it was said.
        (self.round.closed, self.round.closed_by) = (closed, closed_by);
        for node in &mut self.life.nodes {
            (node.membership, node.asks_not_for) = (Membership::WaitList, None);
        }
    }

    /// Puts each node where the state has it that `conn` wrote.
    fn place_nodes(
        &mut self,
        state: &RendezvousState,
        conn: ConnId,
        now: Timestamp,
        plan: &Plan,
        room: &mut Room,
    ) -> Relisted {
        let index: HashMap<Desc, usize> = self
            .life
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(at, node)| match &node.id {
                NodeId::Desc(desc) => Some((desc.clone(), at)),
                NodeId::Rank(_) | NodeId::Native { .. } => None,
            })
            .collect();
        let stamps: HashMap<&Desc, i64> =
            state.last_heartbeats.iter().map(|(desc, at)| (desc, at.0)).collect();
        let mut relisted = Relisted { is_listed: vec![false; self.life.nodes.len()], ..Relisted::default() };
        let lists = state
            .participants
            .iter()
            .map(|(desc, rank)| (desc, Some(*rank), Membership::Participant))
            .chain(state.wait_list.iter().map(|desc| (desc, None, Membership::WaitList)))
            .chain(state.redundancy_list.iter().map(|desc| (desc, None, Membership::Redundant)));
        for (desc, rank, membership) in lists {
            let rank = rank.filter(|_| state.complete);
            let stamp = stamps.get(desc).copied().unwrap_or(i64::MIN);
            if let Some(&at) = index.get(desc) {
                relisted.is_listed[at] = true;
                let node = &mut self.life.nodes[at];
                if node.stamp != stamp {
                    // What an agent writes besides when it joins comes by its keep-alive interval.
                    if node.conn == Some(conn) && node.membership == membership && node.rank == rank {
                        self.life.beat = self.life.beat.max(Some(now.since(node.last_heartbeat)));
                    }
                    node.stamp = stamp;
                    node.last_heartbeat = now;
                    relisted.changed.push(at);
                }
                if node.membership != membership || node.rank != rank {
                    if membership == Membership::Participant && node.membership != membership {
                        node.joined = now;
                        relisted.joined.push(at);
                    }
                    if node.membership == Membership::Participant && node.membership != membership {
                        node.was_there = Some(Before { until: now, as_member: true });
                    }
                    if node.membership != membership {
                        node.membership_since = now;
                        if membership == Membership::WaitList {
                            relisted.waiting.push(at);
                        }
                    }
                    (node.membership, node.rank) = (membership, rank);
                    self.version = self.version.saturating_add(1);
                }
            } else if self.takes_node(room) {
                let at = self.life.nodes.len();
                match membership {
                    Membership::Participant => relisted.joined.push(at),
                    Membership::WaitList => relisted.waiting.push(at),
                    Membership::Earlier | Membership::Redundant => {}
                }
                relisted.changed.push(at);
                self.add_node(desc, rank, membership, stamp, now, plan);
            } else if membership == Membership::Participant {
                relisted.untold = relisted.untold.saturating_add(1);
            }
        }
        relisted
    }

    fn add_node(
        &mut self,
        desc: &Desc,
        rank: Option<u32>,
        membership: Membership,
        stamp: i64,
        now: Timestamp,
        plan: &Plan,
    ) {
        let id = NodeId::Desc(desc.clone());
        let name = self.name_for(&id, plan);
        let back = self.take_back(&id);
        let former = self.life.earlier.iter().filter(|former| former.node.name == name).chain(&back);
        let was_member = |node: &TrackedNode| node.id == id && (node.is_participant() || node.was_member());
        let as_member = former.clone().any(|former| was_member(&former.node));
        let until = former.map(FormerNode::last_seen).max();
        let was_there = until.map(|until| Before { until, as_member });
        self.life.nodes.push(TrackedNode {
            conn: back.and_then(|back| back.node.conn),
            pid: Some(desc.pid),
            rank,
            was_there,
            stamp,
            ..TrackedNode::new(id, name, membership, now)
        });
        self.touch();
    }

    /// What is known of a process that the state has again. A process is in one place only.
    fn take_back(&mut self, id: &NodeId) -> Option<FormerNode> {
        let left = self.life.left.extract_if(.., |_, left| left.node.may_come_back_as(id));
        let left = left.map(|(_, LeftNode { node, round, .. })| FormerNode { node, round });
        left.chain(self.life.earlier.extract_if(.., |former| former.node.may_come_back_as(id))).last()
    }

    /// Nodes wait for the next round, although this one has as many nodes as the one asks for that came last:
    /// so they ask for more. Where all ask for the same, such a node is redundant.
    fn tell_other_number(&mut self, waiting: &[usize], group: u32, wrote: &Evidence) {
        let Some(other) = self.round.filled_by.clone().filter(|_| !waiting.is_empty()) else { return };
        let newcomers = Names::of(waiting.iter().map(|&at| self.life.nodes[at].told()));
        let about = newcomers.to_string();
        self.life.asks_for_more = Some(newcomers.clone());
        let asks = if newcomers.count() == 1 { "asks" } else { "ask" };
        let reason = Code::NnodesDiffer
            .says(format!(
                "{newcomers} came to a complete round of {} and {asks} for more, while {other} asks for no \
                 more: their --nnodes differ",
                Unit::Node.count(group)
            ))
            .held(&newcomers)
            .fact("newcomers", &newcomers);
        self.found(Finding::new(reason, about, wrote.at).seen([wrote.clone()]));
    }

    /// Nodes that were in the round until `conn`, which is another node, took them out of it, and whose
    /// connections have not closed. A node that leaves does so itself, even where the next round begins with
    /// that.
    fn tell_removals(
        &mut self,
        was_in: &[bool],
        is_listed: &[bool],
        round_before: u64,
        conn: ConnId,
        wrote: &Evidence,
    ) {
        let now = wrote.at;
        let has_moved = self.round.number != round_before;
        if self.round.closed.is_some() || self.round.exit_done.is_some() {
            return;
        }
        // A member of the last round may begin the next when all have left it.
        let is_member =
            self.life.nodes.iter().zip(was_in).any(|(node, was_in)| *was_in && node.conn == Some(conn));
        let is_removed = |(node, (was_in, is_listed)): &(&TrackedNode, (&bool, &bool))| {
            let is_there = node.gone.is_none() && node.conn.is_some_and(|own| own != conn);
            // At the exit barrier agents wait on the connection of their heartbeats.
            let is_there = is_there && !node.finished && (!has_moved || !is_member);
            // Who has not come back is not in the next round, and nobody has taken it out of this one.
            let is_not_back = node.is_not_back() && !has_moved;
            **was_in && !**is_listed && (is_there || is_not_back)
        };
        let nodes = self.life.nodes.iter().zip(was_in.iter().zip(is_listed));
        let removed: Vec<_> = nodes.filter(is_removed).map(|(node, _)| node).collect();
        let is_removed = |node: &TrackedNode| removed.iter().any(|removed| removed.id == node.id);
        // When the next round begins, those of the last one are in it, or wait for it.
        let is_left = |node: &TrackedNode| if has_moved { node.was_member() } else { node.is_participant() };
        let there = self.life.nodes.iter().filter(|node| node.is_there() && !is_removed(node));
        let left = count(there.filter(|node| is_left(node)).count());
        let (not_back, connected): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|node| node.is_not_back());
        let told = |(removed, not_back): (Vec<&TrackedNode>, bool)| {
            let heard = removed.iter().map(|node| node.last_heartbeat).max()?;
            let nodes = Names::of(removed.iter().map(|node| node.label()));
            let (about, by) = (nodes.to_string(), self.name_of(conn, wrote));
            let heard_of = removed.iter().map(|node| node.evidence(Seen::Heard, None, node.last_heartbeat));
            let evidence: Vec<_> = heard_of.chain([wrote.clone()]).collect();
            let silent = Elapsed(now.since(heard));
            let reason = Reason::taken_out(&nodes, &by, silent, not_back, left).at(heard);
            Some(Finding::new(reason, about, now).seen(evidence).in_round(Some(round_before)))
        };
        let told = [(connected, false), (not_back, true)].into_iter().filter_map(told);
        told.collect::<Vec<_>>().into_iter().for_each(|finding| self.found(finding));
    }

    /// A node that asks for fewer nodes than the round has takes itself out of the list of those that are too
    /// many, and puts itself there again with the next write, over and over. It is there all the time.
    fn keep_beside(&mut self, is_listed: &mut [bool], by: ConnId, participants: u32) {
        let is_full = self.round.group == Some(participants);
        for (node, is_listed) in self.life.nodes.iter_mut().zip(is_listed) {
            let is_beside = !*is_listed && is_full && node.membership == Membership::Redundant;
            // Others may write between the two.
            let is_it = node.conn == Some(by) || node.asks_not_for == Some(participants);
            if is_beside && is_it && node.gone.is_none() {
                *is_listed = true;
                node.asks_not_for = Some(participants);
            }
        }
    }

    /// Nodes that are in no list any more, as `by` wrote it. Who has finished stays in its round: agents send
    /// no heartbeats while they wait at the exit barrier, so others take them out of the state.
    fn let_go_of_unlisted(&mut self, is_listed: &[bool], by: ConnId, round: u64, now: Timestamp) {
        let mut at = 0;
        let (earlier, left) = (&mut self.life.earlier, &mut self.life.left);
        self.life.nodes.retain(|node| {
            let stays = is_listed.get(at).copied().unwrap_or(true) || node.finished && node.is_participant();
            at = at.saturating_add(1);
            let is_out = node.gone.is_some() || node.conn.is_none();
            if !stays && is_out && earlier.len() < MOST_NODES {
                earlier.push(FormerNode { node: node.clone(), round });
            }
            if let (false, None, Some(conn)) = (stays, node.gone, node.conn)
                && left.len() < MOST_NODES
            {
                let departure = if node.finished {
                    Departure::Finished
                } else if conn == by {
                    Departure::Own
                } else {
                    Departure::Removed
                };
                let (node, since, sign) = (node.clone(), now, Sign::None);
                left.insert(conn, LeftNode { node, round, departure, since, sign });
            }
            stays
        });
    }

    /// The round has its members.
    fn complete(&mut self, now: Timestamp) {
        self.round.completed = Some(now);
        self.round.group = Some(self.members());
        // Among the nodes that died while joining, only those are told that the round has taken in.
        let mut dying = std::mem::take(&mut self.life.dying);
        let is_it =
            |one: &Dying, node: &TrackedNode| node.gone == Some(one.closed.at) && node.pid == one.closed.pid;
        dying.retain(|one| one.stage != Stage::Joining || self.participants().any(|node| is_it(one, node)));
        self.life.dying = dying;
        let started = self.round.started.unwrap_or(now);
        let Some(last) = self.participants().max_by_key(|node| node.joined) else { return };
        let dead = || self.participants().filter(|node| node.is_dead() && !node.is_cut_off);
        let closed = dead().filter_map(|node| Some(node.evidence(Seen::Closed, None, node.gone?)));
        let closed: Vec<_> = closed.collect();
        let dead = Names::of(dead().map(TrackedNode::label));
        let reason = Self::is_complete(self.members(), started, now, last, &dead);
        let about = format!("round {}", self.round.number);
        self.found(Finding::new(reason, about, now).seen(closed));
    }

    /// All nodes of its round have come; of these `dead` had left before: torch had not noticed, and counts
    /// on them.
    pub(super) fn is_complete(
        nodes: u32,
        started: Timestamp,
        at: Timestamp,
        last: &TrackedNode,
        dead: &Names,
    ) -> Reason {
        let took = Elapsed(at.since(started));
        let (name, after) = (last.told(), Elapsed(last.joined.since(started)));
        let counts = if dead.is_empty() {
            String::new()
        } else {
            format!("; it counts {dead}, whose connection had closed")
        };
        let text =
            format!("complete: {} in {took}; last: {name} (+{after}){counts}", Unit::Node.count(nodes));
        let reason = Code::RoundComplete.says(text).predicate().joined(nodes, Some(nodes));
        let reason = reason.fact("nodes", nodes).tally(Tally::Complete(took.0));
        if dead.is_empty() {
            return reason;
        }
        reason.severe(Severity::Error).misses(Place::Node, dead, Last::Closed).fact("dead", dead).look_at(
            "look at the log and events of each pod whose connection had closed; what comes in its place \
             cannot join this round, and the others wait until their time-outs: restart all agents of the \
             job together",
        )
    }

    /// The writer of the state, as a node where it is one.
    fn name_of(&self, conn: ConnId, wrote: &Evidence) -> String {
        self.node_of(conn).map_or_else(|| wrote.who.clone(), TrackedNode::label)
    }

    fn close(&mut self, conn: ConnId, wrote: &Evidence, plan: &Plan) {
        let (by, now) = (self.name_of(conn, wrote), wrote.at);
        self.round.closed = Some(now);
        self.round.closed_by = Some(by.clone());
        self.touch();
        if self.round.exit_done.is_some() || self.round.is_of_before {
            return;
        }
        let wrote = Evidence { who: by.clone(), ..wrote.clone() };
        let reason = if let (Some(_), Some(nodes)) = (self.round.completed, self.round.group) {
            let others = self.still_running().filter(|node| node.conn != Some(conn));
            let running = Names::of(others.map(TrackedNode::label));
            let finished = match self.round.exit.len() {
                0 if nodes == 1 => "its only node had not".to_owned(),
                0 => format!("none of {} had", Unit::Node.count(nodes)),
                finished => format!("only {finished} of {} had", Unit::Node.count(nodes)),
            };
            Code::RunClosed
                .says(format!("closed by {by} although {finished} finished"))
                .expects(Some(nodes))
                .lacks("still in the round", "running", Place::Node, &running, Last::Connected)
                .tally(Tally::Closed)
        } else {
            let expected = self.expected(plan);
            let (joined, min) = (self.round.most_joined, expected.map(|expected| expected.min));
            let present = &self.round.most_present;
            let was = if present.count() == 1 { "; there was " } else { "; there were " };
            Code::RunClosed
                .says(format!(
                    "closed by {by} at {} and never complete",
                    of_expected(joined, min, Unit::Node)
                ))
                .severe(Severity::Error)
                .look_at(
                    "the first node that is stopped or gives up closes the run for all; give them more time \
                     with --rdzv-conf join_timeout=1800 and look for the nodes that did not come",
                )
                .joined(joined, min)
                .held(present)
                .lacks("missing", "missing", Place::Node, &self.never_joined(plan, expected), Last::NeverSeen)
                .then(&if_any(was, present))
                .tally(Tally::TimedOut)
        };
        let about = format!("round {}", self.round.number);
        self.found(Finding::new(reason, about, now).seen([wrote]));
    }

    /// The names of the nodes that a round which was closed has never had. Those that gave up before have
    /// left its state.
    fn never_joined(&self, plan: &Plan, expected: Option<Expected>) -> Names {
        let wanted = expected.map_or(0, |expected| expected.min.saturating_sub(self.round.most_joined));
        let had = |name: &String| {
            self.round.most_present.shown.contains(name)
                || self.participants().any(|node| node.name == *name)
                || self.life.left.values().any(|left| left.node.name == *name)
        };
        let missing = missing(self, plan, expected).into_iter().filter_map(|node| node.name);
        Names::of(missing.filter(|name| !had(name)).take(wanted as usize))
    }
}
