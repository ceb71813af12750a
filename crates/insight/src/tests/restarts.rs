//! The server dies and the next one goes on with its journal: insight shows the same, also since when, and
//! says nothing of it.

use super::lab::Lab;
use super::replay::{self, replay};
use rallypoint_api::{KnownFrom, Run, RunState};

/// What people see of a run, apart from the times of its nodes and waits.
#[derive(Debug, PartialEq)]
struct Seen {
    state: RunState,
    round: u64,
    /// Name, address, process id, rank and state of each.
    nodes: Vec<String>,
    counts: (u32, Option<u32>, Option<u32>),
    ranks: Option<(u32, u32, Option<u32>)>,
    exit: Option<u32>,
    /// Who waits, for what, and who must write it.
    waits: Vec<String>,
    workers_store: Option<String>,
    /// When it began, took its state, and was complete.
    since: (f64, f64, Option<f64>),
    /// When what happened.
    timeline: Vec<(f64, String)>,
}

fn seen(Run { summary, participants, waits, workers_store, timeline, .. }: Run) -> Seen {
    let mut nodes: Vec<_> = participants
        .iter()
        .map(|it| format!("{} {:?} {:?} {:?} {:?}", it.name, it.peer, it.pid, it.rank, it.state))
        .collect();
    nodes.sort();
    let mut waits: Vec<_> =
        waits.iter().map(|wait| format!("{:?} {:?} {:?}", wait.who, wait.missing, wait.writer)).collect();
    waits.sort();
    Seen {
        state: summary.state,
        round: summary.round,
        nodes,
        counts: (summary.nodes.joined, summary.nodes.missing, summary.nodes.expected.map(|it| it.min)),
        ranks: summary.ranks.map(|ranks| (ranks.joined, ranks.connected, ranks.expected)),
        exit: summary.exit.map(|exit| exit.arrived),
        waits,
        workers_store,
        // Who is at the exit barrier is seen by its waits, after a second.
        since: (
            summary.started_at,
            if summary.state == RunState::Exiting { 0.0 } else { summary.state_since },
            summary.completed_at,
        ),
        timeline: timeline.into_iter().map(|it| (it.at, it.text)).collect(),
    }
}

/// Kills the server, and compares what it shows then with what it showed before.
#[track_caller]
fn assert_same_after(lab: &mut Lab, run: &str, away: f64) {
    // Waits are shown after a second.
    lab.pass(2.5);
    let before = seen(lab.run(run));
    let complaints = lab.complaints().len();
    lab.restart(away, &[]);
    lab.pass(2.5);
    assert_eq!(seen(lab.run(run)), before);
    assert_eq!(lab.complaints()[complaints..], [""; 0]);
}

#[test]
fn a_c10d_run_is_the_same_after_a_restart_in_each_phase() {
    for away in [0.01, 60.0, 3600.0] {
        let mut lab = Lab::new();
        for n in 0..2 {
            lab.agent(n, "job");
            lab.pass(0.2);
            lab.cas(n, "job", "join");
        }
        assert_same_after(&mut lab, "job", away);
        lab.joins(2, "job", "join complete");
        assert_same_after(&mut lab, "job", away);
        lab.exchange("job", 0, 3, 1);
        lab.pass(0.3);
        assert_same_after(&mut lab, "job", away);
        assert_eq!(lab.run("job").summary.state, RunState::Running);
        // Heartbeats go on.
        (0..3).for_each(|n| lab.cas(n, "job", ""));
        assert_same_after(&mut lab, "job", away);
        lab.reach_exit(1, "job", false);
        assert_same_after(&mut lab, "job", away);
        assert_eq!(lab.run("job").summary.state, RunState::Exiting);
        lab.reach_exit(2, "job", false);
        lab.reach_exit(0, "job", true);
        assert_same_after(&mut lab, "job", away);
        assert_eq!(lab.run("job").summary.state, RunState::Finished);
        (0..3).for_each(|n| lab.leave(n));
        lab.pass(5.0);
        assert_eq!(lab.complaints(), [""; 0]);
    }
}

#[test]
fn a_static_run_is_the_same_after_a_restart() {
    let mut lab = Lab::new();
    lab.static_node(0, "job", 0, 3);
    lab.static_node(2, "job", 2, 3);
    assert_same_after(&mut lab, "job", 60.0);
    lab.static_node(1, "job", 1, 3);
    lab.assign_static(0, "job", 3, 2);
    assert_same_after(&mut lab, "job", 60.0);
    lab.exit_static(1, "job", false);
    assert_same_after(&mut lab, "job", 60.0);
    lab.exit_static(2, "job", false);
    lab.exit_static(0, "job", true);
    assert_same_after(&mut lab, "job", 60.0);
    assert_eq!(lab.run("job").summary.state, RunState::Finished);
}

#[test]
fn ranks_without_agents_are_the_same_after_a_restart() {
    let mut lab = Lab::new();
    (0..12).for_each(|n| lab.worker(n, &format!("10.0.0.{}", n + 1)));
    for n in 0..11 {
        lab.publish(n, n, 12);
        lab.wait_for_rank(n, 11);
    }
    assert_same_after(&mut lab, "store:29500", 60.0);
    lab.publish(11, 11, 12);
    assert_same_after(&mut lab, "store:29500", 60.0);
    assert_eq!(lab.run("store:29500").summary.state, RunState::Running);
    (0..12).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    assert_eq!(lab.run("store:29500").summary.state, RunState::Ended);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn workers_of_torchrun_are_the_same_after_a_restart() {
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    (10..12).for_each(|n| lab.rank(n, &format!("10.77.0.{}", n % 2 + 10), n - 10, 2));
    lab.wait(11, &["/default_pg/0//store_based_barrier_key:1:last_worker"]);
    assert_same_after(&mut lab, "job", 60.0);
    assert_eq!(lab.run("job").summary.ranks.expect("ranks").joined, 2);
}

#[test]
fn ranks_beside_agents_are_a_job_of_their_own_after_a_restart_too() {
    const OF_RANKS: &str = "store:29500";
    // Whether a static run gathers there as well, and whether the ranks come before the c10d run is complete.
    for (with_static, before_complete) in [(true, true), (false, true), (false, false)] {
        let mut lab = Lab::new();
        if before_complete {
            lab.join("job", 0..1);
        } else {
            lab.complete_run("job", 2);
        }
        if with_static {
            lab.static_node(5, "fixed", 0, 3);
        }
        // At an agent's address they can be told from its workers by the time only.
        for (n, addr) in [(10, if before_complete { "10.77.0.10" } else { "10.0.0.1" }), (11, "10.0.0.2")] {
            lab.rank(n, addr, n - 10, 3);
            lab.wait_for_rank(n, 2);
        }
        for run in ["job", OF_RANKS] {
            assert_same_after(&mut lab, run, 60.0);
        }
        if with_static {
            assert_same_after(&mut lab, "fixed", 60.0);
        }
        assert_eq!(lab.run(OF_RANKS).summary.ranks.expect("ranks").joined, 2);
    }
}

/// The role exchange goes with the connections of the agents, which do not come back without a relay.
#[test]
fn ranks_of_a_static_run_that_ended_with_the_server_are_not_said_to_have_never_come() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.static_node(n, "job", n, 3));
    lab.assign_static(0, "job", 3, 1);
    lab.pass(5.0);
    lab.restart(1.0, &[0, 1, 2]);
    lab.pass(1.0);
    for n in 10..12 {
        lab.rank(n, "10.0.0.1", n - 10, 3);
        lab.wait_for_rank(n, 2);
    }
    lab.pass(32.0);
}

#[test]
fn who_dies_after_a_restart_is_named_as_ever() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.restart(60.0, &[]);
    lab.pass(5.0);
    (0..3).for_each(|n| lab.cas(n, "job", ""));
    lab.leave(1);
    lab.pass(5.0);
    assert_eq!(lab.texts("lost").len(), 1, "{:?}", lab.said);
}

#[test]
fn nobody_is_said_to_have_died_whose_connection_ended_with_the_server() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    let said = lab.said.len();
    lab.restart(60.0, &[0, 1, 2]);
    lab.pass(29.0);
    assert_eq!(lab.run("job").summary.state, RunState::Gone);
    assert_eq!(lab.said.len(), said, "{:?}", lab.said);
    lab.pass(60.0);
    assert_eq!(lab.said.len(), said + 1, "{:?}", lab.said);
    // It is started again.
    (3..5).for_each(|n| lab.agent(n, "job"));
    lab.pass(1.0);
    assert!(!lab.run("job").summary.state.is_over());
}

#[test]
fn nobody_is_said_to_have_filled_a_round_of_before() {
    let mut lab = Lab::new();
    lab.joins(0, "job", "join deadline");
    lab.pass(2.0);
    lab.cas(0, "job", "complete");
    lab.pass(1.0);
    lab.restart(1.0, &[]);
    // It asks for as many as all, and there is room: the last call was over.
    lab.joins(1, "job", "wait");
    lab.pass(2.0);
    assert!(lab.texts("nnodes_differ").is_empty(), "{:?}", lab.said);
}

#[test]
fn nobody_is_said_to_run_still_who_went_with_the_server() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.reach_exit(0, "job", false);
    lab.pass(2.0);
    lab.restart(1.0, &[2]);
    lab.pass(60.0);
    assert!(!lab.texts("exit_barrier").is_empty());
}

/// A static job whose node 0 has arrived at the exit barrier, before the server was restarted or not.
fn with_one_at_exit(restarts: bool) -> Lab {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.static_node(n, "job", n, 3));
    lab.assign_static(0, "job", 3, 1);
    lab.pass(5.0);
    lab.exit_static(0, "job", false);
    lab.pass(2.0);
    if restarts {
        lab.restart(1.0, &[]);
    }
    lab
}

#[test]
fn who_finished_before_a_restart_does_not_die_in_the_next_job() {
    for restarts in [false, true] {
        let mut lab = with_one_at_exit(restarts);
        // The others finish before it is seen that it waits there.
        lab.exit_static(1, "job", false);
        lab.exit_static(2, "job", true);
        lab.pass(0.2);
        lab.static_node(11, "job", 1, 3);
        lab.pass(0.2);
        (0..3).for_each(|n| lab.leave(n));
        lab.pass(5.0);
        assert_eq!(lab.texts("lost"), [""; 0], "restarts: {restarts}");
        // A loss of the next job is told.
        lab.static_node(12, "job", 2, 3);
        lab.leave(11);
        lab.pass(5.0);
        assert_eq!(lab.texts("lost").len(), 1, "restarts: {restarts}");
    }
}

#[test]
fn who_finished_before_a_restart_does_not_die_in_the_next_attempt() {
    for restarts in [false, true] {
        let mut lab = with_one_at_exit(restarts);
        // Another attempt begins before it is seen that it waits there.
        lab.leave(1);
        lab.static_node(11, "job", 1, 3);
        lab.pass(3.0);
        lab.leave(0);
        lab.pass(5.0);
        assert_eq!(lab.texts("lost").len(), 1, "restarts: {restarts}: {:?}", lab.said);
    }
}

#[test]
fn a_node_that_went_with_the_server_is_missing_by_its_name() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.pass(5.0);
    lab.restart(1.0, &[2]);
    lab.pass(2.0);
    let assert_missing = |lab: &Lab, rank: Option<u32>| {
        let Run { summary, missing, now, .. } = lab.run("job");
        assert_eq!((summary.nodes.joined, summary.nodes.missing), (2, Some(1)));
        let [node] = &missing[..] else { panic!("{missing:?}") };
        assert_eq!(
            (node.name.as_deref(), node.rank, node.known_from),
            (Some("node2"), rank, KnownFrom::NotBack)
        );
        now - node.last_seen.expect("a time")
    };
    assert!((1.5..=2.5).contains(&assert_missing(&lab, Some(2))), "it was there until then");
    assert_eq!(lab.complaints(), [""; 0]);
    lab.pass(13.0);
    lab.cas(1, "job", "");
    lab.cas(0, "job", "drop:2");
    lab.pass(2.0);
    assert!((16.5..=17.5).contains(&assert_missing(&lab, Some(2))));
    lab.reach_exit(0, "job", false);
    lab.pass(40.0);
}

#[test]
fn who_went_with_the_server_before_all_had_joined_is_gone() {
    let mut lab = Lab::new();
    lab.join("job", 0..2);
    lab.insight.expect("job", crate::Expectation { min: 3, max: 3, names: Vec::new() });
    lab.restart(1.0, &[1]);
    lab.insight.expect("job", crate::Expectation { min: 3, max: 3, names: Vec::new() });
    lab.pass(40.0);
    // It comes again, as a process of its own.
    lab.agent(4, "job");
    lab.pass(1.0);
    assert_eq!(lab.run("job").missing.iter().filter(|node| node.known_from == KnownFrom::NotBack).count(), 1);
}

#[test]
fn who_is_in_the_state_again_is_not_missing_by_what_was_known_of_it_before() {
    for restarts in [false, true] {
        let mut lab = Lab::new();
        lab.complete_run("job", 3);
        // A second process on the host of node1, and one in another pod that has its process id.
        for (n, addr) in [(7, "10.77.0.11"), (8, "10.77.0.18")] {
            lab.come(n, addr, 1007);
            lab.first_cas(n, "job");
            lab.cas(n, "job", "wait");
        }
        lab.pass(2.0);
        if restarts {
            lab.restart(1.0, &[1]);
        } else {
            lab.leave(1);
        }
        // It has been silent too long as well, and takes itself out with the other.
        lab.cas(7, "job", "drop:1 leave");
        lab.cas(7, "job", "wait");
        lab.pass(2.0);
        lab.cas(7, "job", "next join");
        lab.pass(60.0);
        let missing = lab.run("job").missing;
        let missing: Vec<_> = missing.iter().filter_map(|node| node.name.as_deref()).collect();
        assert!(missing.contains(&"node1"), "restarts: {restarts}: {missing:?}");
        assert!(!missing.contains(&"node1_1007"), "restarts: {restarts}: {missing:?}");
    }
}

#[test]
fn a_node_that_has_left_is_not_taken_for_one_that_stays() {
    let mut lab = Lab::new();
    lab.join("job", 0..2);
    lab.pass(2.0);
    lab.cas(0, "job", "leave");
    lab.restart(1.0, &[]);
    lab.pass(2.0);
    lab.leave(0);
    lab.pass(5.0);
    assert!(lab.texts("lost").is_empty(), "{:?}", lab.said);
}

#[test]
fn how_many_nodes_a_round_of_before_had_is_not_known() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.cas(0, "job", "leave");
    lab.restart(1.0, &[]);
    lab.cas(1, "job", "next join");
    lab.cas(2, "job", "join");
    lab.pass(60.0);
    assert!(lab.texts("nnodes_differ").is_empty(), "{:?}", lab.said);
    assert!(!lab.texts("nodes_missing").is_empty(), "{:?}", lab.said);
}

#[test]
fn a_recorded_job_has_the_same_story_wherever_the_server_is_killed() {
    let samples: [(&str, replay::Script); 4] = [
        ("run1_c10d_4x2", replay::RUN_1),
        ("run4_plugin_workers_external", replay::RUN_4_PLUGIN),
        ("run4_static_standalone_4x", &[]),
        ("run4_env_standalone", &[]),
    ];
    for (name, script) in samples {
        let whole = replay(name, script, Lab::new(), 5.0);
        for kill in 1..40 {
            let mut lab = Lab::new();
            lab.restarts = vec![f64::from(kill)];
            lab.scene.is_free();
            let lab = replay(name, script, lab, 5.0);
            assert_eq!(lab.complaints(), whole.complaints(), "{name}, killed at {kill} s");
            // Nothing is said twice, and nothing else. What was not said when the server died may stay
            // unsaid.
            let story = |lab: &Lab| lab.said.iter().map(|(_, said)| said.code.clone()).collect::<Vec<_>>();
            let mut left = story(&whole).into_iter();
            let is_part = story(&lab).iter().all(|code| left.any(|other| other == *code));
            assert!(is_part, "{name}, killed at {kill} s: {:?}, not {:?}", story(&lab), story(&whole));
        }
    }
}

/// Ranks that have met go on without a server. Of them the next one knows only that the last one knew them:
/// whom it has not seen since may be there.
#[test]
fn who_has_not_come_since_the_restart_may_go_on_from_before() {
    let mut lab = Lab::new();
    (0..2).for_each(|rank| lab.rank(rank, &format!("10.77.0.{rank}"), rank, 2));
    lab.pass(5.0);
    lab.restart(1.0, &[0, 1]);
    lab.pass(60.0);
    lab.rank(5, "10.77.0.1", 1, 2);
    lab.wait_for_rank(5, 0);
    lab.pass(40.0);
    assert!(!lab.texts("waiting").is_empty());
}
