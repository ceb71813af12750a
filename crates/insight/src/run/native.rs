//! What the native rendezvous shows of a run: nothing has to be guessed from traffic.
//!
//! The workers of a round meet in the round's own store; what is seen there belongs to the run.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::facts::{AtExit, Native, NativeAgent, Spare};
use super::limits::{MISSING_SHOWN, MOST_NODES};
use super::node::{Membership, NodeId, TrackedNode};
use super::tracked::TrackedRun;
use super::world::World;
use crate::presence::{Place, Presence};
use crate::reason::words::{have_waited, if_some};
use crate::reason::{Code, Evidence, Finding, Last, Names, Reason, Survivors, Unit};
use rallypoint_api::{ExitCounts, Expected, ExpectedFrom, KnownFrom, MissingNode, RunState, Seen, Severity};
use rallypoint_protocol::ids::{ConnId, Elapsed, Label, Timestamp, count};
use rallypoint_rendezvous::{
    Absent, Break, Fact, Fate, NodeInfo, NodeSnapshot, NodeState, RoundState, RunSnapshot, WaitsFor, Who,
};

impl TrackedRun {
    /// Adds to the fact that a run has finished the whole time since its round was complete: a restarted
    /// rendezvous knows only its own time.
    pub(crate) fn since_completion(&self, fact: &Fact, at: Timestamp) -> Option<Fact> {
        let Fact::Finished { round, nodes, .. } = *fact else { return None };
        Some(Fact::Finished { round, nodes, ran: at.since(self.round.completed?) })
    }

    /// What the rendezvous tells, with an operator's reset that had closed the store of that round before:
    /// what happens to its nodes then may be for that.
    pub(crate) fn told_by_rendezvous(&self, fact: &Fact, at: Timestamp) -> Reason {
        let (of_round, happened) = match fact {
            Fact::Failed { round, since, .. }
            | Fact::Broken { round, why: Break::Left { since, .. }, .. } => (Some(*round), ago(at, *since)),
            Fact::Broken {
                round,
                why:
                    Break::Rejoined { .. }
                    | Break::RejoinedBesideSilent { .. }
                    | Break::RejoinedAfterClosed { .. },
                ..
            } => (Some(*round), at),
            _ => (None, at),
        };
        let is_this = of_round == Some(self.round.number);
        let reset = if is_this { self.round.reset } else { self.life.earlier_reset };
        let reset = reset.filter(|reset| of_round.is_some() && *reset <= happened);
        let reset = reset.map(|reset| Elapsed(happened.since(reset)));
        Reason::told(fact, reset, self.survivors(fact, at), &shown_by(fact, at))
    }

    /// The nodes that are left of the round before, if they are all nodes of this one and start no workers
    /// anew: processes of a run with a grace for closed connections meet again as they are
    /// (`rallypoint.elastic`).
    fn survivors(&self, fact: &Fact, at: Timestamp) -> Option<Survivors> {
        let Fact::Complete { nodes, .. } = fact else { return None };
        let (broken, of, lost) = self.life.lost_before.as_ref().filter(|_| self.is_elastic())?;
        let are_all = count(lost.count()).saturating_add(count(*nodes)) == *of;
        are_all.then(|| Survivors { lost: lost.to_string(), of: *of, after: Elapsed(at.since(*broken)) })
    }

    /// Whether its processes meet again as they are, when one is lost.
    pub(crate) fn is_elastic(&self) -> bool {
        self.native.as_ref().is_some_and(|native| native.is_elastic)
    }

    /// Remembers of what the rendezvous says what explains the waits that come of it.
    pub(crate) fn takes_fact(&mut self, fact: &Fact, at: Timestamp) {
        match fact {
            Fact::Broken { why: Break::Lost(lost), left, .. } => {
                self.life.lost_before = Some((at, left.saturating_add(count(lost.count())), lost.clone()));
            }
            Fact::Broken { .. } | Fact::Complete { .. } => self.life.lost_before = None,
            _ => {}
        }
        if let Fact::Broken { round, why, .. } = fact {
            self.life.given_up = Some((*round, why.to_string()));
        }
    }

    /// The native rendezvous shows it, with the port of its round's store.
    pub(crate) fn fold_native(&mut self, snapshot: &RunSnapshot, store: Option<u16>) {
        let now = snapshot.at;
        let terms = &snapshot.terms;
        let state = match snapshot.state {
            RoundState::Forming | RoundState::Breaking => RunState::Joining,
            RoundState::LastCall => RunState::LastCall,
            RoundState::Complete if are_exiting(snapshot) => RunState::Exiting,
            RoundState::Complete => RunState::Running,
            RoundState::Closed | RoundState::Idle if snapshot.finished_for.is_some() => RunState::Finished,
            RoundState::Closed if are_exiting(snapshot) => RunState::Exiting,
            RoundState::Closed => RunState::Closed,
            RoundState::Idle => RunState::Gone,
        };
        // A round that is given up is over: the next one counts.
        let forms = matches!(state, RunState::Joining | RunState::LastCall);
        let round = snapshot.round.saturating_add((snapshot.state == RoundState::Breaking).into());
        // The first round was given up.
        let round = round.max(1);
        // A round that nobody has joined yet is waited for since the last one was given up.
        let waited_since =
            self.native.as_ref().and_then(|native| native.waits.as_ref()).map(|(_, since)| *since);
        let waited_since = waited_since.filter(|_| round == self.round.number);
        if round != self.round.number {
            let at_exit = self.participants().filter(|node| node.finished && node.gone.is_none());
            let at_exit: Vec<_> = at_exit.filter_map(|node| Some((node.conn?, AtExit::of(node)))).collect();
            self.life.at_earlier_exit.extend(at_exit);
            self.life.nodes.iter_mut().for_each(|node| node.finished = false);
            self.begin_round(round);
        }
        let store = store.filter(|port| self.round.closed_store != Some(*port));
        if self.native.as_ref().is_none_or(|native| native.store != store) && store.is_some() {
            let size = snapshot.nodes.iter().map(|node| node.info.local_world_size).sum::<Option<u32>>();
            let size = size.filter(|_| snapshot.state == RoundState::Complete);
            self.life.world = World::default().told(size);
        }
        self.round.exit_done = snapshot.finished_for.map(|since| ago(now, since));
        self.round.over_at = state.is_over().then(|| self.round.over_at.unwrap_or(now));
        let completed = snapshot.complete_for.filter(|_| !forms).map(|since| ago(now, since));
        self.round.completed = match (self.round.completed, completed) {
            // The server before this one may have seen it.
            (Some(before), Some(at)) => Some(before.min(at)),
            (before, None) if state.is_over() => before,
            (_, at) => at,
        };
        self.round.started = match (snapshot.forming_for, snapshot.took, self.round.completed) {
            (Some(gathering), ..) if forms => Some(ago(now, gathering)),
            (_, Some(gathered), Some(completed)) => Some(ago(completed, gathered)),
            _ => self.round.started,
        };
        self.round.let_go = if forms { 0 } else { snapshot.let_go };
        self.round.group = Some(snapshot.round_size).filter(|_| !forms);
        self.fold_native_nodes(snapshot, forms);
        let expiring = snapshot.expiring.clone().filter(|_| forms).map(|missing| {
            let before = self.native.as_ref().and_then(|native| native.expiring.as_ref());
            (before.map_or(now, |(since, _)| *since), missing)
        });
        let on_their_way = || snapshot.nodes.iter().filter(|node| forms && is_on_its_way(node));
        let finished: HashSet<&str> =
            self.life.at_earlier_exit.values().map(|node| node.node.as_str()).collect();
        let at_exit = count(on_their_way().filter(|node| finished.contains(node.node.as_str())).count());
        let has_left = if forms { snapshot.succeeded } else { 0 };
        let came_anew = if forms { count(came_anew(snapshot).count()) } else { 0 };
        let on_their_way = count(on_their_way().count()).saturating_add(came_anew).saturating_sub(at_exit);
        let to_come = [snapshot.waiting, on_their_way, at_exit, has_left]
            .into_iter()
            .fold(terms.min_nodes, u32::saturating_sub);
        let met_at = store.or_else(|| self.native.as_ref()?.met_at);
        let (min, max) = (terms.min_nodes, terms.max_nodes);
        let needed = if min == max { min.to_string() } else { format!("{min} to {max}") };
        let joined = self.joined();
        let have = if joined == 1 { "has" } else { "have" };
        let nodes = if max == 1 { "node" } else { "nodes" };
        let enough = if heard_waiting(snapshot) >= min { ", which is enough" } else { "" };
        let waits = format!("{joined} of {needed} {nodes} {have} joined{enough}; {}", snapshot.reason);
        self.native = Some(Native {
            state,
            expiring,
            closes_at: closes_at(snapshot).filter(|_| forms),
            expected: Expected { min, max, source: ExpectedFrom::Join },
            store,
            met_at,
            lacks: lacks(snapshot, at_exit, has_left),
            given_up_at: given_up_at(snapshot),
            is_unheard: snapshot.nodes.iter().any(|node| node.is_late),
            waits: (state == RunState::Joining)
                .then(|| (waits, waited_since.or(self.round.started).unwrap_or(now))),
            missing: missing(snapshot, forms, to_come),
            on_their_way,
            finished: at_exit.saturating_add(has_left),
            exit: (snapshot.succeeded > 0 && !forms)
                .then_some(ExitCounts { arrived: snapshot.succeeded, expected: Some(snapshot.round_size) }),
            spares: spares(snapshot),
            unreported: snapshot.unreported,
            is_elastic: terms.grace.is_some(),
        });
    }

    /// Takes the last sign of life of each of its nodes. That alone is no change.
    pub(crate) fn refresh_native(&mut self, snapshot: &RunSnapshot) {
        let seen: HashMap<&str, &NodeSnapshot> =
            snapshot.nodes.iter().map(|node| (node.node.as_str(), node)).collect();
        for node in &mut self.life.nodes {
            if let Some(seen) = seen.get(node.node_id().as_str()) {
                node.last_heartbeat = ago(snapshot.at, seen.silent.unwrap_or_default());
            }
        }
    }

    /// The run's own store is opened: its workers meet there, where its round has none.
    pub(crate) fn workers_meet_at(&mut self, port: u16) {
        if let Some(native) = &mut self.native {
            native.met_at = Some(*native.store.get_or_insert(port));
        }
    }

    /// The store of its round was closed, and with it the connections of the workers that had met there.
    pub(crate) fn store_was_closed(&mut self, port: u16) {
        let Some(native) = &mut self.native else { return };
        if native.met_at.take_if(|store| *store == port).is_some() {
            native.store.take_if(|store| *store == port);
            self.round.closed_store = Some(port);
            self.life.world = World::default();
            self.touch();
        }
    }

    /// Whether processes that use the store on `port` are workers of its round. Those of the last round are
    /// not.
    pub(crate) fn takes_workers_of(&self, port: u16) -> bool {
        self.native.as_ref().is_none_or(|native| native.store == Some(port))
    }

    fn fold_native_nodes(&mut self, snapshot: &RunSnapshot, forms: bool) {
        let now = snapshot.at;
        let before: HashMap<String, TrackedNode> =
            std::mem::take(&mut self.life.nodes).into_iter().map(|node| (node.node_id(), node)).collect();
        let names = SharedNames::of(snapshot);
        let mut joined = Vec::new();
        for seen in &snapshot.nodes {
            let (membership, rank) = match seen.state {
                // It has not joined the round that counts.
                NodeState::InRound { .. } if forms => continue,
                NodeState::InRound { rank } => (Membership::Participant, Some(rank)),
                NodeState::Waiting { rank } => (Membership::Participant, rank),
                NodeState::Redundant { waits_for: WaitsFor::Before { .. } } => (Membership::WaitList, None),
                NodeState::Redundant { .. } => (Membership::Redundant, None),
            };
            let was = before.get(seen.node.as_str());
            // Its agent may have left the store since.
            let had_finished = was.is_some_and(|node| node.finished && node.rank == rank);
            let was = was.map(|node| (node.membership, node.joined));
            let came = ago(now, seen.joined_for);
            let since = match was {
                // One that stood by has got a place: that is when it came to the round.
                Some((Membership::Redundant | Membership::WaitList, _))
                    if membership == Membership::Participant =>
                {
                    now
                }
                Some((was, at)) if was == membership => at.max(came),
                _ => came,
            };
            if membership == Membership::Participant && was != Some((membership, since)) {
                joined.push(self.life.nodes.len());
            }
            let agent = rank.and_then(|rank| self.round.native_agents.get(&rank)).filter(|_| !forms);
            let (node, info) = (seen.node.clone(), seen.info.clone());
            let id = NodeId::Native { node, info, is_watched: seen.is_watched };
            let name = names.shown(&seen.info.name, &seen.info.address);
            self.life.nodes.push(TrackedNode {
                conn: agent.map(|agent| agent.conn),
                peer: agent.map(|agent| agent.peer),
                pid: agent.and_then(|agent| agent.pid),
                rank,
                joined: since,
                last_heartbeat: ago(now, seen.silent.unwrap_or_default()),
                finished: had_finished || agent.is_some_and(|agent| self.round.exit.contains(&agent.conn)),
                is_unheard: seen.is_late,
                ..TrackedNode::new(id, name, membership, came)
            });
        }
        self.tell_joins(&joined);
        self.keep_gone(before, snapshot, &names);
    }

    /// Nodes that have left the round without having done their work stay in it as dead ones, until the next
    /// is complete.
    fn keep_gone(
        &mut self,
        mut before: HashMap<String, TrackedNode>,
        snapshot: &RunSnapshot,
        names: &SharedNames<'_>,
    ) {
        let is_gone = |absent: &&Absent| matches!(absent.fate, Fate::Lost | Fate::Left);
        for Absent { node, who, rank, heard, .. } in snapshot.absent.iter().filter(is_gone) {
            let was = before.remove(node.as_str());
            let (name, address) = (who.name.clone(), who.address.clone());
            let info = NodeInfo { name, address, role: None, local_world_size: None, torch_version: None };
            let membership = Membership::Participant;
            let unseen = || {
                let id = NodeId::Native { node: node.clone(), info, is_watched: true };
                TrackedNode::new(id, names.shown(&who.name, &who.address), membership, *heard)
            };
            let was = was.unwrap_or_else(unseen);
            let gone = was.gone.or(Some(*heard));
            self.life.nodes.push(TrackedNode { gone, membership, rank: *rank, ..was });
        }
    }

    /// The agent of the node with this rank has told its role in the store of the round.
    pub(crate) fn native_agent_came(
        &mut self,
        rank: u32,
        conn: ConnId,
        (peer, pid): (SocketAddr, Option<u32>),
    ) {
        let agent = NativeAgent { conn, peer, pid };
        if self.round.native_agents.len() < MOST_NODES || self.round.native_agents.contains_key(&rank) {
            self.round.native_agents.insert(rank, agent);
            self.connect_native(rank, Some(agent));
        }
    }

    /// The connection of an agent closed: its node is known by none any more. What became of the node is for
    /// the rendezvous to say.
    pub(crate) fn native_agent_left(&mut self, conn: ConnId) {
        self.life.at_earlier_exit.remove(&conn);
        let of_node = self.round.native_agents.iter().find(|(_, agent)| agent.conn == conn);
        if let Some(rank) = of_node.map(|(&rank, _)| rank) {
            self.round.native_agents.remove(&rank);
            self.connect_native(rank, None);
        }
    }

    /// The node that waits with this connection at the exit barrier of a round that was given up.
    pub(crate) fn at_earlier_exit(&self, conn: ConnId) -> Option<&str> {
        self.life.at_earlier_exit.get(&conn).map(|node| node.name.as_str())
    }

    fn connect_native(&mut self, rank: u32, agent: Option<NativeAgent>) {
        let is_it = |node: &&mut TrackedNode| node.rank == Some(rank) && node.is_participant();
        if let Some(node) = self.life.nodes.iter_mut().find(is_it).filter(|node| node.gone.is_none()) {
            node.conn = agent.map(|agent| agent.conn);
            node.peer = agent.map(|agent| agent.peer);
            node.pid = agent.and_then(|agent| agent.pid);
        }
        self.touch();
    }

    /// The nodes that stand by beside a complete round, and what has to happen before they get a place.
    pub(crate) fn native_spares(&self, now: Timestamp) -> Vec<Finding> {
        let Some(native) = self.native.as_ref().filter(|native| native.state == RunState::Running) else {
            return Vec::new();
        };
        let mut held = Vec::new();
        let mut stand_by = |spares: Vec<&Spare>, given_up: Option<Timestamp>, about: &str| {
            let Some(since) = spares.iter().map(|spare| spare.joined.at).min() else { return };
            let names = Names::of(spares.iter().map(|spare| spare.joined.who.clone()));
            let anew = if_some(given_up, |at| {
                let left = Elapsed(at.since(now));
                format!("; came anew, and the processes of before are given up in {left}")
            });
            let unreported = Names::of((native.unreported > 0).then(|| Unit::Node.count(native.unreported)));
            let (max, waited) = (Unit::Node.count(native.expected.max), Elapsed(now.since(since)));
            let have_waited = have_waited(names.count());
            let reason = Code::StandsBy
                .says(format!("{names} {have_waited} {waited} beside a round of {max}, the maximum{anew}"))
                .held(&names)
                .fact("spares", &names)
                .fact("unreported", native.unreported)
                .and("not reported since the server was restarted", &unreported);
            held.push(
                Finding::new(reason, about, since).seen(spares.into_iter().map(|spare| spare.joined.clone())),
            );
        };
        let (mut any_place, mut anew, mut last_given_up) = (Vec::new(), Vec::new(), None);
        let mut of_rank = Vec::new();
        for spare in &native.spares {
            match spare.waits_for {
                WaitsFor::Place => any_place.push(spare),
                WaitsFor::Rank(rank) => of_rank.push((spare, rank)),
                WaitsFor::Before { given_up } => {
                    anew.push(spare);
                    last_given_up = last_given_up.max(Some(given_up));
                }
            }
        }
        stand_by(any_place, None, "");
        stand_by(anew, last_given_up, "anew");
        held.extend(of_rank.into_iter().map(|(Spare { joined, .. }, rank)| {
            let (node, waited) = (joined.who.clone(), Elapsed(now.since(joined.at)));
            let unknown = || format!("another node (node rank {rank})");
            let holder = self.node_of_rank(rank).map_or_else(unknown, TrackedNode::label);
            let reason = Code::StandsBy
                .says(format!("{node} waits {waited} for the rank of {holder}, which is still in the round"))
                .severe(Severity::Warning)
                .look_at(
                    "if it replaces that node, it gets the rank when that one leaves or its keep-alive runs \
                     out; else give each node its own rank (PET_NODE_RANK, node_rank, the pod's index)",
                )
                .held(&Names::of([node]))
                .misses(Place::Node, &Names::of([holder]), Last::Connected);
            Finding::new(reason, joined.who.clone(), joined.at).seen([joined.clone()])
        }));
        held
    }

    /// The round that forms is to be given up soon.
    pub(crate) fn native_expires(&self, now: Timestamp) -> Option<Finding> {
        let native = self.native.as_ref()?;
        let ((since, missing), closes_at) = native.expiring.as_ref().zip(native.closes_at)?;
        let (round, left) = (self.round.number, closes_at.since(now));
        let fact = Fact::Expiring { round, left, missing: missing.clone() };
        Some(Finding::new(Reason::told(&fact, None, None, &[]), format!("round {round}"), *since))
    }

    /// What the round waits for, in the words of the rendezvous, with the pods that announced themselves and
    /// are not there.
    pub(crate) fn native_waits(&self, announced: &[String], now: Timestamp) -> Option<Finding> {
        let native = self.native.as_ref()?;
        let (text, since) = native.waits.as_ref()?;
        let (since, round) = (*since, self.round.number);
        let waited = Elapsed(now.since(since));
        let at_exit = Names::of(self.life.at_earlier_exit.values().map(|node| node.name.clone()));
        let (is_enough, lacks) = native.lacks.clone();
        let is_announced = lacks == Presence::NeverSeen && !announced.is_empty();
        let lacks = if is_announced { Presence::Announced } else { lacks };
        let given_up = if_some(native.given_up_at, |at| {
            format!("; what is silent is given up in {}", Elapsed(at.since(now)))
        });
        // The others have left since.
        let done = native.finished.saturating_sub(count(at_exit.count()));
        let done = Names::of((done > 0).then(|| Unit::Node.count(done)));
        let announced = Names::of(announced.iter().cloned());
        let reason = Code::NodesMissing
            .says(format!("round {round} is not complete after {waited}: {text}{given_up}"))
            .predicate()
            .look_at(lacks.look_at(Place::Node))
            .joined(self.joined(), Some(native.expected.min))
            .from(Some(native.expected.source))
            .misses_nodes(&native.missing)
            .and("announced, and not there", &announced)
            .and("finished, and at the exit barrier of a round before", &at_exit)
            .and("finished and left", &done);
        let reason = if is_enough {
            reason.severe(Severity::Info).look_at(
                "nothing, if it does not last: the round goes on when all that are alive have joined, and \
                 what is silent is given up",
            )
        } else {
            reason
        };
        let there = self.participants().filter(|node| node.gone.is_none());
        let joins = there.map(|node| Evidence::by_name(Seen::Joined, node.told(), node.joined));
        Some(Finding::new(reason, format!("round {round}"), since).seen(joins))
    }
}

impl AtExit {
    fn of(node: &TrackedNode) -> Self {
        Self { node: node.node_id(), name: node.told() }
    }
}

/// Which nodes were seen to do what, so that this was told at `now`.
pub(crate) fn shown_by(fact: &Fact, now: Timestamp) -> Vec<Evidence> {
    let did = |seen: Seen, who: String, since: Duration| Evidence::by_name(seen, who, ago(now, since));
    let just = |seen: Seen, who: &Who| vec![did(seen, who.to_string(), Duration::ZERO)];
    let all = |seen: Seen, nodes: &[String], since: Duration| -> Vec<Evidence> {
        nodes.iter().map(|node| did(seen, node.clone(), since)).collect()
    };
    match fact {
        Fact::Forms { first: who, .. }
        | Fact::Complete { last: who, .. }
        | Fact::Restarted { by: who, .. }
        | Fact::Broken { why: Break::Rejoined { who, .. }, .. } => just(Seen::Joined, who),
        Fact::Broken { why: Break::RejoinedBesideSilent { who, silent, silent_for, .. }, .. } => {
            let mut seen = just(Seen::Joined, who);
            seen.extend(all(Seen::Heard, silent, *silent_for));
            seen
        }
        Fact::Broken { why: Break::RejoinedAfterClosed { who, closed, since, .. }, .. } => {
            let mut seen = all(Seen::Closed, closed, *since);
            seen.extend(just(Seen::Joined, who));
            seen
        }
        Fact::WaiterLost { who, closed, silent } => {
            let seen = if *closed { Seen::Closed } else { Seen::Heard };
            vec![did(seen, who.to_string(), *silent)]
        }
        Fact::Displaced { by, .. } => just(Seen::Joined, by),
        Fact::Abandoned { who, .. } => just(Seen::Left, who),
        Fact::Broken { why: Break::Left { who, since, .. }, .. } => {
            vec![did(Seen::Left, who.to_string(), *since)]
        }
        Fact::Failed { who, since, .. } => vec![did(Seen::Left, who.to_string(), *since)],
        Fact::Broken { why: Break::Newcomers { newcomers }, .. } => {
            all(Seen::Joined, newcomers, Duration::ZERO)
        }
        Fact::Disconnected { nodes, since, .. } => all(Seen::Closed, nodes, *since),
        Fact::Silent { nodes, since, .. } => all(Seen::Heard, nodes, *since),
        Fact::Lost { lost, .. } | Fact::Broken { why: Break::Lost(lost), .. } => {
            let mut seen = all(Seen::Closed, &lost.closed, lost.since);
            seen.extend(all(Seen::Heard, &lost.silent, lost.since));
            seen
        }
        Fact::Adopted { first, .. } => just(Seen::Heard, first),
        // What an operator or the server does, the time, what a refused node asked for, and who was there
        // before a restart are in the words.
        Fact::NotBack { .. }
        | Fact::Broken {
            why: Break::BeforeRestart { .. } | Break::Unreported { .. } | Break::Resized { .. },
            ..
        }
        | Fact::Expiring { .. }
        | Fact::TimedOut { .. }
        | Fact::Extended { .. }
        | Fact::Refused { .. }
        | Fact::Closed { .. }
        | Fact::Finished { .. }
        | Fact::MixedReleases(_)
        | Fact::NoStore { .. } => Vec::new(),
    }
}

/// Whether a node of the last round is alive, and was told to join again. One without heartbeats is told
/// nothing.
fn is_on_its_way(node: &NodeSnapshot) -> bool {
    matches!(node.state, NodeState::InRound { .. }) && node.is_watched && !node.is_late
}

/// Names that several nodes of a run have: they are told with their addresses.
struct SharedNames<'s>(HashSet<&'s str>);

impl<'s> SharedNames<'s> {
    fn of(snapshot: &'s RunSnapshot) -> Self {
        let nodes = snapshot.nodes.iter().map(|node| (node.info.name.as_str(), node.info.address.as_str()));
        let absent =
            snapshot.absent.iter().map(|absent| (absent.who.name.as_str(), absent.who.address.as_str()));
        let mut addresses: HashMap<&str, &str> = HashMap::new();
        let is_shared =
            |(name, address): &(&'s str, &'s str)| *addresses.entry(*name).or_insert(*address) != *address;
        Self(nodes.chain(absent).filter(is_shared).map(|(name, _)| name).collect())
    }

    /// The name of a node for people.
    fn shown(&self, name: &Label, address: &Label) -> String {
        if self.0.contains(name.as_str()) { format!("{name} at {address}") } else { name.to_string() }
    }
}

/// The moment that lies this long before `now`.
fn ago(now: Timestamp, time: Duration) -> Timestamp {
    Timestamp(now.0.saturating_sub(time))
}

/// Whether some nodes have done their work, and all others still do theirs.
fn are_exiting(snapshot: &RunSnapshot) -> bool {
    snapshot.succeeded > 0 && snapshot.succeeded.saturating_add(snapshot.in_round) == snapshot.round_size
}

/// Nodes without a place that are heard from, the oldest first.
fn spares(snapshot: &RunSnapshot) -> Vec<Spare> {
    let names = SharedNames::of(snapshot);
    let spare = |node: &NodeSnapshot| {
        let NodeState::Redundant { waits_for } = node.state else { return None };
        let name = names.shown(&node.info.name, &node.info.address);
        let joined = Evidence::by_name(Seen::Joined, name, ago(snapshot.at, node.joined_for));
        Some(Spare { waits_for, joined })
    };
    snapshot.nodes.iter().filter(|node| !node.is_late).filter_map(spare).collect()
}

/// Whether it waits for the round that forms, or was told to join again, and is silent.
fn is_awaited_in_vain(node: &NodeSnapshot) -> bool {
    node.is_late && matches!(node.state, NodeState::InRound { .. } | NodeState::Waiting { .. })
}

/// Nodes that came anew and are heard from, and get a place when the process of before is given up.
fn came_anew(snapshot: &RunSnapshot) -> impl Iterator<Item = &NodeSnapshot> {
    let is_one = |node: &&NodeSnapshot| {
        !node.is_late && matches!(node.state, NodeState::Redundant { waits_for: WaitsFor::Before { .. } })
    };
    snapshot.nodes.iter().filter(is_one)
}

/// How many wait for the round that forms, and are heard from.
fn heard_waiting(snapshot: &RunSnapshot) -> u32 {
    let waits = |node: &&NodeSnapshot| matches!(node.state, NodeState::Waiting { .. }) && !node.is_late;
    count(snapshot.nodes.iter().filter(waits).count())
}

/// When the round that forms closes: it is given up, or is complete with those that are there. `None` if that
/// depends on nodes of the last one that are alive and join again.
fn closes_at(snapshot: &RunSnapshot) -> Option<Timestamp> {
    let RunSnapshot { at, terms, waiting, .. } = snapshot;
    let deadline = *at + snapshot.deadline?;
    let of_last = |node: &&NodeSnapshot| matches!(node.state, NodeState::InRound { .. }) && node.is_watched;
    let mut awaited = snapshot.nodes.iter().filter(of_last).peekable();
    if *waiting < terms.min_nodes || awaited.peek().is_none() && snapshot.unreported == 0 {
        return Some(deadline);
    }
    if awaited.clone().any(is_on_its_way) || snapshot.unreported > 0 {
        return None;
    }
    // It goes on without those that are silent when they are given up, at once if it is full.
    let heard = awaited.map(|node| ago(*at, node.silent.unwrap_or_default())).max()?;
    let more = if *waiting < terms.max_nodes { terms.last_call } else { Duration::ZERO };
    Some(deadline.min(heard + terms.patience() + more))
}

/// When all are given up that the round that forms waits for and that are not heard from.
fn given_up_at(snapshot: &RunSnapshot) -> Option<Timestamp> {
    let silent = snapshot.nodes.iter().filter(|node| is_awaited_in_vain(node));
    let heard = silent.map(|node| ago(snapshot.at, node.silent.unwrap_or_default())).max();
    heard.map(|heard| heard + snapshot.terms.patience())
}

/// Whether enough nodes are there, or come without anybody's help, and what was seen of those that the round
/// lacks. Of the nodes of the last one so many have finished: they are at its exit barrier, or have left.
fn lacks(snapshot: &RunSnapshot, at_exit: u32, has_left: u32) -> (bool, Presence) {
    let (heard, min) = (heard_waiting(snapshot), snapshot.terms.min_nodes);
    let with_anew = heard.saturating_add(count(came_anew(snapshot).count()));
    let alive = count(snapshot.nodes.iter().filter(|node| is_on_its_way(node)).count());
    let lacks = min.saturating_sub(with_anew.saturating_add(alive.saturating_sub(at_exit)));
    let silent = snapshot.nodes.iter().filter(|node| is_awaited_in_vain(node));
    let silent = silent.map(|node| node.silent.unwrap_or_default()).max();
    let gone = snapshot.absent.iter().filter(|absent| matches!(absent.fate, Fate::Lost | Fate::Left));
    let gone = gone.map(|absent| snapshot.at.since(absent.heard)).max();
    let is_enough = with_anew >= min || silent.is_some() && heard.saturating_add(snapshot.redundant) >= min;
    let seen = match (gone, silent) {
        (Some(since), _) if lacks > 0 => Presence::gone(Elapsed(since), false),
        (_, Some(since)) => Presence::Silent { for_seconds: Elapsed(since) },
        _ if lacks == 0 => Presence::idle(None),
        _ if lacks <= at_exit.saturating_add(has_left) => Presence::Finished,
        _ => Presence::NeverSeen,
    };
    (is_enough, seen)
}

/// What is missing, as far as the rendezvous knows: nodes of the last round and those that are gone, else
/// ranks that no node holds, or of which no node has reported. At least so many are `to_come` to a round that
/// forms.
fn missing(snapshot: &RunSnapshot, forms: bool, to_come: u32) -> Vec<MissingNode> {
    let rank = |&rank: &u32| MissingNode {
        name: None,
        rank: Some(rank),
        known_from: KnownFrom::NodeRank,
        last_seen: None,
    };
    let ranks = || snapshot.missing_ranks.iter().map(rank).collect();
    if !forms {
        return ranks();
    }
    if to_come == 0 {
        return Vec::new();
    }
    // Nodes that were heard of just now are on their way: they were told to join again.
    let of_last_round = snapshot.nodes.iter().filter(|node| node.is_watched && !is_on_its_way(node));
    let of_last_round = of_last_round.filter_map(|node| match node.state {
        NodeState::InRound { rank } => {
            let last_seen = ago(snapshot.at, node.silent.unwrap_or_default());
            Some((&node.info.name, &node.info.address, Some(rank), KnownFrom::EarlierRound, Some(last_seen)))
        }
        _ => None,
    });
    let gone = snapshot.absent.iter().filter_map(|absent| {
        let known_from = match absent.fate {
            Fate::Lost => KnownFrom::Lost,
            Fate::Left => KnownFrom::Left,
            Fate::Refused | Fate::Displaced => return None,
        };
        Some((&absent.who.name, &absent.who.address, absent.rank, known_from, None))
    });
    // Who came anew with the name of one that is out is there instead of it.
    let is_newcomer = |node: &&NodeSnapshot| node.is_new && matches!(node.state, NodeState::Waiting { .. });
    let newcomers = snapshot.nodes.iter().filter(is_newcomer).chain(came_anew(snapshot));
    let mut newcomers: Vec<&Label> = newcomers.map(|node| &node.info.name).collect();
    let names = SharedNames::of(snapshot);
    let mut named = Vec::new();
    for (name, address, rank, known_from, last_seen) in of_last_round.chain(gone) {
        if let Some(at) = newcomers.iter().position(|newcomer| *newcomer == name) {
            newcomers.swap_remove(at);
        } else if named.len() < MISSING_SHOWN {
            let name = Some(names.shown(name, address));
            let last_seen = last_seen.map(|at| at.0.as_secs_f64());
            named.push(MissingNode { name, rank, known_from, last_seen });
        }
    }
    // If more nodes are named than are needed, it is not known which of them has a replacement.
    if !named.is_empty() && named.len() <= to_come as usize { named } else { ranks() }
}
