//! What the native rendezvous tells, in its own words.

use super::{Code, Evidence, Finding, Names};
use crate::presence::{Place, Presence};
use crate::totals::Tally;
use rallypoint_api::{Seen, Severity};
use rallypoint_protocol::ids::Timestamp;
use rallypoint_rendezvous::{Did, Fact, What, Why};

/// What a fact counts for in the metrics.
fn tally_of(Fact { what, signs, .. }: &Fact) -> Option<Tally> {
    match what {
        What::Complete { took, .. } => Some(Tally::Complete(*took)),
        What::TimedOut { .. } => Some(Tally::TimedOut),
        What::Closed(_) => Some(Tally::Closed),
        What::NotBack | What::Lost { .. } | What::Broken { why: Why::Lost, .. } => {
            Some(Tally::Deaths(signs.len()))
        }
        What::Restarted { had_finished: true } => Some(Tally::Restarted),
        _ => None,
    }
}

/// The rule of a fact, and how much it matters.
const fn rule_of(what: &What) -> (Code, Severity) {
    use Severity::{Error, Info, Warning};
    match what {
        What::Forms { .. } | What::Restarted { .. } => (Code::RunStarted, Info),
        What::Adopted { .. } => (Code::RunStarted, Warning),
        What::Complete { .. } => (Code::RoundComplete, Info),
        What::Broken { why: Why::Lost, .. } | What::Lost { .. } => (Code::Lost, Error),
        What::Broken { why: Why::Left(_), .. } => (Code::Lost, Warning),
        What::Broken { why: Why::Newcomers | Why::Resized { .. }, .. } => (Code::RoundOver, Info),
        What::Broken { .. } => (Code::RoundOver, Warning),
        What::NotBack => (Code::NotBack, Warning),
        What::Silent { .. } => (Code::NodeSilent, Warning),
        What::Extended { .. } => (Code::RoundDeadline, Info),
        What::Abandoned { .. } | What::TimedOut { .. } => (Code::RoundDeadline, Warning),
        What::Refused { .. } | What::Displaced { .. } => (Code::JoinRefused, Warning),
        What::Failed { .. } => (Code::RunClosed, Warning),
        What::Closed(_) => (Code::RunClosed, Info),
        What::Finished { .. } => (Code::RunFinished, Info),
        What::MixedReleases(_) => (Code::TorchVersionsDiffer, Warning),
        What::NoStore(_) => (Code::NoStore, Warning),
    }
}

impl Finding {
    /// A fact, with those who were seen to do something. `survivors`: of a complete round, that those who are
    /// left of the one before go on in the same processes.
    pub(crate) fn told(fact: &Fact, survivors: Option<String>, now: Timestamp) -> Self {
        let (code, severity) = rule_of(&fact.what);
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
        if let What::Complete { nodes, .. } = fact.what {
            told = told.joined(Place::Node, nodes, None);
        }
        told.tally = tally_of(fact);
        let mut seen = Vec::new();
        for sign in &fact.signs {
            let at = Timestamp(now.0.saturating_sub(sign.ago));
            let (last, did) = match sign.did {
                Did::Joined => (None, Some(Seen::Joined)),
                Did::Left => (Some(Presence::Left), Some(Seen::Left)),
                Did::Closed => (Some(Presence::Closed), Some(Seen::Closed)),
                Did::Silent => (Some(Presence::Silent), Some(Seen::Heard)),
                // When it was heard before the restart is not known.
                Did::NotBack => (Some(Presence::NotBack), None),
            };
            if let Some(last) = last.filter(|_| severity > Severity::Info) {
                told = told.misses(Place::Node, &Names::of([sign.node.clone()]), last.at(at));
            }
            seen.extend(did.map(|did| Evidence::by_name(did, sign.node.clone(), at)));
        }
        // The rendezvous waits a moment for those that leave after the first.
        let left = fact.signs.iter().filter(|sign| sign.did == Did::Left).map(|sign| sign.ago).max();
        let since = Timestamp(now.0.saturating_sub(left.unwrap_or_default()));
        Self::new(told, about, since).seen(seen)
    }
}
