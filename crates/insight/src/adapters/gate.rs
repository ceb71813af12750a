//! Runs of which there are only announcements: their pods wait at their gate, or have not come far enough to
//! be seen.
//!
//! Such a run is shown with the kind [`RunKind::Announced`] and without a store, until its own traffic
//! begins.

use std::collections::BTreeMap;

use crate::facts::{RunKey, TrackedRun};
use crate::jobs::Jobs;
use crate::report::log::Told;
use rallypoint_api::RunKind;
use rallypoint_protocol::ids::{RunId, Timestamp};
use rallypoint_rendezvous::gate::GateSnapshot;

/// A gate has changed: so have the runs that it shows.
pub(crate) fn touch(jobs: &mut Jobs, run_id: &str) {
    let key = RunKey::Id(RunId::new(run_id.as_bytes()));
    jobs.runs.get_mut(&key).into_iter().for_each(TrackedRun::touch);
}

/// Shows the runs that only have announcements, and no others.
pub(crate) fn show(jobs: &mut Jobs, told: &mut Told, now: Timestamp) {
    for run_id in jobs.plans.forget_passed(now) {
        touch(jobs, &run_id);
    }
    let wanted = wanted(jobs);
    let shown = jobs.runs.values().filter(|run| run.kind == RunKind::Announced);
    let shown: Vec<RunKey> = shown.map(|run| run.key.clone()).collect();
    for key in shown.iter().filter(|key| !wanted.contains_key(key)) {
        let is_traffic = |other: &&RunKey| *other != key && !jobs.runs[*other].state.is_over();
        if let Some(traffic) = jobs.keys_of(&jobs.name(key), None).iter().find(is_traffic) {
            // What was said before is not said again.
            told.hand_over(key, traffic);
        }
        jobs.drop_run(told, key);
    }
    for (key, since) in wanted {
        let run_id = jobs.name(&key);
        jobs.plans.see_links(&run_id, jobs.links.version, |plan| jobs.links.gone(plan));
        if let Some(run) = jobs.run_mut(told, &key, RunKind::Announced, now) {
            run.first_seen = since;
        }
    }
}

/// The runs that only have announcements, and since when.
fn wanted(jobs: &Jobs) -> BTreeMap<RunKey, Timestamp> {
    // When the traffic of each run ended, if it did.
    let mut ended: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
    for run in jobs.runs.values().filter(|run| run.kind != RunKind::Announced) {
        let over = run.round.over_at.filter(|_| run.state.is_over());
        let both = |before: Option<Timestamp>| before.zip(over).map(|(before, over)| before.max(over));
        ended.entry(jobs.name(&run.key)).and_modify(|before| *before = both(*before)).or_insert(over);
    }
    let only_announced = |(run_id, gate): (&str, &GateSnapshot)| {
        let key = RunKey::Id(RunId::new(run_id.as_bytes()));
        // An older gate belongs to the traffic that ended. The rendezvous shows its runs itself.
        let is_it = ended.get(run_id).is_none_or(|ended| ended.is_some_and(|at| gate.since > at))
            && jobs.runs.get(&key).is_none_or(|run| run.kind == RunKind::Announced);
        is_it.then_some((key, gate.since))
    };
    jobs.plans.gates().filter_map(only_announced).collect()
}
