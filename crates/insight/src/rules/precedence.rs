//! Precedence, in one place: what another finding says with more names is not told.

use std::collections::HashSet;

use crate::facts::RunKey;
use crate::jobs::Jobs;
use crate::reason::{Code, Presence, Sighting};
use crate::rules::Held;
use rallypoint_api::RunState;

/// What is told of all that was found.
pub(crate) fn uncovered(jobs: &Jobs, mut held: Vec<Held>) -> Vec<Held> {
    let runs = |is_it: &dyn Fn(&Held) -> bool| -> HashSet<Option<RunKey>> {
        held.iter().filter(|it| is_it(it)).map(|it| it.run.clone()).collect()
    };
    let of_backends = runs(&|it| it.finding.reason.code == Code::TwoBackends);
    let of_rounds = runs(&|it| it.finding.reason.code == Code::NodesMissing);
    // A process that has told nothing may be the node that was never seen.
    let unclear = runs(&|it| {
        let node = it.finding.reason.node_awaited();
        node.is_some_and(|seen| seen.presence == Presence::NeverSeen && !seen.is_plain())
    });
    held.retain(|Held { run: key, finding, .. }| {
        let run = key.as_ref().and_then(|key| jobs.runs.get(key)).map(|run| (run.state, run.round.number));
        let joins = run.is_some_and(|(state, number)| {
            state == RunState::Joining && finding.round.is_none_or(|round| round == number)
        });
        let reason = &finding.reason;
        // They wait for each other in vain, and the other run has the same id.
        let waits = matches!(reason.code, Code::NodesMissing | Code::WaitCycle | Code::Waiting);
        let by_backends = waits && of_backends.contains(key);
        let is_plain = reason.node_awaited().is_some_and(Sighting::is_plain);
        let by_round = joins && is_plain && of_rounds.contains(key);
        let by_wait = reason.code == Code::NodesMissing && unclear.contains(key);
        !by_backends && !by_round && !by_wait
    });
    held
}
