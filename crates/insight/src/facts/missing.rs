//! Which nodes should be in a run but are not.

use std::collections::HashSet;

use crate::epoch::Epoch;
use crate::facts::plan::Plan;
use crate::facts::run::{MISSING_SHOWN, Membership, TrackedNode, TrackedRun};
use crate::reason::{Presence, Sighting};
use rallypoint_api::{Expected, MissingNode, RunKind, RunState};
use rallypoint_protocol::ids::{Timestamp, count};
use rallypoint_rendezvous::gate::{GateSnapshot, TurnedAway};

/// A node that should be there.
#[derive(Debug, Clone)]
pub(crate) struct Absent {
    pub(crate) name: Option<String>,
    pub(crate) rank: Option<u32>,
    pub(crate) presence: Presence,
    pub(crate) last_seen: Option<Timestamp>,
}

impl Absent {
    /// Its name, or its rank.
    pub(crate) fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("node {}", self.rank.unwrap_or_default()))
    }

    pub(crate) fn seen(&self) -> Sighting {
        Sighting { at: self.last_seen, ..self.presence.into() }
    }

    pub(crate) fn shown(self, epoch: Epoch) -> MissingNode {
        let Self { name, rank, presence, last_seen } = self;
        MissingNode { name, rank, presence, last_seen: last_seen.map(|at| epoch.unix(at)) }
    }
}

/// The gate of a run that has nothing else.
fn gate_of<'p>(run: &TrackedRun, plan: &'p Plan) -> Option<&'p GateSnapshot> {
    plan.gate().filter(|_| run.kind == RunKind::Announced)
}

/// A pod that announced itself with this rank and was turned away.
pub(crate) fn turned_away(gate: &GateSnapshot, rank: u32) -> Option<&TurnedAway> {
    gate.turned_away.iter().find(|pod| pod.said.node_rank == Some(rank))
}

/// The pods of a gate that are there, as far as is known: who has passed it may be silent.
fn there<'p>(gate: &'p GateSnapshot, plan: &'p Plan) -> impl Iterator<Item = &'p str> {
    let pods = gate.known().filter(|pod| pod.said.is_some() || gate.is_open());
    pods.map(|pod| pod.name).filter(|pod| !plan.gone.contains_key(*pod))
}

/// Nodes that are lost, or pods whose relays are gone.
pub(crate) fn lost(run: &TrackedRun, plan: &Plan) -> u32 {
    let lost = count(gate_of(run, plan).map_or_else(|| run.lost().count(), |_| plan.gone.len()));
    // Who leaves a closed run takes itself out of it.
    let has_ended = run.state == RunState::Closed && run.native.is_none() && run.joined() == 0;
    let others = if has_ended { run.round.group.unwrap_or(run.round.most_joined) } else { 0 };
    lost.max(others.saturating_sub(count(run.round.exit.len())))
}

/// Nodes in the round, or pods at the gate.
pub(crate) fn joined(run: &TrackedRun, plan: &Plan) -> u32 {
    if let Some(gate) = gate_of(run, plan) {
        if gate.is_open() {
            // For silent pods without ranks the number is known, and no names.
            return count(gate.announced().saturating_sub(plan.gone.len()));
        }
        return count(there(gate, plan).count());
    }
    // A node of a native run that has done its work is not there any more, and not missing.
    let exit = run.native.as_ref().and_then(|native| native.exit.as_ref());
    run.joined().saturating_add(exit.map_or(0, |exit| exit.arrived))
}

/// How many are to come until there are as many as the run needs. Nodes that have finished and do not join
/// again are not missing, even where the round cannot be complete for them. Nor are pods that have all left
/// since their gate opened: nobody waits for them.
pub(crate) fn to_come(run: &TrackedRun, plan: &Plan, expected: Expected) -> u32 {
    let joined = joined(run, plan);
    if joined == 0 && gate_of(run, plan).is_some_and(GateSnapshot::is_open) {
        return 0;
    }
    let (on_their_way, finished) =
        run.native.as_ref().map_or((0, 0), |native| (native.on_their_way, native.finished));
    let not_again = count(run.not_again().count());
    [joined, run.waiting(), not_again, on_their_way, finished]
        .into_iter()
        .fold(expected.min, u32::saturating_sub)
}

/// How many are missing at least: a static node shows that there are all with lower ranks.
pub(crate) fn count_of_missing(run: &TrackedRun, plan: &Plan, expected: Option<Expected>) -> Option<u32> {
    let of_static = || {
        let dead = run.participants().filter(|node| node.is_dead()).count();
        let known = run.never_came().count().saturating_add(dead);
        (run.kind == RunKind::Static && known > 0).then(|| count(known))
    };
    expected.map(|expected| to_come(run, plan, expected)).or_else(of_static)
}

/// Nodes that should be there and have a name or a rank.
pub(crate) fn missing(run: &TrackedRun, plan: &Plan, expected: Option<Expected>) -> Vec<Absent> {
    if let Some(native) = run.native.as_ref() {
        let has_names = native.missing.iter().any(|node| node.name.is_some());
        let pods = if has_names { Vec::new() } else { announced_to_native(run, plan, expected) };
        return if pods.is_empty() { native.missing.clone() } else { pods };
    }
    let wanted = expected.map_or(usize::MAX, |expected| to_come(run, plan, expected) as usize);
    if run.state.is_over() || wanted == 0 || !run.has_agents() {
        return Vec::new();
    }
    let mut there = run.names_there();
    if let Some(gate) = gate_of(run, plan) {
        there.extend(self::there(gate, plan));
    }
    let mut names = HashSet::new();
    let mut is_new = |node: &Absent| node.name.as_ref().is_none_or(|name| names.insert(name.clone()));
    // More than are to come: nodes that are there have other names than their pods.
    let if_few = |nodes: Vec<Absent>| {
        let is_known = run.kind != RunKind::C10d || nodes.len() <= wanted;
        nodes.into_iter().filter(move |_| is_known)
    };
    let of = |node: &TrackedNode, presence, seen| known(node.name.clone(), None, presence, seen);
    // They have left a round, or were taken out of it, and come when they are ready, or their waits are over.
    let connected = run.lingering().filter(|node| !node.finished && !node.is_silent());
    let connected = connected.map(|node| of(node, Presence::Connected, None));
    // An operator named them.
    let named = plan.expectation.iter().flat_map(|expectation| &expectation.names);
    let named = named.map(|name| known(name.clone(), None, Presence::NeverSeen, None));
    // Nobody knows whether these are there.
    let earlier = run.former().filter(|node| !node.is_lost());
    let earlier = earlier.map(|node| of(node, Presence::Unknown, Some(node.last_seen())));
    let is_there = |node: &Absent| node.name.as_deref().is_some_and(|name| there.contains(name));
    let one_more = wanted.saturating_add(1);
    // In the place of who is gone another may have come.
    let all = connected
        .filter(|node| !is_there(node))
        .chain(gone(run, &there))
        .chain(if_few(announced(plan, &there).take(one_more).collect()))
        .chain(if_few(named.filter(|node| !is_there(node)).take(one_more).collect()))
        .chain(earlier.filter(|node| !is_there(node)))
        .chain(without_role(run, plan, expected));
    all.filter(|node| is_new(node)).take(MISSING_SHOWN.min(wanted)).collect()
}

/// Pods that announced themselves and have not joined a round of the native rendezvous, if they are as many
/// as are to come. Else the nodes have other names than the pods.
fn announced_to_native(run: &TrackedRun, plan: &Plan, expected: Option<Expected>) -> Vec<Absent> {
    let to_come = expected.map_or(0, |expected| to_come(run, plan, expected) as usize);
    if run.state != RunState::Joining || to_come == 0 {
        return Vec::new();
    }
    let there = run.nodes().filter(|node| node.gone.is_none());
    let there: HashSet<&str> = there.map(|node| node.name.as_str()).collect();
    let pods: Vec<_> = announced(plan, &there).take(to_come.saturating_add(1)).collect();
    if pods.len() == to_come { pods } else { Vec::new() }
}

fn known(name: String, rank: Option<u32>, presence: Presence, last_seen: Option<Timestamp>) -> Absent {
    Absent { name: Some(name), rank, presence, last_seen }
}

/// Pods that announced themselves and have not joined, and those that did not announce themselves.
fn announced<'a>(plan: &'a Plan, there: &'a HashSet<&str>) -> impl Iterator<Item = Absent> + 'a {
    let pods = plan.gate().into_iter().flat_map(|gate| &gate.pods);
    let pods = pods.filter(|pod| !there.contains(&*pod.pod));
    let gone_at = move |name: &str| plan.gone.get(name).copied();
    let pods =
        pods.map(move |pod| known(pod.pod.clone(), pod.node_rank, Presence::Announced, gone_at(&pod.pod)));
    let missing =
        plan.gate().into_iter().flat_map(|gate| gate.missing.iter().map(move |missing| (gate, missing)));
    let missing = missing.map(move |(gate, missing)| {
        let refused = turned_away(gate, missing.node_rank);
        let is_announced = missing.seen.is_some() || refused.is_some();
        let gone_at = missing.pod.as_deref().and_then(gone_at);
        Absent {
            name: refused.map(|pod| pod.said.pod.clone()).or_else(|| missing.pod.clone()),
            rank: Some(missing.node_rank),
            presence: if is_announced { Presence::Announced } else { Presence::NeverSeen },
            last_seen: gone_at.or(missing.seen).or_else(|| refused?.gone),
        }
    });
    pods.chain(missing.filter(|node| !node.name.as_deref().is_some_and(|name| there.contains(name))))
}

/// Nodes that had joined, and died or were taken out of the round: those first of which that was seen last.
fn gone<'a>(run: &'a TrackedRun, there: &HashSet<&str>) -> impl Iterator<Item = Absent> + use<'a> {
    let again = run.names_again();
    // The next round hands out the ranks anew, and who has come again is in it.
    let is_of_round = |round: u64| run.round.completed.is_some() && round == run.round.number;
    let is_beside = |name: &str| run.lingering().any(|node| node.name == name && !node.is_silent());
    let is_gone = |node: &TrackedNode, round: u64| {
        let name = node.name.as_str();
        if is_of_round(round) { !again.contains(name) } else { !there.contains(name) && !is_beside(name) }
    };
    let missing = |node: &TrackedNode, round: u64, presence: Presence, at: Timestamp| {
        let rank = node.rank.filter(|_| is_of_round(round) || run.kind == RunKind::Static);
        (at, known(node.name.clone(), rank, presence, Some(at)))
    };
    let lost = |node: &TrackedNode| {
        let presence = match node.is_dead() {
            // A frozen agent, or one that is cut off: others have taken it out of the round.
            _ if node.is_silent() => Presence::TakenOut,
            _ if !node.is_lost() => return None,
            true => Presence::gone(node.is_cut_off),
            false => Presence::NotBack,
        };
        let round = if node.is_out() { node.round } else { run.round.number };
        is_gone(node, round).then(|| missing(node, round, presence, node.last_seen()))
    };
    // The round needs none of those beside it.
    let nodes = run.nodes().filter(|node| node.membership != Membership::Redundant);
    let mut all: Vec<_> = run.former().chain(nodes).chain(run.lingering()).filter_map(lost).collect();
    all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    all.into_iter().map(|(_, node)| node)
}

/// Node ranks of a static run that have not written their role.
fn without_role(run: &TrackedRun, plan: &Plan, expected: Option<Expected>) -> impl Iterator<Item = Absent> {
    let is_static = run.kind == RunKind::Static;
    let ranks = expected.filter(|_| is_static).map_or(0, |expected| expected.min);
    let lower = run.never_came().filter(|_| is_static).max().map_or(0, |rank| rank.saturating_add(1));
    let unseen = run.unseen();
    (0..ranks.max(lower)).filter(|&rank| !run.has_come(rank)).map(move |rank| {
        let pod = plan.pod_of_rank(rank).map(|pod| pod.pod.clone());
        known(pod.unwrap_or_else(|| format!("node {rank}")), Some(rank), unseen.presence, unseen.at)
    })
}
