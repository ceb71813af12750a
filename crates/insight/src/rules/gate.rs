//! What the gate shows of the pods that announced themselves, whether their run has traffic or not.

use std::collections::{BTreeMap, HashMap};

use crate::facts::{Links, Plan, Plans, TrackedRun, turned_away};
use crate::reason::{Code, Finding, GONE, Names, ONE_JOB, Place, Presence, Reason, Sighting, if_some};
use crate::rules::contradictions::claimed;
use rallypoint_api::{RunKind, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, count};
use rallypoint_rendezvous::gate::{Announcement, GateSnapshot, GateState, Missing, TurnedAway};

/// The pods at gates that gather, each with its run.
pub(crate) fn gathering(plans: &Plans) -> HashMap<&str, &str> {
    let gates = plans.gates().filter(|(_, gate)| gate.state == GateState::Gathers);
    gates.flat_map(|(run, gate)| gate.pods.iter().map(move |pod| (pod.pod.as_str(), run))).collect()
}

/// What the gate shows, whether the run has traffic or not. `gathering`: the pods at all gates.
pub(crate) fn of_gate(
    run: &TrackedRun,
    plan: &Plan,
    gathering: &HashMap<&str, &str>,
    links: &Links,
    now: Timestamp,
) -> Vec<Finding> {
    let Some(gate) = plan.gate() else { return Vec::new() };
    let mut held = Vec::new();
    // Since when it holds is kept from the first look at it.
    let mut hold = |about: String, reason, since| held.push(Finding::new(reason, about, since));
    let held_back = || gate.turned_away.iter().filter(|pod| pod.gone.is_none()).map(|pod| &pod.said);
    let all = || gate.pods.iter().chain(held_back());
    let first = gate.pods.first();
    if let Some((pod, other)) =
        first.and_then(|pod| Some((pod, all().find(|other| other.nodes != pod.nodes)?)))
    {
        let text = format!(
            "the pods disagree on the number of nodes: {} expects {}, {} expects {}",
            pod.pod, pod.nodes, other.pod, other.nodes
        );
        hold(String::new(), Code::NnodesDiffer.says(text), now);
    }
    for (pod, rank) in held_back().filter_map(|pod| Some((pod, pod.node_rank?))) {
        if let Some(holder) = plan.pod_of_rank(rank) {
            let label = |pod: &Announcement| format!("pod {} at {}", pod.pod, pod.shown_at());
            let all = Names::of([label(holder), format!("{}, which is held back", label(pod))]);
            let reason = claimed(&format!("node rank {rank}"), &all, &Names::default());
            hold(format!("node {rank}"), reason, now);
        }
    }
    if let Some(versions) = &gate.versions {
        let text = format!("the pods have different versions of PyTorch: {versions}");
        hold(String::new(), Code::TorchVersionsDiffer.says(text), now);
    }
    if run.kind != RunKind::Announced {
        return held;
    }
    match gate.state {
        GateState::Open { since } => hold(String::new(), pods_idle(gate, plan, links, since, now), since),
        GateState::Gathers => hold(String::new(), pods_missing(gate, gathering, now), gate.since),
        GateState::OpenBefore => {}
    }
    held
}

/// A pod came to the gate of a run that has finished.
pub(crate) fn came_late(run: &TrackedRun, pod: &Announcement, at: Timestamp) -> Finding {
    let who = Names::of([format!("pod {} at {}", pod.pod, pod.shown_at())]);
    let finished = if_some(run.round.over_at, |over| format!(" {} before", Elapsed(at.since(over))));
    let reason = Code::JoinRefused
        .says(format!("{who} was turned away at the gate: the run had finished{finished}"))
        .look_at(
            "nothing, if the job is done; if it is to run again: --restart-finished on, another --run-id, or \
             rallypoint ctl forget",
        )
        .held(&who);
    Finding::new(reason, pod.pod.clone(), at)
}

/// Nothing has come from the processes of the pods that have passed their gate.
fn pods_idle(gate: &GateSnapshot, plan: &Plan, links: &Links, opened: Timestamp, now: Timestamp) -> Reason {
    let gone = gate.known().filter_map(|pod| {
        let seen = links.since_announced(plan, pod.name, None);
        (seen.presence != Presence::Announced).then(|| (pod.name.to_owned(), seen))
    });
    let gone: BTreeMap<_, _> = gone.collect();
    let pods = count(gate.announced());
    Code::PodsIdle
        .says(format!(
            "{} announced, and no process connected for {}",
            Place::Pod.count(pods),
            Elapsed(now.since(opened))
        ))
        .severe(if gone.is_empty() { Severity::Info } else { Severity::Warning })
        .joined(Place::Pod, pods, None)
        .lacks_each(Place::Pod, gone)
}

/// Pods have not announced themselves, and those that have are held back.
fn pods_missing(gate: &GateSnapshot, gathering: &HashMap<&str, &str>, now: Timestamp) -> Reason {
    let waited = Elapsed(now.since(gate.since));
    let (announced, expected) = (count(gate.pods.len()), gate.nodes.min);
    // One that was turned away with the rank of another may be the one that is missing.
    let missing = gate.missing.iter().filter(|missing| turned_away(gate, missing.node_rank).is_none());
    let missing: Vec<_> = missing.map(|pod| (label(pod), of_missing(pod))).collect();
    let refused = gate.turned_away.iter().map(|TurnedAway { said, gone }| {
        let rank = if_some(said.node_rank, |rank| format!(" with rank {rank}"));
        let gone = if_some(*gone, |at| format!(" ({})", Sighting::at(Presence::Silent, at).says(now)));
        format!("pod {}{rank}{gone}", said.pod)
    });
    let refused = Names::of(refused);
    let in_a_loop = Names::of_some(&gate.in_a_loop, |(pod, times)| format!("pod {pod} ({times} times)"));
    let gone = missing.iter().filter(|(_, seen)| seen.presence != Presence::NeverSeen).count();
    let elsewhere = gate.missing.iter().filter_map(|missing| {
        let pod = missing.pod.as_deref()?;
        Some(format!("pod {pod} for run {}", gathering.get(pod)?))
    });
    let elsewhere = Names::of(elsewhere);
    let look_at = match () {
        () if !elsewhere.is_empty() => ONE_JOB,
        () if !refused.is_empty() => {
            "start the pods that were turned away with the number of nodes that the others have, each with \
             its own rank: one of them may be missing as another"
        }
        () if !in_a_loop.is_empty() => "look why those end that come and go, and at each missing pod",
        () if gone >= expected.saturating_sub(announced) as usize => GONE,
        () => Code::PodsMissing.rule().look_at,
    };
    Code::PodsMissing
        .says(format!("{announced} of {} announced for {waited}", Place::Pod.count(expected)))
        .look_at(look_at)
        .joined(Place::Pod, announced, Some(expected))
        .lacks_each(Place::Pod, missing)
        .and("turned away", &refused)
        .and("come and gone again and again", &in_a_loop)
        .and("announced for another run", &elsewhere)
}

fn of_missing(missing: &Missing) -> Sighting {
    match missing.seen {
        None => Presence::NeverSeen.into(),
        Some(at) if missing.is_away => Sighting::at(Presence::Away, at),
        Some(at) if missing.is_cut => Sighting::at(Presence::Closed, at),
        Some(at) => Sighting::at(Presence::Silent, at),
    }
}

fn label(missing: &Missing) -> String {
    let rank = missing.node_rank;
    match &missing.pod {
        Some(pod) => format!("pod {pod} with rank {rank}"),
        None => format!("pod with rank {rank}"),
    }
}
