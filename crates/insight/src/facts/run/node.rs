//! A node of a run: what names it, and where it is.

use std::net::SocketAddr;

use crate::reason::{Evidence, Presence, Sighting};
use rallypoint_api::Seen;
use rallypoint_protocol::ids::{ConnId, Label, Timestamp};
use rallypoint_protocol::rendezvous_state::Node as Desc;
use rallypoint_rendezvous::NodeInfo;

/// What names a node within its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeId {
    /// torchrun's c10d backend.
    Desc(Desc),
    /// The static rendezvous: the node rank.
    Rank(u32),
    /// The native rendezvous: its id, what it says about itself, and whether it sends heartbeats.
    Native { node: Label, info: NodeInfo, is_watched: bool },
}

impl Default for NodeId {
    fn default() -> Self {
        Self::Rank(0)
    }
}

/// What a node is to the round: it holds a place, waits for one, claims that of another, or held one last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Membership {
    #[default]
    Participant,
    /// c10d: in the list of the rendezvous state that waits for the next round. Native: it came anew, and
    /// waits until the process of before is given up.
    WaitList,
    /// Static: it goes on with the attempt before.
    Earlier,
    Redundant,
    /// c10d: it is in no list of the state any more. It left by itself, or had finished. Static: it ended
    /// just before the others of its job came.
    Left,
    /// c10d: it is in no list of the state any more, as another node has taken it out.
    TakenOut,
    /// Static: a process whose rank another one has taken while it was there, or a copy of one that is there.
    Rival,
    /// c10d: an agent of the static rendezvous that has the same run id. It and the nodes never meet.
    Stranger,
}

/// One agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrackedNode {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) conn: Option<ConnId>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) pid: Option<u32>,
    pub(crate) rank: Option<u32>,
    pub(crate) membership: Membership,
    /// Since when it has been there. Native: when it came, with a place or without one.
    pub(crate) membership_since: Timestamp,
    /// c10d: the round that it was in last, of which its rank is, when no list of the state has it.
    pub(crate) round: u64,
    /// It is in no list of the state, and waits here, when agents send no heartbeats, or has asked for
    /// something since.
    pub(crate) is_heard: bool,
    pub(crate) joined: Timestamp,
    /// This process was in a round before: not another one that was the same node.
    pub(crate) was_member: bool,
    pub(crate) last_heartbeat: Timestamp,
    pub(crate) stamp: i64,
    /// c10d: microseconds that its clock is ahead of the server's time, as it wrote its last heartbeat.
    pub(crate) clock: Option<i64>,
    pub(crate) gone: Option<Timestamp>,
    /// Contact with it was lost, and its state is of that moment: it may live.
    pub(crate) is_cut_off: bool,
    pub(crate) finished: bool,
    /// Static: another process of its rank that has gone wrote its role over.
    pub(crate) is_heir: bool,
    /// c10d: a number of nodes for which it does not ask. With this one the round had so many when it joined,
    /// and it did not begin the last call, as a node does when there are as many as the least that it asks
    /// for. Or the complete round has so many, and a node beside it does not stay in the list of those that
    /// are too many.
    pub(crate) asks_not_for: Option<u32>,
    /// c10d: it was there when the last server ended, and none of the agents that are connected to this one
    /// can be it.
    pub(crate) not_back: bool,
    /// c10d: another agent that has written as this node.
    pub(crate) twin: Option<ConnId>,
    /// Native: nothing has come from it for so long that it is missed.
    pub(crate) is_unheard: bool,
}

/// The connection of an agent, with its address and process id.
pub(crate) type Agent = (ConnId, SocketAddr, Option<u32>);

impl TrackedNode {
    /// Takes this agent for its own.
    pub(crate) fn set_agent(&mut self, agent: Option<Agent>) {
        let (conn, peer) = agent.map(|(conn, peer, _)| (conn, peer)).unzip();
        (self.conn, self.peer, self.pid) = (conn, peer, agent.and_then(|(.., pid)| pid));
    }

    /// A node that came at `at`, of whom nothing else is known yet.
    pub(crate) fn new(id: NodeId, name: String, membership: Membership, at: Timestamp) -> Self {
        let (membership_since, joined, last_heartbeat) = (at, at, at);
        Self { id, name, membership, membership_since, joined, last_heartbeat, ..Self::default() }
    }

    pub(crate) fn is_participant(&self) -> bool {
        self.membership == Membership::Participant
    }

    /// It is one of the run's nodes: the state lists it, or it has told its role.
    pub(crate) fn is_listed(&self) -> bool {
        !self.is_out() && !self.is_rival() && self.membership != Membership::Stranger
    }

    /// It claims the rank of a node.
    pub(crate) fn is_rival(&self) -> bool {
        self.membership == Membership::Rival
    }

    /// It was one of them.
    pub(crate) fn is_out(&self) -> bool {
        matches!(self.membership, Membership::Left | Membership::TakenOut)
    }

    /// It was one of them, and is connected.
    pub(crate) fn lingers(&self) -> bool {
        self.is_out() && self.conn.is_some() && self.gone.is_none()
    }

    /// Others have taken it out, and nothing comes of it: it is frozen, or cut off.
    pub(crate) fn is_silent(&self) -> bool {
        // Others took it out as they had not heard of it.
        self.lingers() && self.membership == Membership::TakenOut && !self.is_heard
    }

    /// When it was last there.
    pub(crate) fn last_seen(&self) -> Timestamp {
        self.gone.unwrap_or(self.last_heartbeat)
    }

    /// Its connection closed before it had finished.
    pub(crate) fn is_dead(&self) -> bool {
        self.gone.is_some() && !self.finished
    }

    /// How it has gone: its connection closed, or was given up.
    pub(crate) fn gone_as(&self) -> Option<Sighting> {
        Some(Sighting::at(Presence::gone(self.is_cut_off), self.gone?))
    }

    /// It was connected to the last server, and has not come back to this one.
    pub(crate) fn is_not_back(&self) -> bool {
        self.not_back && self.conn.is_none() && self.gone.is_none() && !self.finished
    }

    /// Its agent is connected, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        self.gone.is_none() && !self.is_not_back()
    }

    /// It is not there, and had not finished.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_dead() || self.is_not_back()
    }

    /// The name with the rank, for sentences.
    pub(crate) fn label(&self) -> String {
        match (&self.id, self.rank) {
            (NodeId::Rank(rank), _) if self.name == format!("node {rank}") => self.told(),
            (_, Some(rank)) => format!("{} (node rank {rank})", self.name),
            (_, None) => self.name.clone(),
        }
    }

    /// The name; for a node that is known by its rank only, with its address.
    pub(crate) fn told(&self) -> String {
        match (&self.id, self.peer) {
            (NodeId::Rank(rank), Some(peer)) if self.name == format!("node {rank}") => {
                format!("{} at {}", self.name, peer.ip())
            }
            _ => self.name.clone(),
        }
    }

    /// It was seen to do this.
    pub(crate) fn evidence(&self, seen: Seen, key: Option<String>, at: Timestamp) -> Evidence {
        Evidence { seen, who: self.label(), peer: self.peer, pid: self.pid, key, at }
    }

    pub(crate) fn node_id(&self) -> String {
        match &self.id {
            NodeId::Desc(desc) => desc.to_string(),
            NodeId::Rank(rank) => format!("node-{rank}"),
            NodeId::Native { node, .. } => node.to_string(),
        }
    }
}
