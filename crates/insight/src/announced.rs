//! Runs of which there are only announcements: their pods wait at their gate, or have not come far enough to
//! be seen.
//!
//! Such a run is shown with the kind [`RunKind::Announced`] and without a store, until its own traffic
//! begins.

use std::collections::BTreeMap;

use super::epoch::Epoch;
use super::expect::Plan;
use super::jobs::Jobs;
use super::run::{MOST_NODES, RunKey, TrackedRun};
use super::told::Told;
use rallypoint_api::{Node, NodeState, RunKind};
use rallypoint_protocol::ids::{RunId, Timestamp};
use rallypoint_rendezvous::gate::{GateSnapshot, KnownPod};

/// When the run with this id finished: all its nodes came to the exit barrier or left as they had done their
/// work, and it was not started again.
pub(super) fn finished(jobs: &Jobs, run_id: &str) -> Option<Timestamp> {
    let id = RunId::new(run_id.as_bytes());
    let is_it = |run: &&TrackedRun| run.key().id() == Some(&id) && run.kind() != RunKind::Announced;
    let last =
        jobs.runs.values().filter(is_it).max_by_key(|run| (!run.state().is_over(), run.first_seen()))?;
    last.round().over_at.filter(|_| last.round().exit_done.is_some() && last.state().is_over())
}

/// A gate has changed: so have the runs that it shows.
pub(super) fn touch(jobs: &mut Jobs, run_id: &str) {
    let key = RunKey::Id(RunId::new(run_id.as_bytes()));
    jobs.runs.get_mut(&key).into_iter().for_each(TrackedRun::touch);
}

/// Shows the runs that only have announcements, and no others.
pub(super) fn show(jobs: &mut Jobs, told: &mut Told, now: Timestamp) {
    for run_id in jobs.plans.forget_passed(now) {
        touch(jobs, &run_id);
    }
    let wanted = wanted(jobs);
    let shown = jobs.runs.values().filter(|run| run.kind() == RunKind::Announced);
    let shown: Vec<RunKey> = shown.map(|run| run.key().clone()).collect();
    for key in shown.iter().filter(|key| !wanted.contains_key(key)) {
        let is_traffic = |other: &&RunKey| *other != key && !jobs.runs[*other].state().is_over();
        if let Some(traffic) = jobs.keys_of(&jobs.name(key), None).iter().find(is_traffic) {
            // What was said before is not said again.
            told.log.hand_over(key, traffic);
        }
        jobs.drop_run(told, key);
    }
    for (key, since) in wanted {
        let run_id = jobs.name(&key);
        jobs.plans.see_links(&run_id, jobs.links.version(), |plan| jobs.links.gone(plan));
        if let Some(run) = jobs.run_mut(told, &key, RunKind::Announced, now) {
            run.announced_since(since);
        }
    }
}

/// The runs that only have announcements, and since when.
fn wanted(jobs: &Jobs) -> BTreeMap<RunKey, Timestamp> {
    // When the traffic of each run ended, if it did.
    let mut ended: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
    for run in jobs.runs.values().filter(|run| run.kind() != RunKind::Announced) {
        let over = run.round().over_at.filter(|_| run.state().is_over());
        let both = |before: Option<Timestamp>| before.zip(over).map(|(before, over)| before.max(over));
        ended.entry(jobs.name(run.key())).and_modify(|before| *before = both(*before)).or_insert(over);
    }
    let only_announced = |(run_id, gate): (&str, &GateSnapshot)| {
        let key = RunKey::Id(RunId::new(run_id.as_bytes()));
        // An older gate belongs to the traffic that ended. The rendezvous shows its runs itself.
        let is_it = ended.get(run_id).is_none_or(|ended| ended.is_some_and(|at| gate.since > at))
            && jobs.runs.get(&key).is_none_or(|run| run.kind() == RunKind::Announced);
        is_it.then_some((key, gate.since))
    };
    jobs.plans.gates().filter_map(only_announced).collect()
}

/// The pods as nodes that have not joined, or are gone.
pub(super) fn nodes(gate: &GateSnapshot, plan: &Plan, epoch: Epoch) -> Vec<Node> {
    let mut pods: Vec<_> = gate.known().filter(|pod| pod.said.is_some() || gate.is_open()).collect();
    pods.sort_by_key(|pod| (pod.node_rank.is_none(), pod.node_rank));
    // A host may have several.
    let node_id = |pod: &KnownPod<'_>| match pod.node_rank {
        _ if plan.is_only(pod.name) => pod.name.to_owned(),
        Some(rank) => format!("{}:{rank}", pod.name),
        None => format!("{}:{}", pod.name, pod.said.map_or("", |said| &said.uid)),
    };
    let node = |pod: KnownPod<'_>| {
        let gone_at = plan.gone().get(pod.name).map(|at| epoch.unix(*at));
        Node {
            node_id: node_id(&pod),
            name: pod.name.to_owned(),
            peer: pod.said.map(|said| said.address.to_string()),
            pid: None,
            rank: pod.node_rank,
            state: gone_at.map_or(NodeState::Announced, |_| NodeState::Gone),
            joined_at: None,
            after_seconds: None,
            last_heartbeat: None,
            gone_at,
            base_rank: None,
            local_world_size: None,
        }
    };
    pods.into_iter().take(MOST_NODES).map(node).collect()
}
