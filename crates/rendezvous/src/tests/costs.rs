//! What a large rendezvous costs: steps and decisions grow with the number of nodes, not with its square.

use std::cell::Cell;

use super::*;

thread_local! {
    /// Looks at members so far.
    pub(crate) static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// A whole rendezvous of `nodes`: all join, and each gets an answer. Returns the number of decisions.
fn meeting(nodes: u32) -> usize {
    let mut core = Rendezvous::new(Terms::default(), 10);
    let mut decisions = 0;
    for n in 0..nodes {
        let join = join(&format!("node-{n}"), nodes, nodes);
        let node = join.node.clone();
        core.join(&run(), join, Timestamp::default()).expect("a place");
        core.park(&run(), &node);
        decisions += core.take_decisions().len();
    }
    let mut seen = vec![false; nodes as usize];
    for n in 0..nodes {
        match core.standing(&run(), &label(&format!("node-{n}"))).expect("complete") {
            JoinStanding::Complete { rank, .. } => seen[rank as usize] = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(seen.into_iter().all(|seen| seen));
    decisions
}

#[test]
fn a_meeting_takes_a_few_decisions_however_many_nodes_there_are() {
    // A fact and a signal when the round forms; the round, a fact and a signal when it is complete.
    assert_eq!(meeting(10), meeting(1000));
}

#[test]
fn a_meeting_looks_at_each_node_a_few_times() {
    let looks = |nodes: u32| {
        let before = LOOKS.get();
        meeting(nodes);
        LOOKS.get() - before
    };
    assert_eq!(looks(100) * 10, looks(1000), "it grows with the nodes");
    assert!(looks(1000) <= 4 * 1000, "{}", looks(1000));
}

#[test]
fn a_node_that_asks_again_costs_the_same_among_many() {
    let cost = |nodes: u32| {
        let mut table = Table::new();
        for n in 0..nodes {
            table.join(join(&format!("n{n}"), nodes + 1, nodes + 1)).expect("a place");
        }
        let before = LOOKS.get();
        table.cut("n7");
        table.join(join("n7", nodes + 1, nodes + 1)).expect("a place");
        table.reason("n7");
        LOOKS.get() - before
    };
    assert_eq!(cost(10), cost(5000));
}

#[test]
fn a_node_that_is_lost_wakes_the_others_once() {
    let mut table = Table::new();
    let nodes: Vec<String> = (0..500).map(|n| format!("n{n}")).collect();
    for node in &nodes {
        table.join(join(node, 500, 500)).expect("a place");
    }
    for node in &nodes {
        table.core.park_in_round(&run(), &label(node), 1);
    }
    let before = table.notified;
    table.cut("n7");
    table.advance(15 * SECOND);
    assert_eq!(table.notified, before + 1);
    for node in nodes.iter().filter(|node| *node != "n7") {
        table.join(again(node, "2", 500, 500)).expect("a place");
    }
    assert_eq!(
        table.notified,
        before + 3,
        "499 joins are two more changes: nodes wait, and the round is empty"
    );
}

/// The cost of a heartbeat does not depend on how many nodes there are, stand by, or wait for a rank that is
/// held.
#[test]
fn a_heartbeat_costs_the_same_among_many() {
    // Every node but the first asks for a rank that only the first one can have.
    for rank in [None, Some(0)] {
        let cost = |nodes: u32| {
            let mut table = Table::new();
            let places = if rank.is_some() { nodes + 1 } else { 1 };
            let mut first = join("n0", 1, places);
            first.rank = Some(0).filter(|_| rank.is_some());
            table.join(first).expect("a place");
            table.advance(60 * SECOND);
            for n in 1..nodes {
                let mut other = join(&format!("n{n}"), 1, places);
                other.rank = rank;
                drop(table.join(other));
                table.core.unpark(&run(), &label(&format!("n{n}")), table.now);
            }
            let before = LOOKS.get();
            for _ in 0..10 {
                table.core.heartbeat(&run(), report("n5", 1, 0, 1, places), table.now).expect("a view");
            }
            LOOKS.get() - before
        };
        assert_eq!(cost(10), cost(2000), "{rank:?}");
    }
}

/// The cost of an arrival at a barrier, and of a retry, does not depend on how many have arrived.
#[test]
fn arriving_at_a_barrier_costs_the_same_among_many() {
    use crate::barrier::{Arrival, Barriers};
    let cost = |others: u32| {
        let mut barriers = Barriers::new(15 * SECOND, 10);
        let arrive = |barriers: &mut Barriers, n: u32| {
            let participant = label(&format!("n{n}"));
            let (arrival_id, timeout) = ("1".into(), 300 * SECOND);
            let arrival = Arrival { participant, arrival_id, size: 1_000_000, members: None, timeout };
            barriers.arrive(&label("b"), arrival, Timestamp::default()).expect("it waits");
        };
        for n in 0..others {
            arrive(&mut barriers, n);
        }
        let before = LOOKS.get();
        for n in 0..10 {
            arrive(&mut barriers, n);
        }
        arrive(&mut barriers, others);
        LOOKS.get() - before
    };
    assert_eq!(cost(10), cost(5000));
}
