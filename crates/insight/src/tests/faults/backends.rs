//! Faults of c10d and native agents, of pods and barriers, and of what these have in common.

use super::super::lab::Lab;
use super::{FACT, Fault, WAIT, check_all, lab, ranks, static_run, workers};
use crate::Expectation;
use rallypoint_api::RunState;

#[test]
fn faults_of_backends() {
    check_all(&[
        Fault {
            name: "static and c10d agents with one id",
            play: |lab| {
                lab.static_node(0, "job", 0, 2);
                lab.pass(1.0);
                lab.agent(1, "job");
                lab.cas(1, "job", "join");
            },
            code: "two_backends",
            says: &["static (node 0 at 10.77.0.10)", "c10d (node1)"],
            remedy: "same --rdzv-backend",
            within: FACT,
            never: &["no heartbeat", "have joined", "has joined", "node rank 0: "],
        },
        Fault {
            name: "c10d agents, and one of the static rendezvous with their id",
            play: |lab| {
                lab.join("job", 0..2);
                lab.pass(1.0);
                lab.static_node(2, "job", 2, 3);
                lab.pass(2.0);
                lab.cas(0, "job", "");
            },
            code: "two_backends",
            says: &["static (node 2 at 10.77.0.12)", "c10d (node0 and node1)"],
            remedy: "same --rdzv-backend",
            within: FACT,
            never: &["took", "have joined", "node rank 0: "],
        },
        Fault {
            name: "c10d: no agent is heard of any more, though all are connected",
            play: |lab| {
                lab.complete_run("job", 2);
                for _ in 0..2 {
                    lab.pass(5.0);
                    (0..2).for_each(|n| lab.cas(n, "job", ""));
                }
                lab.pass(10.0);
            },
            code: "no_heartbeat",
            says: &[
                "node0 (node rank 0) and node1 (node rank 1) have sent no heartbeat for",
                "nor has any other",
            ],
            remedy: "network between them and this server",
            within: FACT,
            never: &["died", "; others have"],
        },
        Fault {
            name: "c10d: a node dies before its rank has come here",
            play: |lab| {
                lab.complete_run("job", 3);
                for n in [0, 2] {
                    lab.worker(10 + n, &format!("10.77.0.{}", 10 + n));
                    lab.publish(10 + n, n, 3);
                    lab.wait_for_rank(10 + n, 1);
                }
                lab.pass(1.0);
                lab.leave(1);
            },
            code: "waiting",
            says: &["rank 1 (local rank 0 on node1): never seen, its node: connection closed"],
            remedy: "look at its log",
            within: WAIT,
            never: &["has it started"],
        },
        Fault {
            name: "c10d: an operator resets the store while the job trains",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.reset();
                lab.forget_state("job");
                (0..2).for_each(|n| lab.wait(n, &["/torch.rendezvous.job"]));
            },
            code: "state_dropped",
            says: &[
                "2 processes have waited",
                "the rendezvous state of run job",
                "an operator reset the store",
            ],
            remedy: "restart all agents",
            within: WAIT,
            never: &["deadlock", "died", "have joined"],
        },
        Fault {
            name: "c10d: a node dies a moment before the last one makes the round complete",
            play: |lab| {
                lab.join("job", 0..3);
                lab.pass(1.0);
                lab.leave(1);
                lab.agent(3, "job");
                lab.pass(0.3);
                lab.cas(3, "job", "join complete");
            },
            code: "lost",
            says: &["node1: connection closed", "3 of 4 nodes left"],
            remedy: "log and events",
            within: FACT,
            never: &["no heartbeat"],
        },
        Fault {
            name: "c10d: of two nodes that died while joining, torch has taken out one",
            play: |lab| {
                for n in 0..4 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", if n == 3 { "join complete" } else { "join" });
                }
                lab.pass(5.0);
                (0..4).for_each(|n| lab.cas(n, "job", if n == 0 { "next join" } else { "join" }));
                lab.leave(1);
                lab.leave(2);
                lab.pass(3.0);
                lab.cas(0, "job", "drop:1");
            },
            code: "nodes_missing",
            says: &["2 of 4 nodes have joined", "gone: node1 and node2"],
            remedy: "look why the nodes that are gone",
            within: WAIT + 6.0,
            never: &["has been missing", "have been missing"],
        },
        Fault {
            name: "static: nodes of one job have different ids",
            play: |lab| {
                lab.static_node(0, "job", 0, 3);
                lab.static_node(1, "job", 1, 3);
                lab.static_node(2, "jbo", 2, 3);
            },
            code: "waiting",
            says: &["jbo: ", "node rank 0: never seen", "not published either: node 1"],
            remedy: "same --rdzv-id",
            within: WAIT,
            never: &["two jobs", "EADDRINUSE"],
        },
        Fault {
            name: "c10d: an agent closes the run after a failure",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.cas(1, "job", "close");
            },
            code: "closed_unfinished",
            says: &["closed by node1 (node rank 1)", "none of 2 nodes had finished"],
            remedy: "first error",
            within: FACT,
            never: &["only 0"],
        },
        Fault {
            name: "c10d: the only agent closes the run after a failure",
            play: |lab| {
                lab.complete_run("job", 1);
                lab.pass(5.0);
                lab.cas(0, "job", "close");
            },
            code: "closed_unfinished",
            says: &["closed by node0 (node rank 0)"],
            remedy: "first error",
            within: FACT,
            never: &[],
        },
        Fault {
            name: "c10d: a node comes to a complete round with another --nnodes, and torch restarts all",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(5.0);
                lab.agent(2, "job");
                lab.cas(2, "job", "wait");
            },
            code: "nnodes_differ",
            says: &[
                "node2 came to a complete round of 2 nodes and asks for more",
                "while node1 (node rank 1) asks",
            ],
            remedy: "same --nnodes",
            within: FACT,
            never: &["died", "is it scheduled"],
        },
        Fault {
            name: "c10d: the round with that node is never complete",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.agent(2, "job");
                lab.cas(2, "job", "wait");
                lab.cas(0, "job", "next join");
                lab.cas(2, "job", "join");
                lab.cas(1, "job", "join");
            },
            code: "round_not_complete",
            says: &["3 nodes have joined", "node2 asked for more"],
            remedy: "same --nnodes",
            within: WAIT,
            never: &["died", "some nodes"],
        },
        Fault {
            name: "c10d: a node gives up, closes the run, and says who did not come",
            play: |lab| {
                let names = ["node0", "node1", "node2"].map(str::to_owned).to_vec();
                lab.insight.expect("job", Expectation { min: 3, max: 3, names });
                lab.join("job", 0..2);
                lab.pass(2.0);
                lab.cas(1, "job", "leave");
                lab.cas(1, "job", "close");
            },
            code: "closed_incomplete",
            says: &["closed by node1 at 2 of 3 nodes", "missing: node2;"],
            remedy: "join_timeout",
            within: FACT,
            never: &["missing: node1"],
        },
        Fault {
            name: "c10d: a node comes to a run that failed",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.cas(1, "job", "close");
                lab.pass(1.0);
                lab.agent(2, "job");
            },
            code: "run_is_closed",
            says: &["process 1002 at 10.77.0.12 cannot join", "closed by node1 (node rank 1)"],
            remedy: "another --rdzv-id",
            within: FACT,
            never: &["finished and was closed"],
        },
        Fault {
            name: "c10d: an agent is frozen, and another takes it out of the round",
            play: |lab| {
                lab.complete_run("job", 3);
                for _ in 0..3 {
                    lab.pass(5.0);
                    lab.cas(0, "job", "");
                    lab.cas(1, "job", "");
                }
                lab.cas(0, "job", "drop:2");
            },
            code: "node_removed",
            says: &[
                "node2 (node rank 2) has sent no heartbeat for 15 s, though its connection is open",
                "node0 (node rank 0) took it out of the round; 2 nodes left",
            ],
            remedy: "frozen",
            within: FACT,
            never: &["connection closed"],
        },
        Fault {
            name: "c10d: the only agent of a round is frozen, and the next takes it out as the next round begins",
            play: |lab| {
                lab.complete_run("job", 1);
                lab.agent(1, "job");
                lab.cas(1, "job", "wait");
                lab.pass(16.0);
                lab.cas(1, "job", "drop:0 next join complete");
            },
            code: "node_removed",
            says: &[
                "node0 (node rank 0) has sent no heartbeat for 1",
                "took it out of the round; no node left",
            ],
            remedy: "frozen",
            within: FACT,
            never: &["connection closed"],
        },
        Fault {
            name: "c10d: a node dies as the last one comes, and the round takes it in",
            play: |lab| {
                lab.join("job", 0..2);
                lab.pass(3.0);
                lab.leave(1);
                lab.agent(2, "job");
                lab.cas(2, "job", "join complete");
            },
            code: "lost",
            says: &["node1: connection closed"],
            remedy: "log and events of each pod",
            within: FACT,
            never: &["node2 died"],
        },
        Fault {
            name: "c10d: the node that others wait for at the exit barrier died, and was taken out of the round",
            play: |lab| {
                lab.complete_run("job", 2);
                lab.pass(2.0);
                lab.leave(1);
                lab.pass(15.0);
                lab.cas(0, "job", "drop:1");
                lab.reach_exit(0, "job", false);
            },
            code: "exit_barrier",
            says: &["1 of 2 nodes has finished", "; connection closed: node1"],
            remedy: "log of what died",
            within: WAIT,
            never: &["still running"],
        },
        Fault {
            name: "c10d: an operator named the nodes, one has died, and two have not come",
            play: |lab| {
                let names = (0..4).map(|n| format!("node{n}")).collect();
                lab.insight.expect("job", Expectation { min: 4, max: 4, names });
                lab.join("job", 0..2);
                lab.leave(1);
            },
            code: "nodes_missing",
            says: &["1 of 4 nodes has joined; node2 and node3 have been missing", "; gone: node1"],
            remedy: "missing node",
            within: WAIT,
            never: &["among them"],
        },
        Fault {
            name: "c10d: node rank 0 is taken out of the round before it has handed out the ranks",
            play: |lab| {
                for n in 0..3 {
                    lab.agent(n, "job");
                    lab.cas(n, "job", if n == 2 { "join complete" } else { "join" });
                }
                for n in 1..3 {
                    lab.wait(n, &[&format!("/torch.rendezvous.job.0/torchelastic/assigned_ranks/{n}")]);
                }
                lab.agent(3, "job");
                lab.cas(3, "job", "wait drop:0");
            },
            code: "waiting",
            says: &["2 processes", "waiting for node0 (node rank 0): connected"],
            remedy: "is it stopped, overloaded, or cut off",
            within: WAIT,
            never: &["never seen"],
        },
        Fault {
            name: "c10d: two agents are cut off while the nodes join",
            play: |lab| {
                lab.join("job", 0..3);
                lab.pass(15.0);
                lab.cas(0, "job", "drop:1 drop:2");
            },
            code: "node_removed",
            says: &["node1 and node2 have sent no heartbeat", "took them out of the round; 1 node left"],
            remedy: "cut off",
            within: FACT,
            never: &["connection closed"],
        },
        Fault {
            name: "c10d: a node that was cut off while the nodes join is missing by its name",
            play: |lab| {
                lab.insight.expect("job", Expectation { min: 3, max: 3, names: Vec::new() });
                lab.join("job", 0..2);
                lab.pass(2.0);
                lab.cas(0, "job", "drop:1");
            },
            code: "nodes_missing",
            says: &["1 of 3 nodes has joined", "1 has been missing", "gone: node1"],
            remedy: "",
            within: WAIT,
            never: &["connection closed"],
        },
        Fault {
            name: "c10d: only the node that was cut off is not there",
            play: |lab| {
                lab.insight.expect("job", Expectation { min: 2, max: 2, names: Vec::new() });
                lab.join("job", 0..2);
                lab.pass(1.0);
                lab.cas(0, "job", "drop:1");
            },
            code: "nodes_missing",
            says: &["1 of 2 nodes has joined and waited", "; gone: node1 (2 by"],
            remedy: "look why the node that is gone ended",
            within: WAIT,
            never: &["been missing", "is it scheduled"],
        },
        Fault {
            name: "c10d: a node that is dead is taken out of the round",
            play: |lab| {
                lab.complete_run("job", 3);
                lab.leave(2);
                lab.pass(15.0);
                lab.cas(0, "job", "drop:2");
            },
            code: "lost",
            says: &["node2 (node rank 2)"],
            remedy: "heartbeats",
            within: 0.0,
            never: &["no heartbeat"],
        },
        Fault {
            name: "c10d: a node dies while it is not seen what its workers do",
            play: |lab| {
                lab.complete_run("job", 3);
                lab.pass(5.0);
                lab.leave(2);
            },
            code: "lost",
            says: &["node2 (node rank 2)", "after the round was complete", "2 of 3 nodes left"],
            remedy: "heartbeats",
            within: FACT,
            never: &["while training"],
        },
    ]);
}

#[test]
fn an_agent_that_is_frozen_is_named_before_torch_takes_it_out() {
    let mut lab = lab();
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
    let (said, now) = beats(15, &[0, 2]);
    let silent = "job round 0: node1 (node rank 1) has sent no heartbeat for 1";
    assert!(said[0].starts_with(silent) && said[0].ends_with("; others have"), "{said:?} at {now}");
    let said = beats(5, &[0, 1, 2]).0.len();
    assert_eq!(beats(30, &[0, 1, 2]).0.len(), said, "it is back");
}

#[test]
fn who_replaces_a_dead_node_is_not_left_over_while_torch_takes_it_in() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    lab.leave(1);
    lab.pass(2.0);
    lab.agent(7, "job");
    lab.cas(7, "job", "redundant");
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
    let told = lab.texts("left_over");
    let waits = |text: &&str| {
        text.ends_with("node1 (node rank 1) is gone, and in this one until its heartbeats expire")
    };
    assert!(!told.is_empty() && told.iter().all(waits), "{told:?}");
    assert_eq!(lab.complaints().len(), 1, "only the death: {:?}", lab.complaints());
}

#[test]
fn the_workers_store_is_elsewhere_only_if_it_is() {
    let mut lab = lab();
    static_run(&mut lab, "s", 2);
    lab.set(0, "/s/MASTER_ADDR", b"node0");
    lab.set(0, "/s/MASTER_PORT", b"29500");
    workers(&mut lab, 0..4, 4);
    lab.pass(1.0);
    assert_eq!(lab.run("s").workers_store, None);
}

#[test]
fn the_workers_store_of_one_round_is_not_that_of_the_next() {
    let mut lab = lab();
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
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(20.0);
    lab.leave(0);
    lab.leave(1);
    lab.pass(0.3);
    for rank in 0..2 {
        lab.worker(10 + rank, "10.0.0.1");
        lab.publish(10 + rank, rank, 2);
    }
    lab.pass(2.0);
    let run = lab.run("store:29500").summary;
    let now = lab.now.0.as_secs_f64();
    assert!(now - run.state_since < 3.0 && now - run.started_at < 3.0, "{run:?} at {now}");
}

#[test]
fn the_metrics_of_a_closed_run_count_who_is_still_there() {
    let mut lab = lab();
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
    let mut lab = lab();
    lab.gate("job", &[("a", 0, 3), ("b", 1, 3), ("c", 2, 3)], &[]);
    lab.agent(9, "job");
    lab.cas(9, "job", "join");
    lab.pass(6.0);
    assert!(lab.run("job").missing.is_empty(), "{:?}", lab.run("job").missing);
    let said = lab.texts("nodes_missing").join("; ");
    assert!(said.contains("1 of 3 nodes has joined") && !said.contains("a has been missing"), "{said}");
}

/// Two gatherings of which one lacks what the other has: an id is misspelt.
#[test]
fn a_pod_that_gathers_for_another_run_is_named() {
    let mut lab = Lab::new();
    lab.gate("job", &[("job-0", 0, 3), ("job-2", 2, 3)], &[]);
    lab.gate("jop", &[("job-1", 1, 3)], &[]);
    lab.gate("other", &[("other-0", 0, 3)], &[]);
    lab.pass(40.0);
    let told = |run: &str| {
        let said = lab.run(run).explanations.into_iter().find(|said| said.code == "pods_missing");
        said.map(|said| (said.text, said.remedy)).expect("it is told")
    };
    let (text, remedy) = told("job");
    assert!(text.ends_with("; announced for another run: pod job-1 for run jop"), "{text}");
    assert!(remedy.contains("the same --run-id"), "{remedy}");
    assert!(
        told("jop")
            .0
            .ends_with("; announced for another run: pod job-0 for run job and pod job-2 for run job")
    );
    assert!(!told("other").0.contains("another run"), "{}", told("other").0);
}

#[test]
fn a_barrier_that_counts_on_more_than_there_are_is_too_large() {
    let mut lab = lab();
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(2.0);
    (0..2).for_each(|n| lab.barrier(n, "ckpt", 3));
    lab.pass(6.0);
    let said = lab.texts("waiting_at_barrier").join("; ");
    assert!(said.contains("at the barrier `ckpt` of 3; no other process of the run is there"), "{said}");
}
