//! What has to be said of a job that cannot go on: each true cause, by name, with a remedy that helps.

use super::{Checked, yes};
use rallypoint_api::{Certainty, Explanation};

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

/// Of each list one has to be there; of the last, none may.
struct Words {
    says: &'static [&'static str],
    advises: &'static [&'static str],
    never: &'static [&'static str],
    certainty: Option<Certainty>,
}

const STARTS: [&str; 6] = [
    "is it scheduled",
    "are they scheduled",
    "has its image come",
    "has it started",
    "have they started",
    "does it reach",
];

impl Cause {
    fn words(self) -> Words {
        let (seen, eliminated) = (Some(Certainty::Seen), Some(Certainty::Eliminated));
        let words = |says, advises, never, certainty| Words { says, advises, never, certainty };
        match self {
            Self::Dead => words(
                &["ended", "closed", "gone:", "not heard from", "gave up"],
                &[
                    "log",
                    "look at the process that should have",
                    "look why",
                    "have they ended",
                    "what do they do",
                    "restart all",
                    "all ranks go the same way",
                ],
                &["has it started", "EADDRINUSE"],
                None,
            ),
            Self::NeverCame => words(
                &["never seen", "missing", "not published", "not yet joined"],
                &[
                    "started",
                    "is it scheduled",
                    "are they scheduled",
                    "pods are scheduled",
                    "of the process that ended",
                    "of the processes that ended",
                    "what do they do",
                    "restart all",
                ],
                &["look why that process ended;"],
                None,
            ),
            Self::CameBefore => words(
                &["never seen", "missing", "gone:", "ended", "closed"],
                &[
                    "is it scheduled",
                    "are they scheduled",
                    "pods are scheduled",
                    "look at its log",
                    "look why",
                    "what do they do",
                    "of each process",
                ],
                &[],
                None,
            ),
            Self::AsAnother => {
                words(&["never seen", "missing"], &["is it scheduled", "started"], &["look why"], None)
            }
            Self::Silent => words(&["told no rank"], &["what do they do"], &[], eliminated),
            Self::Passed => words(
                &["connected and ended without "],
                &[
                    "of the process that ended",
                    "of the processes that ended",
                    "look at the log of each process",
                    "look at its log",
                    "what do they do",
                    "look why",
                    "restart all",
                ],
                &["has it started"],
                None,
            ),
            Self::Busy => words(&["waits for nothing here"], &["look at"], &STARTS, eliminated),
            Self::Frozen => words(
                &["no heartbeat", "nothing has come", "not heard", "taken out", "gone:"],
                &["frozen", "stopped", "cut off", "taken out", "log"],
                &["is it scheduled", "are they scheduled"],
                None,
            ),
            Self::Withdrawn => {
                words(&["was dropped", "attempt before", "has met with"], &["restart all"], &STARTS, seen)
            }
            Self::Reset => words(&["reset the store"], &["restart all"], &STARTS, seen),
            Self::Elsewhere => words(
                &["not there", "ended:"],
                &[
                    "what the processes do",
                    "have not reached this call",
                    "have not arrived",
                    "why those",
                    "why that process",
                ],
                &STARTS,
                eliminated,
            ),
            Self::Met => words(
                &["met with others before", "and has met"],
                &["restart all processes", "stop what came last"],
                &STARTS,
                seen,
            ),
            Self::Twice => words(&["two live processes", "two jobs"], &["its own"], &STARTS, seen),
            Self::WorldSize => words(&["disagree", "counts on more"], &["same WORLD_SIZE"], &STARTS, seen),
            Self::Nnodes => words(
                &[
                    "their --nnodes differ",
                    "another number",
                    "asked for more",
                    "are expected",
                    "does not take",
                ],
                &["same --nnodes"],
                &STARTS,
                None,
            ),
            Self::NodeRank => words(&["counts on"], &["same --nnodes"], &STARTS, seen),
        }
    }
}

/// These follow from the traffic of a run as a whole.
const WITHOUT_EVIDENCE: [&str; 19] = [
    "run_restarted",
    "round_extended",
    "round_timed_out",
    "run_started",
    "round_complete",
    "ranks_complete",
    "run_finished",
    "run_ended",
    "all_left",
    "node_came_late",
    "two_jobs",
    "two_backends",
    "world_sizes_differ",
    "fewer_than_expected",
    "run_closed",
    "join_refused",
    "round_expiring",
    "workers_elsewhere",
    // Who has not come back is known by the journal.
    "nodes_unreported",
];

/// What is true of every explanation.
pub(super) fn is_sound(said: &Explanation) -> Checked {
    let nobody_is_there = said.text.contains(": 0 of ") || said.text.ends_with("at the exit barrier");
    let shows =
        !said.evidence.is_empty() || nobody_is_there || WITHOUT_EVIDENCE.contains(&said.code.as_str());
    yes(shows, "it has no evidence")?;
    yes(said.evidence.iter().all(|evidence| !evidence.who.is_empty()), "its evidence has no name")?;
    let guesses = ["never seen", "not there: "];
    let guesses = guesses.iter().any(|guess| said.text.contains(guess));
    yes(!guesses || said.certainty == Certainty::Eliminated, "it is too sure")
}

/// That one of the explanations names this cause. What it concerns may have several names, with a `|` between them.
pub(super) fn named(said: &[Explanation], cause: Cause, name: &str) -> Checked {
    let Words { says, advises, never, certainty } = cause.words();
    let all = || said.iter().map(|said| format!("  {}", said.text)).collect::<Vec<_>>().join("\n");
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    let of_name: Vec<&Explanation> = said
        .iter()
        .filter(|said| name.split('|').any(|name| said.text.contains(name)) && has(&said.text, says))
        .collect();
    yes(!of_name.is_empty(), &format!("nobody says {cause:?} of {name}\n{}", all()))?;
    let advised = of_name.iter().filter(|said| has(&said.remedy, advises) && !has(&said.remedy, never));
    let mut advised = advised.peekable();
    let remedies = || of_name.iter().map(|said| said.remedy.as_str()).collect::<Vec<_>>().join(" | ");
    yes(advised.peek().is_some(), &format!("nobody advises for {cause:?} of {name}: {}", remedies()))?;
    let is_as_sure = |said: &&Explanation| certainty.is_none_or(|certainty| said.certainty == certainty);
    yes(advised.any(is_as_sure), &format!("{cause:?} of {name} is not {certainty:?}"))
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
