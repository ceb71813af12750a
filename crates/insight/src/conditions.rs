//! What holds in one run as time goes by, apart from what its waits show.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use super::addresses::unreachable;
use super::expect::Plan;
use super::links::Links;
use super::missing::{is_gone, missing, name_of, turned_away};
use super::presence::{AGENT, ANNOUNCED, GONE, Place, Presence};
use super::reason::words::{
    are, has, have, have_waited, if_any, if_some, of_expected, of_ranks, says_who, waits_since,
};
use super::reason::{Code, Evidence, Finding, Hold, Last, Names, Reason, Unit};
use super::run::{FormerNode, Meeting, Membership, RankInfo, TrackedNode, TrackedRun, with_pid};
use rallypoint_api::{Expected, ExpectedFrom, KnownFrom, MissingNode, RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{Elapsed, Timestamp, count, counted};
use rallypoint_rendezvous::gate::{Announcement, GateSnapshot, GateState, Missing};

/// What holds in one run, apart from what its waits show.
pub(super) fn of_run(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Vec<Finding> {
    let mut held = Vec::new();
    if run.native().is_some() {
        let expected = run.expected(plan);
        let announced =
            missing(run, plan, expected).into_iter().filter(|node| node.known_from == KnownFrom::Announced);
        let announced: Vec<String> = announced.filter_map(|node| node.name).collect();
        held.extend(run.native_waits(&announced, now));
        held.extend(run.native_expires(now));
        held.extend(run.native_spares(now));
        held.extend(store_closed(run, now));
    } else {
        held.extend(joining(run, plan, links, now));
        if let (Some(completed), Some(group), false) =
            (run.round().completed, run.round().group, run.state().is_over())
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
    let round = run.round();
    let since = round.reset.filter(|_| run.goes_on() && round.completed.is_some())?;
    let (met, ago) = (round.had_met_at_reset, Elapsed(now.since(since)));
    let (met, severity) = match met {
        Some(true) => (", after its ranks had met", Severity::Info),
        Some(false) => (", before its ranks had met", Severity::Warning),
        None => ("", Severity::Info),
    };
    let reason = Code::StoreReset
        .says(format!("an operator's reset closed the store of round {} {ago} ago{met}", round.number))
        .severe(severity)
        .hold(Hold::Soon)
        .look_at(
            "nothing, if the ranks go on and need no store any more; else start all agents of the job again, \
             together: the next round has a store of its own",
        );
    Some(of_round(run, reason, since))
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
    let nodes: Vec<&TrackedNode> = run.left_over(place).filter(|_| run.kind() == RunKind::C10d).collect();
    let since = nodes.iter().map(|node| node.membership_since).min()?.max(completed);
    let redundant = place == Membership::Redundant;
    let is_restarting = run.state() == RunState::Restarting && !redundant;
    let staying = Names::of(run.still_running().filter(|_| is_restarting).map(TrackedNode::label));
    // Once a member has died or left there is a place, which torch gives them as soon as it has noticed.
    let has_place = if is_restarting { staying.is_empty() } else { run.listed() < group };
    let dead =
        Names::of(run.participants().filter(|node| has_place && node.is_dead()).map(TrackedNode::fate));
    if has_place && dead.is_empty() {
        return None;
    }
    let joined = nodes.iter().map(|node| node.evidence(Seen::Joined, None, node.membership_since));
    let left_over = Names::of(nodes.iter().map(|node| node.name.clone()));
    let waited = Elapsed(now.since(since));
    let fewer = redundant && nodes.iter().all(|node| node.asks_not_for == Some(group));
    let asked = if fewer { "; asked for fewer nodes" } else { "" };
    let is_spare = !dead.is_empty() || redundant && !fewer;
    let reason = Code::StandsBy
        .says(format!(
            "{left_over} {} {waited} beside a complete round of {}{asked}",
            have_waited(left_over.count()),
            Unit::Node.count(group)
        ))
        .held(&left_over)
        .fact("left_over", &left_over)
        .lacks("still in it", "staying", Place::Node, &staying, Last::Connected)
        .lacks("gone", "dead", Place::Node, &dead, Last::Closed);
    let reason = if is_spare {
        reason
    } else {
        reason.severe(Severity::Warning).look_at(
            "look at the agents that are in the round still: torch stops its workers to begin a round with \
             all, which may take half a minute. Start every node with the same --nnodes; a second job needs \
             another --rdzv-id",
        )
    };
    Some(Finding::new(reason, redundant.to_string(), since).seen(joined))
}

/// What tells one round from the next.
fn of_round(run: &TrackedRun, reason: Reason, since: Timestamp) -> Finding {
    Finding::new(reason, format!("round {}", run.round().number), since)
}

/// When the nodes at this place came to it.
fn joins(run: &TrackedRun, membership: Membership) -> impl Iterator<Item = Evidence> {
    let is_there = move |node: &&TrackedNode| node.membership == membership && node.is_there();
    run.nodes().iter().filter(is_there).map(|node| node.evidence(Seen::Joined, None, node.membership_since))
}

/// The nodes at this place that are there.
fn names(run: &TrackedRun, membership: Membership) -> Names {
    let is_there = |node: &&TrackedNode| node.membership == membership && node.is_there();
    Names::of(run.nodes().iter().filter(is_there).map(|node| node.name.clone()))
}

/// While the round is not complete.
fn joining(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Vec<Finding> {
    let mut held = Vec::new();
    let is_joining = run.state() == RunState::Joining && run.has_agents();
    // What a reset of the store has dropped is waited for, and said with that.
    let is_reset = run.kind() == RunKind::C10d && run.round().reset.is_some();
    let (true, Some(since)) = (is_joining && !is_reset, run.incomplete_since()) else { return held };
    let expected = run.expected(plan);
    let present = names(run, Membership::Participant);
    let joined = count(present.count());
    let waited = Elapsed(now.since(since));
    let is_short = expected.is_none_or(|expected| joined < expected.min);
    // Without a number, and while nodes go on with the attempt before, the waits of a static run show what is
    // missing.
    let is_plain = expected.is_some() && run.not_again().next().is_none();
    if is_short && joined > 0 && (run.kind() == RunKind::C10d || is_plain) {
        let all = missing(run, plan, expected);
        let (gone, missing): (Vec<_>, Vec<_>) = all.iter().partition(|node| is_gone(node));
        let is_connected = |node: &&MissingNode| node.known_from == KnownFrom::Connected;
        let (connected, missing): (Vec<_>, Vec<_>) = missing.into_iter().partition(is_connected);
        let announced =
            missing.iter().filter(|node| node.known_from == KnownFrom::Announced).filter_map(|node| {
                let pod = node.name.as_deref()?;
                let seen = node.last_seen.map(|at| Timestamp(Duration::from_secs_f64(at)));
                Some(format!("{pod}: {}", links.since_announced(plan, pod, seen, now)))
            });
        let announced = Names::of(announced);
        let there = run.participants().filter(|node| node.is_there());
        let first = there.map(|node| node.joined).min().map_or(since, |first| first.max(since));
        let [missing, gone, connected] =
            [missing, gone, connected].map(|nodes| Names::of(nodes.into_iter().map(name_of)));
        let absent = Absent { missing, announced, gone, connected };
        let first = Elapsed(now.since(first));
        let reason = nodes_missing(joined, expected, &absent, &present, first, waited).misses_nodes(&all);
        held.push(of_round(run, reason, since).seen(joins(run, Membership::Participant)));
    }
    if let (false, RunKind::C10d, Some(expected)) = (is_short, run.kind(), expected) {
        let Expected { min: expected, source: from, .. } = expected;
        let is_of_round = |former: &&FormerNode| former.round == run.round().number;
        let former = run.life().earlier.iter().filter(is_of_round).map(|former| &former.node);
        let others = run.participants().chain(former).filter(|node| node.asks_not_for == Some(expected));
        let other = others.max_by_key(|node| node.is_there());
        let there = run.names_there();
        let (who, is_gone) = match &run.life().asks_for_more {
            Some(nodes) => (nodes.clone(), !nodes.shown.iter().any(|name| there.contains(name.as_str()))),
            None => (Names::of(other.map(TrackedNode::told)), other.is_some_and(|node| !node.is_there())),
        };
        let joined_have = have(joined as usize, "node", "nodes");
        let (are, gone) = (are(expected as usize), if is_gone { ", gone since" } else { "" });
        let reason = Code::NnodesDiffer
            .says(format!(
                "{joined_have} joined and the round is not complete after {waited}, although {expected} by \
                 {} {are} enough{}{gone}",
                says_who(from),
                if_any("; asked for another number: ", &who)
            ))
            .severe(Severity::Warning)
            .hold(Hold::Lasting)
            .look_at(
                "stop all agents of the job, and start them with the same --nnodes, which is the number to \
                 expect (rallypoint ctl expect RUN N, or serve --nodes); a second job needs another \
                 --rdzv-id",
            )
            .joined(joined, Some(expected))
            .from(Some(from));
        held.push(of_round(run, reason, since).seen(joins(run, Membership::Participant)));
    }
    held
}

/// The round is complete with fewer nodes than an outside source expects.
fn fewer_than_expected(run: &TrackedRun, plan: &Plan, formed: u32, since: Timestamp) -> Option<Finding> {
    let Expected { min: expected, source: from, .. } =
        plan.expected().filter(|expected| formed < expected.min && run.kind() == RunKind::C10d)?;
    let left_over = names(run, Membership::WaitList);
    let reason = Code::NnodesDiffer
        .says(format!(
            "the round is complete with {}, but {expected} are expected by {}",
            Unit::Node.count(formed),
            says_who(from)
        ))
        .and("left over", &left_over)
        .held(&left_over)
        .fact("left_over", &left_over)
        .joined(formed, Some(expected))
        .from(Some(from));
    Some(of_round(run, reason, since))
}

/// Some nodes have finished, and others have not.
pub(super) fn at_exit(run: &TrackedRun, links: &Links, now: Timestamp) -> Option<Finding> {
    let round = run.round();
    let since = round.exit_since.filter(|_| round.exit_done.is_none())?;
    // Agents of a native run tell the rendezvous when they have passed it.
    if run.native().is_some() && round.group.is_some_and(|group| round.exit.len() >= group as usize) {
        return None;
    }
    // Torch has taken these out of the round, and waits for them all the same.
    let is_of_round = |former: &&FormerNode| {
        former.node.rank.is_some() && round.completed.is_some_and(|completed| former.last_seen() >= completed)
    };
    let earlier = run.life().earlier.iter().filter(is_of_round).map(|former| &former.node);
    let all = || run.participants().chain(earlier.clone());
    let dead = || all().filter(|node| node.is_dead() && !node.is_cut_off);
    let cut_off = all().filter(|node| node.is_dead() && node.is_cut_off);
    let not_back = Names::of(all().filter(|node| node.is_not_back()).map(TrackedNode::label));
    let taken_out = || run.life().left.values().filter(|left| left.is_silent()).map(|left| &left.node);
    // Where several nodes have one address, it is not known whose link is away.
    let mut at_address: HashMap<IpAddr, usize> = HashMap::new();
    for peer in run.participants().filter_map(|node| node.peer) {
        let nodes = at_address.entry(peer.ip()).or_default();
        *nodes = nodes.saturating_add(1);
    }
    let is_alone = |addr: IpAddr| at_address.get(&addr).is_none_or(|nodes| *nodes == 1);
    let addr = |node: &TrackedNode| Some(node.peer?.ip()).filter(|addr| is_alone(*addr));
    let is_away = |node: &TrackedNode| addr(node).is_some_and(|addr| links.away_at(addr).is_some());
    let is_silent = |node: &&TrackedNode| node.is_unheard || is_away(node);
    let (silent, running): (Vec<_>, Vec<_>) = run.still_running().partition(is_silent);
    let (running, silent) = (
        Names::of(running.into_iter().map(TrackedNode::label)),
        Names::of(silent.into_iter().chain(cut_off).map(TrackedNode::label)),
    );
    let (out, closed) =
        (Names::of(taken_out().map(TrackedNode::label)), Names::of(dead().map(TrackedNode::label)));
    let (arrived, nodes, waited) = (count(round.exit.len()), run.exit_size(), Elapsed(now.since(since)));
    let have = nodes.map_or_else(
        || have(arrived as usize, "node", "nodes"),
        |nodes| format!("{arrived} of {} {}", Unit::Node.count(nodes), has(arrived as usize)),
    );
    // The first of them, and the others for less.
    let up_to = if arrived > 1 { "up to " } else { "" };
    let all_are_well = out.is_empty() && closed.is_empty() && silent.is_empty();
    // What had arrived before a restart of the server may not be counted.
    let nobody_lacks = all_are_well
        && running.is_empty()
        && not_back.is_empty()
        && !run.misses_exits()
        && nodes.is_none_or(|nodes| arrived >= nodes);
    let is_note = all_are_well && !nobody_lacks && waited.0 < LONG_AT_EXIT;
    let reason = Code::ExitBarrier
        .says(format!("{have} finished and waited {up_to}{waited} at the exit barrier"))
        .severe(if is_note { Severity::Info } else { Severity::Warning })
        .expects(nodes)
        .fact("arrived", arrived)
        .lacks("connected, not finished", "running", Place::Node, &running, Last::Connected)
        .lacks("nothing heard", "silent", Place::Node, &silent, Last::Silent)
        .lacks("taken out of the round", "taken_out", Place::Node, &out, Last::TakenOut)
        .lacks("connection closed", "dead", Place::Node, &closed, Last::Closed)
        .lacks("not back since the server was restarted", "not_back", Place::Node, &not_back, Last::NotBack);
    let more = reason.clone().then("; no other node is known").look_at(
        "one of them counts on more nodes than have come: start every node with the same --nnodes; agents \
         wait for the others up to 300 s, and end then",
    );
    let reason = if nobody_lacks { more } else { reason };
    let closed = |node: &TrackedNode| Some(node.evidence(Seen::Closed, None, node.gone?));
    let closed = dead().filter_map(closed);
    let heard = taken_out().map(|node| node.evidence(Seen::Heard, None, node.last_heartbeat));
    let joined = run.still_running().map(|node| node.evidence(Seen::Joined, None, node.joined));
    Some(of_round(run, reason, since).seen(closed.chain(heard).chain(joined)))
}

/// Nodes that evaluate in the end may well let others wait at the exit barrier for less than this.
const LONG_AT_EXIT: Duration = Duration::from_mins(2);

/// Worker processes have ended while others of their meeting go on. Where there are agents, these have done
/// nothing about it: they end the round, or themselves, when a process has failed. That an agent has died, or
/// is not heard from, is said of that.
fn ranks_ended(run: &TrackedRun, links: &Links, now: Timestamp) -> Vec<Finding> {
    if run.native().is_some_and(|native| native.is_unheard) {
        return Vec::new();
    }
    let began = match (run.has_agents(), run.state(), run.round().completed) {
        (false, ..) => Timestamp::default(),
        (true, RunState::Running, Some(completed)) if run.lost().next().is_none() => completed,
        (true, ..) => return Vec::new(),
    };
    let met = run.world().meetings().iter().filter_map(|meeting| Some((meeting, meeting.met?)));
    let met = met.filter(|(_, met)| *met >= began);
    let found = met.filter_map(|(meeting, met)| {
        let mut ended: Vec<_> = meeting.ended_ranks().collect();
        ended.sort_by_key(|&(rank, _, at)| (at, rank));
        let since = ended.first()?.2;
        // Whether those are connected whose links are away is not known.
        let left = count(meeting.live().filter(|(_, info)| !links.is_away(info.peer)).count());
        if left == 0 {
            return None;
        }
        let is_one_of_two = run.world().meetings().len() > 1;
        let label = |&(rank, info, _): &(u32, &RankInfo, Timestamp)| {
            let label = info.label(rank);
            if is_one_of_two { with_pid(label, info.pid) } else { label }
        };
        let ranks = Names::of(ended.iter().map(label));
        let reason = have_ended(&ranks, left, Elapsed(now.since(since)), Some(Elapsed(since.since(met))));
        let closed = ended.into_iter().map(|(rank, info, at)| info.closed(rank, at));
        Some(Finding::new(reason, of_meeting(meeting), since).seen(closed))
    });
    found.chain(unnamed_ended(run, now)).collect()
}

/// These have ended, so long ago, and others go on. `after`: how long after all had published addresses.
fn have_ended(ranks: &Names, left: u32, since: Elapsed, after: Option<Elapsed>) -> Reason {
    // A program may go on without its process group.
    let closed = match ranks.count() {
        1 => "closed its connection",
        _ => "closed their connections, the first of them",
    };
    let after = if_some(after, |after| format!(", {after} after all had published their addresses,"));
    let there = format!("{} {}", Unit::Process.count(left), are(left as usize));
    let mut reason = Code::RanksEnded
        .says(format!("{ranks} {closed} {since} ago{after} while {there} still connected"))
        .fact("ranks", ranks)
        .fact("left", left)
        .misses(Place::Rank, ranks, Last::Closed);
    reason.ended = ranks.count();
    reason
}

/// Processes have ended that meet without telling their ranks.
fn unnamed_ended(run: &TrackedRun, now: Timestamp) -> Option<Finding> {
    let ended = run.ended_unnamed();
    let since = ended.first()?.at;
    let left = run.world().processes();
    let ranks = Names::of(ended.iter().map(|closed| run.process_label(closed)));
    let reason = have_ended(&ranks, left, Elapsed(now.since(since)), None);
    let found = Finding::new(reason, "unnamed", since).seen(ended.into_iter().cloned());
    (left > 0).then_some(found)
}

/// The id is there by which all ranks of a round meet with NCCL, and some have not asked for it. The others
/// wait for them inside NCCL.
fn ranks_missing(run: &TrackedRun, now: Timestamp) -> Option<Finding> {
    let (came, world_size, missing, since) =
        run.came_for_nccl_id().filter(|_| run.state() == RunState::Running)?;
    let beside = run.world().beside_group();
    let reason = Code::Waiting
        .says(format!(
            "{} come for the NCCL id, which rank 0 published {} ago",
            of_ranks(came, Some(world_size)),
            Elapsed(now.since(since))
        ))
        .look_at(
            "look at the processes of the missing ranks: are they still importing or loading, have they \
             ended, or gone another way than the others? Those wait for them inside NCCL, which tells the \
             store nothing",
        )
        .joined(came, Some(world_size))
        .fact("came", came)
        .lacks("missing", "missing", Place::Rank, &missing, Last::Unknown)
        .and("connected, and not asking for it", &beside)
        .fact("beside", &beside)
        .eliminated(!missing.is_empty());
    let wrote = run.nccl_root().map(|root| root.wrote.clone());
    (came < world_size).then(|| of_round(run, reason, since).seen(wrote))
}

/// What tells one meeting from another.
pub(super) fn of_meeting(meeting: &Meeting) -> String {
    if meeting.number == 0 { String::new() } else { format!("meeting {}", meeting.number) }
}

/// What the gate shows, whether the run has traffic or not.
pub(super) fn of_gate(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Vec<Finding> {
    let Some(gate) = plan.gate() else { return Vec::new() };
    let mut held = Vec::new();
    let since = run.first_seen().max(gate.since);
    let mut hold = |about: String, reason, since| held.push(Finding::new(reason, about, since));
    let all = || gate.pods.iter().chain(&gate.turned_away);
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
    for (pod, rank) in gate.turned_away.iter().filter_map(|pod| Some((pod, pod.node_rank?))) {
        if let Some(holder) = plan.pod_of_rank(rank) {
            let label = |pod: &Announcement| format!("pod {} at {}", pod.pod, pod.shown_at());
            let all = Names::of([label(holder), format!("{}, which is held back", label(pod))]);
            let reason = Reason::claimed(&format!("node rank {rank}"), &all, &Names::default());
            let reason = reason.then(Reason::CLAIMED);
            hold(format!("node {rank}"), reason, since);
        }
    }
    if let Some(versions) = &gate.versions {
        let text = format!("the pods have different versions of PyTorch: {versions}");
        hold(String::new(), Code::TorchVersionsDiffer.says(text), since);
    }
    if run.kind() != RunKind::Announced {
        return held;
    }
    if let GateState::Open { since: opened } = gate.state {
        hold(String::new(), pods_idle(gate, plan, links, opened, now), opened);
    }
    if gate.state == GateState::Gathers {
        // One that was turned away with the rank of another may be the one that is missing.
        let missing = gate.missing.iter().filter(|missing| turned_away(gate, missing.node_rank).is_none());
        let (gone, missing): (Vec<_>, Vec<_>) = missing.partition(|missing| missing.seen.is_some());
        let gone = gone.into_iter().map(|gone| {
            let since = gone.seen.map(|seen| Elapsed(now.since(seen)));
            let since = since.map(|since| {
                if gone.is_away {
                    format!(" (its link has been away for {since})")
                } else {
                    format!(" ({since} ago)")
                }
            });
            format!("{}{}", label(gone), since.unwrap_or_default())
        });
        let refused = gate.turned_away.iter().map(|pod| match pod.node_rank {
            Some(rank) => format!("pod {} with rank {rank}", pod.pod),
            None => format!("pod {}", pod.pod),
        });
        let missing = Names::of(missing.into_iter().map(label));
        let waited = Elapsed(now.since(gate.since));
        let reason = pods_missing(gate, &missing, &Names::of(gone), &Names::of(refused), waited);
        hold(String::new(), reason, gate.since);
    }
    held
}

/// Nothing has come from the processes of the pods that have passed their gate.
fn pods_idle(gate: &GateSnapshot, plan: &Plan, links: &Links, opened: Timestamp, now: Timestamp) -> Reason {
    let since_then = |pod: &str| {
        let since = links.since_announced(plan, pod, None, now);
        (since != Presence::Announced).then_some(since)
    };
    let gone: BTreeMap<_, _> =
        gate.known().filter_map(|pod| Some((pod.name, since_then(pod.name)?))).collect();
    let pods = gate.announced();
    let is_heard = |pod: &&Announcement| plan.passed().is_none() && !gone.contains_key(&*pod.pod);
    let heard = gate.pods.iter().filter(is_heard).count();
    let unheard = count(pods.saturating_sub(heard).saturating_sub(gone.len()));
    let last =
        || gate.silent().filter(|missing| !missing.pod.as_deref().is_some_and(|pod| gone.contains_key(pod)));
    let silent = plan.passed().or_else(|| last().filter_map(|missing| missing.seen).max());
    let gone = Names::of(gone.iter().map(|(pod, since)| format!("{pod} ({since})")));
    let reason = Code::PodsIdle
        .says(format!(
            "{} announced, and no process connected for {}",
            counted(pods, "pod", "pods"),
            Elapsed(now.since(opened))
        ))
        .severe(if gone.is_empty() { Severity::Info } else { Severity::Warning })
        .expects(Some(count(pods)))
        .fact("pods", pods)
        .lacks("gone", "gone", Place::Pod, &gone, Last::Left);
    if unheard == 0 {
        return reason;
    }
    let since = if_some(silent, |heard| format!(" for {}", Elapsed(now.since(heard))));
    let unheard = Names::of([counted(unheard, "pod", "pods")]);
    reason.and(&format!("not heard of{since}"), &unheard)
}

/// Pods have not announced themselves, and those that have are held back.
fn pods_missing(
    gate: &GateSnapshot,
    missing: &Names,
    gone: &Names,
    refused: &Names,
    waited: Elapsed,
) -> Reason {
    let (announced, expected) = (count(gate.pods.len()), gate.nodes.min);
    let lacks = expected.saturating_sub(announced) as usize;
    let n = lacks.saturating_sub(refused.count().saturating_add(gone.count())).max(missing.count());
    // As far as they are known.
    let unnamed = Names::of((missing.count() < n).then(|| n.to_string()));
    let look_at = match () {
        () if !refused.is_empty() => {
            "start the pods that were turned away with the number of nodes that the others have, each with \
             its own rank: one of them may be missing as another"
        }
        () if gone.count() >= lacks => GONE,
        () => Code::PodsMissing.rule().look_at,
    };
    let named = if unnamed.is_empty() { missing } else { &unnamed };
    Code::PodsMissing
        .says(format!("{announced} of {} announced for {waited}", counted(expected, "pod", "pods")))
        .look_at(look_at)
        .joined(announced, Some(expected))
        .fact("announced", announced)
        .and("missing", named)
        .misses(Place::Pod, missing, Last::NeverSeen)
        .lacks("announced and gone", "gone", Place::Pod, gone, Last::Silent)
        .and("turned away", refused)
        .eliminated(!missing.is_empty())
}

/// Who is not in a round that is not complete.
struct Absent {
    missing: Names,
    /// The pods of missing ones that announced themselves, each with what was heard of it since.
    announced: Names,
    /// Nodes that had joined and died, or were taken out.
    gone: Names,
    /// Nodes that had joined, are connected, and have not joined this round.
    connected: Names,
}

/// Nodes have not joined for so long; the first of those that have waits so long.
fn nodes_missing(
    joined: u32,
    expected: Option<Expected>,
    Absent { missing, announced, gone, connected }: &Absent,
    present: &Names,
    first: Elapsed,
    waited: Elapsed,
) -> Reason {
    let (min, from) = expected.map(|expected| (expected.min, expected.source)).unzip();
    let lacks = min.unwrap_or(0).saturating_sub(joined) as usize;
    let n = lacks.saturating_sub(gone.count()).saturating_sub(connected.count());
    let since_first = waits_since(joined, first);
    let text = if min.is_none() {
        format!("{} joined ({present}){since_first} for more", have(joined as usize, "node", "nodes"))
    } else {
        let who = match missing.count() {
            _ if n == 0 => since_first,
            // Some of many that are there lead to nobody.
            0 if present.more > 0 && present.range.is_none() => {
                format!("; {n} {} been missing for {waited}", has(n))
            }
            0 => {
                let are = are(present.count());
                format!("; {n} {} been missing for {waited}; there {are} {present}", has(n))
            }
            known if known < n => format!("; {n} have been missing for {waited}, {missing} among them"),
            known => format!("; {missing} {} been missing for {waited}", has(known)),
        };
        format!("{} {} joined{who}", of_expected(joined, min, Unit::Node), has(joined as usize))
    };
    let look_at = match () {
        () if !gone.is_empty() => GONE,
        () if min.is_none() => {
            "tell the server how many are expected (rallypoint ctl expect RUN N, or serve --nodes), and look \
             which pods have not started, do not reach this server, or have another --nnodes or --rdzv-id"
        }
        () if lacks <= connected.count() => AGENT,
        () if announced.count() >= missing.count().max(1) => ANNOUNCED,
        () => Code::NodesMissing.rule().look_at,
    };
    let counted_by = match (from, min) {
        // Others may see it differently.
        (Some(from @ (ExpectedFrom::EarlierRound | ExpectedFrom::RoleExchange)), Some(min)) => {
            format!(" ({min} by {})", says_who(from))
        }
        (Some(_), _) => String::new(),
        (None, _) => "; nobody has said how many there should be".to_owned(),
    };
    Code::NodesMissing
        .says(text)
        .look_at(look_at)
        .eliminated(!missing.is_empty())
        .held(present)
        .joined(joined, min)
        .from(from)
        .and("gone", gone)
        .and("connected, and not in this round yet", connected)
        .then(&counted_by)
        .then(&if_any("; ", announced))
}

fn label(missing: &Missing) -> String {
    let rank = missing.node_rank;
    match &missing.pod {
        Some(pod) => format!("pod {pod} with rank {rank}"),
        None => format!("pod with rank {rank}"),
    }
}
