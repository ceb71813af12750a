//! Joining, keep-alive, leaving, closing and extending.

use serde::{Deserialize, Serialize};

use super::PeerDuration;

/// `POST /api/v1/runs/{run_id}/join`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Join {
    /// The id of the node that joins: the same in every retry, and no other node's.
    pub node: String,
    /// Identifies this join: a request with the `join_id` of an earlier one is its retry; another one is a
    /// new join, after a failure or by a new process.
    #[serde(default)]
    pub join_id: String,
    /// The node as people know it: a pod's or a host's name. By default `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address at which the node's peers reach it. By default the address from which the request came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The rank that the node must get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_rank: Option<u32>,
    /// The node's role for the launcher, such as `head`; shown to its peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What the node tells its peers with this join: any text of at most 4 KiB. The server does not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Processes of the node; shown to its peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_world_size: Option<u32>,
    /// PyTorch's version there; differing ones are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch_version: Option<String>,
    /// The least number of nodes in a round.
    pub min_nodes: u32,
    /// The greatest number of nodes in a round. By default `min_nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    /// How long a round may gather, from its first join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_timeout_seconds: Option<PeerDuration>,
    /// How long a round that has enough nodes waits for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call_seconds: Option<PeerDuration>,
    /// How often a node must show that it is alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<PeerDuration>,
    /// A node that is silent for this many intervals is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_misses: Option<u32>,
    /// A node whose connection closed without a word is lost after this time, unless it comes again. By
    /// default it has the time of a silent node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<PeerDuration>,
    /// Whether each round gets a store for its workers. By default it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// Whether the node will send heartbeats once it is in a round. If not, it holds its place only until the
    /// round is complete: nobody notices when it is gone, and a later round does not wait for it.
    #[serde(default = "super::yes")]
    pub heartbeat: bool,
    /// The node's place in the last round it was in, if it was in one. It keeps its rank where possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Placed>,
    /// Whether the answer lists the participants.
    #[serde(default)]
    pub participants: bool,
    /// How long to wait for the round before answering `waiting`, 0 to 60.
    #[serde(default = "super::default_wait")]
    pub wait_seconds: PeerDuration,
}

/// A place in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Placed {
    /// The round's number, from 1.
    pub round: u64,
    /// The node's rank in it.
    pub rank: u32,
}

/// How a join stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum JoinState {
    /// The round is complete and the node is in it.
    Complete,
    /// The node has a place in the round that gathers.
    Waiting,
    /// The round has as many nodes as it may; the node waits for a free place.
    Redundant,
}

/// 200: the round is complete. `participants` is there if it was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinComplete {
    /// Always `complete`.
    pub state: JoinState,
    /// The run.
    pub run_id: String,
    /// The round's number, from 1.
    pub round: u64,
    /// This node's rank.
    pub group_rank: u32,
    /// How many nodes are in the round.
    pub group_world_size: u32,
    /// The workers' store; none if the run wants none.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub store: Option<StoreAddress>,
    /// Heartbeats are expected this often.
    pub keep_alive_seconds: f64,
    /// After this many missed heartbeats the node is lost.
    pub keep_alive_misses: u32,
    /// From the round's first join to its completion.
    pub gathered_seconds: f64,
    /// Every node of the round by rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participants: Option<Vec<Participant>>,
}

/// Where a store listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreAddress {
    /// `--advertise-host`; by default the address of the server to which the request came.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A node of a complete round, as its peers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Participant {
    /// Its rank.
    pub group_rank: u32,
    /// Its id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// The address at which peers reach it.
    pub address: String,
    /// Its role.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub role: Option<String>,
    /// Its processes.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub local_world_size: Option<u32>,
    /// The payload of its join, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// 202: not yet. Ask again with the same body; the place is kept until the keep-alive runs out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinWaiting {
    /// `waiting` or `redundant`.
    pub state: JoinState,
    /// The run.
    pub run_id: String,
    /// The round that gathers.
    pub round: u64,
    /// Nodes that have a place in it and are there.
    pub joined: u32,
    /// The least number of nodes that it needs.
    pub min_nodes: u32,
    /// The greatest number of nodes that it takes.
    pub max_nodes: u32,
    /// Requested ranks that nobody holds, if every node there asked for its rank. At most 32.
    pub missing_ranks: Vec<u32>,
    /// Names of nodes of the last round that are expected but have not joined again. At most 32.
    pub missing_nodes: Vec<String>,
    /// Since this node's join.
    pub waited_seconds: f64,
    /// Until the round's deadline; `null` for a redundant node.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub deadline_seconds: Option<f64>,
    /// What the node waits for, in words.
    pub reason: String,
}

/// `POST /api/v1/runs/{run_id}/heartbeat`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// The id of the node.
    pub node: String,
    /// The `join_id` of the join that brought the node into the round.
    #[serde(default)]
    pub join_id: String,
    /// The round that the node is in.
    pub round: u64,
    /// Its rank there.
    pub rank: u32,
    /// How many nodes the round has.
    pub world_size: u32,
    /// As in the join, so that a restarted server can learn the run again.
    pub min_nodes: u32,
    /// As in the join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    /// As in the join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As in the join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The action of the last answer: the request waits until it changes.
    #[serde(default)]
    pub seen: Action,
    /// How long to wait for a change, 0 to 60.
    #[serde(default = "super::default_wait")]
    pub wait_seconds: PeerDuration,
}

/// What a node of a complete round has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Go on.
    #[default]
    Continue,
    /// Stop the workers and join again: nodes wait, or one is gone, or the round is over.
    Rejoin,
    /// The run is closed.
    Closed,
}

/// Answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatAnswer {
    /// What to do.
    pub action: Action,
    /// Why, in words.
    pub reason: String,
    /// The node's round, as it asked.
    pub round: u64,
    /// Nodes that wait for the next round. 0 with `rejoin` if a node was lost and none waits yet.
    pub num_nodes_waiting: u32,
}

/// `POST /api/v1/runs/{run_id}/leave`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leave {
    /// The id of the node.
    pub node: String,
    /// The reason, for the other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How the node's work in its round ended. Without it the outcome is unknown: the others are told to join
    /// again, and the run never counts as finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// How a node's work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The work is done: the others go on without the node. When all nodes of the round have succeeded, the
    /// run has finished.
    Succeeded,
    /// The work failed: the others are told to join again.
    Failed,
}

/// Answer to a leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Left {
    /// Whether the node was there.
    pub left: bool,
}

/// `POST /api/v1/runs/{run_id}/close`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Close {
    /// The node of the run that closes it. Without it, only an operator may close the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The reason, for the other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to a close.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Closed {
    /// The run.
    pub run_id: String,
    /// Whether it was open until now.
    pub closed: bool,
}

/// `POST /api/v1/runs/{run_id}/extend`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Extend {
    /// By how much to move the deadline of the gathering round.
    pub by_seconds: PeerDuration,
}

/// Answer to an extend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Extended {
    /// The run.
    pub run_id: String,
    /// The round that gathers.
    pub round: u64,
    /// Time until its deadline.
    pub deadline_seconds: f64,
}
