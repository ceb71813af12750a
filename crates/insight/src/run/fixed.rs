//! The static rendezvous: nodes with fixed ranks, known by the role exchange of each attempt.

use std::net::SocketAddr;
use std::time::Duration;

use super::facts::{AssignedRanks, Fallen, FormerNode, Restart, Restarting, RoundFacts};
use super::limits::{MOST_NODES, SETTLE};
use super::memory::Room;
use super::node::{Before, Membership, NodeId, TrackedNode};
use super::tracked::TrackedRun;
use crate::expect::Plan;
use crate::reason::words::{ended_first, in_a_loop};
use crate::reason::{Code, Finding, Names, Unit};
use rallypoint_api::{RunKind, Seen, Severity};
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

/// What node rank 0 waits for shows how many nodes it counts on, and is seen within two seconds.
const COUNTED_WITHIN: Duration = Duration::from_secs(3);

impl TrackedRun {
    /// Static: node `rank` wrote its role. Returns whether another job begins with it.
    pub(crate) fn static_role(
        &mut self,
        rank: u32,
        conn: ConnId,
        (peer, pid): (SocketAddr, Option<u32>),
        now: Timestamp,
        plan: &Plan,
        room: &mut Room,
    ) -> bool {
        let is_over = self.round.over_at.is_some() || self.round.exit_done.is_some_and(|at| at < now);
        if self.kind == RunKind::C10d && !is_over {
            let name = self.name_for(&NodeId::Rank(rank), plan);
            keep_beside(&mut self.life.strangers, static_node(rank, name, conn, (peer, pid), now));
            self.touch();
            return is_over;
        }
        if is_over {
            self.follow_static(now);
        }
        // Rank 0 takes no notice of a node that it does not count on, however often it comes.
        let is_beyond = self.round.role_nodes.is_some_and(|nodes| rank >= nodes);
        let is_again = !is_beyond && self.round.roles.contains(&rank) && self.round.completed.is_some();
        let node = static_node(rank, self.name_for(&NodeId::Rank(rank), plan), conn, (peer, pid), now);
        if is_again && self.is_copy(&node) {
            keep_beside(&mut self.life.rivals, node);
            self.touch();
            return is_over;
        }
        if is_again && self.restarts_workers(rank, conn, now) {
            return is_over;
        }
        if is_again {
            let round = self.round.number.saturating_add(1);
            let (counted_on, beyond) = (self.round.role_nodes, std::mem::take(&mut self.round.beyond));
            let fallen = self.fallen();
            let is_of_before = self.begin_round(round).is_of_before;
            (self.round.fallen, self.round.follows_one_of_before) = (fallen, is_of_before);
            // Until rank 0 comes again and says another number.
            (self.round.role_nodes, self.round.beyond) = (counted_on, beyond);
            let of_round = self.life.nodes.iter_mut().filter(|node| node.membership != Membership::Redundant);
            of_round.for_each(|node| node.membership = Membership::Earlier);
        }
        self.round.started.get_or_insert(now);
        if self.round.roles.len() >= MOST_NODES {
            return is_over;
        }
        let is_new = self.round.roles.insert(rank);
        let is_known = |node: &TrackedNode| node.rank == Some(rank) && node.conn == Some(conn);
        if !is_again && self.participants().any(is_known) {
            return is_over;
        }
        let was_there = self.set_aside(rank, conn);
        if !self.takes_node(room) {
            self.round.let_go = self.round.let_go.saturating_add(u32::from(is_new));
            return is_over;
        }
        let was_there = was_there.map(|until| Before { until, as_member: false });
        self.life.nodes.push(TrackedNode { was_there, ..node });
        self.life.nodes.sort_by_key(|node| node.rank);
        if let Some(at) = self.life.nodes.iter().position(|node| node.rank == Some(rank)) {
            self.tell_joins(&[at]);
        }
        if is_beyond {
            self.set_beyond(now);
        }
        is_over
    }

    /// Whether this is another process than the node with its rank, which has met with the others and is
    /// there.
    fn is_copy(&self, node: &TrackedNode) -> bool {
        let is_same = |other: &TrackedNode| {
            let host = |node: &TrackedNode| node.peer.map(|peer| peer.ip());
            other.conn == node.conn
                || other.pid.is_some() && (host(other), other.pid) == (host(node), node.pid)
        };
        let of_rank = node.rank.and_then(|rank| self.node_of_rank(rank));
        of_rank.is_some_and(|other| other.gone.is_none() && !other.finished && !is_same(other))
    }

    /// A node of the complete round tells its role again on its connection: it has ended its workers, as one
    /// of them failed, and starts them again. Its ranks are there still, unless node rank 0 is lost; that one
    /// needs the roles of all. Returns whether it needs nobody.
    fn restarts_workers(&mut self, rank: u32, conn: ConnId, now: Timestamp) -> bool {
        let needs = |node: &TrackedNode| rank == 0 || node.rank == Some(0);
        let needs_none = !self.participants().any(|node| node.is_lost() && needs(node));
        let is_it = |node: &&mut TrackedNode| needs_none && node.is_participant() && node.conn == Some(conn);
        let Some(node) = self.life.nodes.iter_mut().find(is_it) else { return false };
        node.restarts = node.restarts.saturating_add(1);
        let restart = Restart {
            label: node.label(),
            times: node.restarts,
            joined: node.evidence(Seen::Joined, None, now),
        };
        // Where they had come to meet again, they have not ended because of those who had met before.
        let meeting = self.life.world.shown();
        let is_of_met = meeting.met.is_some()
            || !self.ranks_of(rank).into_iter().flatten().any(|rank| meeting.ranks.contains_key(&rank));
        let first_ended = self.first_ended(now).filter(|_| is_of_met);
        let first_ended = first_ended.map(|(rank, at)| (rank, Elapsed(now.since(at))));
        let restarting =
            self.life.restarting.get_or_insert_with(|| Restarting { first_ended, nodes: Vec::new() });
        if restarting.nodes.len() < MOST_NODES {
            restarting.nodes.push(restart);
        }
        self.touch();
        true
    }

    /// Reports the nodes that start their workers again, together.
    pub(super) fn tell_restarts(&mut self, now: Timestamp) {
        let Some(first) = self.life.restarting.as_ref().and_then(|it| it.nodes.first()) else { return };
        let since = first.joined.at;
        if now.since(since) < SETTLE {
            return;
        }
        let Some(Restarting { nodes, first_ended }) = self.life.restarting.take() else { return };
        let times = nodes.iter().map(|node| node.times).max().unwrap_or_default();
        let names = Names::of(nodes.iter().map(|node| node.label.clone()));
        let about = format!("{names} {times}");
        let (again, first) = (in_a_loop(times), ended_first(first_ended));
        let reason = Code::RoundOver
            .says(format!("{names}: all workers ended and started again{again}{first}"))
            .look_at(
                "look at the log of the rank that ended first: one of the workers failed, and torchrun \
                 starts all of the node again, up to --max-restarts times",
            )
            .fact("nodes", &names);
        self.found(Finding::new(reason, about, since).seen(nodes.into_iter().map(|node| node.joined)));
    }

    /// The nodes of this attempt that have died.
    fn fallen(&self) -> Vec<Fallen> {
        let died = self.participants().filter(|node| node.is_dead());
        let fallen = |node: &TrackedNode| {
            let ranks = self.ranks_of(node.rank?)?;
            Some(Fallen { ranks, gone: node.gone?, is_cut_off: node.is_cut_off })
        };
        died.filter_map(fallen).collect()
    }

    /// Static: what became of the node that was given this rank in the attempt before, if others go on with
    /// that.
    pub(crate) fn fell(&self, rank: u32) -> Option<&Fallen> {
        self.not_again().next()?;
        self.round.fallen.iter().find(|fallen| fallen.ranks.contains(&rank))
    }

    /// Another process takes this rank. The one that had it waits for the same as before, if it is there; if
    /// it has died, returns when.
    fn set_aside(&mut self, rank: u32, by: ConnId) -> Option<Timestamp> {
        self.life.rivals.retain(|node| node.conn != Some(by));
        self.life.heirs.remove(&by);
        let at = self.life.nodes.iter().position(|node| node.id == NodeId::Rank(rank))?;
        let node = self.life.nodes.remove(at);
        let died = node.gone.filter(|_| node.is_dead());
        let is_there = node.gone.is_none() && !node.finished && node.conn.is_some_and(|conn| conn != by);
        if is_there && self.life.rivals.len() < MOST_NODES {
            self.life.rivals.push(node);
        }
        died
    }

    /// The process with this connection has gone. Another one that claims its rank is the node from now on.
    pub(super) fn heir_of(&mut self, conn: ConnId) {
        self.life.rivals.retain(|node| node.conn != Some(conn));
        self.life.heirs.remove(&conn);
        let Some(node) = self.life.nodes.iter().position(|node| node.conn == Some(conn)) else { return };
        if let Some(heir) = self.heir(&self.life.nodes[node]).filter(|_| !self.life.nodes[node].finished) {
            let heir = self.life.rivals.remove(heir);
            let node = &mut self.life.nodes[node];
            *node = TrackedNode { membership: node.membership, ..heir };
            self.life.heirs.extend(node.conn);
        }
    }

    /// Another process that claims the rank of a node. A copy that came after all had met is none of them.
    pub(super) fn heir(&self, node: &TrackedNode) -> Option<usize> {
        let is_it = |rival: &TrackedNode| {
            rival.rank == node.rank && self.round.completed.is_none_or(|completed| rival.joined <= completed)
        };
        self.life.rivals.iter().rposition(is_it)
    }

    /// Whether this process wrote its role, and another one of its rank that has gone wrote it over.
    pub(crate) fn is_heir(&self, conn: ConnId) -> bool {
        self.life.heirs.contains(&conn)
    }

    /// A c10d agent has come: from now on this is a run of such agents, with whom those that are there never
    /// meet.
    pub(super) fn give_way(&mut self) {
        self.kind = RunKind::C10d;
        self.life.strangers = std::mem::take(&mut self.life.nodes);
        self.life.strangers.retain(|node| node.gone.is_none() && !node.finished);
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
        let ended = self.life.nodes.iter().filter(|node| is_of_this(node)).cloned();
        let earlier: Vec<_> = ended.map(|node| FormerNode { node, round: self.round.number }).collect();
        let stays = |node: &TrackedNode| {
            matches!(node.id, NodeId::Rank(_))
                && node.membership != Membership::Earlier
                && node.gone.is_none()
                && !node.finished
        };
        let known = self.life.nodes.iter().chain(&self.life.strangers).chain(&self.life.rivals);
        let nodes = known.filter(|node| stays(node)).cloned();
        let nodes: Vec<_> =
            nodes.map(|node| TrackedNode { membership: Membership::Participant, ..node }).collect();
        self.restart(0);
        (self.kind, self.has_state) = (RunKind::Static, false);
        self.round.roles = nodes.iter().filter_map(|node| node.rank).collect();
        self.round.started = nodes.iter().map(|node| node.joined).min();
        (self.life.nodes, self.life.earlier) = (nodes, earlier);
    }

    /// Whether others have come, even if they have ended, and the node with rank 0 is not there.
    pub(crate) fn misses_first_node(&self) -> bool {
        let gathers = self.kind == RunKind::Static && self.round.completed.is_none() && !self.state.is_over();
        let is_first = |node: &TrackedNode| node.rank == Some(0) && node.is_there();
        let have_come = self.participants().next().is_some();
        gathers && have_come && !self.participants().chain(self.not_again()).any(is_first)
    }

    /// The agent of node rank 0 is known now, and has been there since `came`: it was left when all others
    /// had ended.
    pub(crate) fn host_was_there(&mut self, conn: ConnId, came: Timestamp) {
        if self.life.all_gone.is_some_and(|gone| came <= gone) {
            self.agents.insert(conn);
        }
    }

    /// Nodes that have not come, as far as the ranks of those that have show it.
    pub(crate) fn never_came(&self) -> impl Iterator<Item = u32> {
        let highest = self.participants().filter_map(|node| node.rank).max().unwrap_or_default();
        (0..highest).filter(|&rank| !self.has_come(rank))
    }

    /// Whether a node of this rank has come, now or to the attempt before that it goes on with.
    pub(crate) fn has_come(&self, rank: u32) -> bool {
        self.node_of_rank(rank).is_some() || self.not_again().any(|node| node.rank == Some(rank))
    }

    /// The number of nodes that the one with rank 0 hands out ranks to.
    pub(crate) fn counted_on(&self) -> Option<u32> {
        self.round.role_nodes.filter(|_| self.kind == RunKind::Static)
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
        self.life.earlier.retain(|former| is_counted(&former.node));
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
    pub(super) fn tell_beyond(&mut self, now: Timestamp) {
        let Some(nodes) = self.round.role_nodes else { return };
        let settled = self.round.beyond.extract_if(.., |_, since| now.since(*since) >= COUNTED_WITHIN);
        // Where another process is node rank 0 as well, they are of its job.
        let is_zero = |rival: &TrackedNode| {
            rival.rank == Some(0) && self.round.completed.is_some_and(|completed| rival.joined > completed)
        };
        let is_of_other = self.life.rivals.iter().any(is_zero);
        for (rank, since) in settled.filter(|_| !is_of_other).collect::<Vec<_>>() {
            let Some(node) = self.life.nodes.iter().find(|node| node.rank == Some(rank)) else { continue };
            let joined = node.evidence(Seen::Joined, None, node.joined);
            let counts_on = Unit::Node.count(nodes);
            let reason = Code::JoinRefused
                .says(format!("{} came as node rank {rank}, but rank 0 counts on {counts_on}", node.label()))
                .severe(Severity::Error)
                .look_at(
                    "start every node with the same --nnodes and a --node-rank below it: they begin at 0",
                );
            self.found(Finding::new(reason, format!("node {rank}"), since).seen([joined]));
        }
    }

    /// Rank 0's agent gave node `node` its ranks.
    pub(super) fn assign(&mut self, node: u32, base: u32, world_size: u32, now: Timestamp) {
        if self.round.assigned.len() >= MOST_NODES {
            return;
        }
        self.round.assigned.insert(node, AssignedRanks { base, world_size });
        self.life.world.tell_size(world_size);
        self.round.assigned_at = Some(now);
        self.touch();
    }

    /// Static: all `assigned_ranks` of one exchange are written at once; this is called when they are.
    pub(super) fn settle_static(&mut self, now: Timestamp) {
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
        let started = self.round.started.unwrap_or(now);
        let at = self.participants().map(|node| node.joined).max().unwrap_or(now).max(assigned);
        self.round.completed = Some(at);
        let Some(last) = self.participants().max_by_key(|node| node.joined) else { return };
        let reason = Self::is_complete(nodes, started, at, last, &Names::default());
        self.finds(reason, format!("round {}", self.round.number), at);
    }
}

/// A node has come that is none of the run: a copy, or one of another backend.
fn keep_beside(beside: &mut Vec<TrackedNode>, node: TrackedNode) {
    beside.retain(|other| other.conn != node.conn);
    if beside.len() < MOST_NODES {
        beside.push(node);
    }
}

fn static_node(
    rank: u32,
    name: String,
    conn: ConnId,
    (peer, pid): (SocketAddr, Option<u32>),
    now: Timestamp,
) -> TrackedNode {
    TrackedNode {
        conn: Some(conn),
        peer: Some(peer),
        pid,
        rank: Some(rank),
        ..TrackedNode::new(NodeId::Rank(rank), name, Membership::Participant, now)
    }
}
