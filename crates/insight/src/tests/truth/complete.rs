//! What has to be said of a job that cannot go on: who is the cause, by name.

use super::{Checked, yes};
use crate::testing::names_in;
use rallypoint_api::Explanation;

/// Who waits has to be told why when it has waited this much longer than insight is set to.
pub(super) const LOOKED: f64 = 3.5;
/// What happens has to be said within this time.
pub(super) const FACT: f64 = 5.0;

/// Why somebody cannot go on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cause {
    /// A process ended.
    Dead,
    /// A process was to come, and has not.
    NeverCame,
    /// The same, and one had come and ended just before the others came: of their job, or of another.
    CameBefore,
    /// A process is connected, and has not told who it is.
    Silent,
    /// The same, where two processes have the place of another: one of them may be it.
    AsAnother,
    /// It connected, and ended without telling who it is.
    Passed,
    /// A process is known and connected, and waits for nothing.
    Busy,
    /// A process sends no heartbeat any more.
    Frozen,
    /// A process had written what is waited for, and it was dropped with another's.
    Withdrawn,
    /// An operator reset the store.
    Reset,
    /// A process does not take part in what others do.
    Elsewhere,
    /// A process has met with others, and goes on without who waits for it.
    Met,
    /// Two processes have one place.
    Twice,
    WorldSize,
    Nnodes,
    NodeRank,
}

/// These follow from the traffic of a run as a whole.
const WITHOUT_EVIDENCE: [&str; 16] = [
    "run_started",
    // Nobody may be there who shows it.
    "nodes_missing",
    "exit_barrier",
    "round_deadline",
    "round_complete",
    "run_finished",
    "run_ended",
    "node_came_late",
    "two_jobs",
    "two_backends",
    "world_sizes_differ",
    "nnodes_differ",
    "run_closed",
    "join_refused",
    "workers_elsewhere",
    // Who has not come back is known by the journal.
    "not_back",
];

/// What is true of every explanation.
pub(super) fn is_sound(said: &Explanation) -> Checked {
    let shows = !said.evidence.is_empty() || WITHOUT_EVIDENCE.contains(&said.code.as_str());
    yes(shows, "it has no evidence")?;
    yes(said.evidence.iter().all(|evidence| !evidence.who.is_empty()), "its evidence has no name")
}

/// That one of the explanations names whom this concerns. Who has several names has a `|` between them.
pub(super) fn named(said: &[Explanation], cause: Cause, name: &str) -> Checked {
    let is_named = |said: &Explanation| {
        let names = names_in(&said.text, said.run_id.as_deref());
        let is_it = |name: &str| names_in(name, None).is_subset(&names);
        name.split('|').any(is_it)
    };
    let all = || said.iter().map(|said| format!("  {}", said.text)).collect::<Vec<_>>().join("\n");
    yes(said.iter().any(is_named), &format!("nobody says {cause:?} of {name}\n{}", all()))
}

/// Something that has happened, and has to be said.
#[derive(Debug, Clone)]
pub(super) struct Due {
    pub(super) at: f64,
    pub(super) cause: Cause,
    pub(super) name: String,
    /// These say it of all, without names.
    pub(super) or: &'static [&'static str],
}

impl Due {
    /// Whether it was said since it happened, or is shown.
    pub(super) fn check(&self, said: &[(f64, Explanation)], shown: &[Explanation]) -> Checked {
        let since = said.iter().filter(|(at, _)| *at >= self.at).map(|(_, said)| said.clone());
        let since: Vec<Explanation> = since.chain(shown.iter().cloned()).collect();
        let is_of_all = |said: &Explanation| self.or.contains(&said.code.as_str());
        if since.iter().any(is_of_all) { Ok(()) } else { named(&since, self.cause, &self.name) }
    }
}
