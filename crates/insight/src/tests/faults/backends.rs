//! Faults of c10d and native agents, of pods and barriers, and of what these have in common.

use super::super::lab::Lab;
use super::{WAIT, check_all, fault, ranks, static_run, workers};
use crate::Expectation;
use rallypoint_api::RunState;

#[test]
fn faults_of_backends() {
    check_all(&[
        fault("static and c10d agents with one id", |lab| {
            lab.static_node(0, "job", 0, 2);
            lab.pass(1.0);
            lab.joins(1, "job", "join");
        })
        .says("two_backends", &["node 0", "10.77.0.10", "node1"])
        .never(&["node_silent", "have joined", "has joined", "node rank 0: "]),
        fault("c10d agents, and one of the static rendezvous with their id", |lab| {
            lab.join("job", 0..2);
            lab.pass(1.0);
            lab.static_node(2, "job", 2, 3);
            lab.pass(2.0);
            lab.cas(0, "job", "");
        })
        .says("two_backends", &["node 2", "10.77.0.12", "node0", "node1"])
        .never(&["lost: ", "have joined", "node rank 0: "]),
        fault("c10d: no agent is heard of any more, though all are connected", |lab| {
            lab.complete_run("job", 2);
            for _ in 0..2 {
                lab.pass(5.0);
                (0..2).for_each(|n| lab.cas(n, "job", ""));
            }
            lab.pass(10.0);
        })
        .says("node_silent", &["node0", "node 0", "node1", "node 1"])
        .never(&["connection closed", "; others have"]),
        fault("c10d: a node dies before its rank has come here", |lab| {
            lab.complete_run("job", 3);
            for n in [0, 2] {
                lab.rank(10 + n, &format!("10.77.0.{}", 10 + n), n, 3);
                lab.wait_for_rank(10 + n, 1);
            }
            lab.pass(1.0);
            lab.leave(1);
        })
        .waits("waiting", &["rank 1", "rank 0", "node1"]),
        fault("c10d: an operator resets the store while the job trains", |lab| {
            lab.complete_run("job", 2);
            lab.pass(5.0);
            lab.reset();
            lab.forget_state("job");
            (0..2).for_each(|n| lab.wait(n, &["/torch.rendezvous.job"]));
        })
        .waits("store_reset", &[])
        .never(&["wait_cycle", "connection closed", "have joined"]),
        fault("c10d: a node dies a moment before the last one makes the round complete", |lab| {
            lab.join("job", 0..3);
            lab.pass(1.0);
            lab.leave(1);
            lab.agent(3, "job");
            lab.pass(0.3);
            lab.cas(3, "job", "join complete");
        })
        .says("lost", &["node1"])
        .never(&["node_silent"]),
        fault("c10d: of two nodes that died while joining, torch has taken out one", |lab| {
            lab.join_all("job", 0..4);
            lab.pass(5.0);
            (0..4).for_each(|n| lab.cas(n, "job", if n == 0 { "next join" } else { "join" }));
            lab.leave_all([1, 2]);
            lab.pass(3.0);
            lab.cas(0, "job", "drop:1");
        })
        .says("nodes_missing", &["node1", "node2"])
        .within(WAIT + 6.0)
        .never(&["has been missing", "have been missing"]),
        fault("static: nodes of one job have different ids", |lab| {
            lab.static_node(0, "job", 0, 3);
            lab.static_node(1, "job", 1, 3);
            lab.static_node(2, "jbo", 2, 3);
        })
        .waits("waiting", &["node 0", "node 1"])
        .never(&["two jobs"]),
        fault("c10d: an agent closes the run after a failure", |lab| {
            lab.complete_run("job", 2);
            lab.pass(5.0);
            lab.cas(1, "job", "close");
        })
        .says("run_closed", &["node1", "node 1"])
        .never(&["only 0"]),
        fault("c10d: the only agent closes the run after a failure", |lab| {
            lab.complete_run("job", 1);
            lab.pass(5.0);
            lab.cas(0, "job", "close");
        })
        .says("run_closed", &["node0", "node 0"]),
        fault(
            "c10d: a node comes to a complete round with another --nnodes, and torch restarts all",
            |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.joins(2, "job", "wait");
            },
        )
        .says("nnodes_differ", &["node2", "node1", "node 1"])
        .never(&["connection closed", "never seen"]),
        fault("c10d: the round with that node is never complete", |lab| {
            lab.complete_run("job", 2);
            lab.joins(2, "job", "wait");
            lab.cas(0, "job", "next join");
            lab.cas(2, "job", "join");
            lab.cas(1, "job", "join");
        })
        .waits("nnodes_differ", &["node2"])
        .never(&["connection closed"]),
        fault("c10d: a node gives up, closes the run, and says who did not come", |lab| {
            let names = ["node0", "node1", "node2"].map(str::to_owned).to_vec();
            lab.insight.expect("job", Expectation { min: 3, max: 3, names });
            lab.join("job", 0..2);
            lab.pass(2.0);
            lab.cas(1, "job", "leave");
            lab.cas(1, "job", "close");
        })
        .says("run_closed", &["node1", "node2"])
        .never(&["missing: node1"]),
        fault("c10d: a node comes to a run that failed", |lab| {
            lab.complete_run("job", 2);
            lab.cas(1, "job", "close");
            lab.pass(1.0);
            lab.agent(2, "job");
        })
        .says("join_refused", &["pid 1002", "10.77.0.12", "node1", "node 1"])
        .never(&["finished and was closed"]),
        fault("c10d: an agent is frozen, and another takes it out of the round", |lab| {
            lab.complete_run("job", 3);
            for _ in 0..3 {
                lab.pass(5.0);
                lab.cas(0, "job", "");
                lab.cas(1, "job", "");
            }
            lab.cas(0, "job", "drop:2");
        })
        .says("lost", &["node2", "node 2", "node0", "node 0"])
        .never(&["connection closed"]),
        fault(
            "c10d: the only agent of a round is frozen, and the next takes it out as the next round begins",
            |lab| {
                lab.complete_run("job", 1);
                lab.joins(1, "job", "wait");
                lab.pass(16.0);
                lab.cas(1, "job", "drop:0 next join complete");
            },
        )
        .says("lost", &["node0", "node 0"])
        .never(&["connection closed"]),
        fault("c10d: a node dies as the last one comes, and the round takes it in", |lab| {
            lab.join("job", 0..2);
            lab.pass(3.0);
            lab.leave(1);
            lab.joins(2, "job", "join complete");
        })
        .says("lost", &["node1"]),
        fault(
            "c10d: the node that others wait for at the exit barrier died, and was taken out of the round",
            |lab| {
                lab.complete_run("job", 2);
                lab.pass(2.0);
                lab.leave(1);
                lab.pass(15.0);
                lab.cas(0, "job", "drop:1");
                lab.reach_exit(0, "job", false);
            },
        )
        .waits("exit_barrier", &["node1"])
        .never(&["still running"]),
        fault("c10d: an operator named the nodes, one has died, and two have not come", |lab| {
            let names = (0..4).map(|n| format!("node{n}")).collect();
            lab.insight.expect("job", Expectation { min: 4, max: 4, names });
            lab.join("job", 0..2);
            lab.leave(1);
        })
        .waits("nodes_missing", &["node2", "node3", "node1"])
        .never(&["among them"]),
        fault("c10d: node rank 0 is taken out of the round before it has handed out the ranks", |lab| {
            lab.join_all("job", 0..3);
            for n in 1..3 {
                lab.wait(n, &[&format!("/torch.rendezvous.job.0/torchelastic/assigned_ranks/{n}")]);
            }
            lab.joins(3, "job", "wait drop:0");
        })
        .waits("waiting", &["node0", "node 0"])
        .never(&["never seen"]),
        fault("c10d: two agents are cut off while the nodes join", |lab| {
            lab.join("job", 0..3);
            lab.pass(15.0);
            lab.cas(0, "job", "drop:1 drop:2");
        })
        .says("lost", &["node1", "node2"])
        .never(&["connection closed"]),
        fault("c10d: a node that was cut off while the nodes join is missing by its name", |lab| {
            lab.insight.expect("job", Expectation { min: 3, max: 3, names: Vec::new() });
            lab.join("job", 0..2);
            lab.pass(2.0);
            lab.cas(0, "job", "drop:1");
        })
        .waits("nodes_missing", &["node1"])
        .never(&["connection closed"]),
        fault("c10d: only the node that was cut off is not there", |lab| {
            lab.insight.expect("job", Expectation { min: 2, max: 2, names: Vec::new() });
            lab.join("job", 0..2);
            lab.pass(1.0);
            lab.cas(0, "job", "drop:1");
        })
        .waits("nodes_missing", &["node1"])
        .never(&["been missing", "never seen"]),
        fault("c10d: a node that is dead is taken out of the round", |lab| {
            lab.complete_run("job", 3);
            lab.leave(2);
            lab.pass(15.0);
            lab.cas(0, "job", "drop:2");
        })
        .says("lost", &["node2", "node 2"])
        .within(0.0)
        .never(&["node_silent"]),
        fault("c10d: a node dies while it is not seen what its workers do", |lab| {
            lab.complete_run("job", 3);
            lab.pass(5.0);
            lab.leave(2);
        })
        .says("lost", &["node2", "node 2"])
        .never(&["while training"]),
    ]);
}

#[test]
fn an_agent_that_is_frozen_is_named_before_torch_takes_it_out() {
    let mut lab = Lab::soon();
    lab.complete_run("job", 3);
    let mut beats = |seconds: u32, of: &[u32]| {
        for _ in 0..seconds / 5 {
            lab.pass(5.0);
            for &n in of {
                lab.cas(n, "job", "");
            }
        }
        (lab.complaints().iter().map(ToString::to_string).collect::<Vec<_>>(), lab.now.0.as_secs_f64())
    };
    assert_eq!(beats(30, &[0, 1, 2]).0, Vec::<String>::new());
    beats(15, &[0, 2]);
    let said = beats(5, &[0, 1, 2]).0.len();
    assert_eq!(beats(30, &[0, 1, 2]).0.len(), said, "it is back");
}

#[test]
fn who_replaces_a_dead_node_is_not_left_over_while_torch_takes_it_in() {
    let mut lab = Lab::soon();
    lab.complete_run("job", 3);
    lab.leave(1);
    lab.pass(2.0);
    lab.joins(7, "job", "redundant");
    lab.pass(10.0);
    // The death is noticed, and the others leave the round one by one.
    lab.cas(0, "job", "drop:1");
    lab.cas(7, "job", "wait");
    for n in [0, 2] {
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
        lab.pass(2.0);
    }
    lab.pass(6.0);
    assert!(!lab.texts("stands_by").is_empty());
    assert_eq!(lab.complaints().len(), 1, "only the death: {:?}", lab.complaints());
}

#[test]
fn the_workers_store_is_elsewhere_only_if_it_is() {
    let mut lab = Lab::soon();
    static_run(&mut lab, "s", 2);
    lab.set(0, "/s/MASTER_ADDR", b"node0");
    lab.set(0, "/s/MASTER_PORT", b"29500");
    workers(&mut lab, 0..4, 4);
    lab.pass(1.0);
    assert_eq!(lab.run("s").workers_store, None);
}

#[test]
fn the_workers_store_of_one_round_is_not_that_of_the_next() {
    let mut lab = Lab::soon();
    lab.complete_run("job", 2);
    lab.set(0, "/torch.rendezvous.job.0/MASTER_ADDR", b"node0");
    lab.set(0, "/torch.rendezvous.job.0/MASTER_PORT", b"29500");
    lab.pass(2.0);
    assert_eq!(lab.run("job").workers_store.as_deref(), Some("node0:29500"));
    lab.cas(1, "job", "next join");
    lab.pass(2.0);
    assert_eq!(lab.run("job").workers_store, None);
}

#[test]
fn a_run_that_follows_another_at_once_has_times_of_its_own() {
    let mut lab = Lab::soon();
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(20.0);
    lab.leave_all([0, 1]);
    lab.pass(0.3);
    (0..2).for_each(|rank| lab.rank(10 + rank, "10.0.0.1", rank, 2));
    lab.pass(2.0);
    let run = lab.run("store:29500").summary;
    let now = lab.now.0.as_secs_f64();
    assert!(now - run.state_since < 3.0 && now - run.started_at < 3.0, "{run:?} at {now}");
}

#[test]
fn the_metrics_of_a_closed_run_count_who_is_still_there() {
    let mut lab = Lab::soon();
    lab.complete_run("job", 3);
    lab.pass(10.0);
    lab.cas(1, "job", "close");
    lab.leave(1);
    for (left, there) in [(None, 2), (Some(0), 1), (Some(2), 0)] {
        if let Some(n) = left {
            lab.leave(n);
        }
        lab.pass(2.0);
        let figures = lab.insight.figures(lab.now);
        let [run] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!((run.summary.state, run.summary.nodes.joined), (RunState::Closed, there));
        assert_eq!(run.summary.nodes.missing, Some(0), "none of them is waited for");
    }
}

#[test]
fn a_pod_whose_node_has_another_name_is_not_missing() {
    let mut lab = Lab::soon();
    lab.gate("job", &[("a", 0, 3), ("b", 1, 3), ("c", 2, 3)], &[]);
    lab.joins(9, "job", "join");
    lab.pass(6.0);
    assert!(lab.run("job").missing.is_empty(), "{:?}", lab.run("job").missing);
    assert!(!lab.texts("nodes_missing").is_empty());
}

/// Two gatherings of which one lacks what the other has: an id is misspelt.
#[test]
fn a_pod_that_gathers_for_another_run_is_named() {
    let mut lab = Lab::new();
    lab.gate("job", &[("job-0", 0, 3), ("job-2", 2, 3)], &[]);
    lab.gate("jop", &[("job-1", 1, 3)], &[]);
    lab.gate("other", &[("other-0", 0, 3)], &[]);
    lab.pass(40.0);
    for run in ["job", "jop", "other"] {
        assert!(lab.run(run).explanations.iter().any(|said| said.code == "pods_missing"));
    }
}

#[test]
fn a_barrier_that_counts_on_more_than_there_are_is_too_large() {
    let mut lab = Lab::soon();
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(2.0);
    (0..2).for_each(|n| lab.barrier(n, "ckpt", 3));
    lab.pass(6.0);
    assert!(!lab.texts("waiting_at_barrier").is_empty());
}
