//! Who is gone, and what was seen of it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::facts::{Dying, Links, Lost, Meeting, Passed, RunKey, TrackedNode, TrackedRun, with_pid};
use crate::reason::{
    Code, Evidence, Finding, Hold, Names, Place, Presence, Reason, Sighting, TAKEN_OUT, are, if_some,
};
use crate::totals::Tally;
use rallypoint_api::{RunState, Seen, Severity};
use rallypoint_protocol::addresses::MOST_RANKS;
use rallypoint_protocol::ids::{ConnId, Elapsed, Timestamp, count};

/// Nodes or ranks are gone: `how` that was seen, and how many are left.
fn lost_of(of: Place, who: &Names, how: &str, seen: Sighting, left: u32, expected: Option<u32>) -> Reason {
    let text = format!("{who}: {how}; {}", of.left(left, expected));
    Code::Lost.says(text).joined(of, left, expected).misses(of, who, seen)
}

/// What is lost had given up on others just before: a victim, and no error.
fn of_victims(reason: Reason) -> Reason {
    reason.then("; gave up on others before").severe(Severity::Warning).look_at(
        "look at what they gave up on, and why that was not there; their own logs say no more than that",
    )
}

/// Reports nodes, or processes without agents, that are gone in the same way.
pub(crate) fn gone(
    run: &TrackedRun,
    lost: Vec<Dying>,
    left: u32,
    expected: Option<u32>,
    since: Timestamp,
) -> Option<Finding> {
    let first = lost.first()?;
    let (cut_off, gave_up, in_round) = (first.is_cut_off, first.gave_up, first.in_round);
    let (round, has_agents) = (first.round, run.has_agents());
    let world = &run.world;
    // They may have met in the round before.
    let met = world.shown().met.filter(|met| run.round.completed.is_none_or(|round| *met >= round));
    let when = match () {
        () if has_agents && !in_round => ", while joining",
        () if met.is_some() => ", after all ranks had published their addresses",
        () if has_agents => ", after the round was complete",
        () => "",
    };
    let is_joining = !in_round && run.round.completed.is_none();
    let (left, expected, of) = if has_agents {
        (left, if is_joining { expected } else { run.round.group }, Place::Node)
    } else if world.is_unnamed() {
        (world.processes(), world.shown().size, Place::Process)
    } else {
        let present = world.meetings.iter().map(Meeting::present).sum();
        (present, world.shown().size, Place::Process)
    };
    let nodes = Names::of(lost.iter().map(|one| one.closed.who.clone()));
    let (about, seen) = (nodes.to_string(), Presence::gone(cut_off));
    let how = format!("{}{when}", seen.words());
    let reason = lost_of(of, &nodes, &how, Sighting::at(seen, since), left, expected)
        .when(!cut_off, |reason| reason.tally(Tally::Deaths(nodes.count())))
        .when(gave_up, of_victims);
    let saw = if cut_off { Seen::Unreachable } else { Seen::Closed };
    let gone = lost.into_iter().map(|one| Evidence { seen: saw, ..one.closed });
    Some(Finding::new(reason, about, since).seen(gone).in_round(Some(round)))
}

/// Agents take out whose last heartbeat is 15 s old by their own clocks; each write takes a moment.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);
const SET_CLOCKS: &str = "set the clocks of all nodes alike (NTP): each agent compares the times of the \
                          others' heartbeats with its own clock, and takes out who is 15 s behind it";

/// c10d: nodes that another one, which `wrote`, took out of this round.
pub(crate) fn taken_out(
    run: &TrackedRun,
    removed: &[&TrackedNode],
    round: u64,
    conn: ConnId,
    wrote: &Evidence,
) -> Option<Finding> {
    let heard = removed.iter().map(|node| node.last_heartbeat).max()?;
    if run.round.closed.is_some() || run.round.exit_done.is_some() {
        return None;
    }
    // When the next round begins, those of the last one are in it, or wait for it.
    let has_moved = run.round.number != round;
    let is_left = |node: &&TrackedNode| if has_moved { node.was_member } else { node.is_participant() };
    let left = count(run.nodes().filter(|node| node.is_there()).filter(is_left).count());
    let nodes = Names::of(removed.iter().map(|node| node.label()));
    let (about, by) = (nodes.to_string(), run.name_of(conn, wrote));
    let heard_of = removed.iter().map(|node| node.evidence(Seen::Heard, None, node.last_heartbeat));
    let evidence: Vec<_> = heard_of.chain([wrote.clone()]).collect();
    // When those of before a restart came is not known.
    let silent = Some(Elapsed(wrote.at.since(heard))).filter(|_| run.restored.is_none_or(|at| heard > at));
    let silent = if_some(silent, |silent| format!(", {silent} after the last heartbeat"));
    let how = format!("taken out of the round by {by}{silent}");
    let seen = Sighting::at(Presence::TakenOut, heard);
    let clock = run.node_of(conn).and_then(|node| node.clock);
    let behind = removed.iter().filter_map(|node| {
        let behind = Duration::from_micros(clock?.saturating_sub(node.clock?).try_into().ok()?);
        (behind >= CLOCKS_DIFFER).then(|| format!("{} ({} behind)", node.label(), Elapsed(behind)))
    });
    let behind = Names::of(behind);
    let reason = lost_of(Place::Node, &nodes, &how, seen, left, None)
        .look_at(TAKEN_OUT)
        .and(&format!("clocks differ from that of {by}"), &behind)
        .when(!behind.is_empty(), |reason| reason.look_at(SET_CLOCKS));
    Some(Finding::new(reason, about, wrote.at).seen(evidence).in_round(Some(round)))
}

/// Ranks of a meeting that ended before all had met.
pub(crate) fn ranks_lost(
    run: &TrackedRun,
    meeting: &Meeting,
    lost: Vec<Lost>,
    since: Timestamp,
) -> Option<Finding> {
    // Agents of a native round that is over end their workers, to join the next one.
    let is_over = run.native.as_ref().is_some_and(|native| native.state != RunState::Running);
    let is_finished = run.round.exit_done.is_some();
    // All may be there again, on other connections.
    if lost.is_empty() || is_finished || is_over || run.world.connected.is_empty() && !run.has_agents() {
        // Reported as the end of the run.
        return None;
    }
    let (world_size, go_on) = (meeting.size, meeting.met.is_some());
    let hosts = run.world.host.is_some() && run.world.misses_first();
    let joined = meeting.present().saturating_add(u32::from(hosts));
    let ranks = Names::of(lost.iter().map(|lost| lost.closed.who.clone()));
    let about = ranks.to_string();
    let unseen = unseen_beside(run, meeting, &lost);
    let not_again = Names::of_some(meeting.not_again(), |rank| run.rank_label_in(meeting, rank));
    let gave_up = lost.iter().all(|lost| lost.gave_up);
    let again = Names::of(lost.iter().filter_map(|Lost { rank, .. }| {
        let live = meeting.holder(*rank).filter(|info| info.is_live())?;
        Some(with_pid(live.label(*rank), live.pid))
    }));
    let how = match (world_size, ranks.count()) {
        (None, _) => Presence::Closed.words(),
        (_, 1) => "connection closed before all ranks had published",
        _ => "connections closed, in this order, before all ranks had published",
    };
    let seen = Sighting::at(Presence::Closed, since);
    let reason = lost_of(Place::Rank, &ranks, how, seen, joined, world_size)
        .look_at(
            "look at the log of what ended first: torchrun ends the other ranks of its node then; the \
             ranks of other nodes wait for them until their time-outs",
        )
        .lacks("of their nodes not published", Place::Rank, &unseen, Presence::NeverSeen)
        .lacks("not published again", Place::Rank, &not_again, Presence::Connected)
        .when(gave_up, of_victims)
        .and("place taken by", &again)
        // Nobody waits for it where those who had met before go on.
        .when(go_on, |reason| reason.then("; others had met before").severe(Severity::Warning))
        .when(world_size.is_none(), |reason| reason.severe(Severity::Info));
    let closed = lost.into_iter().map(|lost| lost.closed);
    Some(Finding::new(reason, about, since).seen(closed))
}

/// Ranks that have not come of the nodes of these: an agent ends its other workers when one fails, which
/// may have been one of those. Not where the agent has gone, too.
fn unseen_beside(run: &TrackedRun, meeting: &Meeting, lost: &[Lost]) -> Names {
    let Some((first, last)) = lost.first().zip(lost.last()) else { return Names::default() };
    let is_of_round = run.round.completed.is_some_and(|completed| completed <= first.closed.at);
    let ended: BTreeSet<u32> = lost.iter().map(|lost| lost.rank).collect();
    let gone = run.participants().filter(|node| node.gone.is_some());
    let gone: BTreeSet<u32> = gone.filter_map(|node| node.rank).collect();
    let assigned = run.round.assigned.iter().filter(|_| is_of_round);
    let mut nodes: Vec<_> = assigned.map(|(node, ranks)| (ranks.base, ranks.world_size, node)).collect();
    nodes.sort_unstable();
    let next = nodes.iter().skip(1).map(|(base, ..)| Some(*base)).chain([None]);
    let ranks = nodes.iter().zip(next).filter(|((.., node), _)| !gone.contains(node));
    let ranks = ranks.map(|(&(base, size, _), next)| base..next.unwrap_or(size).min(MOST_RANKS).max(base));
    let beside = ranks.filter(|ranks| ended.range(ranks.clone()).next().is_some()).flatten();
    let had_come = |rank| meeting.known_as(rank).any(|info| info.joined <= last.closed.at);
    let unseen = beside.filter(|rank| !ended.contains(rank) && !had_come(*rank));
    Names::of_some(unseen, |rank| run.rank_label_in(meeting, rank))
}

/// Worker processes have ended while others of their meeting go on. Where there are agents, these have done
/// nothing about it: they end the round, or themselves, when a process has failed. That an agent has died, or
/// is not heard from, is said of that.
pub(crate) fn ranks_ended(run: &TrackedRun, links: &Links, now: Timestamp) -> Vec<Finding> {
    if run.native.as_ref().is_some_and(|native| native.is_unheard) {
        return Vec::new();
    }
    let began = match (run.has_agents(), run.state, run.round.completed) {
        (false, ..) => Timestamp::default(),
        (true, RunState::Running, Some(completed)) if run.lost().next().is_none() => completed,
        (true, ..) => return Vec::new(),
    };
    let meetings = &run.world.meetings;
    let met = meetings.iter().filter_map(|meeting| Some((meeting, meeting.met.filter(|met| *met >= began)?)));
    let found = met.map(|(meeting, met)| {
        let ended = meeting.ended_ranks().map(|(rank, info, at)| {
            let closed = info.closed(rank, at);
            let who = if meetings.len() > 1 { with_pid(closed.who, closed.pid) } else { closed.who };
            Evidence { who, ..closed }
        });
        // Whether those are connected whose links are away is not known.
        let mut there = meeting.live().filter(|(_, info)| !links.is_away(info.peer));
        let few: Vec<_> = there.by_ref().take(FEW_LEFT).map(|(rank, info)| info.label(rank)).collect();
        let left = Names { shown: few, more: there.count(), ..Names::default() };
        some_ended(format!("meeting {}", meeting.number), ended.collect(), &left, Some(met), now)
    });
    let unnamed = run.world.ended_unnamed().into_iter();
    let unnamed = unnamed.map(|closed| Evidence { who: run.process_label(closed), ..closed.clone() });
    let left = Names { more: run.world.processes() as usize, ..Names::default() };
    let unnamed = some_ended("unnamed".to_owned(), unnamed.collect(), &left, None, now);
    found.chain([unnamed]).flatten().collect()
}

/// So many that are left are named.
const FEW_LEFT: usize = 3;

/// The connections of these have closed, and those that are `left` go on, who had `met` with them.
fn some_ended(
    about: String,
    mut ended: Vec<Evidence>,
    left: &Names,
    met: Option<Timestamp>,
    now: Timestamp,
) -> Option<Finding> {
    ended.sort_by_key(|closed| closed.at);
    let since = ended.first().filter(|_| left.count() > 0)?.at;
    let ranks = Names::of(ended.iter().map(|closed| closed.who.clone()));
    // A program may go on without its process group.
    let closed = match ranks.count() {
        1 => "closed its connection",
        _ => "closed their connections, the first of them",
    };
    let after = if_some(met, |met| {
        format!(", {} after all had published their addresses,", Elapsed(since.since(met)))
    });
    let (ago, are, all) = (Elapsed(now.since(since)), are(left.count()), count(left.count()));
    let there = if left.more == 0 { left.to_string() } else { Place::Process.count(all) };
    let mut reason = Code::RanksEnded
        .says(format!("{ranks} {closed} {ago} ago{after} while {there} {are} still connected"))
        .joined(Place::Rank, all, None)
        .misses(Place::Rank, &ranks, Sighting::at(Presence::Closed, since));
    reason.ended = ranks.count();
    Some(Finding::new(reason, about, since).seen(ended))
}

/// The id is there by which all ranks of a round meet with NCCL, and some have not asked for it. The others
/// wait for them inside NCCL.
pub(crate) fn ranks_missing(run: &TrackedRun, now: Timestamp) -> Option<Finding> {
    // What was lost with a link, or with the last server, may have come before.
    let is_known = !run.round.is_of_before && !run.life.was_cut_off;
    let root = run.world.nccl_root.as_ref().filter(|_| is_known && run.state == RunState::Running)?;
    let (world_size, since) = (run.world_size(), root.wrote.at);
    let is_due = world_size.is_some() || !run.has_agents();
    let by_address = run.world.connected.came().filter(|_| is_due && run.world.is_unnamed())?;
    let came = by_address.values().sum();
    // Who has not come shows where each node has an address of its own.
    let of_node = |&rank: &u32| {
        let node = run.node_of_rank(rank)?;
        let came = by_address.get(&run.address_of(node)?).copied().unwrap_or_default();
        Some((node, run.ranks_of(rank)?, came))
    };
    let nodes: Option<Vec<_>> = run.round.assigned.keys().map(of_node).collect();
    let missing = nodes.into_iter().flatten().filter_map(|(node, ranks, came)| {
        let (first, last) = (ranks.start, ranks.end.saturating_sub(1));
        let of = if first == last { format!("rank {first}") } else { format!("ranks {first}-{last}") };
        match count(ranks.len()).saturating_sub(came) {
            0 => None,
            _ if came == 0 => Some(format!("{of} on {}", node.name)),
            missing => Some(format!("{missing} of {of} on {}", node.name)),
        }
    });
    let (missing, beside) = (Names::of(missing), run.world.beside_group());
    let reason = Code::Waiting
        .says(format!(
            "{} come for the NCCL id, which rank 0 published {} ago",
            Place::Rank.have(came, world_size),
            Elapsed(now.since(since))
        ))
        .look_at(Sighting::from(Presence::Unknown).look_at(Place::Rank))
        .joined(Place::Rank, came, world_size)
        .lacks("missing", Place::Rank, &missing, Presence::Unknown)
        .may_be("connected, and not asking for it", beside.clone())
        // Who is beside a job whose number nobody has told may be none of it.
        .when(world_size.is_none(), |reason| reason.severe(Severity::Info));
    let lacks_some = world_size.map_or(!beside.is_empty(), |size| came < size);
    lacks_some.then(|| Finding::of_round(reason, run.round.number, since).seen([root.wrote.clone()]))
}

/// Nobody of those who were connected to the last server has come to this one.
pub(crate) fn not_back(key: &RunKey, who: &Names, may_go_on: bool, restarted: Timestamp) -> Option<Finding> {
    let place = if key.id().is_some() { Place::Node } else { Place::Rank };
    let (was, have) = if who.count() == 1 { ("was", "has") } else { ("were", "have") };
    let reason = Code::NotBack
        .says(format!("{who} {was} connected before this server was started, and {have} not come back"))
        .severe(if may_go_on { Severity::Info } else { Severity::Warning })
        .misses(place, who, Sighting::at(Presence::NotBack, restarted));
    (!who.is_empty()).then(|| Finding::new(reason, format!("{key:?} {restarted:?}"), restarted))
}

/// Processes that only counted themselves and ended, the first of them then.
pub(crate) fn passed(port: u16, passed: &[Passed], since: Timestamp) -> Finding {
    let processes = Names::of(passed.iter().map(|passed| passed.closed.who.clone()));
    let themselves = if processes.count() == 1 { "itself" } else { "themselves" };
    let reason = Code::RanksEnded
        .says(format!(
            "{processes} connected to the store on port {port}, counted {themselves} there, and closed \
             without publishing an address"
        ))
        .hold(Hold::Again)
        .misses(Place::Process, &processes, Sighting::at(Presence::Closed, since));
    let closed = passed.iter().map(|passed| passed.closed.clone());
    Finding::new(reason, port.to_string(), since).seen(closed)
}
