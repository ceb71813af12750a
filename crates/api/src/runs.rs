//! The documents of the API about runs: the JSON of `GET /api/v1/runs`, `/runs/{run_id}`, `/waits` and
//! `/events`.
//!
//! `rallypoint status` and the page read exactly these types. Examples: `tests/data/insight/`. Moments are
//! Unix time in seconds, durations are seconds. Every document has the moment `now`, so that a reader needs
//! no clock. Fields may be added; readers ignore unknown ones.

use serde::{Deserialize, Serialize};

use super::{Explanation, LinkCounts, TimelineEvent, Wait};

/// `GET /api/v1/runs`: every run; the ones that need attention come first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunList {
    /// The moment of this document.
    pub now: f64,
    /// Observations that were lost because too many came at once. If above 0, the document may be incomplete.
    pub lost_observations: u64,
    /// Connections to the stores. Some are in no run, because they have used none of PyTorch's keys.
    #[serde(default)]
    pub connections: usize,
    /// When this server was started, if it has no journal: it does not know who was here before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knows_since: Option<f64>,
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Explanations that concern no run: a foreign client on a store's port, a relay's broken link.
    pub explanations: Vec<Explanation>,
    /// The links of relays; absent without a relay.
    #[serde(default, skip_serializing_if = "LinkCounts::is_none")]
    pub links: LinkCounts,
}

/// How a run's processes find each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// torchrun with `--rdzv-backend=c10d`.
    C10d,
    /// torchrun with the static rendezvous (`--master-addr`, `--node-rank`).
    Static,
    /// `env://` or `tcp://`: ranks without an agent. The run has no id and is called `store:PORT`.
    #[default]
    Env,
    /// rallypoint's own rendezvous.
    Native,
    /// Not known yet: its pods have announced themselves, and there is no other information.
    #[serde(rename = "gathering")]
    Announced,
}

impl RunKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::C10d, Self::Static, Self::Env, Self::Native, Self::Announced];

    /// The name in JSON and as a metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::C10d => "c10d",
            Self::Static => "static",
            Self::Env => "env",
            Self::Native => "native",
            Self::Announced => "gathering",
        }
    }
}

/// The state of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Nodes are still missing.
    #[default]
    Joining,
    /// The minimum has joined; the round closes at `deadline`, or earlier at the maximum.
    LastCall,
    /// All nodes are there; they tell each other roles and addresses.
    Exchanging,
    /// The nodes have their ranks; whether the workers train is not visible here. For `env`: every rank has
    /// published its address, and `ranks.have_met` says whether it is known that they have met.
    Running,
    /// Nodes have left the complete round and wait for the next one. With c10d the next round begins when no
    /// node is left in this one: torchrun removes a dead node 15 s after its last sign of life.
    Restarting,
    /// Some nodes have finished and wait for the others at the exit barrier.
    Exiting,
    /// All nodes finished.
    Finished,
    /// Ranks without agents have met, and all their connections have closed: they may have succeeded or
    /// failed.
    Ended,
    /// The rendezvous is closed although not all nodes finished: the run failed or was given up.
    Closed,
    /// Every connection of the run closed without a sign of success or failure.
    Gone,
}

impl RunState {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::LastCall => "last_call",
            Self::Exchanging => "exchanging",
            Self::Running => "running",
            Self::Restarting => "restarting",
            Self::Exiting => "exiting",
            Self::Finished => "finished",
            Self::Ended => "ended",
            Self::Closed => "closed",
            Self::Gone => "gone",
        }
    }

    /// Whether the run is over.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Ended | Self::Closed | Self::Gone)
    }
}

/// The source of an expected number, the most reliable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExpectedFrom {
    /// `PUT /api/v1/runs/{run_id}/expect`.
    Api,
    /// Pods that announced themselves (`rallypoint run`, `rallypoint wait --nodes`).
    Announced,
    /// `serve --nodes`.
    Flag,
    /// The first join of a native run.
    Join,
    /// Rank 0's agent waits for the roles of this many nodes.
    RoleExchange,
    /// The rendezvous state says that the round is complete.
    RoundComplete,
    /// The ranks' gloo addresses have space for this many ranks.
    GlooAddress,
    /// An earlier round of this run had this many: a guess.
    EarlierRound,
}

/// An expected number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Expected {
    /// This many are needed.
    pub min: u32,
    /// More than this are not used.
    pub max: u32,
    /// Where the number comes from.
    pub source: ExpectedFrom,
}

/// Nodes by their state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeCounts {
    /// In the round and present, or finished; for `gathering` the pods that have announced themselves. For a
    /// run that is over: the nodes of its last round, except for dead and failed ones.
    pub joined: u32,
    /// In the wait list: they enter the next round.
    pub waiting: u32,
    /// Static: they go on with the previous attempt, while others begin another one. Native: they were told
    /// to join again, and have not yet.
    #[serde(default)]
    pub earlier: u32,
    /// Beyond the maximum.
    pub redundant: u32,
    /// Native: they finished in a round that others had to give up, and do not join again. They are not
    /// missing.
    #[serde(default)]
    pub finished: u32,
    /// In the round by its state, but their connection is gone, and they have not come back.
    pub gone: u32,
    /// How many there should be; `null` if that is unknown.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub expected: Option<Expected>,
    /// How many must still come to reach `expected.min`, not below 0, if that is known: present, waiting and
    /// finished nodes do not count, nor nodes on their way from the last round. Otherwise, the nodes that
    /// other ranks show to be missing; `null` if that is unknown. 0 when the run is over: nobody waits any
    /// more.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub missing: Option<u32>,
}

/// Worker ranks by their state. Only if the workers use this server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RankCounts {
    /// Ranks that have published their address and are present.
    pub joined: u32,
    /// Ranks that have published their address, and are behind a relay whose link is away: whether they are
    /// present is not known.
    #[serde(default)]
    pub away: u32,
    /// Ranks that had published their address, and whose connection is gone.
    pub gone: u32,
    /// The world size, if it is known.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub expected: Option<u32>,
    /// Connected worker processes, whether their rank is known or not (NCCL ranks above 0 do not publish it).
    pub connected: u32,
    /// All have published their addresses, and one of them has written what none writes before it has reached
    /// the others. Without such a key it is not visible here whether they have met.
    #[serde(default)]
    pub have_met: bool,
}

/// Agents at the barrier at the end of the training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExitCounts {
    /// Nodes that have finished.
    pub arrived: u32,
    /// Nodes of the round.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub expected: Option<u32>,
}

/// A run in brief: an element of `RunList`, and the data of the event `run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunSummary {
    /// The rendezvous id; `store:PORT` for a run without one.
    pub run_id: String,
    /// The port of the store that the run uses; `null` for a native run between rounds, and for `gathering`.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub store: Option<u16>,
    /// How its processes find each other.
    pub kind: RunKind,
    /// Its state.
    pub state: RunState,
    /// The round, from 0.
    pub round: u64,
    /// Goes up with every change of the run: fetch `/api/v1/runs/{run_id}` again when it does. A wait counts
    /// as a change when it begins or ends, once it has lasted over a second. Growing times and heartbeats are
    /// no changes.
    pub version: u64,
    /// Its nodes. For `env` all numbers are 0.
    pub nodes: NodeCounts,
    /// Its worker ranks, if they use this server.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub ranks: Option<RankCounts>,
    /// Its exit barrier, once a node has arrived there.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub exit: Option<ExitCounts>,
    /// The first sign of the round, or of a new gathering within it after all nodes had met.
    pub started_at: f64,
    /// When it entered this state.
    pub state_since: f64,
    /// When the round was complete.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub completed_at: Option<f64>,
    /// The deadline of the round, if it has one: the end of the last call, or of a native run's join time.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub deadline: Option<f64>,
    /// Its most important explanation now; `null` if there is no problem.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub explanation: Option<Explanation>,
    /// Notes that hold now: no problem is known, as while ranks wait for a key of the program. The document
    /// of the run has them.
    #[serde(default)]
    pub notes: u32,
}

/// `GET /api/v1/runs/{run_id}`: everything about one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    /// The moment of this document.
    pub now: f64,
    /// The run in brief.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Its nodes, by rank if ranks are known, otherwise in the order of their arrival.
    pub participants: Vec<Node>,
    /// Missing nodes with a name or a rank; `nodes.missing` may be more.
    pub missing: Vec<MissingNode>,
    /// Its worker ranks.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub rank_grid: Option<RankGrid>,
    /// Outstanding waits of its processes that have lasted over a second, the oldest first, at most 1000.
    pub waits: Vec<Wait>,
    /// All its explanations, the most important first.
    pub explanations: Vec<Explanation>,
    /// Past events, oldest first, at most 256.
    pub timeline: Vec<TimelineEvent>,
    /// The address of the workers' own store, if it is not on this server.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub workers_store: Option<String>,
    /// Where the page of `torch.distributed.debug` is: the host of rank 0, which has started it, and its
    /// usual port.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub debug_server: Option<String>,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It has announced itself and not joined yet.
    #[default]
    Announced,
    /// It is in the round.
    Joined,
    /// In the wait list for the next round.
    Waiting,
    /// Static: it goes on with the previous attempt, while others begin another one.
    Earlier,
    /// Beyond the maximum.
    Redundant,
    /// It has finished and waits at the exit barrier, or has left it.
    Finished,
    /// Its connection is gone and it had not finished.
    Gone,
}

/// One node (agent) of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// Unique within the run: `addr_pid_localid` for torchrun's c10d, `node-RANK` for static.
    pub node_id: String,
    /// For people: the pod's name, the host name, or the address.
    pub name: String,
    /// Address and port of its connection; for the kinds `native` and `gathering` the address at which its
    /// peers reach it.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub peer: Option<String>,
    /// The agent's process id.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub pid: Option<u32>,
    /// Its group rank, once the round is complete.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub rank: Option<u32>,
    /// Its state.
    pub state: NodeState,
    /// When it joined this round.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub joined_at: Option<f64>,
    /// How long after the first node of the round it joined.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub after_seconds: Option<f64>,
    /// Its last sign of life, by this server's clock; `null` for a node that sends no heartbeats.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub last_heartbeat: Option<f64>,
    /// When its connection closed.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub gone_at: Option<f64>,
    /// The first of its workers' global ranks.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub base_rank: Option<u32>,
    /// How many workers it has.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub local_world_size: Option<u32>,
}

/// A node that is expected and absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissingNode {
    /// Its name, if it is known: the node announced itself or was present in an earlier round.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub name: Option<String>,
    /// Its node rank, if it is known.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub rank: Option<u32>,
    /// What was seen of it last.
    pub presence: Presence,
    /// When it was last seen. For a node that is not back: when the server was restarted, or the
    /// last attempt ended.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub last_seen: Option<f64>,
}

/// What was seen of a process or a node last: `never_seen`, `announced` (at the gate), `connected` (of a
/// missing node: and it has not joined this round yet), `silent` (it owes a sign of life), `away` (its
/// relay's link is), `unreachable` (given up, as its host or link did not answer), `left` (it said so),
/// `taken_out` (of the round, by another node), `closed` (its connection; why is not seen here), `finished`
/// (at the exit barrier), `not_back` (since the server was restarted), `not_again` (since the last attempt of
/// the run ended), or `unknown` (of a missing node: it was in the round before).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Nothing.
    NeverSeen,
    /// It announced itself at the gate.
    Announced,
    /// It is connected. Of a missing node: and has not joined this round yet.
    Connected,
    /// It owes a sign of life.
    Silent,
    /// The link of its relay is away.
    Away,
    /// It was given up: its host did not answer, or its link was away for too long.
    Unreachable,
    /// It said that it leaves, or took itself out of the round.
    Left,
    /// Another node took it out of the round.
    TakenOut,
    /// Its connection closed.
    Closed,
    /// It arrived at the exit barrier.
    Finished,
    /// It may have been there before the server was restarted.
    NotBack,
    /// It may have been there before the last attempt of the run ended.
    NotAgain,
    /// It is not known which process that is, or what has become of it. Of a missing node: it was in the
    /// round before.
    Unknown,
}

impl Presence {
    /// Gone, in one of two ways.
    pub const fn gone(is_cut_off: bool) -> Self {
        if is_cut_off { Self::Unreachable } else { Self::Closed }
    }

    /// How those are listed of whom this was seen.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NeverSeen => "never seen",
            Self::Announced => "announced itself",
            Self::Connected => "connected",
            Self::Silent => "nothing heard",
            Self::Away => "link away",
            Self::Unreachable => "given up, as its host or link did not answer",
            Self::Left => "left",
            Self::TakenOut => "taken out of the round",
            Self::Closed => "connection closed",
            Self::Finished => "finished",
            Self::NotBack => "not seen since the server was restarted",
            Self::NotAgain => "not seen since the last attempt ended",
            Self::Unknown => "in the round before",
        }
    }
}

/// The worker ranks of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RankGrid {
    /// The world size, if it is known.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub world_size: Option<u32>,
    /// One character for each rank, from rank 0: `.` not seen, `j` address published, `o` present without an
    /// address that others can read (it was dropped, or belongs to the last meeting), `a` its relay's link
    /// is away, `x` its connection is gone.
    pub states: String,
    /// The details of the first 1024 known ranks.
    pub ranks: Vec<Rank>,
}

/// One worker rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rank {
    /// The global rank.
    pub rank: u32,
    /// Its host name, as it published it.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub host: Option<String>,
    /// Address and port of its connection.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub peer: Option<String>,
    /// Its process id.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub pid: Option<u32>,
    /// When it published its address.
    pub joined_at: f64,
    /// When its connection closed.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub gone_at: Option<f64>,
}

/// The data of the event `snapshot`, the first of `GET /api/v1/events`.
///
/// These events follow, each with an `id`: `run` (`RunSummary`: new or changed), `run_gone` (`RunGone`),
/// `explanation` (`Explanation`: new, repeated, or over), `moment` (`TimelineEvent`), `links` (`LinkCounts`).
/// A comment line comes every 15 s if there is no event. A subscriber that is too slow is closed; it connects
/// again and gets a new snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Snapshot {
    /// The runs as in `GET /api/v1/runs`.
    #[serde(flatten)]
    pub list: RunList,
    /// The version of the server.
    pub version: String,
}

/// The data of the event `run_gone`: the run is no longer shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunGone {
    /// The run.
    pub run_id: String,
    /// Its store.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub store: Option<u16>,
}
