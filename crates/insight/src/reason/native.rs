//! What the native rendezvous tells, in its own words.

use super::rules::RESET;
use super::words::if_some;
use super::{Code, Evidence, Last, Names, Reason};
use crate::presence::Place;
use rallypoint_api::{Seen, Severity};
use rallypoint_protocol::ids::Elapsed;
use rallypoint_rendezvous::{Break, Fact};

/// Ranks that go on without others, of a program that rebuilds its groups in the same processes.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct Survivors {
    /// Who was lost, and how that was seen.
    pub(crate) lost: String,
    /// How many there were before.
    pub(crate) of: u32,
    /// How long after the loss was seen they go on.
    pub(crate) after: Elapsed,
}

/// The rule of a fact, and how much it matters.
const fn rule_of(fact: &Fact) -> (Code, Severity) {
    use Severity::{Error, Info, Warning};
    match fact {
        Fact::Forms { .. } | Fact::Restarted { .. } => (Code::RunStarted, Info),
        Fact::Adopted { .. } => (Code::RunStarted, Warning),
        Fact::Complete { .. } => (Code::RoundComplete, Info),
        Fact::Broken { why: Break::Lost(_), .. } | Fact::Lost { .. } | Fact::WaiterLost { .. } => {
            (Code::Lost, Error)
        }
        Fact::Broken { why: Break::Left { .. }, .. } => (Code::Lost, Warning),
        Fact::Broken { why: Break::Newcomers { .. } | Break::Resized { .. }, .. } => (Code::RoundOver, Info),
        Fact::Broken { .. } => (Code::RoundOver, Warning),
        Fact::NotBack { .. } => (Code::NotBack, Warning),
        Fact::Disconnected { .. } | Fact::Silent { .. } => (Code::NodeSilent, Warning),
        Fact::Extended { .. } => (Code::RoundDeadline, Info),
        Fact::Abandoned { .. } | Fact::Expiring { .. } | Fact::TimedOut { .. } => {
            (Code::RoundDeadline, Warning)
        }
        Fact::Refused { .. } | Fact::Displaced { .. } => (Code::JoinRefused, Warning),
        Fact::Failed { .. } => (Code::RunClosed, Warning),
        Fact::Closed { .. } => (Code::RunClosed, Info),
        Fact::Finished { .. } => (Code::RunFinished, Info),
        Fact::MixedReleases(_) => (Code::TorchVersionsDiffer, Warning),
        Fact::NoStore { .. } => (Code::NoStore, Warning),
    }
}

impl Reason {
    /// A fact, and how long before it an operator's reset had closed the store of its round. Of a complete
    /// round: those who are left of the one before and go on in the same processes. `shown_by`: who was seen
    /// to do what.
    pub(crate) fn told(
        fact: &Fact,
        reset: Option<Elapsed>,
        survivors: Option<Survivors>,
        shown_by: &[Evidence],
    ) -> Self {
        let (code, severity) = rule_of(fact);
        let severity = if survivors.is_some() { Severity::Warning } else { severity };
        let begins_with_a_node = matches!(
            fact,
            Fact::Refused { .. }
                | Fact::Disconnected { .. }
                | Fact::Silent { .. }
                | Fact::WaiterLost { .. }
                | Fact::Displaced { .. }
        );
        let reset_before = if_some(reset, |before| {
            format!("; an operator had closed its store with a reset {before} before")
        });
        let text = match (fact, &survivors) {
            (Fact::Complete { round, nodes, .. }, Some(Survivors { lost, of, after })) => format!(
                "round {round} complete: {nodes} of {of} go on {after} later, nobody was started again; \
                 lost: {lost}"
            ),
            _ => format!("{fact}{reset_before}"),
        };
        let mut told = code.says(text).severe(severity);
        if !begins_with_a_node {
            told = told.predicate();
        }
        match (reset, severity) {
            (Some(_), _) => told = told.look_at(RESET),
            _ if survivors.is_some() => {
                told = told.look_at("look at its log: a process that is started in its place is taken in");
            }
            (None, Severity::Info) => told = told.look_at(""),
            (None, _) => {}
        }
        if let Fact::Complete { nodes, .. } = fact {
            told = told.joined(u32::try_from(*nodes).unwrap_or(u32::MAX), None);
        }
        for Evidence { seen, who, at, .. } in shown_by.iter().filter(|_| severity > Severity::Info) {
            let last = match seen {
                Seen::Closed => Last::Closed,
                Seen::Heard => Last::Silent,
                Seen::Left => Last::Left,
                _ => continue,
            };
            told = told.misses(Place::Node, &Names::of([who.clone()]), last).at(*at);
        }
        told.fact("reset", reset).fact("survivors", survivors)
    }
}
