//! What contradicts itself: each is a mistake that somebody made and can mend.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::time::Duration;

use crate::facts::{
    Claim, Claimed, Client, Meeting, Membership, RankInfo, RunKey, TrackedNode, TrackedRun, World,
};
use crate::jobs::Jobs;
use crate::reason::{
    Code, Evidence, Finding, Hold, Names, ONE_JOB, Place, Reason, SAME_GROUPS, are, if_some,
};
use crate::rules::Held;
use rallypoint_api::{RunKind, RunState, Seen, Severity};
use rallypoint_protocol::ids::{ConnId, Timestamp, counted};
use rallypoint_store::is_slip;

/// c10d: nodes came to a round that had as many nodes as another, which came last, asks for.
pub(crate) fn other_number(newcomers: &Names, other: &str, group: u32, wrote: &Evidence) -> Finding {
    let asks = if newcomers.count() == 1 { "asks" } else { "ask" };
    let group = Place::Node.count(group);
    let reason = Code::NnodesDiffer
        .says(format!(
            "{newcomers} came to a complete round of {group} and {asks} for more, while {other} asks for no \
             more: their --nnodes differ"
        ))
        .held(newcomers);
    Finding::new(reason, newcomers.to_string(), wrote.at).seen([wrote.clone()])
}

/// Static: a node of a rank that node rank 0, which waits for so many nodes, does not count on.
pub(crate) fn beyond(run: &TrackedRun, node: &TrackedNode, nodes: u32, since: Timestamp) -> Finding {
    let (who, rank, counts_on) = (node.label(), node.rank.unwrap_or_default(), Place::Node.count(nodes));
    let first = if_some(run.node_of_rank(0), |first| format!(" ({})", first.told()));
    let reason = Code::JoinRefused
        .says(format!("{who} came as node rank {rank}, but rank 0{first} counts on {counts_on}"))
        .severe(Severity::Error)
        .look_at("start every node with the same --nnodes and a --node-rank below it: they begin at 0");
    let joined = node.evidence(Seen::Joined, None, node.joined);
    Finding::new(reason, format!("node {rank} {since:?}"), since).seen([joined])
}

/// Ranks that disagree on the world size.
pub(crate) fn world_sizes(world: &World, now: Timestamp) -> Option<Finding> {
    let (first, other) = world.different()?;
    let is_twice = other.live().any(|(rank, _)| first.holder(rank).is_some_and(RankInfo::is_live));
    let of = |meeting: &Meeting| {
        let live: BTreeMap<u32, &RankInfo> = meeting.live().collect();
        let (&rank, info) = live.first_key_value()?;
        let label = |(rank, info): (&u32, &&RankInfo)| {
            if is_twice { info.label(*rank) } else { format!("rank {rank}") }
        };
        Some((meeting.size?, Names::of(live.iter().map(label)), info.wrote(rank)))
    };
    let (says, ranks, wrote) = of(first)?;
    let (other_says, others, other_wrote) = of(other)?;
    let (are, for_ranks) = (are(ranks.count()), counted(says, "rank", "ranks"));
    let text = format!(
        "the ranks disagree on the world size: {ranks} {are} prepared for {for_ranks}, {others} for \
         {other_says}"
    );
    let reason = Code::WorldSizesDiffer.says(text).held(&ranks);
    Some(Finding::new(reason, "", now).seen([wrote, other_wrote]))
}

/// Live processes claim one place. `others`: more such places, each with the processes that claim it.
pub(crate) fn claimed(what: &str, all: &Names, others: &Names) -> Reason {
    let n = if all.count() == 2 { "two".to_owned() } else { all.count().to_string() };
    Code::DuplicateRank
        .says(format!("{n} processes have claimed {what}: {all}"))
        .and("the same is so of", others)
        .held(all)
}

/// One place, since when it is claimed, and by which live processes.
type Claims<'c> = (&'c Option<RunKey>, &'c Claim, &'c Claimed, BTreeMap<ConnId, String>);

/// What several live processes claim, all of one kind together.
pub(crate) fn claimed_twice(jobs: &Jobs, port: u16, now: Timestamp) -> Vec<Held> {
    let second_job = second_job(jobs, port, now);
    let is_told = |run: &Option<RunKey>| second_job.iter().any(|told| told.run == *run);
    let all = jobs.stores.get(&port).into_iter().flat_map(|store| &store.claims);
    let live = all.filter(|((run, _), _)| !is_told(run)).map(|((run, claim), claimed)| -> Claims<'_> {
        let here = claimed.by.iter().filter(|(conn, _)| !jobs.is_away(port, **conn));
        let named = here.map(|(&conn, wrote)| (conn, jobs.claimant(port, conn, claim, wrote)));
        (run, claim, claimed, named.collect())
    });
    let live: Vec<_> = live.filter(|(.., who)| who.len() > 1).collect();
    let is_like = |one: &Claim, other: &Claim| discriminant(one) == discriminant(other);
    let of_kind = live.chunk_by(|(run, claim, ..), (other, same, ..)| run == other && is_like(claim, same));
    let told = of_kind.filter_map(|claims| {
        let is_due = |(_, _, claimed, _): &Claims<'_>| claimed.due.is_some_and(|due| due <= now);
        let (run, ..) = *claims.first().filter(|_| claims.iter().any(is_due))?;
        Some(Held { store: Some(port), run: run.clone(), finding: duplicates(jobs, claims)? })
    });
    let told: Vec<_> = told.collect();
    told.into_iter().chain(second_job).collect()
}

/// What live processes of a run claim, with who claims it.
fn duplicates(jobs: &Jobs, claims: &[Claims<'_>]) -> Option<Finding> {
    let ((run, first, claimed, who), others) = claims.split_first()?;
    let about = match first {
        Claim::NodeRank(rank) => format!("node {rank}"),
        Claim::Rank(_) => String::new(),
        Claim::Member(id) | Claim::NodeId(id) => id.clone(),
    };
    // Neither reads what the other writes over.
    let are_alone = match (first, run.as_ref().and_then(|run| jobs.runs.get(run))) {
        (Claim::Rank(rank), Some(run)) => {
            who.keys().all(|conn| run.world.of(Some(*rank), *conn).size == Some(1))
        }
        _ => false,
    };
    let names = |who: &BTreeMap<ConnId, String>| Names::of(who.values().cloned());
    let others = Names::of_some(others, |(_, claim, _, who)| format!("{claim} ({})", names(who)));
    let mut reason = self::claimed(&first.to_string(), &names(who), &others);
    reason.ended = claims.iter().map(|(.., who)| who.len()).sum();
    // What a program makes without `init_process_group` has a URL for a name.
    let is_of_group = matches!(first, Claim::Member(member) if !member.contains("://"));
    let reason = match () {
        () if is_of_group => reason.look_at(SAME_GROUPS),
        () if matches!(first, Claim::NodeId(_)) => reason.look_at(
            "torchrun makes that id of host name and process id, and takes both for one node: give each host \
             (container) a name of its own, or each agent its --local-addr, and restart them",
        ),
        () if are_alone => reason.then(", each as the only rank of its group").severe(Severity::Info).look_at(
            "nothing, if each is a job of its own; else give all the same WORLD_SIZE and MASTER_ADDR, and \
             each its own RANK",
        ),
        () => reason,
    };
    let since = claims.iter().map(|(_, _, claimed, _)| claimed.since).min()?;
    Some(Finding::new(reason, about, since).seen(claimed.by.values().cloned()))
}

/// A live process has each of the ranks of a job already. Of agents there is one run: these may be of its
/// last round.
fn second_job(jobs: &Jobs, port: u16, now: Timestamp) -> Option<Held> {
    let key = RunKey::Store { port, id: None };
    let world = &jobs.runs.get(&key).filter(|run| !run.has_agents())?.world;
    let (ranks, (one, other)) = world.second_job().zip(world.claimed_twice(0))?;
    let clients = &jobs.stores.get(&port)?.clients;
    let who = |info: &RankInfo| clients.get(&info.conn).map_or_else(|| info.label(0), Client::label);
    let both = Names::of([one, other].map(who));
    let text = format!("each of {ranks} ranks is claimed by several processes: rank 0 by {both}");
    let reason = Code::TwoJobs.says(text).held(&both).look_at(
        "if these are two jobs, give each its own store (--listen twice, or POST /api/v1/stores); if one \
         process started the other (data workers), only one may make the process group",
    );
    Some(Held { store: Some(port), run: Some(key), finding: Finding::new(reason, "", now) })
}

/// Nodes of one id that use different backends, or ranks without agents, and wait for each other.
pub(crate) fn two_backends(jobs: &Jobs) -> Vec<Held> {
    const BACKENDS: &str = "nodes of this run use two rendezvous backends, which never meet";
    const LAUNCHERS: &str = "processes of this run are started in two ways, and wait for others";
    let gathers = |run: &TrackedRun| matches!(run.state, RunState::Joining | RunState::LastCall);
    let live = jobs.runs.iter().filter(|(_, run)| !run.state.is_over());
    let joined = |node: &TrackedNode| node.evidence(Seen::Joined, None, node.joined);
    let of_nodes = |nodes: Vec<&TrackedNode>| {
        (Names::of(nodes.iter().map(|node| node.told())), nodes.first().map(|node| joined(node)))
    };
    let found = live.filter_map(|(key, run)| {
        // Two jobs that lack nobody may well have one id: `none` is that of all that are given none.
        let is_other = |other: &&TrackedRun| {
            other.key.port().is_some()
                && other.key.id() == key.id()
                && !other.agents.is_empty()
                && (gathers(run) || gathers(other))
        };
        // In the store that was opened for the run.
        let are_ranks = |other: &&TrackedRun| {
            let are_there = !other.has_agents() && gathers(other) && other.world.shown().is_live();
            are_there && other.key.port() == key.port() && jobs.name(&other.key) == jobs.name(key)
        };
        let nodes: Vec<_> = run.participants().filter(|node| node.is_there() && !node.is_unheard).collect();
        let beside = |is_it: &dyn Fn(&&TrackedRun) -> bool| jobs.runs.values().find(is_it);
        let native = run.native.as_ref().and_then(|_| beside(&is_other));
        let ranks = Some(run).filter(|run| run.has_agents() && gathers(run)).and_then(|_| beside(&are_ranks));
        let strangers: Vec<_> = run.those(Membership::Stranger).collect();
        let (what, one, other, (others, came)) = match (native, ranks) {
            (Some(other), _) => {
                (BACKENDS, "rallypoint", other.kind.name(), of_nodes(other.participants().collect()))
            }
            _ if !strangers.is_empty() => (BACKENDS, "c10d", "static", of_nodes(strangers)),
            (_, Some(other)) => {
                let mut live = other.world.shown().live().peekable();
                let came = live.peek().map(|(rank, info)| info.wrote(*rank));
                let ranks = Names::of_some(live, |(rank, info)| info.label(rank));
                (LAUNCHERS, "by torchrun", "without it", (ranks, came))
            }
            _ => return None,
        };
        let joins = [Some(joined(nodes.first()?)), came].into_iter().flatten();
        let since = joins.clone().map(|joined| joined.at).max()?;
        let (nodes, _) = of_nodes(nodes);
        let reason = Code::TwoBackends.says(format!("{what}: {one} ({nodes}), and {other} ({others})")).when(
            what == LAUNCHERS,
            |reason| {
                let one_way = "start all pods of the job with one launcher (rallypoint run: with one --mode)";
                reason.hold(Hold::Soon).severe(Severity::Warning).look_at(one_way)
            },
        );
        let held = [Some(key), native.or(ranks).map(|run| &run.key)].into_iter().flatten().map(|of| {
            let mut finding = Finding::new(reason.clone(), "", since).seen(joins.clone());
            // The log names both runs in one line.
            finding.reason.is_detail = of != key;
            Held { store: of.port(), run: Some(of.clone()), finding }
        });
        Some(held.collect::<Vec<_>>())
    });
    found.flatten().collect()
}

/// Runs that gather in one store under ids that differ by a slip, or in one store or under one id and would
/// make no more than one together, may be one job.
pub(crate) fn halves(jobs: &Jobs) -> Vec<Held> {
    /// Each is compared with each other.
    const MOST_COMPARED: usize = 256;
    let gathers = |run: &&TrackedRun| run.state == RunState::Joining && run.joined() > 0;
    let gathering: Vec<_> = jobs.runs.values().filter(gathers).take(MOST_COMPARED).collect();
    let found = gathering.iter().filter_map(|run| {
        let others = gathering.iter().filter(|other| other.key != run.key && may_be_one(jobs, run, other));
        let others = Names::of(others.map(|other| {
            let there = other.participants().filter(|node| node.is_there()).map(|node| node.name.clone());
            let port = other.key.port().filter(|port| run.key.port() != Some(*port));
            let port = port.map_or_else(String::new, |port| format!(" on port {port}"));
            format!("run {}{port} ({})", jobs.name(&other.key), Names::of(there))
        }));
        let since = run.round.started.filter(|_| !others.is_empty())?;
        let reason = Code::NodesMissing
            .says(format!("not complete either: {others}"))
            .joined(Place::Node, run.joined(), None)
            .look_at(ONE_JOB);
        let finding = Finding::new(reason, "halves", since).in_round(Some(run.round.number));
        Some(Held { store: run.store(), run: Some(run.key.clone()), finding })
    });
    found.collect()
}

/// Whether two runs that gather may be one job. How many nodes there are may be known of one only.
fn may_be_one(jobs: &Jobs, one: &TrackedRun, other: &TrackedRun) -> bool {
    let ids = one.key.id().zip(other.key.id());
    let is_one_store = one.key.port() == other.key.port();
    let is_near = ids.is_some_and(|(one, other)| is_slip(one.as_bytes(), other.as_bytes()));
    let expected = [one, other].into_iter().filter_map(|run| run.expected(&jobs.plan(&run.key)));
    let sizes: BTreeSet<u32> = expected.map(|expected| expected.min).collect();
    let together = one.joined().saturating_add(other.joined());
    let fit = sizes.len() < 2 && sizes.iter().all(|size| together <= *size);
    let are_of_kind = one.kind == other.kind && one.round.roles.is_disjoint(&other.round.roles);
    let is_one_id = ids.is_some_and(|(one, other)| one == other);
    is_one_store && is_near || (is_one_store || is_one_id) && are_of_kind && fit
}

/// Two agents' runs in one store are two jobs when both have been there this long.
const SETTLED: Duration = Duration::from_secs(2);

/// Two static runs in one store write the same workers' keys. While both gather and their nodes have
/// different ranks, it may be one job with a slip in an id.
pub(crate) fn two_jobs(jobs: &Jobs, port: u16, now: Timestamp) -> Option<Held> {
    let clients = &jobs.stores.get(&port)?.clients;
    let is_heard = |conn: &ConnId| clients.contains_key(conn) && !jobs.is_away(port, *conn);
    let is_live = |run: &&TrackedRun| {
        run.key.port() == Some(port)
            && run.kind == RunKind::Static
            && run.agents.iter().any(is_heard)
            && !run.round.roles.is_empty()
            && now.since(run.first_seen) >= SETTLED
    };
    let mut live = jobs.runs.values().filter(is_live);
    let (one, other) = (live.next()?, live.next()?);
    let gathers = |run: &TrackedRun| run.state == RunState::Joining;
    if gathers(one) && gathers(other) && one.round.roles.is_disjoint(&other.round.roles) {
        return None;
    }
    let both = Names::of([one, other].map(|run| format!("run {}", jobs.name(&run.key))));
    let text = format!("two jobs on one store: {both} (their workers use the same keys)");
    let reason = Code::TwoJobs.says(text).held(&both);
    let (older, newer) = if one.first_seen <= other.first_seen { (one, other) } else { (other, one) };
    let finding = Finding::new(reason, "", newer.first_seen);
    Some(Held { store: Some(port), run: Some(older.key.clone()), finding })
}
