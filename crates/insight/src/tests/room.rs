//! What is known of the jobs takes no more memory than it may, however large they say they are.

use super::lab::Lab;
use crate::Settings;
use rallypoint_protocol::{Payload, Request};
use rallypoint_store::StaleKeyConfig;

const MOST: usize = 1 << 20;

/// Runs of 400 nodes each, as the states that one agent of each writes say.
fn large_runs(lab: &mut Lab, runs: u32) {
    for run in 0..runs {
        let mut state = super::state::StateModel::default();
        (0..400).for_each(|node| state.change(node, &format!("node{node}"), node, "join", lab.now));
        state.change(0, "node0", 0, "complete", lab.now);
        lab.agent(run, &format!("large{run}"));
        let (key, desired) = (format!("/torch.rendezvous.large{run}"), state.value());
        let value = Payload::borrowed(&desired);
        lab.apply(run, &Request::Set { key: key.as_bytes(), value });
        lab.pass(0.2);
    }
}

#[test]
fn nodes_beyond_the_room_are_counted_and_not_remembered() {
    let settings = Settings { most_memory: MOST, ..Settings::default() };
    let mut lab = Lab::with(settings, StaleKeyConfig::default());
    // Which node still has room depends on the sizes of the types.
    lab.scene.is_free();
    lab.complete_run("small", 3);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(3.0);
    large_runs(&mut lab, 20);
    assert!(lab.insight.was_short_of_room() && !lab.insight.was_short_of_room());
    // Their runs are still there: nothing is let go by asking.
    let memory = lab.insight.make_room(usize::MAX);
    assert!(memory < MOST + MOST / 5, "{memory}");
    for run in ["large0", "large19"] {
        assert_eq!(lab.run(run).summary.nodes.joined, 400, "{run}");
    }
    assert_eq!(lab.run("small").participants.len(), 3);
    // Once they are over they make room for others.
    (0..20).for_each(|n| lab.leave(n));
    lab.pass(10.0);
    lab.insight.make_room(MOST);
    lab.complete_run("later", 30);
    assert_eq!(lab.run("later").participants.len(), 30);
    // With room for all of them every node is known.
    let mut healthy = Lab::new();
    large_runs(&mut healthy, 20);
    assert!(!healthy.insight.was_short_of_room());
    assert_eq!(healthy.run("large19").participants.len(), 400);
    assert!(healthy.insight.make_room(usize::MAX) > 2 * MOST);
}
