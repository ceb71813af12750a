//! What the native rendezvous shows of a run: nothing has to be guessed from traffic.
//!
//! The workers of a round meet in the round's own store; what is seen there belongs to the run.

use std::collections::{HashMap, HashSet};

use crate::facts::Absent as AbsentNode;
use crate::facts::{Agent, MISSING_SHOWN, Membership, Native, NodeId, Over, Spare, TrackedNode, TrackedRun};
use crate::reason::{Evidence, Finding, Place, Presence, has};
use crate::rules::starts;
use rallypoint_api::{ExitCounts, Expected, ExpectedFrom, RunState, Seen};
use rallypoint_protocol::ids::{ConnId, Label, Timestamp, count};
use rallypoint_rendezvous::{
    Absent, Fact, Fate, NodeInfo, NodeSnapshot, NodeState, RoundState, RunSnapshot, WaitsFor, What, Why,
};

impl TrackedRun {
    /// What the rendezvous tells, with what is known here of the time before its last restart.
    pub(crate) fn takes_fact(&mut self, mut fact: Fact, at: Timestamp) -> Finding {
        if let (What::Finished { ran, .. }, Some(completed)) = (&mut fact.what, self.round.completed) {
            *ran = at.since(completed);
        }
        // The last server saw when it began.
        let began = self.round.started.filter(|began| *began < self.known_since);
        if let (What::Complete { took, .. }, Some(began)) = (&mut fact.what, began) {
            *took = at.since(began);
        }
        let survivors = starts::survivors(self, &fact, at);
        let Fact { round, what, signs } = &fact;
        if let What::Broken { why, left, .. } = what {
            let (how, lost) =
                (why.says(signs, false), if *why == Why::Lost { count(signs.len()) } else { 0 });
            self.life.over = Some(Over { round: *round, at, how, lost, left: *left });
        }
        Finding::told(&fact, survivors, at)
    }

    /// Whether its processes meet again as they are, when one is lost.
    pub(crate) fn is_elastic(&self) -> bool {
        self.native.as_ref().is_some_and(|native| native.is_elastic)
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
            RoundState::Closed | RoundState::Idle if snapshot.finished.is_some() => RunState::Finished,
            RoundState::Closed if are_exiting(snapshot) => RunState::Exiting,
            RoundState::Closed => RunState::Closed,
            RoundState::Idle => RunState::Gone,
        };
        // A round that is given up is over: the next one counts.
        let forms = matches!(state, RunState::Joining | RunState::LastCall);
        let round = snapshot.round.saturating_add((snapshot.state == RoundState::Breaking).into());
        // The first round was given up.
        let round = round.max(1);
        if round != self.round.number {
            let at_exit = self.participants().filter(|node| node.finished && node.gone.is_none());
            let at_exit: Vec<_> = at_exit.filter_map(|node| Some((node.conn?, node.clone()))).collect();
            self.life.at_earlier_exit.extend(at_exit);
            for node in &mut self.life.nodes {
                node.finished = false;
                if node.gone.is_none() {
                    node.set_agent(None);
                }
            }
            self.begin_round(round);
        }
        let store = store.filter(|port| self.round.closed_store != Some(*port));
        if self.native.as_ref().is_none_or(|native| native.store != store) && store.is_some() {
            let size = snapshot.nodes.iter().map(|node| node.info.local_world_size).sum::<Option<u32>>();
            let size = size.filter(|_| snapshot.state == RoundState::Complete);
            self.world = self.world.elsewhere();
            self.world.tell_size(size);
        }
        self.round.exit_done = snapshot.finished;
        self.round.over_at = state.is_over().then(|| self.round.over_at.unwrap_or(now));
        let (began, completed) = match snapshot.complete.filter(|_| !forms) {
            Some((began, completed)) => (Some(began), Some(completed)),
            None => (snapshot.forms_since, None),
        };
        self.round.completed = match (self.round.completed, completed) {
            // The server before this one may have seen it.
            (Some(before), Some(at)) => Some(before.min(at)),
            (before, None) if state.is_over() => before,
            (_, at) => at,
        };
        let is_anew = self.round.began.is_some_and(|before| began.is_some_and(|began| began != before));
        if is_anew {
            self.round.started = began;
        } else if forms || began.is_some() {
            // The server before this one may have seen it, or it is waited for since the last one was over.
            self.round.started.get_or_insert(began.unwrap_or(now));
        }
        self.round.began = began.or(self.round.began);
        self.round.let_go = if forms { 0 } else { snapshot.let_go };
        self.round.group = Some(snapshot.round_size).filter(|_| !forms);
        let names = SharedNames::of(snapshot);
        self.fold_native_nodes(snapshot, forms, &names);
        let (mut on_their_way, mut finished, mut to_come) = (0, 0, 0);
        if forms {
            let at_exit: HashSet<String> =
                self.life.at_earlier_exit.values().map(TrackedNode::node_id).collect();
            let is_at_exit =
                |node: &NodeSnapshot| is_on_its_way(node) && at_exit.contains(node.node.as_str());
            on_their_way =
                how_many(snapshot, |node| came_anew(node) || is_on_its_way(node) && !is_at_exit(node));
            finished = how_many(snapshot, is_at_exit).saturating_add(snapshot.succeeded);
            to_come = [snapshot.waiting, on_their_way, finished]
                .into_iter()
                .fold(terms.min_nodes, u32::saturating_sub);
        }
        let met_at = store.or_else(|| self.native.as_ref()?.met_at);
        let (min, max) = (terms.min_nodes, terms.max_nodes);
        let from = if min == max { String::new() } else { format!("{min} to ") };
        let (joined, nodes) = (self.joined(), Place::Node.count(max));
        let waits = format!("{joined} of {from}{nodes} {} joined; {}", has(joined as usize), snapshot.reason);
        self.native = Some(Native {
            state,
            is_expiring: snapshot.is_expiring,
            closes_at: snapshot.closes_at.filter(|_| forms),
            is_enough: is_enough(snapshot),
            lacks: lacks(snapshot, to_come, on_their_way),
            expected: Expected { min, max, source: ExpectedFrom::Join },
            store,
            met_at,
            is_unheard: snapshot.nodes.iter().any(|node| node.is_late),
            waits: (state == RunState::Joining).then_some(waits),
            missing: missing(snapshot, forms, to_come, &names),
            on_their_way,
            finished,
            exit: (snapshot.succeeded > 0 && !forms)
                .then_some(ExitCounts { arrived: snapshot.succeeded, expected: Some(snapshot.round_size) }),
            spares: spares(snapshot, &names),
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
                node.last_heartbeat = seen.heard;
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
            self.world = self.world.elsewhere();
            self.touch();
        }
    }

    fn fold_native_nodes(&mut self, snapshot: &RunSnapshot, forms: bool, names: &SharedNames<'_>) {
        let now = snapshot.at;
        let mut before: HashMap<String, TrackedNode> =
            std::mem::take(&mut self.life.nodes).into_iter().map(|node| (node.node_id(), node)).collect();
        let mut joined = Vec::new();
        for seen in &snapshot.nodes {
            let (membership, rank) = match seen.state {
                // It has not joined the round that counts.
                NodeState::InRound { .. } if forms => continue,
                NodeState::InRound { rank } => (Membership::Participant, Some(rank)),
                NodeState::Waiting { rank } => (Membership::Participant, rank),
                NodeState::Redundant { waits_for: WaitsFor::Before } => (Membership::WaitList, None),
                NodeState::Redundant { .. } => (Membership::Redundant, None),
            };
            let was = before.remove(seen.node.as_str());
            let since = match &was {
                Some(was) if was.membership == membership => was.joined.max(seen.joined),
                // One that stood by has got a place: that is when it came to the round.
                Some(_) if membership == Membership::Participant => now,
                _ => seen.joined,
            };
            let has_come = was.as_ref().is_none_or(|was| (was.membership, was.joined) != (membership, since));
            if membership == Membership::Participant && has_come {
                joined.push(self.life.nodes.len());
            }
            let (node, info) = (seen.node.clone(), seen.info.clone());
            let id = NodeId::Native { node, info, is_watched: seen.is_watched };
            let name = names.shown(&seen.info.name, &seen.info.address);
            let mut node = TrackedNode {
                rank,
                joined: since,
                last_heartbeat: seen.heard,
                is_unheard: seen.is_late,
                ..TrackedNode::new(id, name, membership, seen.joined)
            };
            // Its agent may have left the store since.
            if let Some(was) = was.filter(|was| was.rank == rank) {
                (node.conn, node.peer, node.pid) = (was.conn, was.peer, was.pid);
                node.finished = was.finished || was.conn.is_some_and(|conn| self.round.exit.contains(&conn));
            }
            self.life.nodes.push(node);
        }
        self.tell_joins(&joined);
        self.keep_gone(before, snapshot, names);
    }

    /// Nodes that have left the round without having done their work stay in it as dead ones, until the next
    /// is complete.
    fn keep_gone(
        &mut self,
        mut before: HashMap<String, TrackedNode>,
        snapshot: &RunSnapshot,
        names: &SharedNames<'_>,
    ) {
        let is_gone = |absent: &&Absent| matches!(absent.fate, Fate::Lost | Fate::Closed | Fate::Left);
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
    pub(crate) fn native_agent_came(&mut self, rank: u32, agent: Agent) {
        let is_it = |node: &&mut TrackedNode| node.rank == Some(rank) && node.is_participant();
        if let Some(node) = self.life.nodes.iter_mut().find(is_it).filter(|node| node.gone.is_none()) {
            node.set_agent(Some(agent));
            self.touch();
        }
    }

    /// The connection of an agent closed: its node is known by none any more. What became of the node is for
    /// the rendezvous to say.
    pub(crate) fn native_agent_left(&mut self, conn: ConnId) {
        self.life.at_earlier_exit.remove(&conn);
        let is_it = |node: &&mut TrackedNode| node.conn == Some(conn) && node.gone.is_none();
        if let Some(node) = self.life.nodes.iter_mut().find(is_it) {
            node.set_agent(None);
            self.touch();
        }
    }
}

/// It has no place, but came anew, and gets that of the process of before when this is given up.
fn came_anew(node: &NodeSnapshot) -> bool {
    !node.is_late && node.state == NodeState::Redundant { waits_for: WaitsFor::Before }
}

/// It was told to join again, and is alive.
fn is_on_its_way(node: &NodeSnapshot) -> bool {
    !node.is_late && node.is_watched && matches!(node.state, NodeState::InRound { .. })
}

/// The nodes of the last round that have not joined the one that forms, with their ranks there.
fn of_before(snapshot: &RunSnapshot) -> impl Iterator<Item = (&NodeSnapshot, u32)> {
    snapshot.nodes.iter().filter_map(|node| match node.state {
        NodeState::InRound { rank } => Some((node, rank)),
        _ => None,
    })
}

/// It has joined, or was told to join again, and is not heard from.
fn is_missed(node: &NodeSnapshot) -> bool {
    node.is_late && !matches!(node.state, NodeState::Redundant { .. })
}

fn how_many(snapshot: &RunSnapshot, is_it: impl Fn(&NodeSnapshot) -> bool) -> u32 {
    count(snapshot.nodes.iter().filter(|node| is_it(node)).count())
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

/// Whether some nodes have done their work, and all others still do theirs.
fn are_exiting(snapshot: &RunSnapshot) -> bool {
    snapshot.succeeded > 0 && snapshot.succeeded.saturating_add(snapshot.in_round) == snapshot.round_size
}

/// Nodes without a place that are heard from, the oldest first.
fn spares(snapshot: &RunSnapshot, names: &SharedNames<'_>) -> Vec<Spare> {
    let spare = |node: &NodeSnapshot| {
        let NodeState::Redundant { waits_for } = node.state else { return None };
        let of_rank = if let WaitsFor::Rank(rank) = waits_for { Some(rank) } else { None };
        let name = names.shown(&node.info.name, &node.info.address);
        let joined = Evidence::by_name(Seen::Joined, name, node.joined);
        Some(Spare { of_rank, joined })
    };
    snapshot.nodes.iter().filter(|node| !node.is_late).filter_map(spare).collect()
}

/// Whether enough nodes are there, or get a place when what is silent is given up.
fn is_enough(snapshot: &RunSnapshot) -> bool {
    let waits = |node: &NodeSnapshot| !node.is_late && matches!(node.state, NodeState::Waiting { .. });
    let spares = if snapshot.nodes.iter().any(is_missed) { snapshot.redundant } else { 0 };
    let get_a_place = spares.max(how_many(snapshot, came_anew));
    how_many(snapshot, waits).saturating_add(get_a_place) >= snapshot.terms.min_nodes
}

/// What was seen last of those that a round lacks, where so many are `to_come` besides those on their way.
/// `None`: they were refused.
fn lacks(snapshot: &RunSnapshot, to_come: u32, on_their_way: u32) -> Option<Presence> {
    let has = |fates: &[Fate]| snapshot.absent.iter().any(|it| fates.contains(&it.fate));
    Some(match () {
        () if to_come > 0 && has(&[Fate::Refused, Fate::Displaced]) => return None,
        () if to_come > 0 && has(&[Fate::Left]) => Presence::Left,
        // Nodes on their way may wait for it: this server does not see that.
        () if has(&[Fate::Lost, Fate::Closed]) || snapshot.nodes.iter().any(is_missed) => Presence::Silent,
        // Nodes that send no heartbeats may be there, and have done all they had to.
        () if to_come > 0 && of_before(snapshot).any(|(node, _)| !node.is_watched) => Presence::NotAgain,
        () if to_come > 0 => Presence::NeverSeen,
        () if on_their_way > 0 => Presence::Connected,
        () => Presence::Finished,
    })
}

/// What is missing, as far as the rendezvous knows: nodes of the last round and those that are gone, else
/// ranks that no node holds, or of which no node has reported. At least so many are `to_come` to a round that
/// forms.
fn missing(snapshot: &RunSnapshot, forms: bool, to_come: u32, names: &SharedNames<'_>) -> Vec<AbsentNode> {
    let rank = |&rank: &u32| AbsentNode {
        name: None,
        rank: Some(rank),
        presence: Presence::NeverSeen,
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
    let of_last_round = of_before(snapshot).filter(|(node, _)| !is_on_its_way(node));
    let of_last_round = of_last_round
        .map(|(node, rank)| (&node.info.name, &node.info.address, Some(rank), Presence::Unknown, node.heard));
    let gone = snapshot.absent.iter().filter_map(|absent| {
        let presence = match absent.fate {
            Fate::Lost => Presence::Silent,
            Fate::Closed => Presence::Closed,
            Fate::Left => Presence::Left,
            Fate::Refused | Fate::Displaced => return None,
        };
        Some((&absent.who.name, &absent.who.address, absent.rank, presence, absent.heard))
    });
    // Who came anew with the name of one that is out, since that was heard last, is there instead of it.
    let is_newcomer = |node: &&NodeSnapshot| {
        came_anew(node) || node.is_new && matches!(node.state, NodeState::Waiting { .. })
    };
    let mut newcomers: Vec<_> = snapshot.nodes.iter().filter(is_newcomer).collect();
    let mut named = Vec::new();
    for (name, address, rank, presence, heard) in of_last_round.chain(gone) {
        let replaces = |newcomer: &&NodeSnapshot| newcomer.info.name == *name && newcomer.joined >= heard;
        if let Some(at) = newcomers.iter().position(replaces) {
            newcomers.swap_remove(at);
        } else if named.len() < MISSING_SHOWN {
            let name = Some(names.shown(name, address));
            named.push(AbsentNode { name, rank, presence, last_seen: Some(heard) });
        }
    }
    // If more nodes are named than are needed, it is not known which of them has a replacement.
    if !named.is_empty() && named.len() <= to_come as usize { named } else { ranks() }
}
