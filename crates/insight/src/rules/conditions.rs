//! What holds in one run as time goes by, apart from what its waits show.

use std::collections::BTreeMap;

use crate::facts::links::Links;
use crate::facts::missing::{missing, turned_away};
use crate::facts::plan::Plan;
use crate::facts::run::{Membership, TrackedNode, TrackedRun};
use crate::reason::presence::{AGENT, ANNOUNCED, GONE, Place, Presence, Sighting};
use crate::reason::words::{are, have_waited, if_any, if_some, says_who, waits_since};
use crate::reason::{Code, Finding, Hold, Names, Reason};
use crate::rules::addresses::unreachable;
use crate::rules::ends::at_exit;
use crate::rules::losses::{ranks_ended, ranks_missing};
use rallypoint_api::{Expected, ExpectedFrom, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, count};
use rallypoint_rendezvous::gate::{Announcement, GateSnapshot, GateState, Missing, TurnedAway};

/// What holds in one run, apart from what its waits show.
pub(crate) fn of_run(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Vec<Finding> {
    let mut held = Vec::new();
    if run.native.is_some() {
        let expected = run.expected(plan);
        let announced =
            missing(run, plan, expected).into_iter().filter(|node| node.presence == Presence::Announced);
        let announced: Vec<String> = announced.filter_map(|node| node.name).collect();
        held.extend(run.native_waits(&announced, now));
        held.extend(run.native_expires(now));
        held.extend(run.native_spares(now));
        held.extend(store_closed(run, now));
    } else {
        held.extend(joining(run, plan, links, now));
        if let (Some(completed), Some(group), false) =
            (run.round.completed, run.round.group, run.state.is_over())
        {
            held.extend(fewer_than_expected(run, plan, group, completed));
            let places = [Membership::WaitList, Membership::Redundant];
            held.extend(places.into_iter().filter_map(|place| left_over(run, group, completed, place, now)));
        }
    }
    held.extend(at_exit(run, links, now));
    held.extend(ranks_ended(run, links, now));
    held.extend(ranks_missing(run, now));
    held.extend(unreachable(run));
    held
}

/// The store of a native round is gone, and the round goes on.
fn store_closed(run: &TrackedRun, now: Timestamp) -> Option<Finding> {
    let round = &run.round;
    let since = round.reset.filter(|_| run.goes_on() && round.completed.is_some())?;
    let ago = Elapsed(now.since(since));
    let reason = Code::StoreReset
        .says(format!("an operator's reset closed the store of round {} {ago} ago", round.number))
        .severe(Severity::Info)
        .hold(Hold::Soon)
        .look_at(
            "nothing, if the ranks go on and need no store any more; else start all agents of the job again, \
             together: the next round has a store of its own",
        );
    Some(Finding::of_round(reason, run.round.number, since))
}

/// Nodes that wait beside a complete round, or for the next one while some members have not left this one. A
/// static node beyond the number is an error of its own.
fn left_over(
    run: &TrackedRun,
    group: u32,
    completed: Timestamp,
    place: Membership,
    now: Timestamp,
) -> Option<Finding> {
    let nodes: Vec<&TrackedNode> = run.left_over(place).filter(|_| run.kind == RunKind::C10d).collect();
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
        .when(is_spare && is_restarting, |reason| {
            reason.look_at(
                "look at those that are gone: the next round begins when torch has taken them out, 15 s \
                 after their last heartbeats, and waits for as many nodes as --nnodes says",
            )
        })
        .when(!is_spare, |reason| {
            reason.severe(Severity::Warning).look_at(
                "look at the agents that are in the round still: torch stops its workers to begin a round \
                 with all, which may take half a minute. Start every node with the same --nnodes; a second \
                 job needs another --rdzv-id",
            )
        });
    Some(Finding::new(reason, redundant.to_string(), since).seen(joined))
}

const GET_A_PLACE: &str = "they get the places of those that are gone when torch has taken these out of the \
                           round, 15 s after their last heartbeats";

fn joining(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Option<Finding> {
    let is_joining = run.state == RunState::Joining && run.has_agents();
    // What a reset of the store has dropped is waited for, and said with that.
    let is_reset = run.kind == RunKind::C10d && run.round.reset.is_some();
    let since = run.incomplete_since().filter(|_| is_joining && !is_reset)?;
    let expected = run.expected(plan);
    let there = || run.left_over(Membership::Participant);
    let joined = count(there().count());
    // Else the waits of a static run show what is missing.
    let is_plain = expected.is_some() && run.not_again().next().is_none();
    let reason = match (expected.filter(|expected| joined >= expected.min), run.kind) {
        (Some(enough), RunKind::C10d) => not_enough(run, joined, enough, Elapsed(now.since(since))),
        (None, kind) if joined > 0 && (kind == RunKind::C10d || is_plain) => {
            let present = Names::of(there().map(|node| node.name.clone()));
            let first = there().map(|node| node.joined).min().map_or(since, |first| first.max(since));
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
        .look_at(
            "stop all agents of the job, and start them with the same --nnodes, which is the number to \
             expect (rallypoint ctl expect RUN N, or serve --nodes); a second job needs another --rdzv-id",
        )
        .joined(Place::Node, joined, Some(expected))
        .from(Some(from))
}

/// The round is complete with fewer nodes than an outside source expects.
fn fewer_than_expected(run: &TrackedRun, plan: &Plan, formed: u32, since: Timestamp) -> Option<Finding> {
    let Expected { min: expected, source: from, .. } =
        plan.expected().filter(|expected| formed < expected.min && run.kind == RunKind::C10d)?;
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

/// What the gate shows, whether the run has traffic or not.
pub(crate) fn of_gate(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Vec<Finding> {
    let Some(gate) = plan.gate() else { return Vec::new() };
    let mut held = Vec::new();
    let since = run.first_seen.max(gate.since);
    let mut hold = |about: String, reason, since| held.push(Finding::new(reason, about, since));
    let held_back = || gate.turned_away.iter().filter(|pod| pod.gone.is_none()).map(|pod| &pod.said);
    let all = || gate.pods.iter().chain(held_back());
    let first = gate.pods.first();
    if let Some((pod, other)) =
        first.and_then(|pod| Some((pod, all().find(|other| other.nodes != pod.nodes)?)))
    {
        let text = format!(
            "the pods disagree on the number of nodes: {} expects {}, {} expects {}",
            pod.pod, pod.nodes, other.pod, other.nodes
        );
        hold(String::new(), Code::NnodesDiffer.says(text), since);
    }
    for (pod, rank) in held_back().filter_map(|pod| Some((pod, pod.node_rank?))) {
        if let Some(holder) = plan.pod_of_rank(rank) {
            let label = |pod: &Announcement| format!("pod {} at {}", pod.pod, pod.shown_at());
            let all = Names::of([label(holder), format!("{}, which is held back", label(pod))]);
            let reason = Reason::claimed(&format!("node rank {rank}"), &all, &Names::default());
            hold(format!("node {rank}"), reason, since);
        }
    }
    if let Some(versions) = &gate.versions {
        let text = format!("the pods have different versions of PyTorch: {versions}");
        hold(String::new(), Code::TorchVersionsDiffer.says(text), since);
    }
    if run.kind != RunKind::Announced {
        return held;
    }
    match gate.state {
        GateState::Open { since } => hold(String::new(), pods_idle(gate, plan, links, since, now), since),
        GateState::Gathers => hold(String::new(), pods_missing(gate, now), gate.since),
        GateState::OpenBefore => {}
    }
    held
}

/// Nothing has come from the processes of the pods that have passed their gate.
fn pods_idle(gate: &GateSnapshot, plan: &Plan, links: &Links, opened: Timestamp, now: Timestamp) -> Reason {
    let gone = gate.known().filter_map(|pod| {
        let seen = links.since_announced(plan, pod.name, None);
        (seen.presence != Presence::Announced).then(|| (pod.name.to_owned(), seen))
    });
    let gone: BTreeMap<_, _> = gone.collect();
    let pods = count(gate.announced());
    Code::PodsIdle
        .says(format!(
            "{} announced, and no process connected for {}",
            Place::Pod.count(pods),
            Elapsed(now.since(opened))
        ))
        .severe(if gone.is_empty() { Severity::Info } else { Severity::Warning })
        .joined(Place::Pod, pods, None)
        .lacks_each(Place::Pod, gone)
}

/// Pods have not announced themselves, and those that have are held back.
fn pods_missing(gate: &GateSnapshot, now: Timestamp) -> Reason {
    let waited = Elapsed(now.since(gate.since));
    let (announced, expected) = (count(gate.pods.len()), gate.nodes.min);
    // One that was turned away with the rank of another may be the one that is missing.
    let missing = gate.missing.iter().filter(|missing| turned_away(gate, missing.node_rank).is_none());
    let missing: Vec<_> = missing.map(|pod| (label(pod), of_missing(pod))).collect();
    let refused = gate.turned_away.iter().map(|TurnedAway { said, gone }| {
        let rank = if_some(said.node_rank, |rank| format!(" with rank {rank}"));
        let gone = if_some(*gone, |at| format!(" ({})", Sighting::at(Presence::Silent, at).says(now)));
        format!("pod {}{rank}{gone}", said.pod)
    });
    let refused = Names::of(refused);
    let gone = missing.iter().filter(|(_, seen)| seen.presence != Presence::NeverSeen).count();
    let look_at = match () {
        () if !refused.is_empty() => {
            "start the pods that were turned away with the number of nodes that the others have, each with \
             its own rank: one of them may be missing as another"
        }
        () if gone >= expected.saturating_sub(announced) as usize => GONE,
        () => Code::PodsMissing.rule().look_at,
    };
    Code::PodsMissing
        .says(format!("{announced} of {} announced for {waited}", Place::Pod.count(expected)))
        .look_at(look_at)
        .joined(Place::Pod, announced, Some(expected))
        .lacks_each(Place::Pod, missing)
        .and("turned away", &refused)
}

fn of_missing(missing: &Missing) -> Sighting {
    match missing.seen {
        None => Presence::NeverSeen.into(),
        Some(at) if missing.is_away => Sighting::at(Presence::Away, at),
        Some(at) => Sighting::at(Presence::Silent, at),
    }
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
    let seen = || absent.iter().map(|(_, seen)| seen.presence);
    let is_known = |seen| {
        use Presence::{Announced, Connected, NeverSeen, Unknown};
        matches!(seen, NeverSeen | Unknown | Announced | Connected)
    };
    let look_at = match seen().min() {
        _ if !seen().all(is_known) => GONE,
        _ if min.is_none() => {
            "tell the server how many are expected (rallypoint ctl expect RUN N, or serve --nodes), and look \
             which pods have not started, do not reach this server, or have another --nnodes or --rdzv-id"
        }
        Some(Presence::Connected) if absent.len() >= lacks => AGENT,
        Some(Presence::Announced) => ANNOUNCED,
        _ => Code::NodesMissing.rule().look_at,
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

fn label(missing: &Missing) -> String {
    let rank = missing.node_rank;
    match &missing.pod {
        Some(pod) => format!("pod {pod} with rank {rank}"),
        None => format!("pod with rank {rank}"),
    }
}
