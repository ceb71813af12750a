//! What the native rendezvous tells, in its own words, and what holds in its runs.

use std::collections::BTreeMap;

use crate::facts::{Spare, TrackedNode, TrackedRun};
use crate::reason::{
    ANNOUNCED, CLOSED, Code, Evidence, Finding, Names, Place, Presence, SLIP, Sighting, has, have_waited,
    if_some,
};
use crate::totals::Tally;
use rallypoint_api::{RunState, Seen, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, count};
use rallypoint_rendezvous::barrier::OpenBarrier;
use rallypoint_rendezvous::{Did, Fact, RunRefusal, What, Why};
use rallypoint_store::is_slip;

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
        What::Broken { .. } | What::NoStore(_) => (Code::RoundOver, Warning, None),
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
        } else if severity == Severity::Info || matches!(fact.what, What::NoStore(_)) {
            told = told.look_at("");
        }
        // The others begin with the name of a node.
        if !matches!(fact.what, What::Refused { .. } | What::Silent { .. } | What::Displaced { .. }) {
            told = told.predicate();
        }
        if matches!(fact.what, What::Refused { why: RunRefusal::Closed { .. }, .. }) {
            told = told.look_at(CLOSED);
        }
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

/// The nodes that stand by beside a complete round, and what has to happen before they get a place.
pub(crate) fn spares(run: &TrackedRun, now: Timestamp) -> Vec<Finding> {
    let Some(native) = run.native.as_ref().filter(|native| native.state == RunState::Running) else {
        return Vec::new();
    };
    let mut by_rank: BTreeMap<Option<u32>, Vec<Evidence>> = BTreeMap::new();
    for Spare { of_rank, joined } in &native.spares {
        by_rank.entry(*of_rank).or_default().push(joined.clone());
    }
    let stand_by = |(of_rank, joined): (Option<u32>, Vec<Evidence>)| {
        let since = joined.iter().map(|joined| joined.at).min()?;
        let names = Names::of(joined.iter().map(|joined| joined.who.clone()));
        let (have_waited, waited) = (have_waited(names.count()), Elapsed(now.since(since)));
        let says = |beside| Code::StandsBy.says(format!("{names} {have_waited} {waited} {beside}"));
        let reason = if let Some(rank) = of_rank {
            let unknown = || format!("another node (node rank {rank})");
            let holder = run.node_of_rank(rank).map_or_else(unknown, TrackedNode::label);
            says(format!("for the rank of {holder}, which is still in the round"))
                .severe(Severity::Warning)
                .look_at(
                    "if it replaces that node, it gets the rank when that one leaves or its keep-alive \
                     runs out; else give each node its own rank (PET_NODE_RANK, node_rank, the pod's \
                     index)",
                )
                .misses(Place::Node, &Names::of([holder]), Presence::Connected)
        } else {
            let [max, unreported] = [native.expected.max, native.unreported].map(|n| Place::Node.count(n));
            let unreported = Names::of((native.unreported > 0).then_some(unreported));
            says(format!("beside a round of {max}, the maximum"))
                .and("not reported since the server was restarted", &unreported)
        };
        Some(Finding::new(reason.held(&names), format!("{of_rank:?}"), since).seen(joined))
    };
    by_rank.into_iter().filter_map(stand_by).collect()
}

/// The round that forms is to be given up soon.
pub(crate) fn expires(run: &TrackedRun, now: Timestamp) -> Option<Finding> {
    let native = run.native.as_ref().filter(|native| native.is_expiring)?;
    let (waits, closes_at) = native.waits.as_ref().zip(native.closes_at)?;
    let (round, left) = (format!("round {}", run.round.number), Elapsed(closes_at.since(now)));
    let reason = Code::RoundDeadline.says(format!("{round} will be given up in {left}: {waits}"));
    Some(Finding::new(reason.predicate(), round, now))
}

/// What the round waits for, in the words of the rendezvous, with the pods that announced themselves and
/// are not there.
pub(crate) fn waits(run: &TrackedRun, announced: &Names, now: Timestamp) -> Option<Finding> {
    let native = run.native.as_ref()?;
    let (text, since, round) = (native.waits.as_ref()?, run.round.started?, run.round.number);
    let waited = Elapsed(now.since(since));
    let at_exit = Names::of(run.life.at_earlier_exit.values().map(|node| node.name.clone()));
    let look_at = match native.lacks {
        None => Code::JoinRefused.rule().look_at,
        Some(Presence::NeverSeen) if !announced.is_empty() => ANNOUNCED,
        Some(seen) => Sighting::from(seen).look_at(Place::Node),
    };
    // The others have left since.
    let done = native.finished.saturating_sub(count(at_exit.count()));
    let done = Names::of((done > 0).then(|| Place::Node.count(done)));
    let reason = Code::NodesMissing
        .says(format!("round {round} is not complete after {waited}: {text}"))
        .predicate()
        .look_at(look_at)
        .joined(Place::Node, run.joined(), Some(native.expected.min))
        .from(Some(native.expected.source))
        .misses_each(Place::Node, native.missing.iter().map(|node| (node.label(), node.seen())))
        .and("announced, and not there", announced)
        .and("finished, and at the exit barrier of a round before", &at_exit)
        .and("finished and left", &done)
        .when(native.is_enough, |reason| reason.severe(Severity::Info));
    let there = run.participants().filter(|node| node.gone.is_none());
    let joins = there.map(|node| Evidence::by_name(Seen::Joined, node.told(), node.joined));
    Some(Finding::new(reason, format!("round {round}"), since).seen(joins))
}

/// Who waits at a barrier of the native rendezvous, and for whom.
pub(crate) fn at_barrier(open: &OpenBarrier, all: &[OpenBarrier], now: Timestamp) -> Finding {
    /// Each barrier is compared with so many others.
    const LOOKED_AT: usize = 64;
    let OpenBarrier { name, size, arrived, there, silent, missing, gave_up, refused, since } = open;
    let elsewhere = missing.iter().filter_map(|who| {
        Some(format!("{who} (`{}`)", all.iter().find(|other| other.there.contains(who))?.name))
    });
    let elsewhere = Names::of(elsewhere);
    let is_near = |other: &&OpenBarrier| {
        other.size == *size && is_slip(other.name.as_str().as_bytes(), name.as_str().as_bytes())
    };
    let near = all.iter().take(LOOKED_AT).find(is_near);
    let near = if_some(near, |near| {
        format!(
            "; `{}` is another: {} of {size} ({})",
            near.name,
            near.arrived,
            Names::of(near.there.iter().cloned())
        )
    });
    let [present, missing, silent, gave_up, refused] =
        [there, missing, silent, gave_up, refused].map(|who| Names::of(who.iter().cloned()));
    let named = if present.is_empty() { String::new() } else { format!(" ({present})") };
    let (have, waited) = (has(*arrived as usize), Elapsed(now.since(*since)));
    let up_to = if *arrived > 1 { "up to " } else { "" };
    let reason = Code::WaitingAtBarrier
        .says(format!(
            "the barrier `{name}`: {arrived} of {size} {have} arrived{named} and waited {up_to}{waited}"
        ))
        .held(&present)
        .joined(Place::Process, *arrived, Some(*size))
        .lacks("missing", Place::Process, &missing, Presence::NeverSeen)
        .and("at another barrier", &elsewhere)
        .lacks("of these not heard from any more", Place::Process, &silent, Presence::Silent)
        .lacks("arrived, and gave up", Place::Process, &gave_up, Presence::Left)
        .and("came and was refused", &refused)
        .when(!near.is_empty(), |reason| reason.then(&near).look_at(SLIP))
        .when(!refused.is_empty(), |reason| {
            reason.severe(Severity::Warning).look_at(
                "let all come with the same number of participants (--nodes) or the same --members, each by \
                 a name of those",
            )
        });
    let came = there.iter().map(|who| Evidence::by_name(Seen::Joined, who.clone(), *since));
    Finding::new(reason, name.to_string(), *since).seen(came)
}
