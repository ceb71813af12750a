//! What holds in one run as time goes by, apart from what its waits show.

use crate::facts::{Links, Membership, Plan, TrackedNode, TrackedRun, missing};
use crate::reason::{
    Code, Finding, Hold, Names, Place, Presence, Reason, Sighting, are, have_waited, if_any, says_who,
    waits_since,
};
use rallypoint_api::{Expected, ExpectedFrom, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, count};

/// c10d: when its round was complete, if that goes on, and with how many nodes.
fn complete(run: &TrackedRun) -> Option<(Timestamp, u32)> {
    let goes_on = run.kind == RunKind::C10d && !run.state.is_over();
    run.round.completed.zip(run.round.group).filter(|_| goes_on)
}

/// Nodes that wait beside a complete round, or for the next one while some members have not left this one. A
/// static node beyond the number is an error of its own.
pub(crate) fn left_over(run: &TrackedRun, place: Membership, now: Timestamp) -> Option<Finding> {
    let (completed, group) = complete(run)?;
    let nodes: Vec<&TrackedNode> = run.left_over(place).collect();
    let since = nodes.iter().map(|node| node.membership_since).min()?.max(completed);
    let redundant = place == Membership::Redundant;
    let is_restarting = run.state == RunState::Restarting && !redundant;
    let staying = run.still_running().filter(|_| is_restarting);
    let staying: Vec<_> = staying.map(|node| (node.label(), Presence::Connected.into())).collect();
    // Once a member has died or left there is a place, which torch gives them as soon as it has noticed.
    let has_place = if is_restarting { staying.is_empty() } else { run.listed() < group };
    let dead = run.participants().filter(|node| has_place && node.is_dead());
    let mut dead = dead.filter_map(|node| Some((node.label(), node.gone_as()?))).peekable();
    if has_place && dead.peek().is_none() {
        return None;
    }
    let joined = nodes.iter().map(|node| node.evidence(Seen::Joined, None, node.membership_since));
    let left_over = Names::of(nodes.iter().map(|node| node.name.clone()));
    let waited = Elapsed(now.since(since));
    let fewer = redundant && nodes.iter().all(|node| node.asks_not_for == Some(group));
    let asked = if fewer { "; asked for fewer nodes" } else { "" };
    let beside = if is_restarting { "for the round after one" } else { "beside a complete round" };
    let get_a_place = dead.peek().is_some();
    let is_spare = get_a_place || redundant && !fewer;
    let reason = Code::StandsBy
        .says(format!(
            "{left_over} {} {waited} {beside} of {}{asked}",
            have_waited(left_over.count()),
            Place::Node.count(group)
        ))
        .held(&left_over)
        .lacks_each(Place::Node, staying.into_iter().chain(dead))
        .when(get_a_place, |reason| reason.look_at(GET_A_PLACE))
        .when(!is_spare, |reason| {
            reason.severe(Severity::Warning).look_at(
                "look at the agents that are in the round still: torch stops its workers to begin a round \
                 with all, which may take half a minute. Start every node with the same --nnodes; a second \
                 job needs another --rdzv-id",
            )
        });
    Some(Finding::new(reason, redundant.to_string(), since).seen(joined))
}

const GET_A_PLACE: &str = "look at those that are gone: when torch has taken them out of the round, 15 s \
                           after their last heartbeats, the next one begins with as many as --nnodes says";

pub(crate) fn joining(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Option<Finding> {
    let is_joining = run.state == RunState::Joining && run.has_agents();
    // What a reset of the store has dropped is waited for, and said with that.
    let is_reset = run.kind == RunKind::C10d && run.round.reset.is_some();
    let since = run.round.started.filter(|_| is_joining && !is_reset && run.round.completed.is_none())?;
    let expected = run.expected(plan);
    let there = || run.left_over(Membership::Participant);
    let joined = count(there().count());
    // Else the waits of a static run show what is missing.
    let is_plain = expected.is_some() && run.not_again().next().is_none();
    let reason = match (expected.filter(|expected| joined >= expected.min), run.kind) {
        (Some(enough), RunKind::C10d) => not_enough(run, joined, enough, Elapsed(now.since(since))),
        (None, kind) if joined > 0 && (kind == RunKind::C10d || is_plain) => {
            let present = Names::of(there().map(|node| node.name.clone()));
            let first = there().map(|node| node.joined).min();
            // When those of before a restart came is not known.
            let first = first.filter(|first| run.restored.is_none_or(|at| *first > at)).unwrap_or(since);
            let all = missing(run, plan, expected);
            let absent = all.iter().map(|node| {
                let announced = node.name.as_deref().filter(|_| node.presence == Presence::Announced);
                let seen = announced.map(|pod| links.since_announced(plan, pod, node.last_seen));
                (node.label(), seen.unwrap_or_else(|| node.seen()))
            });
            nodes_missing(joined, expected, absent.collect(), &present, Elapsed(now.since(first)))
        }
        _ => return None,
    };
    let joins = there().map(|node| node.evidence(Seen::Joined, None, node.membership_since));
    Some(Finding::of_round(reason, run.round.number, since).seen(joins))
}

/// c10d: as many nodes have joined as should be enough, and the round is not complete after so long.
fn not_enough(run: &TrackedRun, joined: u32, enough: Expected, waited: Elapsed) -> Reason {
    let Expected { min: expected, source: from, .. } = enough;
    let former = run.former().filter(|node| node.round == run.round.number);
    let others = run.participants().chain(former).filter(|node| node.asks_not_for == Some(expected));
    let other = others.max_by_key(|node| node.is_there());
    let who = run.life.asks_for_more.clone().unwrap_or_else(|| Names::of(other.map(TrackedNode::told)));
    let (joined_have, are) = (Place::Node.have(joined, None), are(expected as usize));
    Code::NnodesDiffer
        .says(format!(
            "{joined_have} joined and the round is not complete after {waited}, although {expected} by {} \
             {are} enough{}",
            says_who(from),
            if_any("; asked for another number: ", &who)
        ))
        .severe(Severity::Warning)
        .hold(Hold::Lasting)
        .joined(Place::Node, joined, Some(expected))
        .from(Some(from))
}

/// The round is complete with fewer nodes than an outside source expects.
pub(crate) fn fewer_than_expected(run: &TrackedRun, plan: &Plan) -> Option<Finding> {
    let (since, formed) = complete(run)?;
    let Expected { min: expected, source: from, .. } =
        plan.expected().filter(|expected| formed < expected.min)?;
    let left_over = Names::of(run.left_over(Membership::WaitList).map(|node| node.name.clone()));
    let reason = Code::NnodesDiffer
        .says(format!(
            "the round is complete with {}, but {expected} are expected by {}",
            Place::Node.count(formed),
            says_who(from)
        ))
        .look_at(
            "if the job is right, correct what is expected; else start every node with the same --nnodes",
        )
        .and("left over", &left_over)
        .held(&left_over)
        .joined(Place::Node, formed, Some(expected))
        .from(Some(from));
    Some(Finding::of_round(reason, run.round.number, since))
}

/// Nodes have not joined; the first of those that have waits so long.
fn nodes_missing(
    joined: u32,
    expected: Option<Expected>,
    absent: Vec<(String, Sighting)>,
    present: &Names,
    first: Elapsed,
) -> Reason {
    let (min, from) = expected.map(|expected| (expected.min, expected.source)).unzip();
    let lacks = min.unwrap_or(0).saturating_sub(joined) as usize;
    let waits = waits_since(joined, first);
    let text = match min {
        None => format!("{} joined ({present}){waits}", Place::Node.have(joined, None)),
        Some(_) => format!("{} joined{waits}", Place::Node.have(joined, min)),
    };
    // Who was seen most of tells most.
    let last = absent.iter().map(|(_, seen)| seen.presence).max();
    let look_at = match last.filter(|_| absent.len() >= lacks) {
        Some(last) => Sighting::from(last).look_at(Place::Node),
        None if min.is_none() => {
            "tell the server how many are expected (rallypoint ctl expect RUN N, or serve --nodes), and look \
             which pods have not started, do not reach this server, or have another --nnodes or --rdzv-id"
        }
        None => Code::NodesMissing.rule().look_at,
    };
    // The names of some that are missing are not known.
    let there = if absent.len() < lacks { present.clone() } else { Names::default() };
    let counted_by = match (from, min) {
        // Others may see it differently.
        (Some(from @ (ExpectedFrom::EarlierRound | ExpectedFrom::RoleExchange)), Some(min)) => {
            format!(" ({min} by {})", says_who(from))
        }
        _ => String::new(),
    };
    Code::NodesMissing
        .says(text)
        .then(&counted_by)
        .look_at(look_at)
        .held(present)
        .joined(Place::Node, joined, min)
        .from(from)
        .lacks_each(Place::Node, absent)
        .and("there", &there)
}
