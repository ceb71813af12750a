//! The fifteen things that go wrong, each with its healthy twin that stays silent.

use std::time::Duration;

use super::lab::{Lab, PORT, gloo};
use crate::{Expectation, Settings};
use rallypoint_api::{ExpectedFrom, KnownFrom, NodeState, RunKind, RunState, Severity};
use rallypoint_protocol::ids::{ConnId, Nodes};
use rallypoint_rendezvous::gate::{Announcement, Gates};
use rallypoint_store::{Observed, StaleKeyConfig};

/// `nodes` agents join `run`, the last of them `late` seconds after the others.
fn join(lab: &mut Lab, run: &str, nodes: u32, late: f64) {
    for n in 0..nodes {
        if n + 1 == nodes {
            lab.pass(late);
        }
        lab.agent(n, run);
        lab.pass(0.1);
        lab.cas(n, run, if n + 1 == nodes { "join complete" } else { "join" });
    }
}

#[track_caller]
fn assert_silent(lab: &Lab) {
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn case_1_a_node_never_arrives() {
    let mut lab = Lab::expecting(4, 4);
    lab.join("job", 0..3);
    lab.until(29.0);
    assert_silent(&lab);
    lab.until(35.0);
    lab.until(300.0);
    let times: Vec<i64> =
        lab.said.iter().filter(|(_, s)| s.code == "nodes_missing").map(|(at, _)| *at as i64).collect();
    assert_eq!(times.len(), 4, "said again with growing pauses: {times:?}");
    let run = lab.run("job");
    assert_eq!(
        (run.summary.state, run.summary.nodes.joined, run.summary.nodes.missing),
        (RunState::Joining, 3, Some(1))
    );
    assert_eq!(run.summary.explanation.expect("why").code, "nodes_missing");
}

#[test]
fn case_1_a_missing_node_is_named_if_it_announced_itself() {
    let mut lab = Lab::new();
    lab.gate("job", &[("node0", 0, 4), ("node1", 1, 4), ("node2", 2, 4), ("node3", 3, 4)], &[]);
    for n in [0, 1, 3] {
        lab.joins(n, "job", "join");
    }
    lab.until(35.0);
    let missing = lab.run("job").missing;
    assert_eq!((missing.len(), missing[0].name.as_deref(), missing[0].rank), (1, Some("node2"), Some(2)));
}

#[test]
fn case_1_a_pod_never_announces_itself() {
    let mut lab = Lab::new();
    lab.gate("train-llm", &[("train-llm-0", 0, 4), ("train-llm-1", 1, 4), ("train-llm-3", 3, 4)], &[]);
    lab.until(29.0);
    assert_silent(&lab);
    lab.until(41.0);
    let run = lab.run("train-llm");
    let summary = &run.summary;
    assert_eq!((summary.kind, summary.state, summary.store), (RunKind::Announced, RunState::Joining, None));
    assert_eq!((summary.nodes.joined, summary.nodes.missing), (3, Some(1)));
    assert_eq!(summary.nodes.expected.map(|e| (e.min, e.source)), Some((4, ExpectedFrom::Announced)));
    let pods: Vec<_> = run.participants.iter().map(|node| (node.name.as_str(), node.state)).collect();
    assert_eq!(pods[1], ("train-llm-1", NodeState::Announced));
    let missing: Vec<_> = run.missing.iter().map(|node| (node.name.as_deref(), node.rank)).collect();
    assert_eq!(missing, [(Some("train-llm-2"), Some(2))]);
    // It comes, and the traffic begins: one run, which is no longer gathering.
    let all = [("train-llm-0", 0, 4), ("train-llm-1", 1, 4), ("train-llm-2", 2, 4), ("train-llm-3", 3, 4)];
    lab.gate("train-llm", &all, &[]);
    lab.pass(2.0);
    assert!(lab.run("train-llm").summary.explanation.is_none());
    lab.joins(0, "train-llm", "join");
    lab.pass(1.0);
    let list = lab.insight.list(0, lab.now);
    assert_eq!(list.runs.iter().map(|run| run.kind).collect::<Vec<_>>(), [RunKind::C10d]);
    // All pods go away without a word.
    lab.insight.gate("train-llm", None, lab.now);
    lab.pass(601.0);
    assert_eq!(lab.run("train-llm").summary.nodes.expected, None);
}

#[test]
fn case_1_a_node_that_neither_joined_nor_announced_itself_is_named_by_its_rank() {
    let mut lab = Lab::new();
    // A Job's pods: their host names lack the random end.
    lab.gate("job", &[("node0-x7k2p", 0, 3), ("node1-aaaaa", 1, 3)], &[]);
    lab.joins(0, "job", "join");
    lab.until(35.0);
    let missing = lab.run("job").missing;
    let named: Vec<_> =
        missing.iter().map(|node| (node.name.as_deref(), node.rank, node.known_from)).collect();
    assert_eq!(
        named,
        [(Some("node1-aaaaa"), Some(1), KnownFrom::Announced), (None, Some(2), KnownFrom::NodeRank)]
    );
}

#[test]
fn case_1_nobody_has_said_how_many() {
    let mut lab = Lab::new();
    lab.joins(0, "job", "join");
    lab.until(35.0);
    assert!(
        lab.insight
            .expect("job", Expectation { min: 2, max: 2, names: vec!["node0".into(), "node7".into()] })
    );
    lab.pass(40.0);
    let expected = lab.run("job").summary.nodes.expected.expect("said now");
    assert_eq!((expected.min, expected.source), (2, ExpectedFrom::Api));
}

#[test]
fn case_2_a_node_is_late_and_comes() {
    let mut lab = Lab::expecting(3, 3);
    join(&mut lab, "job", 3, 45.0);
    lab.exchange("job", 0, 3, 1);
    lab.pass(3.0);

    let mut healthy = Lab::expecting(3, 3);
    join(&mut healthy, "job", 3, 20.0);
    healthy.exchange("job", 0, 3, 1);
    healthy.pass(120.0);
    assert_silent(&healthy);
    assert!(healthy.texts("node_came_late").is_empty());
}

#[test]
fn case_3_a_node_dies_while_joining() {
    let mut lab = Lab::expecting(4, 4);
    lab.join("job", 0..3);
    lab.pass(5.0);
    lab.leave(1);
    lab.pass(5.0);
    assert_eq!(lab.insight.totals().node_deaths, 1);
    let gone = lab.run("job").participants.into_iter().find(|node| node.name == "node1").expect("shown");
    assert_eq!(gone.state, NodeState::Gone);
}

#[test]
fn case_4_a_node_dies_while_training() {
    let mut lab = Lab::expecting(4, 4);
    lab.complete_run("job", 4);
    lab.pass(60.0);
    assert_silent(&lab);
    lab.leave(2);
    lab.pass(5.0);
}

#[test]
fn case_4_a_dead_node_is_missed_by_name_however_torch_drops_it() {
    for changes in [&["drop:1 next"][..], &["drop:1", "next"]] {
        let mut lab = Lab::new();
        lab.complete_run("job", 3);
        lab.pass(10.0);
        lab.leave(1);
        lab.pass(5.0);
        for change in changes {
            lab.cas(0, "job", change);
            lab.pass(0.1);
        }
        lab.cas(0, "job", "join");
        lab.cas(2, "job", "join");
        lab.pass(35.0);
    }
}

#[test]
fn case_4_nodes_that_finish_do_not_die() {
    let mut lab = Lab::expecting(4, 4);
    lab.complete_run("job", 4);
    lab.pass(600.0);
    for n in 0..4 {
        lab.reach_exit(n, "job", n == 3);
        lab.pass(3.0);
    }
    lab.cas(3, "job", "close");
    (0..4).for_each(|n| lab.leave(n));
    lab.pass(60.0);
    assert_silent(&lab);
    assert_eq!(lab.run("job").summary.state, RunState::Finished);
    assert_eq!(lab.insight.totals().node_deaths, 0);
}

#[test]
fn case_4_nodes_of_an_old_release_finish_too() {
    let mut lab = Lab::expecting(2, 2);
    lab.complete_run("job", 2);
    lab.pass(600.0);
    lab.pass_old_exit("job", 2);
    lab.cas(0, "job", "close");
    (0..2).for_each(|n| lab.leave(n));
    lab.pass(60.0);
    assert_silent(&lab);
    assert_eq!(lab.run("job").summary.state, RunState::Finished);
}

#[test]
fn ranks_of_an_old_release_meet_and_finish_too() {
    let mut lab = Lab::new();
    // What gloo of 2.1 writes for one other rank: a socket address of 128 bytes and a number.
    let mut old = [0; 136];
    old[..8].copy_from_slice(&[2, 0, 0xa5, 0xcb, 127, 0, 0, 1]);
    for n in 0..2 {
        lab.worker(n, "10.0.0.1");
        lab.set(n, &format!("//worker/attempt_0/default_pg/0//cpu//0/{n}"), &old);
    }
    lab.pass(20.0);
    (0..2).for_each(|n| lab.leave(n));
    lab.pass(20.0);
    assert_silent(&lab);
    assert_eq!(lab.texts("run_ended").len(), 1);
}

#[test]
fn case_5_rank_zero_is_slow() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.worker(n, "10.0.0.1"));
    for n in 1..3 {
        lab.publish(n, n, 3);
        lab.wait_for_rank(n, 0);
    }
    lab.until(35.0);
    // NCCL in both its forms, where nobody but rank 0 writes anything.
    for id in ["/default_pg/0//cuda//0", "/default_pg/0//cuda//0/nccl_storekey_0"] {
        let mut lab = Lab::new();
        (0..3).for_each(|n| lab.worker(n, "10.0.0.1"));
        lab.wait(1, &[id]);
        lab.wait(2, &[id]);
        lab.until(35.0);
        assert_eq!(lab.run("store:29500").waits.len(), 2);
    }

    let mut healthy = Lab::new();
    for n in 0..3 {
        healthy.worker(n, "10.0.0.1");
        healthy.wait(n, &["/default_pg/0//cuda//0"]);
    }
    healthy.pass(10.0);
    healthy.set(0, "/default_pg/0//cuda//0", &[7; 128]);
    healthy.pass(100.0);
    assert_silent(&healthy);
}

#[test]
fn case_5_a_chain_of_waits_is_followed_to_its_root() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
    // Ranks 0 and 1 are there, 2 is not; 1 waits for 0's ... which is there; both wait for 2.
    lab.publish(0, 0, 4);
    lab.publish(1, 1, 4);
    lab.wait_for_rank(0, 2);
    lab.wait_for_rank(1, 2);
    lab.until(35.0);
    let run = lab.run("store:29500");
    assert_eq!(run.rank_grid.expect("ranks").states, "jj..");
    assert_eq!(run.waits[0].writer.as_deref(), Some("rank 2"));
    assert_eq!(run.waits[0].who.as_deref().map(|who| who.starts_with("rank ")), Some(true));
}

#[test]
fn a_rank_that_is_prepared_for_another_world_size_is_not_shown_as_missing() {
    let mut lab = Lab::new();
    for (n, size) in [(0, 3), (1, 3), (2, 4)] {
        lab.rank(n, &format!("10.0.0.{n}"), n, size);
    }
    lab.pass(5.0);
    assert_eq!(lab.run("store:29500").rank_grid.expect("ranks").states, "jjj");
    lab.leave(2);
    lab.pass(5.0);
    assert_eq!(lab.run("store:29500").rank_grid.expect("ranks").states, "jj.");
}

#[test]
fn a_rank_that_has_left_is_not_never_seen_in_the_facts() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.rank(n, &format!("10.0.0.{n}"), n, 4));
    lab.wait_for_rank(0, 3);
    lab.leave(2);
    lab.pass(35.0);
    let said = lab.run("store:29500").explanations.into_iter().find(|said| said.code == "waiting");
    let missing = said.expect("it is said").facts["missing"].clone();
    let seen = missing.as_array().expect("a list").iter();
    let seen: Vec<_> =
        seen.map(|one| one["presence"]["is"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(seen, ["never_seen", "closed"], "{missing}");
}

#[test]
fn case_6_two_nodes_claim_one_rank() {
    let mut lab = Lab::new();
    for (n, rank) in [(0, 0), (1, 1), (2, 1)] {
        lab.rank(n, &format!("10.0.0.{n}"), rank, 3);
    }
    lab.pass(5.0);
    // Two ranks at once, each with its processes.
    let mut lab = Lab::new();
    for (n, rank) in [(0, 0), (1, 1), (2, 2), (3, 1), (4, 2)] {
        lab.rank(n, &format!("10.0.0.{n}"), rank, 4);
    }
    lab.pass(5.0);
    // Who ends as the next one comes claims nothing.
    let mut lab = Lab::new();
    for (n, rank) in [(0, 0), (1, 1), (2, 1)] {
        lab.rank(n, &format!("10.0.0.{n}"), rank, 3);
    }
    lab.leave(1);
    lab.pass(5.0);
    assert!(lab.texts("duplicate_rank").is_empty(), "{:?}", lab.said);
    // Agents, too.
    let mut lab = Lab::new();
    for n in 0..2 {
        lab.come(n, &format!("10.0.0.{n}"), n);
        lab.set(n, "/s/torchelastic/role_info/1", b"{}");
    }
    lab.pass(5.0);

    let mut healthy = Lab::new();
    (0..3).for_each(|n| healthy.rank(n, "10.0.0.1", n, 3));
    healthy.pass(60.0);
    assert_silent(&healthy);
}

#[test]
fn case_7_one_group_formed_and_others_are_left_over() {
    let mut lab = Lab::expecting(4, 4);
    (0..4).for_each(|n| lab.agent(n, "job"));
    lab.cas(0, "job", "join");
    lab.cas(1, "job", "join complete");
    lab.cas(2, "job", "wait");
    lab.cas(3, "job", "wait");
    lab.exchange("job", 0, 2, 1);
    lab.pass(5.0);
    lab.pass(40.0);

    // An elastic job that takes a newcomer in with its next round.
    let mut healthy = Lab::expecting(2, 4);
    (0..3).for_each(|n| healthy.agent(n, "job"));
    healthy.cas(0, "job", "join");
    healthy.cas(1, "job", "join deadline");
    healthy.pass(2.0);
    healthy.cas(0, "job", "complete");
    healthy.exchange("job", 0, 2, 1);
    healthy.pass(60.0);
    healthy.cas(2, "job", "wait");
    healthy.pass(3.0);
    healthy.cas(0, "job", "next join");
    healthy.cas(1, "job", "join");
    healthy.cas(2, "job", "join complete");
    healthy.exchange("job", 1, 3, 1);
    healthy.pass(100.0);
    assert_silent(&healthy);
}

#[test]
fn case_7_nodes_that_ask_for_different_numbers_complete_no_round() {
    // Seen with torch 2.15: two nodes with --nnodes=2 and two with --nnodes=4, and nobody completes the round
    // of four.
    let mut lab = Lab::expecting(4, 4);
    lab.join("job", 0..4);
    lab.pass(29.0);
    assert_silent(&lab);
    lab.pass(3.0);
    // It may be the operator's number that is wrong.

    // The last call of an elastic job, while more may come.
    let mut healthy = Lab::expecting(2, 4);
    (0..2).for_each(|n| healthy.joins(n, "job", if n == 1 { "join deadline" } else { "join" }));
    healthy.pass(60.0);
    assert_silent(&healthy);
}

#[test]
fn case_7_the_ranks_disagree_on_the_world_size() {
    let mut lab = Lab::new();
    for (n, world) in [(0, 2), (1, 2), (2, 4), (3, 4)] {
        lab.rank(n, "10.0.0.1", n, world);
    }
    lab.pass(5.0);
}

#[test]
fn case_7_a_static_node_beyond_the_number_of_nodes() {
    let mut lab = Lab::new();
    for n in 0..3 {
        lab.come(n, &format!("10.0.0.{n}"), n);
        lab.set(n, &format!("/s/torchelastic/role_info/{n}"), b"{}");
    }
    let ranks = [0, 1].map(|n| (format!("/s/torchelastic/assigned_ranks/{n}"), format!("[{n}, 2, {n}, 2]")));
    lab.multi_set(0, &ranks);
    lab.pass(5.0);
}

#[test]
fn case_7_pods_that_announce_different_numbers() {
    let mut lab = Lab::new();
    lab.gate("job", &[("a", 0, 2)], &[("b", 1, 3)]);
    lab.joins(0, "job", "join");
    lab.pass(5.0);
}

#[test]
fn case_7_a_pod_that_was_turned_away_is_not_told_as_one_that_never_came() {
    let mut lab = Lab::new();
    lab.gate("job", &[("a", 0, 3)], &[("b", 1, 4)]);
    lab.until(33.0);
    let missing: Vec<_> = lab.run("job").missing.into_iter().map(|pod| (pod.name, pod.known_from)).collect();
    assert_eq!(missing, [(Some("b".into()), KnownFrom::TurnedAway), (None, KnownFrom::NodeRank)]);
    lab.gate("job", &[("a", 0, 2)], &[("b", 1, 4)]);
    lab.pass(2.0);
    assert!(lab.run("job").explanations.iter().any(|said| said.code == "pods_missing"));
}

#[test]
fn case_7_a_pod_is_held_back_because_its_rank_is_taken() {
    let mut lab = Lab::new();
    lab.gate("job", &[("a", 0, 2), ("b", 1, 2)], &[("c", 1, 2)]);
    lab.pass(5.0);
    // What was said is not said again when the run begins.
    lab.joins(0, "job", "join");
    lab.pass(5.0);
    assert_eq!(lab.said.iter().filter(|(_, said)| said.code == "duplicate_rank").count(), 1);
    assert!(lab.run("job").explanations.iter().any(|said| said.code == "duplicate_rank" && said.holds));
}

#[test]
fn case_7_a_pod_that_was_turned_away_may_be_the_one_that_is_missing() {
    let mut lab = Lab::new();
    lab.gate("job", &[("a", 0, 3), ("b", 1, 3)], &[("c", 1, 3)]);
    lab.until(33.0);
}

#[test]
fn a_run_is_finished_until_it_is_started_again() {
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    assert_eq!(lab.insight.finished("job"), None);
    (0..2).for_each(|n| lab.reach_exit(n, "job", n == 1));
    lab.pass(2.0);
    assert!(lab.insight.finished("job").is_some());
    assert_eq!(lab.insight.finished("other"), None);
    // Its old announcements do not make it gather again, but new ones do.
    let since = lab.now;
    lab.pass(1.0);
    lab.gate("job", &[("a", 0, 2)], &[]);
    lab.pass(1.0);
    let kinds = |lab: &Lab| lab.insight.list(0, lab.now).runs.iter().map(|run| run.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&lab), [RunKind::Announced, RunKind::C10d]);
    assert!(lab.insight.finished("job").is_some_and(|at| at <= since));
}

#[test]
fn an_agent_that_gave_up_on_another_and_ends_is_its_victim() {
    let mut lab = Lab::new();
    for n in [1, 2] {
        lab.come(n, &format!("10.0.0.{n}"), 100 + n);
        lab.set(n, &format!("/job/torchelastic/role_info/{n}"), b"{}");
        lab.wait(n, &[&format!("/job/torchelastic/assigned_ranks/{n}")]);
    }
    lab.pass(60.0);
    lab.cancel(1);
    lab.pass(0.5);
    lab.leave(1);
    lab.pass(5.0);
    let said: Vec<_> = lab.said.iter().filter(|(_, said)| said.code == "lost").collect();
    let [(_, said)] = said[..] else { panic!("{:?}", lab.said) };
    assert_eq!(said.severity, Severity::Warning);
}

#[test]
fn a_pod_that_was_at_the_gate_and_is_gone_has_its_own_time_and_remedy() {
    let mut lab = Lab::new();
    let mut gates = Gates::new(Duration::from_mins(1), 1000);
    let said = |pod: &str, rank| Announcement {
        pod: pod.into(),
        uid: String::new(),
        node_rank: Some(rank),
        nodes: Nodes::exactly(3),
        address: [10, 1, 0, rank as u8].into(),
        torch: None,
        ip: None,
        restarts: false,
    };
    for (pod, rank) in [("train-0", 0), ("train-1", 1)] {
        gates.announce("job", &said(pod, rank), None, lab.now).expect("taken");
        gates.park("job", &said(pod, rank), 1);
    }
    let gate = |gates: &Gates, now| gates.of("job").and_then(|run| run.snapshot(now, gates.pod_timeout()));
    lab.insight.gate("job", gate(&gates, lab.now), lab.now);
    lab.pass(20.0);
    assert!(gates.cut("job", &said("train-1", 1), 1, lab.now));
    lab.insight.gate("job", gate(&gates, lab.now), lab.now);
    lab.pass(12.0);
    let explained =
        |lab: &Lab| lab.run("job").explanations.into_iter().find(|said| said.code == "pods_missing");
    explained(&lab).expect("it is so");
    gates.announce("job", &said("train-2", 2), None, lab.now).expect("taken");
    lab.insight.gate("job", gate(&gates, lab.now), lab.now);
    lab.pass(2.0);
    explained(&lab).expect("it is so");
}

#[test]
fn case_8_the_run_is_closed() {
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    (0..2).for_each(|n| lab.reach_exit(n, "job", n == 1));
    lab.cas(0, "job", "close");
    lab.leave_all([0, 1]);
    lab.pass(4.0);
    lab.agent(7, "job");
    lab.pass(3.0);

    // Once the run is forgotten the id can be used again.
    let mut healthy = Lab::with(
        Settings::default(),
        StaleKeyConfig {
            forget_closed_after: std::time::Duration::from_secs(2),
            ..StaleKeyConfig::default()
        },
    );
    healthy.complete_run("job", 2);
    (0..2).for_each(|n| healthy.reach_exit(n, "job", n == 1));
    healthy.cas(0, "job", "close");
    healthy.leave_all([0, 1]);
    healthy.pass(20.0);
    healthy.forget_state("job");
    healthy.agent(0, "job");
    healthy.pass(1.0);
    let joining = healthy.run("job").summary;
    assert_eq!(joining.state, RunState::Joining);
    assert!(healthy.now.0.as_secs_f64() - joining.started_at < 2.0, "{joining:?} at {:?}", healthy.now);
    healthy.complete_run("job", 2);
    healthy.pass(10.0);
    assert_eq!(healthy.run("job").summary.state, RunState::Running);
}

#[test]
fn case_10_the_elastic_deadlock() {
    let mut lab = Lab::expecting(2, 4);
    lab.complete_run("job", 2);
    lab.pass(30.0);
    lab.joins(2, "job", "wait");
    lab.pass(1.0);
    lab.cas(0, "job", "next join");
    lab.cas(1, "job", "join");
    lab.cas(2, "job", "join complete");
    let base = "/torch.rendezvous.job.1";
    let role = |n: u32| format!("{base}/torchelastic/role_info/{n}");
    lab.wait(2, &[&format!("{base}/MASTER_ADDR")]);
    lab.set(1, &role(1), b"{}");
    lab.wait(1, &[&format!("{base}/torchelastic/assigned_ranks/1")]);
    lab.set(0, &role(0), b"{}");
    lab.wait(0, &[&role(0), &role(1), &role(2)]);
    lab.pass(6.0);
    let waits = lab.run("job").waits;
    assert_eq!(waits.len(), 3);
}

#[test]
fn case_10_who_waits_in_a_round_that_is_over_is_not_told_of_the_nodes_of_the_next() {
    let mut lab = Lab::expecting(2, 2);
    lab.complete_run("job", 3);
    lab.wait(
        1,
        &["/torch.rendezvous.job.0/MASTER_ADDR2", "/torch.rendezvous.job.0/torchelastic/assigned_ranks/7"],
    );
    lab.wait(2, &["/torch.rendezvous.job.0/torchelastic/role_info/9"]);
    lab.pass(1.0);
    lab.cas(0, "job", "next join complete");
    lab.exchange("job", 1, 1, 1);
    lab.pass(40.0);
    assert!(lab.texts("wait_cycle").is_empty());
}

#[test]
fn case_11_agents_that_give_up_keep_their_names() {
    let mut lab = Lab::expecting(2, 4);
    lab.complete_run("job", 3);
    lab.pass(1.0);
    let keys = [1, 2].map(|n| format!("/torch.rendezvous.job.0/torchelastic/assigned_ranks/{n}"));
    for (n, key) in [(1, &keys[0]), (2, &keys[1])] {
        lab.wait(n, &[&format!("{key}0")]);
    }
    // The first to give up leaves and takes the others out of the state.
    lab.pass(12.0);
    lab.cancel(1);
    lab.cas(1, "job", "next");
    lab.cas(1, "job", "close");
    lab.cancel(2);
    lab.pass(4.0);
}

#[test]
fn case_11_a_client_gave_up() {
    let mut lab = Lab::new();
    for n in 1..4 {
        lab.rank(n, "10.0.0.1", n, 4);
        lab.wait_for_rank(n, 0);
    }
    lab.pass(20.0);
    (1..4).for_each(|n| lab.cancel(n));
    lab.pass(4.0);
    assert_eq!(lab.texts("gave_up").len(), 1, "told together");

    // A key of the user's own is nobody's business, and neither are the slices of the initial barrier.
    let mut healthy = Lab::new();
    healthy.rank(1, "10.0.0.1", 0, 1);
    for key in ["/mine", "/default_pg/store_based_barrier_key:0:last_worker"] {
        healthy.wait(1, &[key]);
        healthy.pass(10.0);
        healthy.cancel(1);
    }
    healthy.pass(5.0);
    assert!(healthy.texts("gave_up").is_empty());
}

#[test]
fn case_12_a_foreign_client() {
    let mut lab = Lab::new();
    (0..3).for_each(|_| lab.insight.foreign(PORT, "10.0.0.9".parse().expect("an address"), "HTTP", lab.now));
    lab.pass(5.0);
    assert_eq!(lab.insight.list(0, lab.now).explanations[0].code, "wrong_port");
}

#[test]
fn a_client_of_the_store_comes_to_the_admin_port() {
    let mut lab = Lab::new();
    for _ in 0..3 {
        lab.insight.came_to_admin(29501, "10.0.0.9".parse().expect("an address"), vec![PORT], lab.now);
    }
    lab.pass(5.0);
    lab.pass(400.0);
    assert!(lab.insight.list(0, lab.now).explanations.iter().all(|said| !said.holds), "it is over");
}

#[test]
fn a_run_tells_where_its_debug_server_is() {
    let mut lab = Lab::new();
    lab.scene.is_free();
    (0..2).for_each(|n| lab.rank(n, &format!("10.0.0.{n}"), n, 2));
    for (rank, address, told) in [
        (1, "http://node1:41234", None),
        (0, "http://node0:41234", Some("node0:25999")),
        (0, "http://x/@y:1", None),
        (0, "http://:1", None),
        (0, "http://node0:41234", Some("node0:25999")),
    ] {
        lab.set(rank, &format!("/debug_server/rank{rank}"), address.as_bytes());
        lab.pass(1.0);
        assert_eq!(lab.run(&format!("store:{PORT}")).debug_server.as_deref(), told, "{address}");
    }
    (0..2).for_each(|n| lab.leave(n));
    lab.pass(100.0);
    assert_eq!(lab.run(&format!("store:{PORT}")).debug_server, None, "its processes are gone");
}

#[test]
fn case_13_the_workers_meet_elsewhere() {
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    lab.pass(35.0);
    assert_eq!(lab.run("job").workers_store.as_deref(), Some("node0:41234"));
    lab.pass(300.0);
    assert_silent(&lab);
    assert_eq!(lab.texts("workers_elsewhere").len(), 1);

    // Workers that are sent here come when they have imported what they need; their agents publish an address
    // all the same.
    let mut healthy = Lab::new();
    healthy.complete_run("job", 2);
    healthy.pass(20.0);
    (0..2).for_each(|n| healthy.rank(10 + n, &format!("10.77.0.{}", 10 + n), n, 2));
    healthy.pass(60.0);
    assert_silent(&healthy);
    assert!(healthy.texts("workers_elsewhere").is_empty());
}

#[test]
fn case_14_the_exit_barrier() {
    let mut lab = Lab::expecting(3, 3);
    lab.complete_run("job", 3);
    lab.pass(100.0);
    lab.reach_exit(0, "job", false);
    lab.reach_exit(2, "job", false);
    lab.pass(35.0);
    let run = lab.run("job");
    assert_eq!(run.summary.state, RunState::Exiting);
    assert_eq!(run.summary.exit.expect("an exit barrier").arrived, 2);
    // The last one may be evaluating: a note, until that takes long or it dies.
    let severities = |lab: &Lab| {
        let said = lab.said.iter().filter(|(_, said)| said.code == "exit_barrier");
        said.map(|(at, said)| (at.round() as u32, said.severity)).collect::<Vec<_>>()
    };
    lab.pass(80.0);
    assert_eq!(severities(&lab), [(131, Severity::Info)]);
    lab.pass(10.0);
    assert_eq!(severities(&lab)[1..], [(221, Severity::Warning)]);
    let mut dies = Lab::expecting(2, 2);
    dies.complete_run("job", 2);
    dies.reach_exit(0, "job", false);
    dies.pass(40.0);
    dies.leave(1);
    dies.pass(5.0);
    let said: Vec<_> = severities(&dies).into_iter().map(|(_, severity)| severity).collect();
    assert_eq!(said, [Severity::Info, Severity::Warning]);
}

#[test]
fn case_15_two_jobs_use_one_store() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.rank(n, &format!("10.0.0.{n}"), n, 2));
    (0..2).for_each(|n| lab.get(n, &format!("/default_pg/0//cpu//0/{}", 1 - n)));
    lab.pass(10.0);
    assert_silent(&lab);
    // Once rank 1 is overwritten, the address of the rank 0 that has read it is dropped: no key is written
    // twice after that.
    for n in [3, 2] {
        lab.rank(n, &format!("10.0.0.{n}"), n % 2, 2);
        lab.pass(0.5);
    }
    lab.pass(5.0);
    assert!(lab.texts("duplicate_rank").is_empty());
    // Two static runs, before their workers even start.
    let mut lab = Lab::new();
    for (n, run) in [(0, "a"), (1, "b")] {
        lab.come(n, &format!("10.0.0.{n}"), n);
        lab.set(n, &format!("/{run}/torchelastic/role_info/0"), b"{}");
    }
    lab.pass(5.0);

    // Two c10d runs share no key.
    let mut healthy = Lab::new();
    healthy.complete_run("one", 2);
    healthy.join_all("two", 2..4);
    healthy.pass(8.0);
    assert_silent(&healthy);
}

#[test]
fn a_process_that_leaves_before_all_have_met() {
    let mut lab = Lab::new();
    (0..3).for_each(|n| lab.rank(n, "10.0.0.1", n, 4));
    lab.leave(1);
    lab.pass(5.0);
    assert_eq!(lab.run("store:29500").rank_grid.expect("ranks").states, "jxj.");
}

#[test]
fn a_state_that_cannot_be_read_harms_nothing() {
    let mut lab = Lab::new();
    lab.agent(0, "job");
    lab.set(0, "/torch.rendezvous.job", b"nonsense!");
    lab.pass(5.0);
    for n in 0..20 {
        lab.set(0, "/torch.rendezvous.job", format!("nonsense {n}").as_bytes());
        lab.pass(0.5);
    }
    assert_eq!(lab.texts("unreadable_state").len(), 1, "told once, not with every write");
    lab.forget_state("job");
    assert_eq!(lab.insight.list(0, lab.now).runs.len(), 1);
}

#[test]
fn a_rank_whose_watchdog_fired() {
    let mut lab = Lab::new();
    lab.rank(0, "10.0.0.1", 0, 1);
    // As on a GPU (`transcripts/gpu`): one for all, and one for its group at the same time.
    lab.set(0, "/exception_dump", b"1");
    lab.set(0, "/default_pg/0//cuda//remote_error:0", b"1");
    lab.pass(3.0);
    assert_eq!(lab.texts("gave_up").len(), 1, "told once");
}

/// `TORCH_NCCL_DESYNC_DEBUG=1`: each rank says which collective it is in.
#[test]
fn who_writes_traces_is_not_taken_for_rank_0() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.worker(n, "10.0.0.1"));
    lab.set(0, "/default_pg/0//cuda//0", &[7; 128]);
    lab.wait(1, &["/default_pg/0//cuda//0"]);
    lab.get(1, "/default_pg/0//cuda//0");
    (0..2).for_each(|n| lab.set(n, &format!("/default_pg/0//cuda//NCCL_{n}_trace_start"), b"1"));
    lab.pass(1.0);
    lab.leave(1);
    lab.pass(40.0);
}

/// `dcp.async_save` by a process: the group of these processes is beside that of the ranks.
#[test]
fn who_writes_checkpoints_is_no_rank() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.worker(n, "10.0.0.1"));
    (0..2).for_each(|n| lab.publish(n, n, 2));
    for n in 2..4 {
        lab.come(n, "10.0.0.1", 3000 + n);
        let key = format!("/AsyncCheckpointProcess//0//cpu//0/{}", n - 2);
        lab.set(n, &key, &gloo(&format!("host{n}"), 2));
    }
    lab.pass(30.0);
    let ranks = lab.run("store:29500").summary.ranks.expect("two");
    assert_eq!((ranks.joined, ranks.connected), (2, 2));
    (0..4).for_each(|n| lab.leave(n));
    lab.pass(30.0);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn many_that_die_together_are_one_line() {
    let mut lab = Lab::new();
    lab.complete_run("job", 40);
    lab.pass(10.0);
    (5..35).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    assert_eq!(lab.texts("lost").len(), 1);
    assert_eq!(lab.insight.totals().node_deaths, 30);
}

#[test]
fn a_job_that_is_stopped_is_one_line() {
    let mut lab = Lab::new();
    lab.complete_run("job", 8);
    lab.pass(10.0);
    (0..8).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    assert_eq!(lab.run("job").summary.state, RunState::Gone);
}

#[test]
fn static_runs_tell_who_is_missing_by_rank() {
    let mut lab = Lab::expecting(3, 3);
    for n in [1, 2] {
        lab.come(n, &format!("10.0.0.{n}"), n);
        lab.set(n, &format!("/s/torchelastic/role_info/{n}"), b"{}");
        lab.wait(n, &[&format!("/s/torchelastic/assigned_ranks/{n}")]);
    }
    lab.until(35.0);
    assert_eq!(lab.run("s").missing[0].rank, Some(0));
}

#[test]
fn a_wait_that_begins_or_ends_changes_the_run() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.worker(n, "10.0.0.1"));
    lab.publish(1, 1, 2);
    lab.pass(10.0);
    let version = |lab: &Lab| lab.run("store:29500").summary.version;
    let before = version(&lab);
    for _ in 0..20 {
        lab.wait_for_rank(1, 0);
        lab.pass(0.3);
        lab.get(1, "/default_pg/0//cpu//0/1");
        lab.pass(0.3);
    }
    assert_eq!(version(&lab), before, "short waits are none");
    lab.wait_for_rank(1, 0);
    lab.pass(3.0);
    let waits = version(&lab);
    assert!(waits > before);
    lab.pass(10.0);
    assert_eq!(version(&lab), waits, "it goes on");
    lab.get(1, "/default_pg/0//cpu//0/1");
    lab.pass(2.0);
    assert!(version(&lab) > waits);
}

#[test]
fn a_gloo_address_tells_host_and_world_size() {
    use crate::run::{GlooAddress, read_gloo};
    for (host, world) in [("node2", 4_usize), ("a", 1), ("worker-0.train.svc", 4096)] {
        let read = GlooAddress { host: Some(host.into()), size: Some(world as u32), listens: None };
        assert_eq!(read_gloo(&gloo(host, world)), read);
    }
    for nonsense in [&b""[..], b"1234567", &[0xff; 64], &[0; 189]] {
        assert_eq!(read_gloo(nonsense), GlooAddress::default(), "{nonsense:?}");
    }
    let mut odd = gloo("node2", 4);
    odd.push(0);
    assert_eq!(read_gloo(&odd).size, None);
}

/// A member of the round whose workers take long to end holds up the others: nobody has another number of
/// nodes.
#[test]
fn nodes_that_wait_for_the_next_round_wait_for_those_that_stay() {
    let mut lab = Lab::new();
    lab.complete_run("job", 3);
    lab.joins(3, "job", "wait");
    for n in [0, 2] {
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
    }
    lab.pass(40.0);
    let said = lab.texts("stands_by").join("; ");
    assert!(["node0", "node2", "node3"].iter().all(|name| said.contains(name)), "{said}");
}

/// torch takes a dead node out of the round 15 s after it was heard of last. The others have left it long
/// before.
#[test]
fn nodes_that_wait_for_the_next_round_are_not_missing() {
    let mut lab = Lab::new();
    lab.complete_run("job", 4);
    lab.until(20.0);
    lab.leave(1);
    for n in [0, 2, 3] {
        lab.pass(0.5);
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
    }
    lab.pass(3.0);
    let run = lab.run("job");
    let nodes = &run.summary.nodes;
    assert_eq!(run.summary.state, RunState::Restarting);
    assert_eq!((nodes.joined, nodes.gone, nodes.waiting, nodes.missing), (0, 1, 3, Some(1)));
    let names: Vec<_> = run.missing.iter().filter_map(|node| node.name.as_deref()).collect();
    assert_eq!(names, ["node1"]);
    lab.pass(40.0);
    assert_eq!(lab.complaints().len(), 1, "only the death: {:?}", lab.complaints());

    lab.cas(0, "job", "drop:1 next join");
    for n in [2, 3] {
        lab.cas(n, "job", "join");
    }
    lab.pass(1.0);
    let run = lab.run("job");
    assert_eq!((run.summary.state, run.summary.nodes.missing), (RunState::Joining, Some(1)));
    assert_eq!(run.missing.iter().map(|node| node.name.as_deref()).collect::<Vec<_>>(), [Some("node1")]);
}

#[test]
fn a_node_keeps_its_name_when_it_joins_again() {
    let mut lab = Lab::new();
    for n in 0..3 {
        lab.connect(n, "10.77.0.10", 1000 + n);
        lab.first_cas(n, "job");
        lab.cas(n, "job", if n == 2 { "join complete" } else { "join" });
    }
    let names = |lab: &Lab| {
        let nodes = lab.run("job").participants;
        nodes.into_iter().map(|node| (node.pid, node.name)).collect::<std::collections::BTreeMap<_, _>>()
    };
    lab.pass(1.0);
    let before = names(&lab);
    assert_eq!(before[&Some(1001)], "node0_1001", "{before:?}");
    lab.leave(0);
    for n in [1, 2] {
        lab.pass(0.5);
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
    }
    lab.pass(2.0);
    assert_eq!(names(&lab), before);
    lab.cas(1, "job", "drop:0 next join");
    lab.cas(2, "job", "join complete");
    lab.pass(1.0);
    let after = names(&lab);
    assert!(after.len() == 2 && after.iter().all(|(pid, name)| before[pid] == *name), "{after:?}");
}

/// The nodes that are left when a run is closed may still leave its last round, and so begin another.
#[test]
fn case_8_a_run_is_closed_once() {
    let mut lab = Lab::expecting(2, 2);
    lab.complete_run("job", 2);
    lab.cas(1, "job", "close");
    lab.leave(1);
    lab.pass(20.0);
    lab.cas(0, "job", "drop:1 leave next");
    lab.pass(5.0);
    assert_eq!(lab.texts("run_closed").len(), 1);
}

#[test]
fn two_nodes_that_come_late_have_come() {
    let mut lab = Lab::expecting(3, 3);
    lab.joins(0, "job", "join");
    lab.pass(40.0);
    lab.join_all("job", 1..3);
    lab.pass(2.0);
}

#[test]
fn a_static_node_that_takes_the_place_of_a_dead_one_has_come_again() {
    let mut lab = Lab::new();
    lab.static_node(0, "s", 0, 3);
    lab.static_node(2, "s", 2, 3);
    lab.pass(20.0);
    lab.leave(2);
    lab.pass(20.0);
    lab.static_node(1, "s", 1, 3);
    lab.static_node(3, "s", 2, 3);
    lab.pass(2.0);
}

#[test]
fn a_c10d_node_that_was_taken_out_has_come_again() {
    let mut lab = Lab::expecting(3, 3);
    lab.join("job", 0..2);
    lab.pass(35.0);
    lab.cas(1, "job", "");
    lab.pass(15.0);
    lab.cas(0, "job", "drop:1");
    lab.pass(2.0);
    lab.joins(2, "job", "join");
    lab.pass(3.0);
    lab.cas(1, "job", "join complete");
    lab.pass(2.0);
}

#[test]
fn who_left_a_moment_before_the_end_is_not_dead_when_the_next_job_comes() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.static_node(n, "s", n, 2));
    lab.assign_static(0, "s", 2, 1);
    lab.pass(10.0);
    // It gave up at the exit barrier; its arrival there is not known.
    lab.leave(1);
    lab.exit_static(0, "s", true);
    lab.static_node(2, "s", 1, 2);
    lab.pass(3.0);
    assert_eq!(lab.texts("run_finished").len(), 1, "{:?}", lab.said);
    assert!(lab.texts("lost").is_empty(), "{:?}", lab.said);
}

#[test]
fn who_closes_a_round_that_was_complete_and_takes_all_out_with_that_has_ended_that_round() {
    let mut lab = Lab::new();
    lab.join_all("job", 0..3);
    let key = |part: &str| format!("/torch.rendezvous.job.0/{part}");
    lab.wait(0, &[&key("torchelastic/role_info/2")]);
    lab.wait(1, &[&key("torchelastic/assigned_ranks/1")]);
    lab.wait(2, &[&key("MASTER_ADDR")]);
    lab.pass(60.0);
    lab.cancel(2);
    lab.cas(2, "job", "drop:0 drop:1 leave next close");
    lab.leave(2);
    lab.pass(0.8);
    for n in 0..2 {
        lab.cancel(n);
        lab.leave(n);
    }
    lab.pass(5.0);
    assert_eq!((lab.texts("run_closed").len(), lab.texts("gave_up").len()), (1, 3));
    assert_eq!((lab.run("job").summary.round, lab.run("job").summary.state), (0, RunState::Closed));
}

#[test]
fn what_is_told_after_the_next_round_has_begun_is_said_of_its_own_round() {
    let mut lab = Lab::new();
    lab.join_all("job", 0..2);
    lab.wait(0, &["/torch.rendezvous.job.0/torchelastic/role_info/1"]);
    lab.pass(60.0);
    lab.cancel(0);
    lab.leave(0);
    lab.cas(1, "job", "drop:0 leave next");
    lab.cas(1, "job", "join");
    lab.pass(3.0);
    assert_eq!(lab.run("job").summary.round, 1);
}

#[test]
fn who_closes_a_complete_round_is_named_with_those_that_go_on() {
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    lab.pass(5.0);
    lab.cas(1, "job", "close");
    lab.leave(1);
    lab.pass(5.0);
    let run = lab.run("job");
    let nodes = &run.summary.nodes;
    assert_eq!((nodes.joined, nodes.missing), (1, Some(0)), "nobody is missing in a run that is over");
}

#[test]
fn a_node_that_died_while_joining_and_came_again_is_not_gone() {
    let mut lab = Lab::expecting(5, 5);
    lab.join("job", 0..3);
    lab.leave_all([1, 2]);
    lab.pass(3.0);
    assert_eq!(lab.run("job").summary.nodes.gone, 2);
    // Its new process, while the state has the old one, too.
    lab.come(11, "10.77.0.11", 2001);
    lab.first_cas(11, "job");
    lab.cas(11, "job", "join");
    lab.pass(1.0);
    let run = lab.run("job");
    assert_eq!(
        (run.summary.nodes.joined, run.summary.nodes.gone, run.summary.nodes.missing),
        (2, 1, Some(3))
    );
    let missing: Vec<_> = run.missing.iter().filter_map(|node| node.name.as_deref()).collect();
    assert_eq!(missing, ["node2"]);
}

#[test]
fn a_run_is_over_since_its_last_connection_closed_and_not_since_that_was_noticed() {
    let since = |lab: &Lab, run: &str| (lab.run(run).summary.state, lab.run(run).summary.state_since);
    let mut lab = Lab::new();
    lab.complete_run("job", 2);
    lab.until(5.0);
    (0..2).for_each(|n| lab.leave(n));
    lab.until(9.0);
    assert_eq!(since(&lab, "job"), (RunState::Gone, 5.0));

    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.rank(n, "10.0.0.1", n, 2));
    lab.until(5.0);
    (0..2).for_each(|n| lab.leave(n));
    lab.until(9.0);
    assert_eq!(since(&lab, "store:29500"), (RunState::Ended, 5.0));

    let mut lab = Lab::new();
    lab.pauses = vec![2000];
    lab.complete_run("job", 1);
    lab.until(5.0);
    lab.reach_exit(0, "job", true);
    lab.until(9.0);
    assert_eq!(since(&lab, "job"), (RunState::Finished, 5.0));
}

#[test]
fn a_node_that_asks_for_fewer_nodes_than_a_complete_round_has_is_told() {
    let mut lab = Lab::soon();
    lab.complete_run("job", 3);
    lab.agent(3, "job");
    for _ in 0..40 {
        // As long as it takes to ask and to be answered.
        lab.cas(3, "job", "redundant");
        lab.pass(0.07);
        lab.cas(3, "job", "leave");
        lab.pass(0.07);
        assert_eq!(lab.run("job").summary.nodes.redundant, 1);
    }
    lab.leave(3);
    lab.pass(1.0);
    assert_eq!(lab.run("job").summary.nodes.redundant, 0);
}

#[test]
fn a_job_whose_nodes_have_two_ids_is_told_with_both() {
    let mut lab = Lab::expecting(3, 3);
    for (n, run) in [(0, "train"), (1, "train"), (2, "trian")] {
        lab.joins(n, run, "join");
    }
    lab.pass(33.0);

    // One id on two ports.
    let mut lab = Lab::expecting(3, 3);
    let mut there = Lab::expecting(3, 3);
    for (lab, nodes) in [(&mut lab, 0..2), (&mut there, 2..3)] {
        for n in nodes {
            lab.joins(n, "train", "join");
        }
    }
    let (conn, peer) = (ConnId::new(7, 7), ([10, 77, 0, 12], 40000).into());
    let (port, key) = (PORT + 1, || b"/torch.rendezvous.train".as_slice().into());
    lab.insight.observe(port, lab.now, Observed::Client { conn, peer, pid: Some(1002), key: key() });
    let value = there.state_of("train").into();
    lab.insight.observe(port, lab.now, Observed::Wrote { conn, key: key(), value });
    lab.pass(33.0);

    // Two jobs of which each misses more than the other has.
    let mut lab = Lab::expecting(4, 4);
    for (n, run) in [(0, "one"), (1, "one"), (2, "other")] {
        lab.joins(n, run, "join");
    }
    lab.pass(33.0);
}

#[test]
fn the_list_of_runs_tells_that_ranks_wait_for_a_key_of_the_program() {
    let mut lab = Lab::new();
    (0..2).for_each(|n| lab.rank(n, "10.0.0.1", n, 2));
    lab.set(0, "/default_pg/0//epoch-1", b"1");
    lab.wait(1, &["/default_pg/0//epoch_1"]);
    let notes = |lab: &Lab| {
        let run = &lab.insight.list(2, lab.now).runs[0];
        assert_eq!(run.explanation, None, "nothing may be wrong");
        run.notes
    };
    lab.pass(20.0);
    assert_eq!(notes(&lab), 0, "it may be a short wait");
    lab.pass(15.0);
    assert_eq!(notes(&lab), 1);
    lab.set(0, "/default_pg/0//epoch_1", b"1");
    lab.pass(3.0);
    assert_eq!(notes(&lab), 0);
}

#[test]
fn static_runs_that_have_each_node_rank_together_are_told_of_each_other() {
    let mut lab = Lab::new();
    lab.static_node(0, "train", 0, 3);
    lab.static_node(2, "train", 2, 3);
    lab.static_node(1, "trian", 1, 3);
    lab.pass(2.0);
    lab.leave(2);
    lab.pass(33.0);
    let remedies = lab.said.iter().filter(|(_, said)| ["nodes_missing", "waiting"].contains(&&*said.code));
    assert_eq!(remedies.count(), 2);

    // The other has a rank that is here already, or not all that are missing.
    for (rank, nodes) in [(2, 3), (1, 4)] {
        let mut lab = Lab::new();
        lab.static_node(0, "train", 0, nodes);
        lab.static_node(2, "train", 2, nodes);
        lab.static_node(1, "trian", rank, nodes);
        lab.pass(33.0);
    }
}
