//! What is said of the facts: a file for each family of rules, which find and say it. They read the facts,
//! and change none.

pub(crate) mod addresses;
pub(crate) mod contradictions;
pub(crate) mod ends;
pub(crate) mod gate;
mod joining;
pub(crate) mod links;
pub(crate) mod losses;
pub(crate) mod native;
pub(crate) mod precedence;
mod silence;
pub(crate) mod starts;
pub(crate) mod stores;
pub(crate) mod waiting;

use std::collections::HashSet;
use std::net::SocketAddr;

pub(crate) use crate::facts::Held;
use crate::facts::{Links, Membership, Plan, TrackedNode, TrackedRun, missing};
use crate::jobs::Jobs;
use crate::reason::{Finding, Names, Presence};
use rallypoint_protocol::ids::{ConnId, Timestamp};

/// Everything that holds at the moment; and of each store the connections of which it is to be known when
/// they asked for something last.
pub(crate) fn holds(jobs: &Jobs, now: Timestamp) -> (Vec<Held>, Vec<(u16, Vec<ConnId>)>) {
    let mut held = contradictions::two_backends(jobs);
    let gathering = gate::gathering(&jobs.plans);
    for (key, run) in jobs.runs.iter().filter(|(_, run)| run.goes_on()) {
        let plan = jobs.plan(key);
        let of_run = of_run(run, &plan, &jobs.links, now).into_iter();
        let found = of_run.chain(gate::of_gate(run, &plan, &gathering, &jobs.links, now));
        held.extend(found.map(|finding| Held { store: key.port(), run: Some(key.clone()), finding }));
    }
    let away = links::away(&jobs.links, |clients| who_is(jobs, clients), now).into_iter();
    let barriers = jobs.barriers.iter().map(|open| native::at_barrier(open, &jobs.barriers, now));
    held.extend(away.chain(barriers).map(|finding| Held { store: None, run: None, finding }));
    held.extend(jobs.foreign.0.iter().map(|foreign| stores::wrong_port(foreign, now)));
    let idle = jobs.stores.keys().map(|&port| (port, of_store(jobs, port, now, &mut held))).collect();
    let mut held = precedence::uncovered(jobs, held);
    held.extend(contradictions::halves(jobs));
    (held, idle)
}

/// What holds in one run, apart from what its waits show.
fn of_run(run: &TrackedRun, plan: &Plan, links: &Links, now: Timestamp) -> Vec<Finding> {
    let mut held = Vec::new();
    if run.native.is_some() {
        let missing = missing(run, plan, run.expected(plan)).into_iter();
        let announced = missing.filter(|node| node.presence == Presence::Announced);
        held.extend(native::waits(run, &Names::of(announced.filter_map(|node| node.name)), now));
        held.extend(native::expires(run, now));
        held.extend(native::spares(run, now));
        held.extend(stores::store_closed(run, now));
    } else {
        held.extend(joining::joining(run, plan, links, now));
        held.extend(joining::fewer_than_expected(run, plan));
        let places = [Membership::WaitList, Membership::Redundant];
        held.extend(places.into_iter().filter_map(|place| joining::left_over(run, place, now)));
    }
    held.extend(ends::at_exit(run, links, now));
    held.extend(losses::ranks_ended(run, links, now));
    held.extend(losses::ranks_missing(run, now));
    held.extend(addresses::unreachable(run));
    held
}

/// What the waits and the clients of a store show. Returns the connections of which it is to be known when
/// they asked for something last.
fn of_store(jobs: &Jobs, port: u16, now: Timestamp, held: &mut Vec<Held>) -> Vec<ConnId> {
    let Some(graph) = jobs.graph(port, now) else { return Vec::new() };
    for (key, finding) in graph.explain() {
        let run = key.as_ref().and_then(|key| jobs.runs.get(key));
        if run.is_none_or(TrackedRun::goes_on) {
            held.push(Held { store: Some(port), run: key, finding });
        }
    }
    let live = |run: &&TrackedRun| run.store() == Some(port) && !run.state.is_over();
    held.extend(jobs.runs.values().filter(live).filter_map(|run| {
        let finding = graph.without_heartbeat(run)?;
        Some(Held { store: Some(port), run: Some(run.key.clone()), finding })
    }));
    held.extend(contradictions::two_jobs(jobs, port, now));
    graph.idle_connections()
}

/// The nodes of these clients, or the ranks where there are no agents.
fn who_is(jobs: &Jobs, clients: &[SocketAddr]) -> Names {
    let clients: HashSet<&SocketAddr> = clients.iter().collect();
    let is_at = |peer: &SocketAddr| clients.contains(peer);
    Names::of(jobs.runs.values().flat_map(|run| {
        let nodes =
            run.participants().filter(|node| node.is_there() && node.peer.as_ref().is_some_and(is_at));
        let ranks = run.world.shown().live().filter(|(_, info)| !run.has_agents() && is_at(&info.peer));
        nodes.map(TrackedNode::label).chain(ranks.map(|(rank, info)| info.label(rank)))
    }))
}
