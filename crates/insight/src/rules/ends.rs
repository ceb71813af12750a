//! How runs end, and who comes to one that has ended.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::facts::{Ended, Links, Plan, SETTLE, TrackedNode, TrackedRun, missing};
use crate::reason::{
    CLOSED, Code, Evidence, Finding, GONE, Names, Place, Presence, Reason, Sighting, if_any, if_some,
};
use crate::totals::Tally;
use rallypoint_api::{Expected, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::addresses::MOST_RANKS;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

/// All agents arrived at the exit barrier.
pub(crate) fn finished(run: &TrackedRun, nodes: u32, ran: Elapsed, now: Timestamp) -> Finding {
    let said = format!("finished: {} after {ran}", Place::Node.count(nodes));
    let reason = Code::RunFinished.says(said).predicate().joined(Place::Node, nodes, Some(nodes));
    Finding::of_round(reason, run.round.number, now)
}

/// An agent closed the run, and wrote that on this connection.
pub(crate) fn closed(run: &TrackedRun, conn: ConnId, wrote: Evidence, plan: &Plan) -> Finding {
    let reason = if let (Some(_), Some(nodes)) = (run.round.completed, run.round.group) {
        let others = run.still_running().filter(|node| node.conn != Some(conn));
        let running = Names::of(others.map(TrackedNode::label));
        let finished = run.round.exit.len();
        Code::RunClosed
            .says(format!(
                "closed by {} when {finished} of {} had finished",
                wrote.who,
                Place::Node.count(nodes)
            ))
            .expects(Some(nodes))
            .lacks("still in the round", Place::Node, &running, Presence::Connected)
            .tally(Tally::Closed)
    } else {
        let expected = run.expected(plan);
        let (joined, min) = (run.round.most_joined, expected.map(|expected| expected.min));
        let present = &run.round.most_present;
        let was = if present.count() == 1 { "; there was " } else { "; there were " };
        Code::RunClosed
            .says(format!("closed by {} at {} and never complete", wrote.who, Place::Node.of(joined, min)))
            .severe(Severity::Error)
            .look_at(
                "the first node that is stopped or gives up closes the run for all; give them more time \
                 with --rdzv-conf join_timeout=1800 and look for the nodes that did not come",
            )
            .joined(Place::Node, joined, min)
            .held(present)
            .lacks("missing", Place::Node, &never_joined(run, plan, expected), Presence::NeverSeen)
            .then(&if_any(was, present))
            .tally(Tally::TimedOut)
    };
    Finding::of_round(reason, run.round.number, wrote.at).seen([wrote])
}

/// The names of the nodes that a round which was closed has never had. Those that gave up before have
/// left its state.
fn never_joined(run: &TrackedRun, plan: &Plan, expected: Option<Expected>) -> Names {
    let wanted = expected.map_or(0, |expected| expected.min.saturating_sub(run.round.most_joined));
    let had = |name: &String| {
        run.round.most_present.shown.contains(name)
            || run.participants().any(|node| node.name == *name)
            || run.lingering().any(|node| node.name == *name)
    };
    let missing = missing(run, plan, expected).into_iter().filter_map(|node| node.name);
    Names::of(missing.filter(|name| !had(name)).take(wanted as usize))
}

/// These agents have come to a run that is closed.
pub(crate) fn turned_away(run: &TrackedRun, came: Vec<Evidence>) -> Option<Finding> {
    let (closed, first) = (run.round.closed?, came.first()?.at);
    let newcomers = Names::of(came.iter().map(|came| came.who.clone()));
    let hosts: BTreeSet<IpAddr> = came.iter().filter_map(|came| Some(came.peer?.ip())).collect();
    let about = Names::of(hosts.iter().map(IpAddr::to_string)).to_string();
    let (by, finished) = (run.round.closed_by.as_ref(), run.round.exit_done.is_some());
    let closed_for = Elapsed(first.since(closed));
    let was = if finished { "finished and was closed" } else { "was closed" };
    let by = if_some(by, |by| format!(" by {by}"));
    let reason = Code::JoinRefused
        .says(format!("{newcomers} cannot join: the run {was}{by} {closed_for} before"))
        .severe(Severity::Error)
        .look_at(CLOSED)
        .held(&newcomers);
    Some(Finding::new(reason, about, first).seen(came))
}

/// What is said of a run whose processes have all left just now. `before`: its state until then.
pub(crate) fn all_gone(run: &TrackedRun, before: RunState, now: Timestamp) -> Option<Finding> {
    let (world, about) = (&run.world, run.round.number.to_string());
    let meeting = world.shown();
    let processes = meeting.met.and(meeting.size).unwrap_or_else(|| world.most_processes());
    let at = world.ended.unwrap_or(now);
    let ended = |since: Option<Timestamp>, first| {
        let ran = Elapsed(at.since(since.unwrap_or(at)));
        Some(all_ended(about.clone(), Ended { at, processes, ran, first }, 0))
    };
    match (run.state, run.has_agents()) {
        // An earlier explanation said it.
        (RunState::Gone, _) if run.life.was_cut_off => None,
        (RunState::Gone, true) => {
            let known = || run.round.most_joined.max(count(run.nodes().count()));
            let members = run.round.group.unwrap_or_else(known);
            let had_finished = match run.round.exit.len() {
                0 => ", and none had finished".to_owned(),
                finished => format!(", and only {finished} had finished"),
            };
            let whose = Place::Node.connections_of(members);
            let reason = all_closed(&whose, members, &had_finished, first_to_leave(run, now));
            let reason = reason.severe(Severity::Warning);
            Some(Finding::new(reason, about, run.life.all_gone.unwrap_or(now)))
        }
        // Clients of the store that never were ranks: what they came for is not known.
        (RunState::Gone, false) if meeting.is_empty() => None,
        // Whether all had met is not known: gloo's lazy addresses do not say how many there are.
        (RunState::Gone, false) if meeting.size.is_none() => ended(run.round.started, None),
        (RunState::Gone, false) => {
            let at_once = world.closed_at_once(processes).filter(|_| processes > 1);
            let are_last = at_once.is_some_and(|(.., are_last)| are_last);
            let at_once = if_some(at_once, |(within, waiting, _)| {
                let waited = match waiting {
                    0 => String::new(),
                    all if all >= processes => " while they waited".to_owned(),
                    some => format!(", {some} of them while they waited"),
                };
                format!(" within {}{waited}", Elapsed(within.0.max(Duration::from_millis(1))))
            });
            let unseen = (0..meeting.size.unwrap_or_default().min(MOST_RANKS)).filter(|&rank| {
                world.holder(meeting, rank).is_none() && world.met_elsewhere(meeting, rank).is_none()
            });
            let unseen = Names::of_some(unseen, |rank| format!("rank {rank}"));
            let whose = if are_last {
                format!("the connections of the last {}", Place::Process.count(processes))
            } else {
                Place::Process.connections_of(processes)
            };
            let reason = all_closed(&whose, processes, &at_once, None).severe(Severity::Warning);
            let reason = reason.lacks("never published", Place::Rank, &unseen, Presence::NeverSeen);
            Some(Finding::new(reason, about, at))
        }
        (RunState::Ended, false) if before != RunState::Ended => {
            ended(meeting.first_met.or(run.round.started), meeting.first_to_end())
        }
        _ => None,
    }
}

/// What ended first of a run whose agents have all left: a rank, where they had met here, or else a node, of
/// several. The agents of other backends than the static one end each other, within a moment.
fn first_to_leave(run: &TrackedRun, now: Timestamp) -> Option<String> {
    let rank = run.first_ended(now).map(|(rank, _)| rank);
    let mut gone: Vec<_> = run.participants().filter_map(|node| Some((node.gone?, node))).collect();
    gone.sort_by_key(|(at, _)| *at);
    let mut died = gone.iter().skip_while(|(_, node)| node.finished);
    let node = || {
        let ((first, node), (second, _)) = (died.next()?, died.next()?);
        let moment = if run.kind == RunKind::Static { Duration::from_nanos(1) } else { SETTLE };
        (second.since(*first) >= moment).then(|| node.told())
    };
    rank.or_else(node)
}

/// Every process of a run without agents has ended, or all who had met while so many others are there.
pub(crate) fn all_ended(about: String, ended: Ended, others: u32) -> Finding {
    let Ended { at, processes, ran, first } = ended;
    let first = first.filter(|(_, before)| before.0.as_millis() > 0);
    let first = first.map(|(rank, before)| format!("{rank}, {before} before the last"));
    let whose = Place::Process.connections_of(processes);
    let (those, left) = match others {
        0 => ("", String::new()),
        _ => (" that had met", format!("; {}", Place::Process.left(others, None))),
    };
    let reason = all_closed(&format!("{whose}{those}"), processes, &format!(" after {ran}"), first);
    Finding::new(reason.then(&left), about, at)
}

/// All these connections closed. `first`: what ended first, if known.
fn all_closed(whose: &str, members: u32, how: &str, first: Option<String>) -> Reason {
    let first = if_some(first, |first| format!("; first: {first}"));
    Code::RunEnded.says(format!("{whose} closed{how}{first}")).expects(Some(members))
}

/// Some nodes have finished, and others have not.
pub(crate) fn at_exit(run: &TrackedRun, links: &Links, now: Timestamp) -> Option<Finding> {
    let round = &run.round;
    let since = round.exit_since.filter(|_| round.exit_done.is_none())?;
    // Agents of a native run tell the rendezvous when they have passed it.
    if run.native.is_some() && round.group.is_some_and(|group| round.exit.len() >= group as usize) {
        return None;
    }
    // Torch has taken these out of the round, and waits for them all the same.
    let is_of_round = |node: &&TrackedNode| {
        node.rank.is_some() && round.completed.is_some_and(|completed| node.last_seen() >= completed)
    };
    let former = run.former().filter(is_of_round);
    let lost = run.participants().chain(former).filter(|node| node.is_lost());
    let is_away = |node: &TrackedNode| node.peer.is_some_and(|peer| links.is_away(peer));
    let last = |node: &TrackedNode| match node.gone_as() {
        Some(gone) => gone,
        None if node.is_not_back() => Presence::NotBack.into(),
        None if node.is_unheard || is_away(node) => Presence::Silent.into(),
        None => Presence::Connected.into(),
    };
    let taken_out = run.lingering().filter(|node| node.is_silent());
    let running = run.still_running().filter(|node| !node.is_lost());
    let seen = lost.chain(running).map(|node| (node, last(node)));
    let taken_out = taken_out.map(|node| (node, Sighting::at(Presence::TakenOut, node.last_heartbeat)));
    let absent: Vec<_> = seen.chain(taken_out).collect();
    let (arrived, nodes, waited) = (count(round.exit.len()), run.exit_size(), Elapsed(now.since(since)));
    let have = Place::Node.have(arrived, nodes);
    let up_to = if arrived > 1 { "up to " } else { "" };
    // What had arrived before a restart of the server may not be counted.
    let nobody_lacks = absent.is_empty() && !run.misses_exits() && nodes.is_none_or(|nodes| arrived >= nodes);
    let is_well = |seen: &Sighting| matches!(seen.presence, Presence::Connected | Presence::NotBack);
    let are_well = absent.iter().all(|(_, seen)| is_well(seen));
    let has_arrived = |node: &&TrackedNode| node.conn.is_some_and(|conn| round.exit.contains(&conn));
    let gone = run.nodes().filter(|node| node.gone.is_some()).filter(has_arrived);
    let gone = Names::of(gone.map(TrackedNode::label));
    let nobody_waits = arrived > 0 && gone.count() == round.exit.len() && !run.misses_exits();
    let is_note = are_well && !nobody_lacks && (waited.0 < LONG_AT_EXIT || nobody_waits);
    let waits = if nobody_waits { ", and nobody waits" } else { &format!(" and waited {up_to}{waited}") };
    let reason = Code::ExitBarrier
        .says(format!("{have} finished{waits} at the exit barrier"))
        .and("gone from there", &gone)
        .severe(if is_note { Severity::Info } else { Severity::Warning })
        .joined(Place::Node, arrived, nodes)
        .lacks_each(Place::Node, absent.iter().map(|(node, seen)| (node.label(), seen.clone())))
        .when(nobody_waits || !are_well, |reason| reason.look_at(GONE))
        .when(nobody_lacks, |reason| {
            reason.then("; no other node is known").look_at(
                "one of them counts on more nodes than have come: start every node with the same --nnodes; \
                 agents wait for the others up to 300 s, and end then",
            )
        });
    let seen = absent.into_iter().map(|(node, Sighting { presence, at, .. })| {
        let (seen, at) = match presence {
            Presence::Closed => (Seen::Closed, at),
            Presence::TakenOut => (Seen::Heard, at),
            _ => (Seen::Joined, None),
        };
        node.evidence(seen, None, at.unwrap_or(node.joined))
    });
    Some(Finding::of_round(reason, run.round.number, since).seen(seen))
}

/// Nodes that evaluate in the end may well let others wait at the exit barrier for less than this.
const LONG_AT_EXIT: Duration = Duration::from_mins(2);
