//! What holds in one run as time goes by, beside what its waits and its start gate tell.

use super::expect::Plan;
use super::graph::still_running;
use super::reason::{Names, Reason, Secs};
use super::run::{Place, Run};
use crate::api::{Expected, RunKind, RunState};
use crate::core::ids::{Timestamp, count};

/// What holds in one run, beside what its waits tell.
pub(super) fn of_run(run: &Run, plan: &Plan, now: Timestamp) -> Vec<(String, Reason, Timestamp)> {
    let mut held = Vec::new();
    let about = || format!("round {}", run.round);
    let expected = run.expected(plan);
    let names = |place: Place| {
        Names::of(
            run.nodes.iter().filter(|n| n.place == place && n.gone.is_none()).map(|node| node.name.clone()),
        )
    };
    if run.native.is_some() {
        if let Some((reason, since)) = run.native_waits(now) {
            held.push((about(), reason, since));
        }
        held.extend(run.native_spares(now));
        return held;
    }
    let is_incomplete = run.completed.is_none() && run.state == RunState::Joining && run.has_agents();
    if let (true, Some(since)) = (is_incomplete, run.started) {
        let joined = count(run.participants().filter(|node| node.gone.is_none()).count());
        let waited = Secs(now.since(since));
        let is_short = expected.is_none_or(|expected| joined < expected.min);
        // Without a number, a static run's missing nodes are told by its waits.
        if is_short && joined > 0 && (run.kind == RunKind::C10d || expected.is_some()) {
            let missing = super::show::missing(run, plan, expected);
            let reason = Reason::NodesMissing {
                joined,
                expected: expected.map(|expected| expected.min),
                from: expected.map(|expected| expected.source),
                missing: Names::of(missing.into_iter().map(|node| {
                    node.name.unwrap_or_else(|| format!("node {}", node.rank.unwrap_or_default()))
                })),
                present: Names::of(
                    run.participants().filter(|n| n.gone.is_none()).map(|node| node.name.clone()),
                ),
                waited,
            };
            held.push((about(), reason, since));
        }
        if let (false, RunKind::C10d, Some(expected)) = (is_short, run.kind, expected) {
            let Expected { min: expected, source: from, .. } = expected;
            held.push((about(), Reason::RoundNotComplete { joined, expected, from, waited }, since));
        }
    }
    if let (Some(completed), Some(group), false) = (run.completed, run.group, run.state.is_over()) {
        if let Some(expected) = plan.expected()
            && group < expected.min
            && run.kind == RunKind::C10d
        {
            let reason = Reason::FewerThanExpected {
                formed: group,
                expected: expected.min,
                from: expected.source,
                left_over: names(Place::WaitList),
            };
            held.push((about(), reason, completed));
        }
        for (place, redundant) in [(Place::WaitList, false), (Place::Redundant, true)] {
            let left_over = names(place);
            if !left_over.is_empty() {
                let since = run.nodes.iter().filter(|n| n.place == place).map(|n| n.place_since).min();
                let since = since.unwrap_or(completed).max(completed);
                let waited = Secs(now.since(since));
                held.push((
                    format!("{redundant}"),
                    Reason::LeftOver { group, left_over, redundant, waited },
                    since,
                ));
            }
        }
    }
    if let (Some(since), None) = (run.exit_since, run.exit_done) {
        let reason = Reason::ExitBarrier {
            arrived: count(run.exit.len()),
            nodes: run.group,
            running: still_running(run),
            waited: Secs(now.since(since)),
        };
        held.push((about(), reason, since));
    }
    if !run.has_agents() && run.world.completed.is_some() && !run.world.connected.is_empty() {
        let ended = run.world.ranks.iter().filter_map(|(&rank, info)| Some((rank, info.gone?)));
        let ended: Vec<_> = ended.collect();
        if let Some(since) = ended.iter().map(|&(_, at)| at).min() {
            let ranks = Names::of(ended.iter().map(|&(rank, _)| run.world.label(rank)));
            let left = count(run.world.connected.len());
            held.push((
                String::new(),
                Reason::RanksEnded { ranks, left, since: Secs(now.since(since)) },
                since,
            ));
        }
    }
    held
}
