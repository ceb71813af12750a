//! What begins, is complete, or goes on again.

use crate::facts::{Meeting, Restarting, TrackedNode, TrackedRun};
use crate::reason::{
    Code, Finding, GONE, Names, Place, Presence, Reason, all, ended_first, has, if_some, says_who,
};
use crate::totals::Tally;
use rallypoint_api::{Expected, ExpectedFrom, Seen, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, counted};
use rallypoint_rendezvous::{Fact, What};

/// A round begins, with `who` as the first.
pub(crate) fn started(
    run: &TrackedRun,
    who: String,
    expected: Option<Expected>,
    first_ended: Option<(String, Elapsed)>,
    at: Timestamp,
) -> Finding {
    let (expected, from) = expected.map(|known| (known.min, known.source)).unzip();
    let expects = if_some(expected.zip(from), |(n, from)| match from {
        ExpectedFrom::EarlierRound => format!("; the round before had {}", Place::Node.count(n)),
        from => format!("; {} expected ({})", counted(n, "node is", "nodes are"), says_who(from)),
    });
    let reason = Code::RunStarted
        .says(format!("started: {who} is the first{expects}{}", ended_first(first_ended)))
        .predicate()
        .expects(expected)
        .from(from)
        .held(&Names::of([who]));
    Finding::of_round(reason, run.round.number, at)
}

/// A run that had finished is started again.
pub(crate) fn again(at: Timestamp) -> Finding {
    let reason = Code::RunStarted
        .says("had finished and is started again")
        .predicate()
        .severe(Severity::Warning)
        .look_at("a late node would train alone over the checkpoints: stop it if this is not a new run");
    Finding::new(reason, "", at)
}

/// All nodes of its round have come, and `last` did so last; of these `dead` had left before: torch had not
/// noticed, and counts on them.
pub(crate) fn round_complete(run: &TrackedRun, last: &TrackedNode, dead: &[&TrackedNode]) -> Option<Finding> {
    let (nodes, at) = run.round.group.zip(run.round.completed)?;
    let started = run.round.started.unwrap_or(at);
    let took = Elapsed(at.since(started));
    let (name, after) = (last.told(), Elapsed(last.joined.since(started)));
    let text = format!("complete: {} in {took}; last: {name} (+{after})", Place::Node.count(nodes));
    let reason = Code::RoundComplete.says(text).predicate().joined(Place::Node, nodes, Some(nodes));
    let reason = reason.tally(Tally::Complete(took.0)).when(!dead.is_empty(), |reason| {
        let dead = Names::of(dead.iter().map(|node| node.label()));
        let counts = format!("; it counts {dead}, whose connection had closed");
        let reason = reason.then(&counts).misses(Place::Node, &dead, Presence::Closed);
        reason.severe(Severity::Error).look_at(GONE)
    });
    let closed = dead.iter().filter_map(|node| Some(node.evidence(Seen::Closed, None, node.gone?)));
    Some(Finding::of_round(reason, run.round.number, at).seen(closed))
}

/// All ranks of a meeting have published their addresses.
pub(crate) fn ranks_met(meeting: &Meeting, before: Option<Timestamp>) -> Option<Reason> {
    let (last, took) = meeting.last(before)?;
    let ranks = meeting.joined();
    let published = match ranks {
        1 => format!("{last} is its only rank, and has published its address"),
        n => format!("{} have published their addresses in {took}; last: {last} (+{took})", all(n, "ranks")),
    };
    Some(Code::RoundComplete.says(published).joined(Place::Rank, ranks, Some(ranks)))
}

/// The workers are to meet in another store. They may be led here, and import still.
pub(crate) fn elsewhere(address: &str, now: Timestamp) -> Finding {
    let text =
        format!("rank 0's agent told the workers to meet at {address}; who meets there is not seen here");
    Finding::new(Code::WorkersElsewhere.says(text), "", now)
}

/// Nodes that others have taken out of the round, which are heard from again and go on with it.
pub(crate) fn back(
    run: &TrackedRun,
    back: &[&TrackedNode],
    after: Elapsed,
    expected: Option<u32>,
    now: Timestamp,
) -> Finding {
    let heard = back.iter().map(|node| node.evidence(Seen::Heard, None, now)).collect::<Vec<_>>();
    let nodes = Names::of(back.iter().map(|node| node.label()));
    let about = nodes.to_string();
    let (have, joined) = (has(nodes.count()), run.joined());
    let there = Place::Node.of(joined, expected);
    let reason = Code::NodeBack
        .says(format!("{nodes} {have} been heard from again after {after}: {there} there"))
        .joined(Place::Node, joined, expected)
        .held(&nodes);
    Finding::new(reason, about, now).seen(heard)
}

/// Static: nodes start their workers again.
pub(crate) fn restarted(restarting: Restarting, now: Timestamp) -> Finding {
    let Restarting { nodes, first_ended } = restarting;
    let since = nodes.first().map_or(now, |first| first.at);
    let names = Names::of(nodes.iter().map(|node| node.who.clone()));
    let about = format!("{names} {since:?}");
    let reason = Code::RoundOver
        .says(format!("{names}: all workers ended and started again{}", ended_first(first_ended)))
        .held(&names);
    Finding::new(reason, about, since).seen(nodes)
}

/// The nodes that are left of the round before, if they are all nodes of this one and start no workers
/// anew: processes of a run with a grace for closed connections meet again as they are
/// (`rallypoint.elastic`).
pub(crate) fn survivors(run: &TrackedRun, Fact { round, what, .. }: &Fact, at: Timestamp) -> Option<String> {
    let What::Complete { nodes, .. } = what else { return None };
    let over = run.life.over.as_ref().filter(|over| over.lost > 0 && run.is_elastic())?;
    let is_next = over.round.saturating_add(1) == *round && over.left == *nodes;
    let (of, after) = (nodes.saturating_add(over.lost), Elapsed(at.since(over.at)));
    is_next.then(|| {
        format!(
            "round {round} complete: {nodes} of {of} go on {after} later, nobody was started again; \
             lost: {}",
            over.how
        )
    })
}
