//! The c10d backend: rounds as the rendezvous state shows them.

use std::collections::HashMap;

use crate::facts::{Membership, NodeId, Plan, Room, TrackedNode, TrackedRun};
use crate::reason::{Evidence, Names};
use crate::rules::{contradictions, ends, losses, starts};
use rallypoint_protocol::ids::{ConnId, Timestamp, count};
use rallypoint_protocol::rendezvous_state::{Node as Desc, RendezvousState, UtcMicros};

/// What a new state changes: nodes by their place in the list of all.
#[derive(Default)]
struct Relisted {
    joined: Vec<usize>,
    changed: Vec<usize>,
    /// Nodes that have put themselves on the wait list.
    waiting: Vec<usize>,
    /// For each node whether the state has it.
    is_listed: Vec<bool>,
    /// How many participants there is no room for.
    untold: u32,
}

impl TrackedRun {
    /// A new version of torchrun's c10d state, which `conn` wrote.
    pub(crate) fn fold_state(
        &mut self,
        state: &RendezvousState,
        conn: ConnId,
        wrote: &Evidence,
        plan: &Plan,
        room: &mut Room,
    ) {
        let now = wrote.at;
        // Who closes the run may take all others out with that, and itself: the next round begins with nobody
        // in it, and nobody can join. It is this one that has ended.
        let is_end = state.closed && state.participants.is_empty();
        // Who is in no list any more was in this one.
        let round_before = self.round.number;
        let has_moved = self.has_state && state.round != self.round.number && !is_end;
        // Who was gone before this round began is forgotten when another begins.
        if let Some(began) = self.round.started.filter(|_| has_moved) {
            self.life.nodes.retain(|node| !node.is_out() || node.lingers() || node.last_seen() >= began);
        }
        let was_in: Vec<bool> = self.life.nodes.iter().map(TrackedNode::is_participant).collect();
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
        {
            let node = &mut self.life.nodes[at];
            // Agents write for themselves alone.
            let of = if node.conn.is_none() { &mut node.conn } else { &mut node.twin };
            *of = Some(conn);
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
            self.complete(joined.last().copied(), now);
        } else if state.complete && self.round.group == Some(participants) {
            self.tell_other_number(&waiting, participants, wrote);
        }
        if state.closed && self.round.closed.is_none() {
            self.close(conn, wrote, plan);
        }
        self.keep_beside(&mut is_listed, conn, participants);
        let removed = self.let_go_of_unlisted(&was_in, &is_listed, conn, (round_before, now));
        let removed: Vec<&TrackedNode> = removed.iter().map(|&at| &self.life.nodes[at]).collect();
        self.found(losses::taken_out(self, &removed, round_before, conn, wrote));
    }

    /// The live agent that has written as the node of `conn` before, and that node's id.
    pub(crate) fn twin_of(&self, conn: ConnId) -> Option<(ConnId, String)> {
        let node = self.node_of(conn)?;
        Some((node.twin.filter(|twin| self.agents.contains(twin))?, node.node_id()))
    }

    /// Another round begins, and all nodes join again.
    fn leave_round(&mut self, state: &RendezvousState) {
        let waiting = self.those(Membership::WaitList);
        self.life.awaited_since = waiting.map(|node| node.membership_since).min();
        let (closed, closed_by) = (self.round.closed, self.round.closed_by.take());
        self.begin_round(state.round);
        // A run that is closed stays so, and it was said.
        (self.round.closed, self.round.closed_by) = (closed, closed_by);
        for node in self.life.nodes.iter_mut().filter(|node| node.is_listed()) {
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
        // After its connection was seen to close, another process may have the id of one that is out.
        let may_be_it = |node: &TrackedNode| node.is_listed() || node.gone.is_none();
        let nodes = self.life.nodes.iter().enumerate().filter(|(_, node)| may_be_it(node));
        let index: HashMap<Desc, usize> = nodes
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
            let at = match index.get(desc) {
                Some(&at) => at,
                None if self.takes_node(room) => {
                    let id = NodeId::Desc(desc.clone());
                    let name = self.name_for(&id, plan);
                    let node = TrackedNode::new(id, name, Membership::Left, now);
                    self.life.nodes.push(TrackedNode { pid: Some(desc.pid), stamp: i64::MAX, ..node });
                    relisted.is_listed.push(true);
                    self.life.nodes.len().saturating_sub(1)
                }
                None => {
                    let is_participant = membership == Membership::Participant;
                    relisted.untold = relisted.untold.saturating_add(is_participant.into());
                    continue;
                }
            };
            relisted.is_listed[at] = true;
            let node = &mut self.life.nodes[at];
            if node.is_out() {
                (node.finished, node.asks_not_for) = (false, None);
            }
            if node.stamp != stamp {
                // What an agent writes besides when it joins comes by its keep-alive interval.
                if node.conn == Some(conn) && node.membership == membership && node.rank == rank {
                    self.life.beat = self.life.beat.max(Some(now.since(node.last_heartbeat)));
                }
                (node.stamp, node.last_heartbeat) = (stamp, now);
                // Agents write this for themselves alone.
                let time = i64::try_from(now.0.as_micros()).unwrap_or(i64::MAX);
                node.clock = (stamp != i64::MIN).then(|| stamp.saturating_sub(time));
                relisted.changed.push(at);
            }
            if node.membership != membership {
                node.was_member |= node.is_participant();
                node.membership_since = now;
                match membership {
                    Membership::Participant => {
                        node.joined = now;
                        relisted.joined.push(at);
                    }
                    Membership::WaitList => relisted.waiting.push(at),
                    _ => {}
                }
            }
            if (node.membership, node.rank) != (membership, rank) {
                (node.membership, node.rank) = (membership, rank);
                self.touch();
            }
        }
        relisted
    }

    /// Nodes wait for the next round, although this one has as many nodes as the one asks for that came last:
    /// so they ask for more. Where all ask for the same, such a node is redundant.
    fn tell_other_number(&mut self, waiting: &[usize], group: u32, wrote: &Evidence) {
        let Some(other) = self.round.filled_by.clone().filter(|_| !waiting.is_empty()) else { return };
        let newcomers = Names::of(waiting.iter().map(|&at| self.life.nodes[at].told()));
        self.life.asks_for_more = Some(newcomers.clone());
        self.found(contradictions::other_number(&newcomers, &other, group, wrote));
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
    /// no heartbeats while they wait at the exit barrier, so others take them out of the state. Returns those
    /// that were in the round until `by`, which is another node, took them out, and whose connections have
    /// not closed. A node that leaves does so itself, even where the next round begins with that.
    fn let_go_of_unlisted(
        &mut self,
        was_in: &[bool],
        is_listed: &[bool],
        by: ConnId,
        (round, now): (u64, Timestamp),
    ) -> Vec<usize> {
        let has_moved = self.round.number != round;
        // A member of the last round may begin the next when all have left it.
        let is_member =
            self.life.nodes.iter().zip(was_in).any(|(node, was_in)| *was_in && node.conn == Some(by));
        let mut removed = Vec::new();
        // Who has come with this is listed.
        for (at, (was_in, is_listed)) in was_in.iter().zip(is_listed).enumerate() {
            let node = &mut self.life.nodes[at];
            if *is_listed || !node.is_listed() || node.finished && node.is_participant() {
                continue;
            }
            let is_own = node.finished || node.conn == Some(by);
            node.was_member |= node.is_participant();
            node.membership = if is_own { Membership::Left } else { Membership::TakenOut };
            (node.membership_since, node.round, node.is_heard) = (now, round, false);
            // Who has not come back is not in the next round, and nobody has taken it out of this one.
            let is_not_back = node.is_not_back() && !has_moved;
            if *was_in && !is_own && (node.lingers() && (!has_moved || !is_member) || is_not_back) {
                removed.push(at);
            }
        }
        removed
    }

    /// The round has its members, of which this one came last, if it came with that.
    fn complete(&mut self, last: Option<usize>, now: Timestamp) {
        self.round.completed = Some(now);
        self.round.group = Some(self.members());
        let last = last.map(|at| &self.life.nodes[at]);
        let last = last.or_else(|| self.participants().max_by_key(|node| node.joined));
        let Some(last) = last else { return };
        let dead: Vec<_> = self.participants().filter(|node| node.is_dead() && !node.is_cut_off).collect();
        self.found(starts::round_complete(self, last, &dead));
    }

    fn close(&mut self, conn: ConnId, wrote: &Evidence, plan: &Plan) {
        let (by, now) = (self.name_of(conn, wrote), wrote.at);
        self.round.closed = Some(now);
        self.round.closed_by = Some(by.clone());
        self.touch();
        if self.round.exit_done.is_some() || self.round.is_of_before {
            return;
        }
        let wrote = Evidence { who: by, ..wrote.clone() };
        self.found(ends::closed(self, conn, wrote, plan));
    }
}
