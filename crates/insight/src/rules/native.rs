//! What the native rendezvous tells, in its own words.

use crate::reason::presence::{CUT_OFF, GONE, Place, Presence, Sighting};
use crate::reason::words::CLOSED;
use crate::reason::{Code, Evidence, Finding, Names};
use crate::totals::Tally;
use rallypoint_api::{Seen, Severity};
use rallypoint_protocol::ids::Timestamp;
use rallypoint_rendezvous::{Did, Fact, RunRefusal, What, Why};

/// The rule of a fact, how much it matters, and what it counts for in the metrics.
fn rule_of(Fact { what, signs, .. }: &Fact) -> (Code, Severity, Option<Tally>) {
    use Severity::{Error, Info, Warning};
    let deaths = Some(Tally::Deaths(signs.len()));
    let first = signs.first().map(|sign| sign.did);
    match what {
        What::Forms { .. } => (Code::RunStarted, Info, None),
        What::Restarted { had_finished } => {
            (Code::RunStarted, Info, had_finished.then_some(Tally::Restarted))
        }
        What::Adopted { .. } => (Code::RunStarted, Warning, None),
        What::Complete { took, .. } => (Code::RoundComplete, Info, Some(Tally::Complete(*took))),
        What::Broken { why: Why::Lost, .. } => (Code::Lost, Error, deaths),
        What::Broken { why: Why::Left, .. } => (Code::Lost, Warning, None),
        What::Broken { why: Why::Newcomers | Why::Resized { .. }, .. } => (Code::RoundOver, Info, None),
        What::Broken { .. } => (Code::RoundOver, Warning, None),
        What::Gone { .. } if first == Some(Did::Failed) => (Code::RunClosed, Warning, None),
        What::Gone { .. } if first == Some(Did::NotBack) => (Code::NotBack, Warning, deaths),
        What::Gone { .. } => (Code::Lost, Error, deaths),
        What::Silent { .. } => (Code::NodeSilent, Warning, None),
        What::Extended { .. } => (Code::RoundDeadline, Info, None),
        What::GivenUp { .. } => (Code::RoundDeadline, Warning, signs.is_empty().then_some(Tally::TimedOut)),
        What::Refused { .. } | What::Displaced { .. } => (Code::JoinRefused, Warning, None),
        What::Closed(_) => (Code::RunClosed, Info, Some(Tally::Closed)),
        What::Finished { .. } => (Code::RunFinished, Info, None),
        What::MixedReleases(_) => (Code::TorchVersionsDiffer, Warning, None),
        What::NoStore(_) => (Code::NoStore, Warning, None),
    }
}

impl Finding {
    /// A fact, with those who were seen to do something. `survivors`: of a complete round, that those who are
    /// left of the one before go on in the same processes.
    pub(crate) fn told(fact: &Fact, survivors: Option<String>, now: Timestamp) -> Self {
        let (code, severity, tally) = rule_of(fact);
        let about = fact.to_string();
        let mut told = code.says(about.clone()).severe(severity);
        if let Some(survivors) = survivors {
            let look_at = "look at its log: a process that is started in its place is taken in";
            told = code.says(survivors).severe(Severity::Warning).look_at(look_at);
        } else if severity == Severity::Info {
            told = told.look_at("");
        }
        // The others begin with the name of a node.
        if !matches!(fact.what, What::Refused { .. } | What::Silent { .. } | What::Displaced { .. }) {
            told = told.predicate();
        }
        let all = |did| fact.signs.iter().all(|sign| sign.did == did);
        let is_closed = matches!(fact.what, What::Refused { why: RunRefusal::Closed { .. }, .. });
        told = match code {
            Code::Lost if all(Did::Silent) => told.look_at(CUT_OFF),
            Code::NodeSilent if all(Did::Closed) => told.look_at(GONE),
            Code::JoinRefused if is_closed => told.look_at(CLOSED),
            _ => told,
        };
        if let What::Complete { nodes, .. } = fact.what {
            told = told.joined(Place::Node, nodes, None);
        }
        told.tally = tally;
        let (mut seen, mut since) = (Vec::new(), now);
        for sign in &fact.signs {
            let at = Timestamp(now.0.saturating_sub(sign.ago));
            let (last, did) = match sign.did {
                Did::Joined | Did::Rejoined => (None, Some(Seen::Joined)),
                Did::Left | Did::Failed => (Some(Presence::Left), Some(Seen::Left)),
                Did::Closed => (Some(Presence::Closed), Some(Seen::Closed)),
                Did::Silent => (Some(Presence::Silent), Some(Seen::Heard)),
                // When it was heard before the restart is not known.
                Did::NotBack => (Some(Presence::NotBack), None),
            };
            if last == Some(Presence::Left) {
                // The rendezvous waits a moment for those that leave after the first.
                since = since.min(at);
            }
            if let Some(last) = last.filter(|_| severity > Severity::Info) {
                told = told.misses(Place::Node, &Names::of([sign.node.clone()]), Sighting::at(last, at));
            }
            seen.extend(did.map(|did| Evidence::by_name(did, sign.node.clone(), at)));
        }
        Self::new(told, about, since).seen(seen)
    }
}
