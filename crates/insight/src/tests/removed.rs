//! Nodes of torchrun's c10d backend that others take out of the round, that die in it, and those that come
//! after them.

use super::lab::Lab;
use rallypoint_api::{KnownFrom, RunState, Severity};

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pauses = vec![250];
    lab
}

/// A node that is taken out while it is frozen is missing; when it asks again it goes on with the round, and
/// that is said.
#[test]
fn a_node_that_was_taken_out_and_is_back_is_not_missing() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    lab.pass(16.0);
    lab.cas(0, "job", "drop:1");
    lab.pass(40.0);
    let run = lab.run("job");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.missing), (2, Some(1)));
    assert_eq!(
        (run.missing[0].name.as_deref(), run.missing[0].known_from),
        (Some("node1"), KnownFrom::Removed)
    );
    assert!(!lab.texts("node_silent").is_empty());
    lab.get(1, "/torch.rendezvous.job");
    lab.pass(3.0);
    let run = lab.run("job");
    assert_eq!((run.summary.nodes.joined, run.summary.nodes.missing), (3, Some(0)));
    assert!(run.missing.is_empty(), "{:?}", run.missing);
    // Its death is one of the round.
    lab.leave(1);
    lab.pass(3.0);
}

/// Agents send no heartbeats while they wait: who is taken out then is there, waits with the others, and
/// joins later. The dead node that all wait for is named, also when the next round has begun.
#[test]
fn who_waits_for_a_dead_node_is_not_gone_and_the_dead_one_is_named() {
    let mut lab = lab();
    lab.join_all("job", 0..3);
    let role = |n: u32| format!("/torch.rendezvous.job.0/torchelastic/role_info/{n}");
    lab.set(0, &role(0), b"{}");
    lab.set(1, &role(1), b"{}");
    lab.wait(0, &[&role(0), &role(1), &role(2)]);
    lab.wait(1, &["/torch.rendezvous.job.0/torchelastic/assigned_ranks/1"]);
    lab.pass(1.0);
    lab.leave(2);
    lab.pass(14.0);
    // The process that comes in its place takes all out, and begins the next round.
    lab.come(7, "10.77.0.12", 1007);
    lab.first_cas(7, "job");
    lab.cas(7, "job", "drop:0 drop:2 wait");
    lab.pass(3.0);
    let run = lab.run("job");
    assert!(run.missing.iter().all(|node| node.name.as_deref() != Some("node0")), "{:?}", run.missing);
    lab.pass(40.0);
    let of_zero = |lab: &Lab| lab.texts("waiting").iter().any(|text| text.contains("node rank 0"));
    assert!(!of_zero(&lab), "{:?}", lab.texts("waiting"));
    lab.cas(7, "job", "drop:1 next join");
    lab.pass(70.0);
    assert!(!of_zero(&lab), "{:?}", lab.texts("waiting"));
}

/// A dead node's place in a complete round is free, whoever has come with its name.
#[test]
fn a_dead_node_is_missing_by_name_while_its_successor_has_another_place() {
    let mut lab = lab();
    for (n, addr) in [(0, "10.77.0.10"), (1, "10.77.0.11"), (7, "10.77.0.11"), (2, "10.77.0.12")] {
        if n == 7 {
            lab.leave(1);
            lab.pass(0.5);
        }
        lab.come(n, addr, 1000 + n);
        lab.first_cas(n, "job");
        lab.cas(n, "job", "join");
    }
    lab.pass(3.0);
    lab.cas(2, "job", "complete");
    lab.pass(5.0);
    let run = lab.run("job");
    assert_eq!(
        (run.summary.nodes.joined, run.summary.nodes.gone, run.summary.nodes.missing),
        (3, 1, Some(1))
    );
    assert_eq!(run.missing[0].name.as_deref(), Some("node1"));
    assert!(run.missing[0].rank.is_some(), "of the round");
    assert!(run.missing[0].last_seen.is_some());
}

/// torch counts a node until its heartbeats expire, so a round may be complete with one that is dead. That is
/// said at once.
#[test]
fn a_round_that_counts_a_dead_node_says_so() {
    for died_before in [5.0, 0.5] {
        let mut lab = lab();
        lab.join("job", 0..2);
        lab.pass(5.0);
        lab.leave(1);
        lab.pass(died_before);
        lab.joins(2, "job", "join complete");
        lab.pass(2.0);
        let (_, complete) =
            lab.said.iter().find(|(_, said)| said.code == "round_complete").expect("it is said");
        assert_eq!(complete.severity, Severity::Error);
        assert!(complete.evidence.iter().any(|closed| closed.pid == Some(1001)), "{:?}", complete.evidence);
        lab.wait(2, &["/torch.rendezvous.job.0/torchelastic/role_info/1"]);
        lab.pass(40.0);
    }
}

/// The one who waits reads the roles in their order, and the round lacks all of them.
#[test]
fn all_that_a_round_counts_and_that_are_dead_are_named() {
    let mut lab = lab();
    lab.join("job", 0..3);
    lab.pass(5.0);
    lab.leave_all([0, 1]);
    lab.joins(3, "job", "join complete");
    lab.wait(2, &["/torch.rendezvous.job.0/MASTER_ADDR"]);
    lab.pass(40.0);
}

/// Others have taken it out before it is killed, while they train or join: its death is said all the same.
#[test]
fn the_death_of_a_node_that_was_taken_out_is_said() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    lab.pass(16.0);
    lab.cas(0, "job", "drop:1");
    lab.pass(5.0);
    lab.leave(1);
    lab.pass(3.0);

    let mut lab = self::lab();
    lab.join("job", 0..2);
    lab.pass(16.0);
    lab.cas(0, "job", "drop:1");
    lab.pass(5.0);
    lab.leave(1);
    lab.pass(3.0);
}

/// A node that was taken out, came back, and is frozen again: that is news, and its silence is counted from
/// then.
#[test]
fn a_node_that_is_silent_again_is_said_to_be() {
    let mut lab = lab();
    lab.complete_run("job", 3);
    let beat = |lab: &mut Lab, seconds: u32| {
        for _ in 0..seconds {
            for n in [0, 2] {
                lab.cas(n, "job", "");
            }
            lab.pass(1.0);
        }
    };
    beat(&mut lab, 16);
    lab.cas(0, "job", "drop:1");
    beat(&mut lab, 5);
    lab.get(1, "/torch.rendezvous.job");
    let heard = lab.now.0.as_secs_f64();
    beat(&mut lab, 14);
    let run = lab.run("job");
    assert_eq!(run.missing[0].name.as_deref(), Some("node1"));
    assert_eq!(run.missing[0].last_seen, Some(heard));
}

/// The ranks of the round before are none of this one, and agents that ended them for newcomers are not said
/// to have failed.
#[test]
fn ranks_that_ended_for_newcomers_are_no_news() {
    let mut lab = lab();
    lab.complete_run("job", 2);
    (0..2).for_each(|rank| lab.rank(10 + rank, &format!("10.77.0.{}", 10 + rank), rank, 2));
    lab.pass(5.0);
    lab.joins(3, "job", "wait");
    lab.pass(1.0);
    for n in 0..2 {
        lab.leave(10 + n);
        lab.cas(n, "job", "leave");
        lab.cas(n, "job", "wait");
    }
    lab.cas(0, "job", "next join");
    lab.pass(2.0);
    let run = lab.run("job");
    assert_eq!(run.summary.state, RunState::Joining);
    assert!(run.summary.ranks.is_none(), "{:?}", run.summary.ranks);
}

/// A spare beyond the maximum is nothing to complain of.
#[test]
fn a_spare_is_a_note() {
    let mut lab = lab();
    lab.complete_run("job", 2);
    lab.joins(3, "job", "redundant");
    lab.pass(40.0);
    assert_eq!(lab.complaints(), Vec::<&str>::new());
}

/// A node that asked for another number and has gone leaves a round that nobody completes: torch counts only
/// who joins.
#[test]
fn who_asked_for_another_number_and_has_gone_is_no_loss() {
    let is_last = |lab: &Lab, code: &str| {
        assert!(lab.said.iter().any(|(_, said)| said.code == code), "{:?}", lab.said);
    };
    // It comes to a complete round.
    let mut lab = lab();
    lab.complete_run("job", 2);
    lab.joins(3, "job", "wait");
    (0..2).for_each(|n| lab.cas(n, "job", "leave"));
    lab.cas(0, "job", "next join");
    for n in [3, 1] {
        lab.cas(n, "job", "join");
    }
    lab.pass(5.0);
    lab.leave(3);
    lab.pass(3.0);
    is_last(&lab, "lost");
    lab.pass(60.0);
    is_last(&lab, "nnodes_differ");
    // It comes while others join.
    let mut lab = Lab::expecting(2, 2);
    for n in 0..3 {
        lab.joins(n, "job", "join");
        lab.pass(1.0);
    }
    lab.leave(1);
    lab.pass(3.0);
    is_last(&lab, "lost");
    for change in ["", "drop:1"] {
        lab.cas(0, "job", change);
        lab.pass(60.0);
        is_last(&lab, "nnodes_differ");
    }
    // Nobody has said how many there should be.
    let mut lab = self::lab();
    lab.join("job", 0..3);
    lab.leave(1);
    lab.pass(40.0);
    is_last(&lab, "lost");
    is_last(&lab, "nodes_missing");
}

/// While a node waits for the next round torch restarts all for it, also when it has died.
#[test]
fn the_death_of_a_node_that_waits_is_said() {
    let mut lab = lab();
    lab.complete_run("job", 2);
    lab.joins(3, "job", "wait");
    lab.pass(1.0);
    lab.leave(3);
    lab.pass(3.0);
    assert_eq!(lab.texts("lost").len(), 1);
}

/// When all have been frozen for long each of them takes itself for dead, and sends no heartbeat any more.
/// They go on.
#[test]
fn nodes_that_read_the_state_are_not_silent() {
    let mut lab = lab();
    lab.complete_run("job", 2);
    for _ in 0..3 {
        (0..2).for_each(|n| lab.cas(n, "job", ""));
        lab.pass(5.0);
    }
    for _ in 0..60 {
        (0..2).for_each(|n| lab.get(n, "/torch.rendezvous.job"));
        lab.pass(1.0);
    }
    assert!(lab.texts("node_silent").is_empty(), "{:?}", lab.texts("node_silent"));
    lab.pass(15.0);
    assert!(!lab.texts("node_silent").is_empty(), "now they are");
}
