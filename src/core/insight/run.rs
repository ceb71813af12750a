//! One run: its rounds and nodes as the agents' keys tell them.

mod dynamic;
mod ends;
mod fixed;
mod node;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use self::ends::Dying;
pub(super) use self::node::{Node, NodeId, Place};
use super::expect::{Plan, short};
use super::native::Native;
use super::reason::{Names, Reason};
use super::world::World;
use crate::api::{Expected, ExpectedFrom, RunKind, RunState};
use crate::core::ids::{ConnId, RunId, Timestamp, count};

/// Nodes that are tracked in one run.
pub(super) const MOST_NODES: usize = 16_384;
/// Moments kept of one run.
pub(super) const MOST_MOMENTS: usize = 256;
/// What happens at the same time is told together after this long.
pub(super) const SETTLE: Duration = Duration::from_millis(1500);

/// Names a run: its store and its id; without an id there is one run a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RunKey {
    pub(super) store: u16,
    pub(super) id: Option<RunId>,
}

impl RunKey {
    /// A run of the native rendezvous: of no store, as each of its rounds has its own. So is one that only has
    /// announcements.
    pub(super) fn native(id: &RunId) -> Self {
        Self { store: 0, id: Some(id.clone()) }
    }

    pub(super) fn is_native(&self) -> bool {
        self.store == 0
    }

    /// The port of its store.
    pub(super) fn port(&self) -> Option<u16> {
        Some(self.store).filter(|_| !self.is_native())
    }
}

/// Something to be told about a run, with what tells it from others of its kind.
#[derive(Debug)]
pub(super) struct Fact {
    pub(super) reason: Reason,
    pub(super) about: String,
    pub(super) since: Timestamp,
}

/// What is known of one run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: RunKey,
    pub(super) kind: RunKind,
    /// Goes up with every change that is shown.
    pub(super) version: u64,
    pub(super) first_seen: Timestamp,
    pub(super) state: RunState,
    pub(super) state_since: Timestamp,
    pub(super) round: u64,
    /// The first sign of the round.
    pub(super) started: Option<Timestamp>,
    pub(super) completed: Option<Timestamp>,
    /// Unix time in seconds, by the clock of the nodes.
    pub(super) deadline: Option<f64>,
    /// The deadline of a native run.
    pub(super) closes_at: Option<Timestamp>,
    pub(super) native: Option<Native>,
    pub(super) nodes: Vec<Node>,
    /// Nodes of the round that made room when memory was short: only their number is known.
    pub(super) let_go: u32,
    /// Nodes of the round before that are not there now, and when they were last there.
    pub(super) earlier: Vec<(String, Timestamp)>,
    pub(super) earlier_size: Option<u32>,
    /// Nodes that have left the state while their agent is still connected.
    pub(super) left: BTreeMap<ConnId, String>,
    /// Agents that are connected.
    pub(super) agents: BTreeSet<ConnId>,
    /// Nodes in the round when it was complete.
    pub(super) group: Option<u32>,
    pub(super) most_joined: u32,
    /// Who that was.
    pub(super) most_present: Names,
    pub(super) role_nodes: Option<u32>,
    pub(super) roles: BTreeSet<u32>,
    pub(super) assigned: BTreeMap<u32, (u32, u32)>,
    pub(super) assigned_at: Option<Timestamp>,
    pub(super) master: (Option<String>, Option<String>),
    /// Where the workers meet is known: it was told, or they came here.
    pub(super) workers_placed: bool,
    /// Nodes that had joined when last looked at.
    pub(super) told_joined: u32,
    /// The start that was told.
    pub(super) told_start: Option<Timestamp>,
    pub(super) exit: BTreeSet<ConnId>,
    pub(super) exit_since: Option<Timestamp>,
    pub(super) exit_done: Option<Timestamp>,
    pub(super) closed: Option<Timestamp>,
    /// When the last connection closed.
    pub(super) all_gone: Option<Timestamp>,
    pub(super) dying: Vec<Dying>,
    pub(super) world: World,
    pub(super) timeline: VecDeque<(Timestamp, String, String)>,
    pub(super) new_moments: Vec<(Timestamp, String, String)>,
    pub(super) facts: Vec<Fact>,
    pub(super) over_at: Option<Timestamp>,
    pub(super) plan_version: u64,
    /// Nodes that died, ever.
    pub(super) deaths: u64,
    pub(super) has_state: bool,
    /// The last state could not be read, which has been told.
    pub(super) unreadable: bool,
}

impl Run {
    pub(super) fn new(key: RunKey, kind: RunKind, now: Timestamp) -> Self {
        Self {
            key,
            kind,
            version: 1,
            first_seen: now,
            state: RunState::Joining,
            state_since: now,
            round: 0,
            started: None,
            completed: None,
            deadline: None,
            closes_at: None,
            native: None,
            nodes: Vec::new(),
            let_go: 0,
            earlier: Vec::new(),
            earlier_size: None,
            left: BTreeMap::new(),
            agents: BTreeSet::new(),
            group: None,
            most_joined: 0,
            most_present: Names::default(),
            role_nodes: None,
            roles: BTreeSet::new(),
            assigned: BTreeMap::new(),
            assigned_at: None,
            master: (None, None),
            workers_placed: false,
            told_start: None,
            told_joined: 0,
            exit: BTreeSet::new(),
            exit_since: None,
            exit_done: None,
            closed: None,
            all_gone: None,
            dying: Vec::new(),
            world: World::default(),
            timeline: VecDeque::new(),
            new_moments: Vec::new(),
            facts: Vec::new(),
            over_at: None,
            plan_version: 0,
            deaths: 0,
            has_state: false,
            unreadable: false,
        }
    }

    pub(super) fn touch(&mut self) {
        self.version = self.version.saturating_add(1);
    }

    pub(super) fn fact(&mut self, reason: Reason, about: impl Into<String>, since: Timestamp) {
        const MOST: usize = 256;
        if self.facts.len() < MOST {
            self.facts.push(Fact { reason, about: about.into(), since });
        }
        self.touch();
    }

    pub(super) fn moment(&mut self, at: Timestamp, code: &str, text: String) {
        if self.new_moments.len() < MOST_MOMENTS {
            self.new_moments.push((at, code.to_owned(), text.clone()));
        }
        self.remember(at, code, text);
        self.touch();
    }

    pub(super) fn remember(&mut self, at: Timestamp, code: &str, text: String) {
        if self.timeline.len() == MOST_MOMENTS {
            self.timeline.pop_front();
        }
        self.timeline.push_back((at, code.to_owned(), text));
    }

    /// The nodes in the round.
    pub(super) fn participants(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.place == Place::Participant)
    }

    pub(super) fn joined(&self) -> u32 {
        count(self.participants().count()).saturating_add(self.let_go)
    }

    pub(super) fn has_agents(&self) -> bool {
        self.kind != RunKind::Env
    }

    pub(super) fn node_of(&self, conn: ConnId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.conn == Some(conn))
    }

    pub(super) fn node_of_rank(&self, rank: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.rank == Some(rank) && node.place == Place::Participant)
    }

    /// The number of nodes expected, with what the traffic tells.
    pub(super) fn expected(&self, plan: &Plan) -> Option<Expected> {
        if !self.has_agents() {
            return None;
        }
        if let Some(native) = &self.native {
            return Some(native.expected);
        }
        let exactly = |n: Option<u32>, source| n.map(|n| Expected { min: n, max: n, source });
        plan.expected()
            .or_else(|| exactly(self.role_nodes, ExpectedFrom::RoleExchange))
            .or_else(|| exactly(self.group, ExpectedFrom::RoundComplete))
            .or_else(|| exactly(self.earlier_size, ExpectedFrom::EarlierRound))
    }

    /// Gives the nodes the names of their pods.
    pub(super) fn name_nodes(&mut self, plan: &Plan) {
        if self.plan_version == plan.version || self.native.is_some() {
            return;
        }
        self.plan_version = plan.version;
        for at in 0..self.nodes.len() {
            self.nodes[at].name = self.name_for(&self.nodes[at].id, plan);
        }
        self.touch();
    }

    fn name_for(&self, id: &NodeId, plan: &Plan) -> String {
        const FEW: usize = 2048;
        let (pod, own) = match id {
            NodeId::Desc(desc) => (plan.pod_at(&desc.addr), short(&desc.addr).to_owned()),
            NodeId::Rank(rank) => (plan.pod_of_rank(*rank), format!("node {rank}")),
            NodeId::Native { info, .. } => (None, info.name.to_string()),
        };
        let name = pod.map_or(own, |pod| pod.pod.clone());
        // Two agents on one host. With so many nodes that looking for it takes long, nobody has that.
        let is_taken = self.nodes.len() < FEW
            && self.nodes.iter().any(|other| other.id != *id && other.name == name && other.gone.is_none());
        match id {
            NodeId::Desc(desc) if is_taken => format!("{name}_{}", desc.pid),
            _ => name,
        }
    }

    /// Begins a round: what belonged to the one before is forgotten, but for the names.
    pub(super) fn begin_round(&mut self, round: u64) {
        self.earlier_size = self.group.or(self.earlier_size);
        self.round = round;
        self.let_go = 0;
        self.started = None;
        self.completed = None;
        self.deadline = None;
        self.group = None;
        self.most_joined = 0;
        self.most_present = Names::default();
        self.role_nodes = None;
        self.roles.clear();
        self.assigned.clear();
        self.assigned_at = None;
        self.exit.clear();
        self.exit_since = None;
        self.exit_done = None;
        self.closed = None;
        self.over_at = None;
    }

    /// Begins anew after the run was over or its state was dropped.
    pub(super) fn restart(&mut self) {
        self.begin_round(0);
        self.nodes.clear();
        self.earlier.clear();
        self.left.clear();
        self.earlier_size = None;
        self.dying.clear();
        self.workers_placed = false;
        self.all_gone = None;
        self.master = (None, None);
        self.world = World { connected: std::mem::take(&mut self.world.connected), ..World::default() };
        self.touch();
    }

    /// Takes `conn` for the one node with its process id that has no connection yet.
    pub(super) fn match_by_pid(&mut self, conn: ConnId, pid: Option<u32>, peer: Option<SocketAddr>) {
        let Some(pid) = pid else { return };
        let mut same = self.nodes.iter_mut().filter(|node| node.conn.is_none() && node.pid == Some(pid));
        if let (Some(node), None) = (same.next(), same.next()) {
            node.conn = Some(conn);
            node.peer = peer.or(node.peer);
        }
    }

    /// Where the run stands now.
    pub(super) fn state_now(&self, now: Timestamp) -> RunState {
        const WITHOUT_EXCHANGE: Duration = Duration::from_secs(10);
        if let Some(state) = self.native_state() {
            return state;
        }
        let settled = |at: Option<Timestamp>| at.is_some_and(|at| now.since(at) >= SETTLE);
        if self.exit_done.is_some() {
            return RunState::Finished;
        }
        if self.closed.is_some() {
            return RunState::Closed;
        }
        if !self.has_agents() {
            return match (self.world.completed, self.world.ended) {
                (Some(_), ended) if settled(ended) => RunState::Finished,
                (None, ended) if settled(ended) && self.world.nccl => RunState::Finished,
                (None, ended) if settled(ended) => RunState::Gone,
                (Some(_), _) => RunState::Running,
                (None, _) if self.world.nccl => RunState::Running,
                (None, _) => RunState::Joining,
            };
        }
        if self.agents.is_empty() && settled(self.all_gone) {
            return RunState::Gone;
        }
        if !self.exit.is_empty() {
            return RunState::Exiting;
        }
        let Some(completed) = self.completed else {
            return if self.deadline.is_some() { RunState::LastCall } else { RunState::Joining };
        };
        let exchanged =
            !self.assigned.is_empty() || (self.roles.is_empty() && now.since(completed) >= WITHOUT_EXCHANGE);
        if exchanged { RunState::Running } else { RunState::Exchanging }
    }
}
