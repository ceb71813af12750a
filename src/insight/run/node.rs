//! A node of a run: what names it, and where it is.

use std::net::SocketAddr;

use crate::ids::{ConnId, Label, Uptime};
use crate::protocol::rendezvous_state::Node as Desc;
use crate::rendezvous::NodeInfo;

/// What names a node within its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::insight) enum NodeId {
    /// torchrun's c10d backend.
    Desc(Desc),
    /// The static rendezvous: the node rank.
    Rank(u32),
    /// The native rendezvous: its id, and what it says of itself.
    Native { node: Label, info: NodeInfo },
}

/// Where a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::insight) enum Place {
    Participant,
    WaitList,
    Redundant,
}

/// One agent.
#[derive(Debug, Clone)]
pub(in crate::insight) struct Node {
    pub(in crate::insight) id: NodeId,
    pub(in crate::insight) name: String,
    pub(in crate::insight) conn: Option<ConnId>,
    pub(in crate::insight) peer: Option<SocketAddr>,
    pub(in crate::insight) pid: Option<u32>,
    pub(in crate::insight) rank: Option<u32>,
    pub(in crate::insight) place: Place,
    /// Since when it is there.
    pub(in crate::insight) place_since: Uptime,
    pub(in crate::insight) joined: Uptime,
    pub(in crate::insight) last_heartbeat: Uptime,
    pub(in crate::insight) stamp: i64,
    pub(in crate::insight) gone: Option<Uptime>,
    pub(in crate::insight) finished: bool,
}

impl Node {
    /// The name with the rank, for sentences.
    pub(in crate::insight) fn label(&self) -> String {
        match (&self.id, self.rank) {
            (NodeId::Rank(rank), _) if self.name == format!("node {rank}") => self.told(),
            (_, Some(rank)) => format!("{} (node rank {rank})", self.name),
            (_, None) => self.name.clone(),
        }
    }

    /// The name; for a node that is known by its rank only, with its address.
    pub(in crate::insight) fn told(&self) -> String {
        match (&self.id, self.peer) {
            (NodeId::Rank(rank), Some(peer)) if self.name == format!("node {rank}") => {
                format!("{} at {}", self.name, peer.ip())
            }
            _ => self.name.clone(),
        }
    }

    pub(in crate::insight) fn node_id(&self) -> String {
        match &self.id {
            NodeId::Desc(desc) => desc.to_string(),
            NodeId::Rank(rank) => format!("node-{rank}"),
            NodeId::Native { node, .. } => node.to_string(),
        }
    }
}
