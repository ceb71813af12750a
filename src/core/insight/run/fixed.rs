//! The static rendezvous: nodes with fixed ranks, known by the role exchange of each attempt.

use std::net::SocketAddr;

use super::{MOST_NODES, Node, NodeId, Place, Run};
use crate::api::{ExpectedFrom, RunKind};
use crate::core::ids::{ConnId, Timestamp, count};
use crate::core::insight::expect::Plan;
use crate::core::insight::reason::{Reason, Secs};

impl Run {
    /// Static: node `rank` wrote its role.
    pub(in crate::core::insight) fn static_role(
        &mut self,
        rank: u32,
        conn: ConnId,
        peer: SocketAddr,
        pid: Option<u32>,
        now: Timestamp,
        plan: &Plan,
    ) {
        if self.over_at.is_some() {
            self.restart();
        }
        let is_again = self.roles.contains(&rank) && self.completed.is_some();
        if is_again {
            let round = self.round.saturating_add(1);
            self.begin_round(round);
            self.nodes.iter_mut().for_each(|node| node.place = Place::WaitList);
        }
        self.started.get_or_insert(now);
        if self.nodes.len() >= MOST_NODES || self.roles.len() >= MOST_NODES {
            return;
        }
        self.roles.insert(rank);
        let id = NodeId::Rank(rank);
        let name = self.name_for(&id, plan);
        self.nodes.retain(|node| node.id != id);
        let node = Node {
            id,
            name,
            conn: Some(conn),
            peer: Some(peer),
            pid,
            rank: Some(rank),
            place: Place::Participant,
            place_since: now,
            joined: now,
            last_heartbeat: now,
            stamp: 0,
            gone: None,
            finished: false,
        };
        self.nodes.push(node);
        self.nodes.sort_by_key(|node| node.rank);
        if let Some(at) = self.nodes.iter().position(|node| node.rank == Some(rank)) {
            self.tell_joins(&[at], now);
        }
        if let Some(nodes) = self.role_nodes
            && rank >= nodes
        {
            self.node_rank_beyond(rank, nodes, now);
        }
    }

    pub(in crate::core::insight) fn node_rank_beyond(&mut self, rank: u32, nodes: u32, now: Timestamp) {
        let Some(node) = self.node_of_rank(rank) else { return };
        let reason = Reason::NodeRankBeyond { node: node.label(), rank, nodes };
        self.fact(reason, format!("node {rank}"), now);
    }

    /// Rank 0's agent gave node `node` its ranks.
    pub(in crate::core::insight) fn assign(&mut self, node: u32, base: u32, world_size: u32, now: Timestamp) {
        if self.assigned.len() >= MOST_NODES {
            return;
        }
        self.assigned.insert(node, (base, world_size));
        self.role_nodes = Some(count(self.assigned.len()));
        self.world.size = Some((world_size, ExpectedFrom::RoleExchange));
        self.assigned_at = Some(now);
        self.touch();
    }

    /// Static: all `assigned_ranks` of one exchange are written at once; this is told when they are.
    pub(in crate::core::insight) fn settle_static(&mut self, now: Timestamp) {
        // After a restart the roles of the attempt before may be handed out again before all nodes are back.
        let Some(assigned) = self.assigned_at else { return };
        if self.kind != RunKind::Static || self.group.is_some() || self.roles.len() < self.assigned.len() {
            return;
        }
        let nodes = count(self.assigned.len());
        self.group = Some(nodes);
        let started = self.started.unwrap_or(now);
        let at = self.participants().map(|node| node.joined).max().unwrap_or(now).max(assigned);
        self.completed = Some(at);
        let Some(last) = self.participants().max_by_key(|node| node.joined) else { return };
        let reason = Reason::RoundComplete {
            nodes,
            took: Secs(at.since(started)),
            last: last.told(),
            last_after: Secs(last.joined.since(started)),
        };
        let beyond: Vec<u32> =
            self.participants().filter_map(|n| n.rank).filter(|&rank| rank >= nodes).collect();
        self.fact(reason, format!("round {}", self.round), at);
        for rank in beyond {
            self.node_rank_beyond(rank, nodes, now);
        }
    }
}
