//! Precedence, in one place: what another finding says with more names is not told, waits for those that
//! contradict others have the remedy for that, and what may be one job is told of each other.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::facts::{RunKey, TrackedRun};
use crate::jobs::Jobs;
use crate::reason::{Code, Names, Place};
use crate::rules::{Held, contradictions};
use rallypoint_api::RunState;
use rallypoint_store::is_slip;

/// Gathering runs whose ids are compared, each with each.
const MOST_COMPARED: usize = 256;

/// What is told of all that was found.
pub(crate) fn uncovered(jobs: &Jobs, mut held: Vec<Held>) -> Vec<Held> {
    let id = |run: &Option<RunKey>| run.as_ref().and_then(RunKey::id).cloned();
    let told = |code: Code| held.iter().filter(move |it| it.finding.reason.code == code);
    let of_backends: HashSet<_> = told(Code::TwoBackends).map(|it| id(&it.run)).collect();
    let of_rounds: HashSet<_> = told(Code::NodesMissing).map(|it| it.run.clone()).collect();
    // A process that has told nothing may be the node that was never seen.
    let is_unclear = |it: &&Held| it.finding.reason.lacks_node && it.finding.reason.plain.is_none();
    let unclear: HashSet<_> = held.iter().filter(is_unclear).map(|it| it.run.clone()).collect();
    held.retain_mut(|it| {
        let run = it.run.as_ref().and_then(|key| jobs.runs.get(key));
        let joins = run.is_some_and(|run| {
            let is_past = it.finding.round.is_some_and(|round| round != run.round.number);
            run.state == RunState::Joining && !is_past
        });
        let reason = &mut it.finding.reason;
        let waits = matches!(reason.code, Code::NodesMissing | Code::WaitCycle | Code::Waiting);
        if let Some(mistake) = run.filter(|_| waits).and_then(contradictions::of_run) {
            reason.look_at = mistake.rule().look_at;
        }
        // They wait for each other in vain, and the other run has the same id.
        let by_backends = waits && of_backends.contains(&id(&it.run));
        let by_round = joins && reason.plain == Some(Place::Node) && of_rounds.contains(&it.run);
        let by_wait = reason.code == Code::NodesMissing && unclear.contains(&it.run);
        !by_backends && !by_round && !by_wait
    });
    tell_halves(jobs, &mut held);
    tell_gatherings(jobs, &mut held);
    held
}

/// Pods that a gathering lacks may gather for another run: a slip in one of the ids.
fn tell_gatherings(jobs: &Jobs, held: &mut [Held]) {
    let gathers = |held: &&Held| held.finding.reason.code == Code::PodsMissing;
    let plan = |held: &Held| Some((held.run.clone()?, jobs.plan(held.run.as_ref()?)));
    let plans: Vec<_> = held.iter().filter(gathers).filter_map(plan).collect();
    if plans.len() < 2 {
        return;
    }
    let gates = || plans.iter().filter_map(|(key, plan)| Some((key, plan.gate()?)));
    let pods = gates().flat_map(|(key, gate)| gate.pods.iter().map(move |pod| (pod.pod.as_str(), key)));
    let gathering: HashMap<&str, &RunKey> = pods.collect();
    for held in held.iter_mut().filter(|held| held.finding.reason.code == Code::PodsMissing) {
        let Some(run) = &held.run else { continue };
        let missing = gates().filter(|(key, _)| *key == run).flat_map(|(_, gate)| &gate.missing);
        let elsewhere = missing.filter_map(|missing| {
            let pod = missing.pod.as_deref()?;
            let other = gathering.get(pod).filter(|other| **other != run)?;
            Some(format!("pod {pod} for run {}", jobs.name(other)))
        });
        held.finding.reason.add_apart("announced for another run", &Names::of(elsewhere));
    }
}

/// Runs that gather in one store under ids that differ by a slip, or in one store or under one id and
/// would make no more than one together, may be one job.
fn tell_halves(jobs: &Jobs, held: &mut [Held]) {
    let gathers = |run: &&TrackedRun| run.state == RunState::Joining && run.joined() > 0;
    let mut gathering: Vec<_> = jobs.runs.values().filter(gathers).collect();
    // Each is compared with each other.
    gathering.truncate(MOST_COMPARED);
    let lacks_node = |held: &&mut Held| {
        let reason = &held.finding.reason;
        reason.code == Code::NodesMissing || reason.lacks_node
    };
    for held in held.iter_mut().filter(lacks_node) {
        let Some(run) = held.run.as_ref().and_then(|key| jobs.runs.get(key)) else { continue };
        let parts = gathering.iter().filter(|other| other.key != run.key && may_be_one(jobs, run, other));
        let others = Names::of(parts.map(|part| {
            let there = part.participants().filter(|node| node.is_there()).map(|node| node.name.clone());
            let port = part.key.port().filter(|port| held.store.is_some_and(|store| store != *port));
            let port = port.map_or_else(String::new, |port| format!(" on port {port}"));
            format!("run {}{port} ({})", jobs.name(&part.key), Names::of(there))
        }));
        held.finding.reason.add_apart("not complete either", &others);
    }
}

/// Whether two runs that gather may be one job. How many nodes there are may be known of one only.
fn may_be_one(jobs: &Jobs, one: &TrackedRun, other: &TrackedRun) -> bool {
    let ids = one.key.id().zip(other.key.id());
    let is_one_store = one.key.port() == other.key.port();
    let is_near = ids.is_some_and(|(one, other)| is_slip(one.as_bytes(), other.as_bytes()));
    let expected = [one, other].into_iter().filter_map(|run| run.expected(&jobs.plan(&run.key)));
    let sizes: BTreeSet<u32> = expected.map(|expected| expected.min).collect();
    let together = one.joined().saturating_add(other.joined());
    let fit = sizes.len() < 2 && sizes.iter().all(|size| together <= *size);
    let are_of_kind = one.kind == other.kind && one.round.roles.is_disjoint(&other.round.roles);
    let is_one_id = ids.is_some_and(|(one, other)| one == other);
    is_one_store && is_near || (is_one_store || is_one_id) && are_of_kind && fit
}
