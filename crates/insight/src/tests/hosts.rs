//! Jobs that were not told to be clients: rank 0, or the agent of node rank 0, hosts a store of its own on
//! another host than the server's. It reads `init/` every 10 ms until all have counted themselves, and
//! publishes nothing before.

use super::lab::Lab;
use rallypoint_api::RunState;

const RUN: &str = "store:29500";

/// The host, which is client 0, reads for so long how many have come.
fn count(lab: &mut Lab, seconds: u32) {
    for _ in 0..seconds * 5 {
        lab.get(0, "init/");
        lab.pass(0.2);
    }
}

/// Client 0 hosts, and these ranks of so many have come and wait for it.
fn ranks(those: &[u32], world: usize) -> Lab {
    let mut lab = Lab::soon();
    lab.worker(0, "10.0.0.10");
    for &rank in those {
        lab.rank(rank, &format!("10.0.0.{}", 10 + rank), rank, world);
        lab.wait_for_rank(rank, 0);
    }
    lab
}

/// Client 0 is the agent of node rank 0, and these nodes have come and wait for their ranks.
fn nodes(those: &[u32]) -> Lab {
    let mut lab = Lab::soon();
    lab.worker(0, "10.0.0.10");
    for &node in those {
        lab.worker(node, &format!("10.0.0.{}", 10 + node));
        lab.set(node, &format!("/job/torchelastic/role_info/{node}"), b"{}");
        lab.wait(node, &[&format!("/job/torchelastic/assigned_ranks/{node}")]);
    }
    lab
}

#[test]
fn a_rank_that_rank_0_counts_on_is_named_and_rank_0_is_not() {
    let mut lab = ranks(&[1, 3], 4);
    count(&mut lab, 6);
    let complaints = lab.complaints().len();
    assert_eq!(complaints, lab.texts("waiting").len(), "{:?}", lab.said);
    let waits = lab.run(RUN).waits;
    assert!(waits.iter().all(|wait| wait.reason.is_some()), "{waits:#?}");
    // It comes, and nothing more is said of it.
    lab.rank(2, "10.0.0.12", 2, 4);
    lab.get(0, "init/");
    lab.publish(0, 0, 4);
    lab.pass(0.1);
    assert!(lab.run(RUN).waits.iter().all(|wait| wait.pid != Some(2000)), "{:#?}", lab.run(RUN).waits);
    lab.pass(2.0);
    assert_eq!(lab.run(RUN).summary.state, RunState::Running);
    assert_eq!(lab.complaints().len(), complaints, "{:?}", lab.said);
}

#[test]
fn who_gives_up_on_rank_0_while_that_counts_names_who_is_missing() {
    let mut lab = ranks(&[1, 3], 4);
    count(&mut lab, 5);
    lab.cancel(1);
    lab.cancel(3);
    count(&mut lab, 3);
}

#[test]
fn a_rank_0_with_a_larger_world_size_is_told() {
    let mut lab = ranks(&[1, 2], 3);
    count(&mut lab, 6);
    assert!(!lab.run(RUN).explanations.is_empty());
}

#[test]
fn nodes_that_node_rank_0_counts_on_are_named() {
    let mut lab = nodes(&[2]);
    count(&mut lab, 6);
    let run = lab.run("job");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.missing), (2, Some(1)));
    assert_eq!(run.missing.iter().map(|node| node.rank).collect::<Vec<_>>(), [Some(1)]);
    // The last node comes. Node 0 came long before.
    lab.worker(1, "10.0.0.11");
    lab.set(1, "/job/torchelastic/role_info/1", b"{}");
    lab.set(0, "/job/torchelastic/role_info/0", b"{}");
    lab.wait(
        0,
        &["/job/torchelastic/role_info/0", "/job/torchelastic/role_info/1", "/job/torchelastic/role_info/2"],
    );
    lab.assign_static(0, "job", 3, 1);
    lab.pass(3.0);
    assert_eq!(lab.complaints().len(), lab.texts("waiting").len(), "{:?}", lab.said);
}

#[test]
fn a_node_that_dies_while_node_rank_0_counts_does_not_end_the_job() {
    let mut lab = nodes(&[1]);
    count(&mut lab, 2);
    lab.leave(1);
    count(&mut lab, 6);
    assert_eq!(lab.texts("run_ended"), Vec::<&str>::new());
    assert_eq!(lab.texts("lost").len(), 1, "{:?}", lab.said);
}

#[test]
fn a_rank_that_ended_while_rank_0_counts_is_told_as_such() {
    let mut lab = ranks(&[1, 3], 4);
    count(&mut lab, 2);
    lab.leave(1);
    count(&mut lab, 6);
    // The last of the others ends, too: their host is still there.
    lab.leave(3);
    count(&mut lab, 6);
    assert_eq!(lab.texts("run_ended"), Vec::<&str>::new());
    assert!(!lab.run(RUN).summary.state.is_over());
}

#[test]
fn rank_0_is_known_as_soon_as_it_counts() {
    for comes_at in [2.3, 2.6, 2.9, 3.2] {
        let mut lab = Lab::soon();
        lab.rank(1, "10.0.0.11", 1, 3);
        lab.wait_for_rank(1, 0);
        lab.pass(comes_at);
        lab.worker(0, "10.0.0.10");
        lab.get(0, "init/");
        lab.pass(0.01);
        count(&mut lab, 6);
        assert!(!lab.texts("waiting").is_empty(), "{:?}", lab.said);
    }
}

#[test]
fn rank_0_is_not_shown_as_missing_while_it_counts() {
    let mut lab = ranks(&[1], 3);
    count(&mut lab, 6);
    assert_eq!(lab.run("store:29500").rank_grid.expect("ranks").states, "oj.");
}

#[test]
fn a_reset_while_rank_0_counts_is_named() {
    let mut lab = ranks(&[1, 2], 4);
    count(&mut lab, 1);
    lab.reset();
    // The number is not there: it waits for it.
    lab.wait(0, &["init/"]);
    lab.pass(5.0);
    assert!(!lab.texts("waiting").is_empty());
}

#[test]
fn who_came_and_went_while_rank_0_counts_is_named() {
    let mut lab = ranks(&[1], 5);
    count(&mut lab, 1);
    lab.worker(5, "10.0.0.15");
    lab.worker(6, "10.0.0.16");
    lab.leave(6);
    count(&mut lab, 6);
}

#[test]
fn a_node_rank_0_that_comes_again_and_counts_is_known() {
    let mut lab = nodes(&[1]);
    count(&mut lab, 2);
    lab.leave(0);
    lab.pass(0.5);
    lab.worker(0, "10.0.0.10");
    count(&mut lab, 6);
    assert!(lab.texts("waiting").iter().all(|text| text.contains("node 0 at")), "{:?}", lab.texts("waiting"));
}

#[test]
fn an_agent_that_told_no_role_is_not_said_not_to_have_come() {
    for leaves in [false, true] {
        let mut lab = Lab::soon();
        lab.worker(0, "10.0.0.10");
        if leaves {
            count(&mut lab, 1);
            lab.leave(0);
        }
        lab.worker(1, "10.0.0.11");
        lab.set(1, "/job/torchelastic/role_info/1", b"{}");
        lab.wait(1, &["/job/torchelastic/assigned_ranks/1"]);
        lab.pass(8.0);
    }
}

#[test]
fn a_host_alone_is_told_and_is_no_run() {
    let mut lab = nodes(&[]);
    count(&mut lab, 20);
    assert!(lab.insight.run(RUN, None, None, lab.now).is_none(), "a run that may not be");
    // The agent of another node shows which job it is.
    lab.worker(1, "10.0.0.11");
    lab.set(1, "/job/torchelastic/role_info/1", b"{}");
    lab.wait(1, &["/job/torchelastic/assigned_ranks/1"]);
    count(&mut lab, 2);
    assert_eq!(lab.run("job").summary.nodes.joined, 2);
    assert!(lab.insight.run(RUN, None, None, lab.now).is_none(), "a run that may not be");
}

#[test]
fn who_looks_at_the_count_once_waits_for_nothing() {
    let mut lab = ranks(&[1], 2);
    lab.get(0, "init/");
    lab.pass(8.0);
    assert!(lab.texts("waiting").iter().all(|text| text.contains("waiting for rank 0")));
}

#[test]
fn a_node_that_is_cut_off_while_node_rank_0_counts_is_told_as_that() {
    let mut lab = nodes(&[1]);
    count(&mut lab, 2);
    lab.cut_off(1, None);
    count(&mut lab, 6);
}

#[test]
fn who_may_come_in_the_place_of_a_static_node_that_ended_is_named() {
    let mut lab = nodes(&[]);
    lab.set(0, "/job/torchelastic/role_info/0", b"{}");
    lab.leave(0);
    lab.pass(1.0);
    // It hosts, and is frozen before it has read how many have come.
    lab.worker(9, "10.0.0.10");
    lab.pass(1.0);
    lab.worker(1, "10.0.0.11");
    lab.set(1, "/job/torchelastic/role_info/1", b"{}");
    lab.wait(1, &["/job/torchelastic/assigned_ranks/1"]);
    lab.pass(5.0);
}
