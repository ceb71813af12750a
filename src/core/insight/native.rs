//! Runs of the native rendezvous, as it shows and tells them itself: nothing has to be guessed from traffic.
//!
//! Its snapshots become runs like all others, so that one view, one list of what is said and one set of metrics serve
//! both kinds. The workers of a round meet in the round's own store; what is seen there belongs to the run.

use std::collections::HashMap;
use std::time::Duration;

use super::reason::{Names, Reason, Said, Secs};
use super::run::{Node, NodeId, Place, Run, RunKey};
use super::world::World;
use super::{Insight, StoreOwner};
use crate::api::{ExitCounts, Expected, ExpectedFrom, MissingNode, RunKind, RunState, Severity};
use crate::core::ids::{RunId, Timestamp, count};
use crate::core::rendezvous::{Break, Fact, NodeSnapshot, NodeState, RoundState, RunSnapshot};

/// What only a native run has.
#[derive(Debug)]
pub(super) struct Native {
    state: RunState,
    pub(super) expected: Expected,
    /// The store that its workers use.
    pub(super) store: Option<u16>,
    /// What the round that forms waits for, and since when.
    waits: Option<(String, Timestamp)>,
    pub(super) missing: Vec<MissingNode>,
    /// Nodes that have done their work, once there is one.
    pub(super) exit: Option<ExitCounts>,
    /// Nodes without a place: their names, whose rank each waits for if it is that, and since when they do.
    spares: Vec<(String, Option<String>, Timestamp)>,
}

impl Insight {
    /// The native rendezvous shows a run that has changed, with the port of its round's store.
    pub fn observe_native(&mut self, snapshot: &RunSnapshot, store: Option<u16>) {
        let key = RunKey::native(&snapshot.run_id);
        let name = snapshot.run_id.to_string();
        let opened = || {
            let of_run = |watch: &&super::StoreWatch| watch.owner == Some(StoreOwner::Run(name.clone()));
            self.stores.values().find(of_run).map(|watch| watch.port)
        };
        let store = store.or_else(opened);
        if let Some(announced) = self.runs.get_mut(&key).filter(|run| run.kind == RunKind::Gathering) {
            // What was said of its pods stays.
            let version = announced.version;
            *announced = Run { version, ..Run::new(key.clone(), RunKind::Native, snapshot.at) };
        }
        let run = self.runs.entry(key.clone()).or_insert_with(|| Run::new(key, RunKind::Native, snapshot.at));
        run.fold_native(snapshot, store);
        run.touch();
        let (key, state) = (run.key.clone(), run.state_now(snapshot.at));
        if state != run.state {
            self.change_state(&key, state, snapshot.at);
        }
    }

    /// Takes in when the nodes of a run were last heard from. That alone is no change.
    pub fn refresh_native(&mut self, snapshot: &RunSnapshot) {
        let Some(run) = self.runs.get_mut(&RunKey::native(&snapshot.run_id)) else { return };
        let seen: HashMap<&str, &NodeSnapshot> =
            snapshot.nodes.iter().map(|node| (node.node.as_str(), node)).collect();
        for node in &mut run.nodes {
            if let Some(seen) = seen.get(node.node_id().as_str()) {
                node.last_heartbeat = ago(snapshot.at, seen.silent.unwrap_or_default());
            }
        }
    }

    /// The native rendezvous has forgotten a run.
    pub fn forget_native(&mut self, run: &RunId) {
        self.drop_run(&RunKey::native(run));
    }

    /// The native rendezvous tells something about a run.
    pub fn tell_native(&mut self, run: &RunId, fact: &Fact, at: Timestamp) {
        match fact {
            Fact::Complete { took, .. } => self.totals.completed(*took),
            Fact::TimedOut { .. } => self.totals.rounds[1] = self.totals.rounds[1].saturating_add(1),
            Fact::Closed { .. } => self.totals.rounds[2] = self.totals.rounds[2].saturating_add(1),
            Fact::WaiterLost { .. } | Fact::Broken { why: Break::Lost { .. }, .. } => {
                self.totals.node_deaths = self.totals.node_deaths.saturating_add(1);
            }
            Fact::Restarted { .. } => self.totals.restarted = self.totals.restarted.saturating_add(1),
            _ => {}
        }
        if let Some(run) = self.runs.get_mut(&RunKey::native(run)) {
            let text = fact.to_string();
            run.fact(Reason::Rendezvous(Said::of(fact)), text, at);
        }
    }
}

impl Said {
    /// What the rendezvous says, in its own words.
    pub(super) fn of(fact: &Fact) -> Self {
        Self {
            code: fact.code(),
            severity: if fact.is_warning() { Severity::Warning } else { Severity::Info },
            waiting: false,
            text: fact.to_string(),
            remedy: fact.remedy(),
        }
    }
}

impl Run {
    /// The store that its processes use.
    pub(super) fn store(&self) -> Option<u16> {
        match &self.native {
            Some(native) => native.store,
            None => self.key.port(),
        }
    }

    pub(super) fn native_state(&self) -> Option<RunState> {
        self.native.as_ref().map(|native| native.state)
    }

    fn fold_native(&mut self, snapshot: &RunSnapshot, store: Option<u16>) {
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
        // A round that is given up is over: what counts is the next one.
        let gathers = matches!(state, RunState::Joining | RunState::LastCall);
        let round = snapshot.round.saturating_add((snapshot.state == RoundState::Breaking).into());
        if round != self.round {
            self.begin_round(round);
        }
        if self.native.as_ref().is_none_or(|native| native.store != store) && store.is_some() {
            let size = snapshot.nodes.iter().map(|node| node.info.local_world_size).sum::<Option<u32>>();
            let size = size.filter(|_| snapshot.state == RoundState::Complete);
            self.world = World { size: size.map(|size| (size, ExpectedFrom::Join)), ..World::default() };
        }
        self.exit_done = snapshot.finished_for.map(|since| ago(now, since));
        self.over_at = state.is_over().then(|| self.over_at.unwrap_or(now));
        self.completed = snapshot.complete_for.filter(|_| !gathers).map(|since| ago(now, since));
        self.started = match (snapshot.forming_for, snapshot.took, self.completed) {
            (Some(gathering), ..) if gathers => Some(ago(now, gathering)),
            (_, Some(gathered), Some(completed)) => Some(ago(completed, gathered)),
            _ => self.started,
        };
        self.let_go = if gathers { 0 } else { snapshot.let_go };
        self.fold_native_nodes(snapshot, gathers);
        let (min, max) = (terms.min_nodes, terms.max_nodes);
        let needed = if min == max { min.to_string() } else { format!("{min} to {max}") };
        let joined = self.joined();
        let waits = format!("{joined} of {needed} nodes have joined; {}", snapshot.reason);
        self.native = Some(Native {
            state,
            expected: Expected { min, max, source: ExpectedFrom::Join },
            store,
            waits: (state == RunState::Joining).then(|| (waits, self.started.unwrap_or(now))),
            missing: missing(snapshot, gathers),
            exit: (snapshot.succeeded > 0 && !gathers)
                .then_some(ExitCounts { arrived: snapshot.succeeded, expected: Some(snapshot.round_size) }),
            spares: spares(snapshot),
        });
        self.closes_at = snapshot.deadline.filter(|_| gathers).map(|left| now + left);
    }

    fn fold_native_nodes(&mut self, snapshot: &RunSnapshot, gathers: bool) {
        let now = snapshot.at;
        let before: HashMap<String, (Place, Timestamp)> = std::mem::take(&mut self.nodes)
            .into_iter()
            .map(|node| (node.node_id(), (node.place, node.joined)))
            .collect();
        let mut joined = Vec::new();
        for seen in &snapshot.nodes {
            let (place, rank) = match seen.state {
                // It has not joined the round that counts.
                NodeState::InRound { .. } if gathers => continue,
                NodeState::InRound { rank } => (Place::Participant, Some(rank)),
                NodeState::Waiting { rank } => (Place::Participant, rank),
                NodeState::Redundant { .. } => (Place::Redundant, None),
            };
            let since = ago(now, seen.joined_for);
            let was = before.get(seen.node.as_str());
            if place == Place::Participant && was != Some(&(place, since)) {
                joined.push(self.nodes.len());
            }
            self.nodes.push(Node {
                id: NodeId::Native { node: seen.node.clone(), info: seen.info.clone() },
                name: seen.info.name.to_string(),
                conn: None,
                peer: None,
                pid: None,
                rank,
                place,
                place_since: since,
                joined: since,
                last_heartbeat: ago(now, seen.silent.unwrap_or_default()),
                stamp: 0,
                gone: None,
                finished: false,
            });
        }
        self.tell_native_joins(&joined);
    }

    fn tell_native_joins(&mut self, joined: &[usize]) {
        let before = self.joined().saturating_sub(count(joined.len()));
        for (n, &at) in (1..).zip(joined) {
            let node = &self.nodes[at];
            let after = Secs(node.joined.since(self.started.unwrap_or(node.joined)));
            let nodes = super::reason::Unit::Node.count(before.saturating_add(n));
            let text = format!("{} joined round {} ({nodes}, +{after:.1})", node.told(), self.round);
            self.moment(node.joined, "node_joined", text);
        }
    }

    /// Who stands by beside a complete round, and what it takes for them to come in.
    pub(super) fn native_spares(&self, now: Timestamp) -> Vec<(String, Reason, Timestamp)> {
        let Some(native) = self.native.as_ref().filter(|native| native.state == RunState::Running) else {
            return Vec::new();
        };
        let max_nodes = native.expected.max;
        let mut held = Vec::new();
        let spare = |(name, holder, since): &(String, Option<String>, Timestamp)| {
            holder.is_none().then(|| (name.clone(), *since))
        };
        let (names, times): (Vec<_>, Vec<_>) = native.spares.iter().filter_map(spare).unzip();
        if let Some(since) = times.into_iter().min() {
            let (spares, waited) = (Names::of(names), Secs(now.since(since)));
            held.push((String::new(), Reason::StandsBy { spares, max_nodes, waited }, since));
        }
        for (node, holder, since) in &native.spares {
            if let Some(holder) = holder {
                let (node, holder, waited) = (node.clone(), holder.clone(), Secs(now.since(*since)));
                held.push((node.clone(), Reason::WaitsForRank { node, holder, waited }, *since));
            }
        }
        held
    }

    /// What the round waits for, in the words of the rendezvous.
    pub(super) fn native_waits(&self, now: Timestamp) -> Option<(Reason, Timestamp)> {
        let (text, since) = self.native.as_ref()?.waits.as_ref()?;
        let waited = Secs(now.since(*since));
        let said = Said {
            code: "nodes_missing",
            severity: Severity::Warning,
            waiting: true,
            text: format!("round {} is not complete after {waited}: {text}", self.round),
            remedy: "look at the missing node's pod: is it scheduled, has its image come, does it reach this server?",
        };
        Some((Reason::Rendezvous(said), *since))
    }
}

/// The moment so long before `now`.
fn ago(now: Timestamp, time: Duration) -> Timestamp {
    Timestamp(now.0.saturating_sub(time))
}

/// Whether some nodes have done their work, and all others are still at it.
fn are_exiting(snapshot: &RunSnapshot) -> bool {
    snapshot.succeeded > 0 && snapshot.succeeded.saturating_add(snapshot.in_round) == snapshot.round_size
}

/// Nodes without a place, the oldest first, with the node that has the rank they want if that is why.
fn spares(snapshot: &RunSnapshot) -> Vec<(String, Option<String>, Timestamp)> {
    let holder = |wanted: u32| {
        let has = |node: &&NodeSnapshot| matches!(node.state, NodeState::InRound { rank } if rank == wanted);
        let name = snapshot.nodes.iter().find(has).map_or("another node", |node| node.info.name.as_str());
        format!("{name} (node rank {wanted})")
    };
    let spare = |node: &NodeSnapshot| match node.state {
        NodeState::Redundant { contended } => {
            Some((node.info.name.to_string(), contended.map(holder), ago(snapshot.at, node.joined_for)))
        }
        _ => None,
    };
    snapshot.nodes.iter().filter_map(spare).collect()
}

/// Who is missing, as far as the rendezvous knows: nodes of the last round, else ranks that nobody holds.
fn missing(snapshot: &RunSnapshot, gathers: bool) -> Vec<MissingNode> {
    if !gathers {
        return Vec::new();
    }
    let of_last_round = snapshot.nodes.iter().filter_map(|node| match node.state {
        NodeState::InRound { rank } => Some(MissingNode {
            name: Some(node.info.name.to_string()),
            rank: Some(rank),
            known_from: "earlier_round".into(),
            last_seen: Some(ago(snapshot.at, node.silent.unwrap_or_default()).0.as_secs_f64()),
        }),
        _ => None,
    });
    let of_last_round: Vec<_> = of_last_round.take(super::show::MISSING_SHOWN).collect();
    if !of_last_round.is_empty() {
        return of_last_round;
    }
    let rank = |&rank: &u32| MissingNode {
        name: None,
        rank: Some(rank),
        known_from: "node_rank".into(),
        last_seen: None,
    };
    snapshot.missing_ranks.iter().map(rank).collect()
}
