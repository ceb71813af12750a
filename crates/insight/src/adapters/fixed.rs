//! The static rendezvous: nodes with fixed ranks, known by the role exchange of each attempt.

use std::time::Duration;

use crate::facts::{
    Agent, AssignedRanks, MOST_NODES, Membership, NodeId, Plan, Restarting, Room, RoundFacts, SETTLE,
    TrackedNode, TrackedRun,
};
use crate::rules::{contradictions, starts};
use rallypoint_api::{RunKind, Seen};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

/// What node rank 0 waits for shows how many nodes it counts on, and is seen within two seconds.
const COUNTED_WITHIN: Duration = Duration::from_secs(3);

impl TrackedRun {
    /// Static: node `rank` wrote its role. Another job may begin with it.
    pub(crate) fn static_role(
        &mut self,
        rank: u32,
        (conn, peer, pid): Agent,
        now: Timestamp,
        plan: &Plan,
        room: &mut Room,
    ) {
        let is_over = self.round.over_at.is_some() || self.round.exit_done.is_some_and(|at| at < now);
        let id = NodeId::Rank(rank);
        let node = TrackedNode {
            conn: Some(conn),
            peer: Some(peer),
            pid,
            rank: Some(rank),
            ..TrackedNode::new(id.clone(), self.name_for(&id, plan), Membership::Participant, now)
        };
        if self.kind == RunKind::C10d && !is_over {
            return self.comes_beside(TrackedNode { membership: Membership::Stranger, ..node });
        }
        if is_over {
            self.follow_static(now);
        }
        // Rank 0 takes no notice of a node that it does not count on, however often it comes.
        let is_beyond = self.round.role_nodes.is_some_and(|nodes| rank >= nodes);
        let is_again = !is_beyond && self.round.roles.contains(&rank) && self.round.completed.is_some();
        if is_again && self.is_copy(&node) {
            return self.comes_beside(TrackedNode { membership: Membership::Rival, ..node });
        }
        if is_again && self.restarts_workers(rank, conn, now) {
            return;
        }
        if is_again {
            let round = self.round.number.saturating_add(1);
            let before = self.begin_round(round);
            self.round.follows_one_of_before = before.is_of_before;
            // Until rank 0 comes again and says another number.
            (self.round.role_nodes, self.round.beyond) = (before.role_nodes, before.beyond);
            let of_round = self.life.nodes.iter_mut().filter(|node| node.is_participant());
            of_round.for_each(|node| node.membership = Membership::Earlier);
        }
        self.round.started.get_or_insert(now);
        if self.round.roles.len() >= MOST_NODES {
            return;
        }
        let is_new = self.round.roles.insert(rank);
        let is_known = |node: &TrackedNode| node.rank == Some(rank) && node.conn == Some(conn);
        if !is_again && self.participants().any(is_known) {
            return;
        }
        self.set_aside(rank, conn);
        if !self.takes_node(room) {
            self.round.let_go = self.round.let_go.saturating_add(u32::from(is_new));
            return;
        }
        self.life.nodes.push(node);
        self.life.nodes.sort_by_key(|node| node.rank);
        let is_it = |node: &TrackedNode| node.is_participant() && node.rank == Some(rank);
        if let Some(at) = self.life.nodes.iter().position(is_it) {
            self.tell_joins(&[at]);
        }
        if is_beyond {
            self.set_beyond(now);
        }
    }

    /// Whether this is another process than the node with its rank, which has met and is there.
    fn is_copy(&self, node: &TrackedNode) -> bool {
        let of_rank = node.rank.and_then(|rank| self.node_of_rank(rank));
        of_rank.is_some_and(|other| other.gone.is_none() && !other.finished && other.conn != node.conn)
    }

    /// A node of the complete round tells its role again on its connection: it has ended its workers, as one
    /// of them failed, and starts them again. Its ranks are there still, unless node rank 0 is lost; that one
    /// needs the roles of all. Returns whether it needs nobody.
    fn restarts_workers(&mut self, rank: u32, conn: ConnId, now: Timestamp) -> bool {
        let needs = |node: &TrackedNode| rank == 0 || node.rank == Some(0);
        let needs_none = !self.participants().any(|node| node.is_lost() && needs(node));
        let is_it = |node: &&TrackedNode| needs_none && node.is_participant() && node.conn == Some(conn);
        let Some(node) = self.life.nodes.iter().find(is_it) else { return false };
        let joined = node.evidence(Seen::Joined, None, now);
        // Where they had come to meet again, they have not ended because of those who had met before.
        let meeting = self.world.shown();
        let is_of_met = meeting.met.is_some()
            || !self.ranks_of(rank).into_iter().flatten().any(|rank| meeting.rank(rank).is_some());
        let first_ended = self.first_ended(now).filter(|_| is_of_met);
        let first_ended = first_ended.map(|(rank, at)| (rank, Elapsed(now.since(at))));
        let first = || Restarting { first_ended, nodes: Vec::new() };
        let restarting = self.life.restarting.get_or_insert_with(first);
        if restarting.nodes.len() < MOST_NODES {
            restarting.nodes.push(joined);
        }
        self.touch();
        true
    }

    /// Reports the nodes that start their workers again, together.
    pub(crate) fn tell_restarts(&mut self, now: Timestamp) {
        let is_due =
            |it: &mut Restarting| it.nodes.first().is_some_and(|first| now.since(first.at) >= SETTLE);
        let restarting = self.life.restarting.take_if(is_due);
        self.found(restarting.map(|restarting| starts::restarted(restarting, now)));
    }

    /// A node has come that is none of the run: a copy, or one of another backend.
    fn comes_beside(&mut self, node: TrackedNode) {
        // It may tell its role again.
        let is_it = |other: &TrackedNode| (other.membership, other.conn) == (node.membership, node.conn);
        if self.life.nodes.len() < MOST_NODES && !self.life.nodes.iter().any(is_it) {
            self.life.nodes.push(node);
        }
        self.touch();
    }

    /// Another process takes this rank. The one that had it waits for the same as before, if it is there.
    fn set_aside(&mut self, rank: u32, by: ConnId) {
        let is_by = |node: &TrackedNode| node.conn == Some(by);
        self.life.nodes.retain(|node| !node.is_rival() || !is_by(node));
        let holds = |node: &TrackedNode| node.is_listed() && node.id == NodeId::Rank(rank);
        let Some(at) = self.life.nodes.iter().position(holds) else { return };
        let node = &mut self.life.nodes[at];
        if node.gone.is_none() && !node.finished && !is_by(node) {
            node.membership = Membership::Rival;
        } else {
            self.life.nodes.remove(at);
        }
    }

    /// The process with this connection has gone. Another one that claims its rank is the node from now on.
    pub(crate) fn heir_of(&mut self, conn: ConnId) {
        self.life.nodes.retain(|node| !node.is_rival() || node.conn != Some(conn));
        let Some(at) = self.life.nodes.iter().position(|node| node.conn == Some(conn)) else { return };
        let node = &self.life.nodes[at];
        if let Some(heir) = self.heir(node).filter(|_| !node.finished) {
            let membership = node.membership;
            let node = &mut self.life.nodes[heir];
            (node.membership, node.is_heir) = (membership, true);
            self.life.nodes.swap(at, heir);
            self.life.nodes.remove(heir);
        }
    }

    /// Another process that claims the rank of a node. A copy that came after all had met is none of them.
    pub(crate) fn heir(&self, node: &TrackedNode) -> Option<usize> {
        let is_it = |rival: &TrackedNode| {
            rival.is_rival()
                && rival.rank == node.rank
                && self.round.completed.is_none_or(|completed| rival.joined <= completed)
        };
        self.life.nodes.iter().rposition(is_it)
    }

    /// Whether this process wrote its role, and another one of its rank that has gone wrote it over.
    pub(crate) fn is_heir(&self, conn: ConnId) -> bool {
        self.nodes().any(|node| node.is_heir && node.conn == Some(conn))
    }

    /// A c10d agent has come: those that are there never meet with such agents.
    pub(crate) fn give_way(&mut self) {
        self.kind = RunKind::C10d;
        self.life.nodes.retain(|node| node.is_listed() && node.gone.is_none() && !node.finished);
        self.life.nodes.iter_mut().for_each(|node| node.membership = Membership::Stranger);
        if self.round.over_at.is_none() {
            self.round = RoundFacts::default();
        }
    }

    /// Another job follows one that is over. Nodes that came too late for that one, or that it did not count
    /// on, wait for the others of this one. Nodes that had come alone, and ended just before, may have been
    /// the first of this one.
    fn follow_static(&mut self, now: Timestamp) {
        const JUST_BEFORE: Duration = Duration::from_mins(2);
        let round = &self.round;
        let had_met = self.kind != RunKind::Static
            || round.completed.is_some()
            || self.life.earlier_completed.is_some();
        let is_of_this = |node: &TrackedNode| {
            node.is_dead() && !had_met && node.gone.is_some_and(|gone| now.since(gone) < JUST_BEFORE)
        };
        // Who claimed a rank before all had met went on with those, unless they did not count on that rank.
        let had_begun = |node: &TrackedNode| {
            let is_beyond = round.role_nodes.is_some_and(|nodes| node.rank >= Some(nodes));
            let had_met = !is_beyond && round.completed.is_some_and(|completed| node.joined <= completed);
            node.membership == Membership::Earlier || had_met
        };
        // The exit barrier may have counted others than one that has not arrived, which goes on then.
        let stays = |node: &TrackedNode| {
            let has_arrived = node.conn.is_some_and(|conn| round.exit.contains(&conn));
            let goes_on = !node.finished || had_begun(node) && !has_arrived;
            matches!(node.id, NodeId::Rank(_)) && node.gone.is_none() && goes_on
        };
        let mut nodes = std::mem::take(&mut self.life.nodes);
        nodes.retain(|node| stays(node) || is_of_this(node));
        // Who holds a rank comes before the others that claim it.
        nodes.sort_by_key(TrackedNode::is_rival);
        for node in &mut nodes {
            node.membership = match node.gone {
                Some(_) => Membership::Left,
                None if had_begun(node) => Membership::Earlier,
                None => Membership::Participant,
            };
            node.round = self.round.number;
        }
        self.restart(0);
        (self.kind, self.has_state) = (RunKind::Static, false);
        self.life.nodes = nodes;
        self.round.roles = self.participants().filter_map(|node| node.rank).collect();
        self.round.started = self.participants().map(|node| node.joined).min();
    }

    /// Whether others have come, even if they have ended, and the node with rank 0 is not there.
    pub(crate) fn misses_first_node(&self) -> bool {
        let gathers = self.kind == RunKind::Static && self.round.completed.is_none() && !self.state.is_over();
        let is_first = |node: &TrackedNode| node.rank == Some(0) && node.is_there();
        let have_come = self.participants().next().is_some();
        gathers && have_come && !self.participants().chain(self.not_again()).any(is_first)
    }

    /// Nodes that have not come, as far as the ranks of those that have show it.
    pub(crate) fn never_came(&self) -> impl Iterator<Item = u32> {
        let highest = self.participants().filter_map(|node| node.rank).max().unwrap_or_default();
        (0..highest).filter(|&rank| !self.has_come(rank))
    }

    /// Whether a node of this rank has come, now or to the attempt before that it goes on with.
    pub(crate) fn has_come(&self, rank: u32) -> bool {
        let mut others = self.not_again().chain(self.those(Membership::Rival));
        self.node_of_rank(rank).is_some() || others.any(|node| node.rank == Some(rank))
    }

    /// Node rank 0 counts on so many nodes: others are not in the round.
    pub(crate) fn count_on(&mut self, nodes: u32, now: Timestamp) {
        if self.round.role_nodes.replace(nodes) == Some(nodes) || self.kind != RunKind::Static {
            return;
        }
        self.touch();
        // One that has gone is in the way of nobody.
        let is_counted = |node: &TrackedNode| node.rank.is_some_and(|rank| rank < nodes);
        self.life.nodes.retain(|node| !node.is_dead() || is_counted(node));
        self.set_beyond(now);
    }

    /// Takes the nodes that node rank 0 does not count on out of the round, and those back that it does.
    fn set_beyond(&mut self, now: Timestamp) {
        let Some(nodes) = self.round.role_nodes else { return };
        for node in &mut self.life.nodes {
            let Some(rank) = node.rank else { continue };
            match node.membership {
                Membership::Participant if rank >= nodes => {
                    node.membership = Membership::Redundant;
                    self.round.beyond.insert(rank, now);
                }
                Membership::Redundant if rank < nodes => {
                    node.membership = Membership::Participant;
                    self.round.beyond.remove(&rank);
                    self.round.roles.insert(rank);
                }
                _ => {}
            }
        }
    }

    /// Reports the nodes that node rank 0 does not count on. Of another job that comes, its node rank 0 may
    /// be the last.
    pub(crate) fn tell_beyond(&mut self, now: Timestamp) {
        let Some(nodes) = self.round.role_nodes else { return };
        // Where another process is node rank 0 as well, they are of its job.
        let is_zero = |rival: &TrackedNode| {
            rival.rank == Some(0) && self.round.completed.is_some_and(|completed| rival.joined > completed)
        };
        let is_of_other = self.those(Membership::Rival).any(is_zero);
        let settled = self.round.beyond.extract_if(.., |_, since| now.since(*since) >= COUNTED_WITHIN);
        for (rank, since) in settled.filter(|_| !is_of_other).collect::<Vec<_>>() {
            let Some(node) = self.nodes().find(|node| node.rank == Some(rank)) else { continue };
            self.found(contradictions::beyond(self, node, nodes, since));
        }
    }

    /// Rank 0's agent gave node `node` its ranks.
    pub(crate) fn assign(&mut self, node: u32, base: u32, world_size: u32, now: Timestamp) {
        if self.round.assigned.len() >= MOST_NODES {
            return;
        }
        self.round.assigned.insert(node, AssignedRanks { base, world_size });
        self.world.tell_size(Some(world_size));
        self.round.assigned_at = Some(now);
        self.touch();
    }

    /// Static: all `assigned_ranks` of one exchange are written at once; this is called when they are.
    pub(crate) fn settle_static(&mut self, now: Timestamp) {
        let Some(assigned) = self.round.assigned_at else { return };
        if self.kind != RunKind::Static || self.round.group.is_some() {
            return;
        }
        let nodes = count(self.round.assigned.len());
        self.count_on(nodes, now);
        // After a restart the roles of the attempt before may be handed out again before all nodes are back.
        if self.round.roles.len() < self.round.assigned.len() {
            return;
        }
        self.round.group = Some(nodes);
        let at = self.participants().map(|node| node.joined).max().unwrap_or(now).max(assigned);
        self.round.completed = Some(at);
        let Some(last) = self.participants().max_by_key(|node| node.joined) else { return };
        self.found(starts::round_complete(self, last, &[]));
    }
}
