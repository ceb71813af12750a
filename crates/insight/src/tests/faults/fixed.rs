//! Faults of static agents and their ranks.

use std::time::Duration;

use super::super::lab::Lab;
use super::{check_all, check_free, fault, static_run, workers};
use crate::Settings;
use rallypoint_api::{KnownFrom, NodeState, RunState};
use rallypoint_store::StaleKeyConfig;

#[test]
fn faults_of_static_runs() {
    check_all(&[
        fault("static: a node dies and is replaced while the others go on", |lab| {
            static_run(lab, "none", 3);
            (1..3).for_each(|n| lab.get(n, &format!("/none/torchelastic/assigned_ranks/{n}")));
            lab.get(0, "/none/torchelastic/role_info/2");
            lab.pass(5.0);
            lab.leave(2);
            lab.pass(3.0);
            lab.static_node(12, "none", 2, 3);
        })
        .waits("waiting", &[])
        .never(&["never seen", "missing"]),
        fault("static: a node comes again, and another dies that went on with the attempt before", |lab| {
            static_run(lab, "none", 3);
            for n in 1..3 {
                lab.get(0, &format!("/none/torchelastic/role_info/{n}"));
                lab.get(n, &format!("/none/torchelastic/assigned_ranks/{n}"));
            }
            lab.pass(5.0);
            lab.leave(0);
            lab.pass(3.0);
            lab.static_node(10, "none", 0, 3);
            lab.pass(1.0);
            lab.leave(1);
        })
        .waits("waiting", &["node 1"])
        .never(&["never seen", "while joining"]),
        fault("static: a node that nobody counts on dies while another has not come", |lab| {
            lab.static_node(0, "s", 0, 2);
            lab.pass(2.0);
            lab.static_node(3, "s", 3, 4);
            lab.pass(1.0);
            lab.leave(3);
        })
        .waits("nodes_missing", &["node 1"])
        .never(&["gone: node 3"]),
        fault("static: a node never comes, and nobody has said how many there are", |lab| {
            lab.static_node(0, "s", 0, 4);
            lab.static_node(2, "s", 2, 4);
        })
        .waits("nodes_missing", &["node 1", "node 3", "rank 0"])
        .never(&["wait_cycle"]),
        fault("static: of the nodes that are not there, one has never come and one has died", |lab| {
            lab.static_node(0, "s", 0, 3);
            lab.static_node(1, "s", 1, 3);
            lab.leave(1);
        })
        .waits("nodes_missing", &["node 2", "node 1"])
        .never(&["node 1 and node 2", "node 1 has been missing"]),
        fault("static: a node with a larger --nnodes waits for ranks that nobody hands out", |lab| {
            lab.static_node(0, "s", 0, 2);
            lab.static_node(2, "s", 2, 3);
            lab.static_node(1, "s", 1, 2);
            lab.assign_static(0, "s", 2, 1);
        })
        .says("join_refused", &["node 2", "10.77.0.12", "rank 0"])
        .never(&["from node 0", "look at rank 0"]),
        fault("static: an operator resets the store while nodes join", |lab| {
            lab.static_node(0, "s", 0, 3);
            lab.static_node(1, "s", 1, 3);
            lab.pass(2.0);
            lab.reset();
        })
        .waits("waiting", &[])
        .never(&["wait_cycle", "each waits for the next"]),
        fault("static: a node dies before its ranks have come", |lab| {
            static_run(lab, "s", 2);
            workers(lab, 0..2, 4);
            lab.leave(1);
        })
        .says("lost", &["node 1", "10.77.0.11"])
        .never(&["while training", "node_silent"]),
        fault("static: a node dies, and the others wait for it at the exit barrier", |lab| {
            static_run(lab, "s", 3);
            lab.exit_static(0, "s", false);
            lab.exit_static(1, "s", false);
            lab.leave(2);
        })
        .waits("exit_barrier", &["node 2"])
        .never(&["node_silent"]),
        fault("static: the ranks of a node that is there never come", |lab| {
            static_run(lab, "s", 2);
            workers(lab, 0..2, 4);
            lab.wait_for_rank(100, 2);
            lab.wait_for_rank(101, 2);
        })
        .waits("waiting", &["rank 2", "rank 0", "node 1", "10.77.0.11", "rank 3", "rank 1"])
        .never(&["meet at"]),
        fault(
            "static: a rank fails, that of the other node with it, and both nodes start their workers again",
            |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                for rank in [3, 0, 2, 1] {
                    lab.leave(100 + rank);
                    lab.pass(0.1);
                }
                lab.restart_workers(0, "s", 0);
                lab.pass(0.5);
                lab.restart_workers(1, "s", 1);
                lab.assign_static(0, "s", 2, 2);
            },
        )
        .says("round_over", &["node 0", "10.77.0.10", "node 1", "10.77.0.11", "rank 3", "host103"])
        .never(&["round 1", "missing", "of 2 nodes", "rank 0"]),
        fault(
            "static: a node starts its workers again long after that of the rank that failed first",
            |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                (102..104).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
                lab.pass(1.0);
                (2..4).for_each(|rank| lab.rank(202 + rank, "10.77.0.11", rank, 4));
                lab.leave(100);
                lab.pass(2.0);
                lab.leave(101);
                lab.restart_workers(0, "s", 0);
            },
        )
        .says("round_over", &["node 0", "10.77.0.10", "rank 2", "host102"])
        .never(&["round 1", "missing", "of 2 nodes", "rank 0"]),
        fault("static: two agents have one node rank, and another is free", |lab| {
            lab.static_node(0, "s", 0, 4);
            lab.static_node(1, "s", 1, 4);
            lab.static_node(2, "s", 1, 4);
            lab.static_node(3, "s", 2, 4);
        })
        .waits("nodes_missing", &["node 3"])
        .never(&["connection closed"]),
        fault("static: two agents have one node rank, and 0 is free", |lab| {
            lab.static_node(1, "s", 1, 3);
            lab.static_node(2, "s", 1, 3);
            lab.static_node(3, "s", 2, 3);
        })
        .waits("waiting", &["node 0"])
        .never(&["connection closed"]),
        fault(
            "static: a rank fails before all have come, and its agent ends the other one of its node",
            |lab| {
                static_run(lab, "s", 2);
                workers(lab, 1..4, 4);
                lab.pass(5.0);
                lab.leave(103);
                lab.pass(0.2);
                lab.leave(102);
            },
        )
        .says("lost", &["rank 3", "host103", "rank 2", "host102"])
        .never(&["rank 2 on host102: connection"]),
        fault(
            "static: a rank fails before it has published, and its agent ends the other one of its node",
            |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..3, 4);
                lab.pass(5.0);
                lab.leave(102);
            },
        )
        .says("lost", &["rank 2", "host102", "rank 3", "rank 1", "node 1", "10.77.0.11"])
        .never(&["look at the log of what ended;"]),
        fault("static: a node starts its workers again after the other has finished", |lab| {
            static_run(lab, "s", 2);
            workers(lab, 0..4, 4);
            lab.pass(5.0);
            (100..102).for_each(|rank| lab.leave(rank));
            lab.exit_static(0, "s", false);
            lab.pass(2.0);
            (102..104).for_each(|rank| lab.leave(rank));
            lab.restart_workers(1, "s", 1);
            for rank in 2..4 {
                lab.rank(202 + rank, "10.77.0.11", rank, 4);
                lab.wait_for_rank(202 + rank, 0);
            }
        })
        .waits("waiting", &["rank 0"]),
        fault(
            "static: a rank that has come again gives up, and its node starts its workers once more",
            |lab| {
                static_run(lab, "s", 2);
                workers(lab, 0..4, 4);
                lab.pass(5.0);
                (102..104).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
                (2..4).for_each(|rank| lab.rank(202 + rank, "10.77.0.11", rank, 4));
                lab.pass(20.0);
                (204..206).for_each(|rank| lab.leave(rank));
                lab.restart_workers(1, "s", 1);
            },
        )
        .says("lost", &["rank 2", "host204", "rank 3", "host205"])
        .never(&["20 s earlier"]),
        fault("static: a node is killed before all ranks have come", |lab| {
            static_run(lab, "s", 2);
            workers(lab, 0..1, 4);
            workers(lab, 2..4, 4);
            lab.pass(5.0);
            (102..104).for_each(|rank| lab.leave(rank));
            lab.leave(1);
        })
        .says("lost", &["rank 2", "host102", "rank 3", "host103"])
        .never(&["and then", "of the same node"]),
        fault("static: a worker fails long after it has closed its group", |lab| {
            static_run(lab, "s", 2);
            workers(lab, 0..4, 4);
            lab.pass(5.0);
            (100..104).for_each(|rank| lab.leave(rank));
            lab.pass(20.0);
            lab.restart_workers(1, "s", 1);
        })
        .says("round_over", &["node 1", "10.77.0.11"])
        .never(&["ended first"]),
        fault("static: a rank fails, and with it the whole job", |lab| {
            static_run(lab, "s", 2);
            workers(lab, 0..4, 4);
            lab.pass(5.0);
            for rank in [3, 0, 2, 1] {
                lab.leave(100 + rank);
                lab.pass(0.1);
            }
            lab.leave(0);
            lab.pass(0.2);
            lab.leave(1);
        })
        .says("run_ended", &["rank 3", "host103"])
        .never(&["first: node"]),
        fault("static: all nodes end one after the other", |lab| {
            static_run(lab, "s", 3);
            for n in [1, 2, 0] {
                lab.leave(n);
                lab.pass(0.2);
            }
        })
        .says("run_ended", &["node 1", "10.77.0.11"])
        .never(&["finished:"]),
        fault("static: node ranks begin at 1", |lab| {
            lab.static_node(1, "s", 1, 2);
            lab.static_node(2, "s", 2, 2);
        })
        .waits("waiting", &["node 0"]),
        fault("static: all nodes are killed", |lab| {
            static_run(lab, "s", 2);
            lab.leave_all([0, 1]);
        })
        .says("run_ended", &[])
        .never(&["finished:"]),
    ]);
}

#[test]
fn a_static_node_that_died_is_missing() {
    let mut lab = Lab::soon();
    lab.static_node(0, "s", 0, 3);
    lab.static_node(1, "s", 1, 3);
    lab.pass(3.0);
    lab.leave(1);
    lab.pass(3.0);
    let run = lab.run("s");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.missing), (1, Some(2)));
    let names: Vec<_> = run.missing.iter().filter_map(|node| node.name.as_deref()).collect();
    assert_eq!(names, ["node 1", "node 2"]);
}

#[test]
fn static_nodes_that_go_on_with_the_attempt_before_wait_for_no_round() {
    let mut lab = Lab::soon();
    static_run(&mut lab, "s", 3);
    lab.pass(5.0);
    lab.leave(1);
    lab.static_node(11, "s", 1, 3);
    lab.pass(3.0);
    let run = lab.run("s");
    let nodes = run.summary.nodes;
    assert_eq!((nodes.joined, nodes.waiting, nodes.earlier, nodes.missing), (1, 0, 2, Some(0)));
    let states: Vec<_> = run.participants.iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::Earlier, NodeState::Joined, NodeState::Earlier]);
}

/// One of the two is said of a static node that has not come, and the one that names all.
#[test]
fn a_static_node_that_is_missing_is_said_once() {
    let explain_after = Duration::from_secs(3);
    let settings = Settings { explain_after, nodes: Some((3, 3)), ..Settings::default() };
    let mut lab = Lab::with(settings, StaleKeyConfig::default());
    lab.static_node(0, "job", 0, 3);
    lab.static_node(1, "job", 1, 3);
    lab.pass(20.0);
    assert!(!lab.texts("nodes_missing").is_empty());
    assert_eq!(lab.texts("waiting"), Vec::<&str>::new());
}

/// One of them counts on more nodes than have come.
#[test]
fn an_exit_barrier_that_all_have_reached_is_said_to_lack_nobody() {
    check_free(&[
        fault("static: all nodes have arrived at the exit barrier, and it does not end", |lab| {
            static_run(lab, "s", 2);
            (0..2).for_each(|n| lab.exit_static(n, "s", false));
        })
        .words(&["2 of 2 nodes have finished", "no other node is known", "counts on more nodes", "--nnodes"])
        .never(&["have not finished"]),
        fault("static: a node has not arrived at the exit barrier", |lab| {
            static_run(lab, "s", 2);
            lab.exit_static(0, "s", false);
        })
        .words(&["connected, not finished: node 1"])
        .never(&["no other node"]),
    ]);
}

/// It waits for nobody: nothing of the round changes, whatever the others do.
#[test]
fn a_static_node_that_starts_its_workers_again_stays_in_the_round() {
    let mut lab = Lab::soon();
    static_run(&mut lab, "s", 2);
    lab.pass(5.0);
    for times in 1..4 {
        lab.restart_workers(1, "s", 1);
        lab.pass(5.0);
        let run = lab.run("s");
        let nodes = run.summary.nodes;
        assert_eq!((run.summary.state, run.summary.round), (RunState::Running, 0));
        assert_eq!((nodes.joined, nodes.earlier, nodes.missing), (2, 0, Some(0)));
        assert_eq!(lab.texts("round_over").len(), times, "{:?}", lab.said);
    }
    lab.exit_static(0, "s", false);
    lab.exit_static(1, "s", true);
    lab.pass(2.0);
}

/// Then it waits for another in the place of that one.
#[test]
fn a_static_node_that_starts_its_workers_again_after_another_has_died_waits_for_that_one() {
    let mut lab = Lab::soon();
    static_run(&mut lab, "s", 2);
    lab.pass(5.0);
    lab.leave(1);
    lab.pass(1.0);
    lab.restart_workers(0, "s", 0);
    lab.wait(0, &["/s/torchelastic/role_info/0", "/s/torchelastic/role_info/1"]);
    lab.pass(8.0);
    let nodes = lab.run("s").summary.nodes;
    assert_eq!((nodes.joined, nodes.gone, nodes.missing), (1, 0, Some(1)));
    assert!(lab.texts("round_over").is_empty(), "{:?}", lab.said);
    assert!(!lab.texts("nodes_missing").is_empty());
    lab.static_node(11, "s", 1, 2);
    lab.assign_static(0, "s", 2, 2);
    lab.pass(2.0);
    assert_eq!(lab.run("s").summary.nodes.joined, 2);
    assert_eq!(lab.texts("round_complete").len(), 2, "{:?}", lab.said);
}

/// What was said of the job before is no part of the document of the one that follows it.
#[test]
fn a_static_job_that_is_started_again_has_a_document_of_its_own() {
    let mut lab = Lab::soon();
    static_run(&mut lab, "none", 2);
    lab.leave_all([0, 1]);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 1);
    lab.static_node(10, "none", 0, 2);
    lab.static_node(11, "none", 1, 2);
    lab.assign_static(10, "none", 2, 1);
    lab.pass(3.0);
    let codes: Vec<_> = lab.run("none").explanations.into_iter().map(|said| said.code).collect();
    assert_eq!(codes, ["round_complete"]);
}

#[test]
fn node_0_that_has_not_come_is_missing_though_nobody_has_said_how_many_there_are() {
    let mut lab = Lab::soon();
    lab.static_node(2, "s", 2, 3);
    lab.pass(3.0);
    let run = lab.run("s");
    assert_eq!((run.summary.nodes.expected, run.summary.nodes.missing), (None, Some(2)));
    let names: Vec<_> = run.missing.iter().filter_map(|node| node.name.as_deref()).collect();
    assert_eq!(names, ["node 0", "node 1"]);
}

#[test]
fn a_larger_static_job_beside_another_is_no_node_too_many() {
    let mut lab = Lab::soon();
    static_run(&mut lab, "none", 2);
    lab.pass(5.0);
    // The node with the highest rank comes first.
    for rank in [2, 0, 1] {
        lab.static_node(10 + rank, "none", rank, 3);
    }
    lab.assign_static(10, "none", 3, 1);
    lab.pass(10.0);
    assert_eq!(lab.texts("join_refused"), [""; 0]);
    assert!(!lab.texts("duplicate_rank").is_empty());
    let nodes = lab.run("none").summary.nodes;
    // The first job goes on, and what has come since is another one.
    assert_eq!((nodes.joined, nodes.redundant, nodes.missing), (2, 1, Some(0)));
}

#[test]
fn a_node_that_ended_alone_just_before_the_others_came_is_not_said_to_be_absent() {
    for (pause, is_told) in [(0.2, true), (15.0, true), (200.0, false)] {
        for ended in [0, 1] {
            let mut lab = Lab::soon();
            lab.static_node(10, "none", ended, 3);
            lab.pass(2.0);
            lab.leave(10);
            lab.pass(pause);
            lab.static_node(2, "none", 2, 3);
            lab.static_node(11, "none", 1 - ended, 3);
            lab.pass(8.0);
            let run = lab.run("none");
            let known_from = if is_told { KnownFrom::Died } else { KnownFrom::RoleExchange };
            let missing: Vec<_> = run.missing.iter().map(|node| (node.rank, node.known_from)).collect();
            assert_eq!(missing, [(Some(ended), known_from)], "{pause}");
            // It comes again, and all is well.
            lab.static_node(12, "none", ended, 3);
            lab.assign_static(if ended == 0 { 12 } else { 11 }, "none", 3, 1);
            lab.pass(5.0);
            let nodes = lab.run("none").summary.nodes;
            assert_eq!((nodes.joined, nodes.gone, nodes.missing), (3, 0, Some(0)));
        }
    }
}
