//! One run, as the API's documents show it.

use crate::epoch::{Epoch, rounded};
use crate::facts::{
    Links, MOST_NODES, Membership, NodeId, Plan, RankInfo, Standing, TrackedNode, TrackedRun,
    count_of_missing, joined, lost,
};
use crate::jobs::Jobs;
use crate::report::log::Headline;
use rallypoint_api::{
    self as api, ExitCounts, NodeCounts, NodeState, Rank, RankCounts, RankGrid, RunKind, RunSummary,
};
use rallypoint_protocol::addresses::MOST_RANKS;
use rallypoint_protocol::ids::count;
use rallypoint_rendezvous::gate::{GateSnapshot, KnownPod};

/// Ranks shown one by one with one run.
const RANKS_SHOWN: usize = 1024;

/// A run in few words.
pub(crate) fn summary(jobs: &Jobs, run: &TrackedRun, headline: Headline, epoch: Epoch) -> RunSummary {
    let plan = jobs.plan(&run.key);
    let (expected, native) = (run.expected(&plan), run.native.as_ref());
    // Nobody waits or is missing in a run that is over.
    let unless_over = |count: u32| if run.state.is_over() { 0 } else { count };
    let count_of = |membership| unless_over(count(run.left_over(membership).count()));
    let nodes = NodeCounts {
        joined: joined(run, &plan),
        waiting: count_of(Membership::WaitList),
        earlier: native.map_or_else(|| count(run.not_again().count()), |native| native.on_their_way),
        redundant: count_of(Membership::Redundant),
        finished: native.map_or(0, |native| unless_over(native.finished)),
        gone: lost(run, &plan),
        expected,
        missing: count_of_missing(run, &plan, expected).map(unless_over),
    };
    let world = &run.world;
    let meeting = world.shown();
    let expected = meeting.size;
    let is_of_round = |info: &&RankInfo| !is_of_round_before(run, info);
    let published = || meeting.ranks().map(|(_, info)| info).filter(is_of_round);
    let came = meeting.holders().filter(|info| info.standing != Standing::OfBefore);
    let gone = came.filter(|info| info.gone.is_some() && is_of_round(info));
    let live = || published().filter(|info| info.gone.is_none());
    let away = count(live().filter(|info| jobs.links.is_away(info.peer)).count());
    let completed = run.round.completed.or(meeting.met.filter(|_| !run.has_agents()));
    let has_world = published().next().is_some() || !world.connected.is_empty() || world.meets_otherwise;
    RunSummary {
        run_id: jobs.name(&run.key),
        store: run.store(),
        kind: run.kind,
        state: run.state,
        round: run.round.number,
        version: run.version,
        nodes,
        ranks: has_world.then(|| RankCounts {
            joined: count(live().count()).saturating_sub(away),
            away,
            gone: count(gone.count()),
            expected,
            connected: world.processes().saturating_sub(away),
            have_met: meeting.met.is_some() && (meeting.went_on || meeting.size == Some(1)),
        }),
        // What has left a native run as it had finished was at the exit barrier before.
        exit: native.and_then(|native| native.exit.clone()).or_else(|| {
            let (arrived, expected) = (count(run.round.exit.len()), run.exit_size());
            run.round.exit_since.map(|_| ExitCounts { arrived, expected })
        }),
        started_at: epoch.unix(run.began()),
        state_since: epoch.unix(run.state_since),
        completed_at: completed.map(|at| epoch.unix(at)),
        deadline: run.round.deadline.or_else(|| Some(epoch.unix(native?.closes_at?))),
        explanation: headline.explanation,
        notes: headline.notes,
    }
}

/// c10d: whether it is a rank that ended with the round before.
fn is_of_round_before(run: &TrackedRun, info: &RankInfo) -> bool {
    let began = run.round.started.filter(|_| run.kind == RunKind::C10d);
    info.gone.is_some() && began.is_some_and(|began| info.joined < began)
}

pub(crate) fn nodes(run: &TrackedRun, epoch: Epoch) -> Vec<api::Node> {
    let mut nodes: Vec<&TrackedNode> = run.nodes().collect();
    nodes.sort_by_key(|node| (node.rank.is_none(), node.rank, node.joined));
    let started = run.round.started;
    let is_complete = run.round.completed.is_some();
    let sends_heartbeats = |node: &TrackedNode| match node.id {
        NodeId::Rank(_) => false,
        NodeId::Desc(_) => true,
        // While it waits its requests show that it is there.
        NodeId::Native { is_watched, .. } => is_watched || !is_complete,
    };
    let shown = nodes.into_iter().map(|node| {
        let ranks = node.rank.and_then(|rank| run.ranks_of(rank));
        let came_to_round = node.is_participant() && started.is_none_or(|started| node.joined >= started);
        let joined = Some(node.joined).filter(|_| came_to_round);
        let (base_rank, local) = ranks.map(|ranks| (ranks.start, count(ranks.len()))).unzip();
        let said = match &node.id {
            NodeId::Native { info, .. } => Some(info),
            _ => None,
        };
        api::Node {
            node_id: node.node_id(),
            name: node.name.clone(),
            peer: said.map(|said| said.address.to_string()).or(node.peer.map(|peer| peer.to_string())),
            pid: node.pid,
            rank: node.rank,
            state: match node.membership {
                _ if node.finished => NodeState::Finished,
                _ if !node.is_there() => NodeState::Gone,
                Membership::Participant => NodeState::Joined,
                Membership::WaitList => NodeState::Waiting,
                Membership::Earlier => NodeState::Earlier,
                _ => NodeState::Redundant,
            },
            joined_at: joined.map(|at| epoch.unix(at)),
            after_seconds: started.zip(joined).map(|(started, at)| rounded(at.since(started).as_secs_f64())),
            last_heartbeat: sends_heartbeats(node).then(|| epoch.unix(node.last_heartbeat)),
            gone_at: node.gone.map(|at| epoch.unix(at)),
            base_rank,
            local_world_size: local.or(said.and_then(|said| said.local_world_size)),
        }
    });
    shown.collect()
}

pub(crate) fn rank_grid(run: &TrackedRun, links: &Links, epoch: Epoch) -> Option<RankGrid> {
    let world = &run.world;
    if world.is_unnamed() {
        return None;
    }
    let meeting = world.shown();
    let highest = meeting.ranks().last().map(|(rank, _)| rank.saturating_add(1));
    let len = meeting.size.max(highest)?.min(MOST_RANKS);
    let is_past = |rank: &u32| meeting.rank(*rank).is_some_and(|info| is_of_round_before(run, info));
    let has_none = meeting.ranks().all(|(rank, _)| is_past(&rank));
    if has_none && matches!(run.kind, RunKind::C10d | RunKind::Native) {
        return None;
    }
    let state = |rank: u32| match meeting.rank(rank) {
        _ if is_past(&rank) => '.',
        Some(info) if info.is_live() && links.is_away(info.peer) => 'a',
        _ => world.shown_rank(rank),
    };
    let states = (0..len).map(state).collect();
    let shown = meeting.ranks().filter(|(rank, _)| !is_past(rank)).take(RANKS_SHOWN);
    let ranks = shown.map(|(rank, info)| Rank {
        rank,
        host: info.host.clone(),
        peer: Some(info.peer.to_string()),
        pid: info.pid,
        joined_at: epoch.unix(info.joined),
        gone_at: info.gone.map(|at| epoch.unix(at)),
    });
    Some(RankGrid { world_size: meeting.size, states, ranks: ranks.collect() })
}

/// The pods as nodes that have not joined, or are gone.
pub(crate) fn pods(gate: &GateSnapshot, plan: &Plan, epoch: Epoch) -> Vec<api::Node> {
    let mut pods: Vec<_> = gate.known().filter(|pod| pod.said.is_some() || gate.is_open()).collect();
    pods.sort_by_key(|pod| (pod.node_rank.is_none(), pod.node_rank));
    // A host may have several.
    let node_id = |pod: &KnownPod<'_>| match pod.node_rank {
        _ if plan.is_only(pod.name) => pod.name.to_owned(),
        Some(rank) => format!("{}:{rank}", pod.name),
        None => format!("{}:{}", pod.name, pod.said.map_or("", |said| &said.uid)),
    };
    let node = |pod: KnownPod<'_>| {
        let gone_at = plan.gone.get(pod.name).map(|at| epoch.unix(*at));
        api::Node {
            node_id: node_id(&pod),
            name: pod.name.to_owned(),
            peer: pod.said.map(|said| said.address.to_string()),
            rank: pod.node_rank,
            state: gone_at.map_or(NodeState::Announced, |_| NodeState::Gone),
            gone_at,
            ..api::Node::default()
        }
    };
    pods.into_iter().take(MOST_NODES).map(node).collect()
}
