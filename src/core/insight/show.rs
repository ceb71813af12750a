//! What is known, as the API's documents and the metrics show it.

use std::collections::HashSet;
use std::time::Duration;

use super::expect::Plan;
use super::gathering;
use super::graph::{Graph, Traced};
use super::run::{NodeId, Place, Run, RunKey};
use super::{Insight, StoreWatch};
use crate::api::{
    self, ExitCounts, Expected, Explanation, MissingNode, NodeCounts, NodeState, Rank, RankCounts, RankGrid,
    RunKind, RunList, RunSummary, TimelineEvent, Wait, WaitList,
};
use crate::core::ids::{ShownKey, Timestamp, count};
use crate::core::store::WaitView;

/// Waits shown with one run.
const WAITS_SHOWN: usize = 1000;
/// Ranks shown one by one with one run.
const RANKS_SHOWN: usize = 1024;
/// Ranks shown in the grid.
const GRID: u32 = super::world::MOST_RANKS;
/// Missing nodes shown.
pub(super) const MISSING_SHOWN: usize = 1024;

/// What the metrics say of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFigures {
    /// The run, in few words.
    pub summary: RunSummary,
    /// The label of its series: the run id, with the store's port where two stores have a run of this id.
    pub label: String,
}

impl Insight {
    fn unix(&self, at: Timestamp) -> f64 {
        rounded(self.settings.epoch + at.0.as_secs_f64())
    }

    /// `GET /api/v1/runs`.
    pub fn list(&self, now: Timestamp) -> RunList {
        let mut headlines = self.log.headlines();
        let mut runs: Vec<RunSummary> =
            self.runs.values().map(|run| self.summary(run, headlines.remove(&run.key), now)).collect();
        runs.sort_by(|a, b| {
            let attention = |run: &RunSummary| {
                let told = run.explanation.as_ref();
                (!run.state.is_over(), told.is_some_and(|told| told.holds), told.map(|told| told.severity))
            };
            attention(b).cmp(&attention(a)).then(b.started_at.total_cmp(&a.started_at))
        });
        RunList {
            now: self.unix(now),
            lost_observations: self.totals.lost,
            runs,
            explanations: self.log.about(None),
        }
    }

    /// What the metrics show of each run.
    pub fn figures(&self, now: Timestamp) -> Vec<RunFigures> {
        let named: Vec<(String, &Run)> = self.runs.values().map(|run| (self.name(&run.key), run)).collect();
        let mut counts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        // One that gathers anew has the name, and the one before it has its store behind it.
        for (name, _) in &named {
            let runs = counts.entry(name).or_default();
            *runs = runs.saturating_add(1);
        }
        let figures = named.iter().map(|(name, run)| {
            let is_alone = counts.get(name.as_str()) == Some(&1) || run.key.is_native();
            let label = if is_alone {
                name.clone()
            } else {
                format!("{name}@{}{}", run.key.store, if run.has_agents() { "" } else { "/env" })
            };
            RunFigures { summary: self.summary(run, None, now), label }
        });
        figures.collect()
    }

    /// `GET /api/v1/runs/{run_id}`. Where runs of several stores have this id, the one that is not over and came last,
    /// unless a store is named.
    pub fn run(&self, run_id: &str, store: Option<u16>, now: Timestamp) -> Option<api::Run> {
        let keys = self.keys_of(run_id, store);
        let found = keys.iter().filter_map(|key| self.runs.get(key));
        let run = found.max_by_key(|run| (!run.state.is_over(), run.has_agents(), run.first_seen))?;
        let plan = self.plan(&run.key);
        let watch = run.store().and_then(|port| self.stores.get(&port));
        let name = self.name(&run.key);
        let timeline = run.timeline.iter().map(|(at, code, text)| TimelineEvent {
            at: self.unix(*at),
            run_id: Some(name.clone()),
            code: code.clone(),
            text: text.clone(),
        });
        let headline = self.log.headlines().remove(&run.key);
        Some(api::Run {
            now: self.unix(now),
            summary: self.summary(run, headline, now),
            participants: match (run.kind, plan.gate()) {
                (RunKind::Gathering, Some(gate)) => gathering::nodes(gate),
                _ => self.nodes(run),
            },
            missing: missing(run, &plan, run.expected(&plan))
                .into_iter()
                .map(|node| MissingNode {
                    last_seen: node.last_seen.map(|at| self.settings.epoch + at),
                    ..node
                })
                .collect(),
            rank_grid: self.rank_grid(run),
            waits: watch.map(|watch| self.waits_of(watch, &run.key, now)).unwrap_or_default(),
            explanations: self.log.about(Some(&run.key)),
            timeline: timeline.collect(),
            workers_store: match &run.master {
                (Some(host), Some(port)) => Some(format!("{host}:{port}")),
                _ => None,
            },
        })
    }

    pub(super) fn summary(&self, run: &Run, explanation: Option<Explanation>, _now: Timestamp) -> RunSummary {
        let plan = self.plan(&run.key);
        let expected = run.expected(&plan);
        let count_of = |place| count(run.nodes.iter().filter(|node| node.place == place).count());
        let gone = |node: &&super::run::Node| node.gone.is_some() && !node.finished;
        let joined = joined(run, &plan);
        let nodes = NodeCounts {
            joined,
            waiting: count_of(Place::WaitList),
            redundant: count_of(Place::Redundant),
            gone: count(run.participants().filter(gone).count()),
            expected,
            missing: expected.map(|expected: Expected| expected.min.saturating_sub(joined)),
        };
        let world = &run.world;
        let has_world = !world.ranks.is_empty() || !world.connected.is_empty() || world.nccl;
        RunSummary {
            run_id: self.name(&run.key),
            store: run.store(),
            kind: run.kind,
            state: run.state,
            round: run.round,
            version: run.version,
            nodes,
            ranks: has_world.then(|| RankCounts {
                joined: count(world.ranks.len()),
                gone: count(world.ranks.len()).saturating_sub(world.joined()),
                expected: world.size.map(|(size, _)| size),
                connected: count(world.connected.len()),
            }),
            exit: match &run.native {
                Some(native) => native.exit.clone(),
                None => {
                    run.exit_since.map(|_| ExitCounts { arrived: count(run.exit.len()), expected: run.group })
                }
            },
            started_at: self.unix(run.started.unwrap_or(run.first_seen)),
            state_since: self.unix(run.state_since),
            completed_at: run
                .completed
                .or(world.completed.filter(|_| !run.has_agents()))
                .map(|at| self.unix(at)),
            deadline: run.deadline.or_else(|| Some(self.unix(run.closes_at?))),
            explanation,
        }
    }

    fn nodes(&self, run: &Run) -> Vec<api::Node> {
        let mut nodes: Vec<&super::run::Node> = run.nodes.iter().collect();
        nodes.sort_by_key(|node| (node.rank.is_none(), node.rank, node.joined));
        let started = run.started;
        let shown = nodes.into_iter().map(|node| {
            let (base_rank, local) = match node.rank.and_then(|rank| run.assigned.get(&rank)) {
                Some(&(base, world)) => {
                    let next = node.rank.and_then(|rank| run.assigned.get(&rank.checked_add(1)?));
                    (Some(base), next.map_or(world, |&(next, _)| next).checked_sub(base))
                }
                None => (None, None),
            };
            let said = match &node.id {
                NodeId::Native { info, .. } => Some(info),
                _ => None,
            };
            api::Node {
                node_id: node.node_id(),
                name: node.name.clone(),
                peer: said.map(|said| said.address.to_string()).or(node.peer.map(|peer| peer.to_string())),
                pid: node.pid,
                rank: node.rank,
                state: match node.place {
                    _ if node.finished => NodeState::Finished,
                    _ if node.gone.is_some() => NodeState::Gone,
                    Place::Participant => NodeState::Joined,
                    Place::WaitList => NodeState::Waiting,
                    Place::Redundant => NodeState::Redundant,
                },
                joined_at: (node.place == Place::Participant).then(|| self.unix(node.joined)),
                after_seconds: started
                    .filter(|_| node.place == Place::Participant)
                    .map(|started| rounded(node.joined.since(started).as_secs_f64())),
                last_heartbeat: (!matches!(node.id, NodeId::Rank(_))).then(|| self.unix(node.last_heartbeat)),
                gone_at: node.gone.map(|at| self.unix(at)),
                base_rank,
                local_world_size: local.or(said.and_then(|said| said.local_world_size)),
            }
        });
        shown.collect()
    }

    fn rank_grid(&self, run: &Run) -> Option<RankGrid> {
        let world = &run.world;
        let world_size = world.size.map(|(size, _)| size);
        let highest = world.ranks.keys().next_back().map(|rank| rank.saturating_add(1));
        let len = world_size.max(highest)?.min(GRID);
        if world.ranks.is_empty() && matches!(run.kind, RunKind::C10d | RunKind::Native) {
            return None;
        }
        let states = (0..len)
            .map(|rank| match world.ranks.get(&rank) {
                None => '.',
                Some(info) if info.gone.is_some() => 'x',
                Some(_) => 'j',
            })
            .collect();
        let ranks = world.ranks.iter().take(RANKS_SHOWN).map(|(&rank, info)| Rank {
            rank,
            host: info.host.clone(),
            peer: Some(info.peer.to_string()),
            pid: info.pid,
            joined_at: self.unix(info.joined),
            gone_at: info.gone.map(|at| self.unix(at)),
        });
        Some(RankGrid { world_size, states, ranks: ranks.collect() })
    }

    fn waits_of(&self, watch: &StoreWatch, key: &RunKey, now: Timestamp) -> Vec<Wait> {
        let graph = Graph { store: watch, runs: &self.runs, now };
        let mut waits: Vec<Wait> = watch
            .waits
            .values()
            .filter_map(|wait| {
                let traced = graph.trace(wait.view.conn).filter(|traced| traced.run.as_ref() == Some(key))?;
                let waited = now.since(wait.since);
                Some(self.show_wait(watch.port, &wait.view, waited, Some((&graph, traced))))
            })
            .take(WAITS_SHOWN)
            .collect();
        waits.sort_by(|a, b| b.waited_seconds.total_cmp(&a.waited_seconds));
        waits
    }

    /// `GET /api/v1/waits`: the waits as the stores show them at this moment, each with what is known of it.
    pub fn explain_waits(&self, total: usize, waits: Vec<(u16, WaitView)>, now: Timestamp) -> WaitList {
        let explain = |(store, wait): (u16, WaitView)| {
            let graph = self.stores.get(&store).map(|watch| Graph { store: watch, runs: &self.runs, now });
            let traced = graph.as_ref().and_then(|graph| Some((graph, graph.trace(wait.conn)?)));
            self.show_wait(store, &wait, wait.waited, traced)
        };
        let mut waits: Vec<Wait> = waits.into_iter().map(explain).collect();
        waits.sort_by(|a, b| b.waited_seconds.total_cmp(&a.waited_seconds));
        WaitList { total, waits }
    }

    fn show_wait(
        &self,
        store: u16,
        wait: &WaitView,
        waited: Duration,
        traced: Option<(&Graph<'_>, Traced)>,
    ) -> Wait {
        let reason = traced.as_ref().and_then(|(graph, traced)| graph.because(traced));
        let (run, who, writer) = match traced {
            Some((_, traced)) => (traced.run, Some(traced.who), traced.writer),
            None => (None, None, None),
        };
        Wait {
            store,
            run_id: run.map(|key| self.name(&key)),
            peer: Some(wait.peer.to_string()),
            pid: wait.pid,
            who,
            op: op(wait.barrier_size),
            waited_seconds: rounded(waited.as_secs_f64()),
            keys: wait.keys,
            missing: wait.missing.iter().map(|key| ShownKey(key).to_string()).collect(),
            world_size: wait.barrier_size,
            writer,
            reason,
        }
    }
}

/// Seconds to the millisecond.
pub(super) fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn op(barrier_size: Option<i64>) -> String {
    if barrier_size.is_some() { "barrier".into() } else { "wait".into() }
}

/// Nodes in the round, or pods at the gate.
fn joined(run: &Run, plan: &Plan) -> u32 {
    if let (RunKind::Gathering, Some(gate)) = (run.kind, plan.gate()) {
        return count(gate.pods.len());
    }
    // A node of a native run that has done its work is not there any more, and not missing.
    let exit = run.native.as_ref().and_then(|native| native.exit.as_ref());
    run.joined().saturating_add(exit.map_or(0, |exit| exit.arrived))
}

/// Nodes that should be there and have a name or a rank. `last_seen` is in seconds of [`Timestamp`].
pub(super) fn missing(run: &Run, plan: &Plan, expected: Option<Expected>) -> Vec<MissingNode> {
    if let Some(native) = &run.native {
        return native.missing.clone();
    }
    let mut missing: Vec<MissingNode> = Vec::new();
    let wanted =
        expected.map_or(usize::MAX, |expected| expected.min.saturating_sub(joined(run, plan)) as usize);
    if run.state.is_over() || wanted == 0 {
        return missing;
    }
    let mut there: HashSet<&str> =
        run.nodes.iter().filter(|node| node.gone.is_none()).map(|node| node.name.as_str()).collect();
    if let (RunKind::Gathering, Some(gate)) = (run.kind, plan.gate()) {
        there.extend(gate.pods.iter().map(|pod| pod.pod.as_str()));
    }
    let is_there = |name: &str| there.contains(name);
    let named = plan.expectation.iter().flat_map(|expectation| expectation.names.iter());
    let mut names = HashSet::new();
    let mut add = |node: MissingNode| {
        let is_new = node.name.as_ref().is_none_or(|name| names.insert(name.clone()));
        if is_new && missing.len() < MISSING_SHOWN.min(wanted) {
            missing.push(node);
        }
    };
    let known = |name: String, rank, known_from: &str, last_seen: Option<Timestamp>| MissingNode {
        name: Some(name),
        rank,
        known_from: known_from.into(),
        last_seen: last_seen.map(|at| at.0.as_secs_f64()),
    };
    if let Some(gate) = plan.gate() {
        for pod in gate.pods.iter().filter(|pod| !is_there(&pod.pod)) {
            add(known(pod.pod.clone(), pod.node_rank, "announced", None));
        }
        gathering::missing(gate)
            .filter(|node| !node.name.as_deref().is_some_and(is_there))
            .for_each(&mut add);
    }
    for name in named.filter(|name| !is_there(name)) {
        add(known(name.clone(), None, "named", None));
    }
    for (name, last_seen) in run.earlier.iter().filter(|(name, _)| !is_there(name)) {
        add(known(name.clone(), None, "earlier_round", Some(*last_seen)));
    }
    for node in run.nodes.iter().filter(|node| node.gone.is_some() && !node.finished) {
        add(known(node.name.clone(), node.rank, "died", node.gone));
    }
    if run.kind == RunKind::Static
        && let Some(expected) = expected
    {
        for rank in (0..expected.min).filter(|&rank| run.node_of_rank(rank).is_none()) {
            let pod = plan.pod_of_rank(rank).map(|pod| pod.pod.clone());
            let name = pod.unwrap_or_else(|| format!("node {rank}"));
            add(known(name, Some(rank), "role_exchange", None));
        }
    }
    missing
}
