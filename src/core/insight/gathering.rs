//! Runs of which there are only announcements: their pods wait at the start gate, or have not come far enough to be seen.
//!
//! Such a run is shown with the kind [`RunKind::Gathering`] and without a store, until its own traffic begins.

use std::collections::{BTreeMap, BTreeSet};

use super::Insight;
use super::expect::Plan;
use super::reason::{Names, Reason, Secs};
use super::run::{Run, RunKey};
use crate::api::{MissingNode, Node, NodeState, RunKind};
use crate::core::gate::{Announcement, GateSnapshot, Missing};
use crate::core::ids::{RunId, Timestamp, count};

/// Pods shown of one run.
const PODS_SHOWN: usize = super::run::MOST_NODES;

/// A native run takes the place of its announcements.
fn key_of(run_id: &str) -> RunKey {
    RunKey::native(&RunId::new(run_id.as_bytes()))
}

impl Insight {
    /// The start gate of a run has changed; `None`: its pods are gone.
    pub fn gate(&mut self, run_id: &str, gate: Option<GateSnapshot>) {
        if gate.is_none() && !self.plans.contains_key(run_id) {
            return;
        }
        let Some(plan) = self.plan_mut(run_id) else { return };
        plan.set_gate(gate);
        if plan.is_empty() {
            self.plans.remove(run_id);
        }
        if let Some(run) = self.runs.get_mut(&key_of(run_id)) {
            run.touch();
        }
    }

    /// When the run finished: all its nodes came to the exit barrier or left as they had done their work, and it was not
    /// started again.
    pub fn finished(&self, run_id: &str) -> Option<Timestamp> {
        let id = RunId::new(run_id.as_bytes());
        let is_it = |run: &&Run| run.key.id.as_ref() == Some(&id) && run.kind != RunKind::Gathering;
        let last =
            self.runs.values().filter(is_it).max_by_key(|run| (!run.state.is_over(), run.first_seen))?;
        last.over_at.filter(|_| last.exit_done.is_some() && last.state.is_over())
    }

    /// Shows the runs that only have announcements, and no others.
    pub(super) fn show_gatherings(&mut self, now: Timestamp) {
        // When the traffic of each run ended, if it did.
        let mut ended: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
        for run in self.runs.values().filter(|run| run.kind != RunKind::Gathering) {
            let over = run.over_at.filter(|_| run.state.is_over());
            let both = |before: Option<Timestamp>| before.zip(over).map(|(before, over)| before.max(over));
            ended.entry(self.name(&run.key)).and_modify(|before| *before = both(*before)).or_insert(over);
        }
        let gathers = |(run_id, plan): (&String, &std::sync::Arc<Plan>)| {
            let gate = plan.gate()?;
            // A gate that is older than the end of the traffic belongs to that.
            let only_announced =
                ended.get(run_id).is_none_or(|ended| ended.is_some_and(|at| gate.since > at));
            only_announced.then(|| (key_of(run_id), gate.since))
        };
        let wanted: BTreeMap<RunKey, Timestamp> = self.plans.iter().filter_map(gathers).collect();
        let shown: BTreeSet<RunKey> = self
            .runs
            .values()
            .filter(|run| run.kind == RunKind::Gathering)
            .map(|run| run.key.clone())
            .collect();
        for key in shown.iter().filter(|key| !wanted.contains_key(key)) {
            let is_traffic = |other: &&RunKey| *other != key && !self.runs[*other].state.is_over();
            if let Some(traffic) = self.keys_of(&self.name(key), None).iter().find(is_traffic) {
                // What was said is not said again.
                self.log.hand_over(key, traffic);
            }
            self.drop_run(key);
        }
        for (key, since) in wanted {
            if self.runs.get(&key).is_none_or(|run| run.kind == RunKind::Gathering)
                && let Some(run) = self.run_mut(&key, RunKind::Gathering, now)
            {
                run.first_seen = since;
            }
        }
    }
}

/// What the gate tells, whether the run has traffic or not.
pub(super) fn conditions(run: &Run, plan: &Plan, now: Timestamp) -> Vec<(String, Reason, Timestamp)> {
    let Some(gate) = plan.gate() else { return Vec::new() };
    let mut held = Vec::new();
    let since = run.first_seen.max(gate.since);
    let all = || gate.pods.iter().chain(&gate.turned_away);
    let first = gate.pods.first();
    if let Some((pod, other)) =
        first.and_then(|pod| Some((pod, all().find(|other| other.nodes != pod.nodes)?)))
    {
        let reason = Reason::AnnouncementsDiffer {
            pod: pod.pod.clone(),
            says: pod.nodes.to_string(),
            other_pod: other.pod.clone(),
            other_says: other.nodes.to_string(),
        };
        held.push((String::new(), reason, since));
    }
    for (pod, rank) in gate.turned_away.iter().filter_map(|pod| Some((pod, pod.node_rank?))) {
        if let Some(holder) = plan.pod_of_rank(rank) {
            let label = |pod: &Announcement| format!("pod {} at {}", pod.pod, pod.address);
            let reason = Reason::DuplicateRank {
                what: format!("node rank {rank}"),
                first: label(holder),
                second: format!("{}, which is held back", label(pod)),
            };
            held.push((format!("node {rank}"), reason, since));
        }
    }
    if let Some(versions) = &gate.versions {
        held.push((String::new(), Reason::TorchVersionsDiffer { versions: versions.to_string() }, since));
    }
    if run.kind == RunKind::Gathering && !gate.is_open {
        let reason = Reason::PodsMissing {
            announced: count(gate.pods.len()),
            expected: gate.nodes.min,
            missing: Names::of(gate.missing.iter().map(label)),
            waited: Secs(now.since(gate.since)),
        };
        held.push((String::new(), reason, gate.since));
    }
    held
}

fn label(missing: &Missing) -> String {
    let rank = missing.node_rank;
    match (&missing.pod, missing.seen) {
        (Some(pod), Some(_)) => format!("pod {pod} with rank {rank}, which was there and is gone,"),
        (Some(pod), None) => format!("pod {pod} with rank {rank}"),
        (None, _) => format!("pod with rank {rank}"),
    }
}

/// The pods as nodes that have not joined.
pub(super) fn nodes(gate: &GateSnapshot) -> Vec<Node> {
    let mut pods: Vec<&Announcement> = gate.pods.iter().collect();
    pods.sort_by_key(|pod| (pod.node_rank.is_none(), pod.node_rank));
    let mut of_name = BTreeMap::<&str, u32>::new();
    for pod in &pods {
        let pods = of_name.entry(&pod.pod).or_default();
        *pods = pods.saturating_add(1);
    }
    // A host may have several.
    let node_id = |pod: &Announcement| match (of_name.get(&*pod.pod), pod.node_rank) {
        (Some(1), _) => pod.pod.clone(),
        (_, Some(rank)) => format!("{}:{rank}", pod.pod),
        (_, None) => format!("{}:{}", pod.pod, pod.uid),
    };
    let node = |pod: &Announcement| Node {
        node_id: node_id(pod),
        name: pod.pod.clone(),
        peer: Some(pod.address.to_string()),
        pid: None,
        rank: pod.node_rank,
        state: NodeState::Announced,
        joined_at: None,
        after_seconds: None,
        last_heartbeat: None,
        gone_at: None,
        base_rank: None,
        local_world_size: None,
    };
    pods.into_iter().take(PODS_SHOWN).map(node).collect()
}

/// Pods that did not announce themselves.
pub(super) fn missing(gate: &GateSnapshot) -> impl Iterator<Item = MissingNode> {
    gate.missing.iter().map(|missing| MissingNode {
        name: missing.pod.clone(),
        rank: Some(missing.node_rank),
        known_from: if missing.seen.is_some() { "announced" } else { "node_rank" }.into(),
        last_seen: missing.seen.map(|at| at.0.as_secs_f64()),
    })
}
