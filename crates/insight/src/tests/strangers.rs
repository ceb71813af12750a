//! Processes that are none of a job beside it: copies, old pods, ranks of another world size, a second job,
//! tools.

use super::lab::Lab;
use rallypoint_api::{RunState, Severity};

const RUN: &str = "store:29500";

/// A rank with this process, which publishes its address for so many ranks.
fn rank(lab: &mut Lab, n: u32, rank: u32, world: usize) {
    lab.rank(n, &format!("10.0.{}.{rank}", n / 10), rank, world);
}

/// Ranks that all have met, and the seconds that they have trained since.
fn job(world: u32) -> Lab {
    let mut lab = Lab::soon();
    (0..world).for_each(|n| rank(&mut lab, n, n, world as usize));
    for reader in 0..world {
        (0..world).for_each(|other| lab.get(reader, &format!("/default_pg/0//cpu//0/{other}")));
    }
    lab.pass(5.0);
    lab
}

/// The job is shown as it is, whoever is beside it.
fn assert_trains(lab: &Lab, joined: u32, of: u32) {
    let summary = lab.run(RUN).summary;
    let ranks = summary.ranks.expect("ranks");
    assert_eq!((summary.state, ranks.joined, ranks.expected), (RunState::Running, joined, Some(of)));
}

#[test]
fn a_stranger_beside_a_job_is_told_and_the_job_goes_on() {
    let strangers: [(&str, u32, usize); 4] = [
        ("a copy of a rank", 1, 3),
        ("a copy of rank 0", 0, 3),
        ("a rank of a larger world", 3, 4),
        ("a rank of a smaller world", 0, 2),
    ];
    for (name, is, world) in strangers {
        for gives_up in [false, true] {
            let mut lab = job(3);
            rank(&mut lab, 10, is, world);
            let awaited = u32::from(is == 0);
            lab.wait_for_rank(10, awaited);
            lab.pass(8.0);
            assert_trains(&lab, 3, 3);
            let run = lab.run(RUN);
            let waits = run.explanations.iter().any(|said| said.code == "waiting");
            // What a rank of a larger world reads first is still there.
            assert_eq!(waits, world != 4, "{name}: {:?}", lab.said);
            let gives_up = gives_up && waits;
            if gives_up {
                lab.cancel(10);
            }
            lab.leave(10);
            lab.pass(8.0);
            assert_trains(&lab, 3, 3);
            assert!(lab.texts("lost").is_empty(), "{name}: {:?}", lab.said);
            assert_eq!(lab.texts("gave_up").len(), usize::from(gives_up), "{name}: {:?}", lab.said);

            // A real death is told as one.
            lab.leave(2);
            lab.pass(8.0);
            (0..2).for_each(|n| lab.leave(n));
            lab.pass(5.0);
            assert_eq!(lab.texts("run_ended").len(), 1, "{name}: {:?}", lab.said);
        }
    }
}

#[test]
fn a_rank_that_dies_beside_a_stranger_is_told() {
    let mut lab = job(3);
    rank(&mut lab, 10, 1, 4);
    lab.wait_for_rank(10, 0);
    lab.pass(5.0);
    lab.leave(2);
    lab.pass(8.0);
    let ranks = lab.run(RUN).summary.ranks.expect("ranks");
    assert_eq!((ranks.joined, ranks.gone, ranks.expected), (2, 1, Some(3)));
}

#[test]
fn ranks_that_come_while_the_last_ones_leave_are_the_next_ones() {
    let mut lab = job(3);
    for n in 0..3 {
        rank(&mut lab, 10 + n, n, 3);
        lab.leave(n);
    }
    lab.pass(5.0);
    assert_trains(&lab, 3, 3);
    assert_eq!(lab.texts("round_complete").len(), 2, "{:?}", lab.said);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn a_second_job_that_meets_and_ends_leaves_the_first_as_it_was() {
    let mut lab = job(3);
    (0..2).for_each(|n| rank(&mut lab, 10 + n, n, 2));
    lab.pass(4.0);
    assert_eq!(lab.texts("round_complete").len(), 2, "{:?}", lab.said);
    lab.leave_all([10, 11]);
    lab.pass(8.0);
    assert_trains(&lab, 3, 3);
    assert!(lab.texts("ranks_ended").is_empty(), "{:?}", lab.said);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 2, "{:?}", lab.said);
}

#[test]
fn a_job_has_ended_when_its_ranks_have_whoever_watches_its_store() {
    let mut lab = job(2);
    lab.worker(10, "10.0.9.9");
    lab.pass(5.0);
    lab.leave_all([0, 1]);
    lab.pass(3.0);
    assert_eq!(lab.run(RUN).summary.state, RunState::Ended);
    lab.pass(9.0);
    lab.leave(10);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 1, "{:?}", lab.said);
}

#[test]
fn after_a_stranger_has_gone_those_who_agree_can_meet() {
    let mut lab = Lab::soon();
    rank(&mut lab, 10, 0, 2);
    lab.pass(1.0);
    (1..3).for_each(|n| rank(&mut lab, n, n, 3));
    lab.pass(4.0);
    assert_eq!(lab.texts("world_sizes_differ").len(), 1);
    lab.leave(10);
    lab.pass(4.0);
    assert_eq!(lab.run(RUN).summary.ranks.expect("ranks").expected, Some(3));
    rank(&mut lab, 0, 0, 3);
    lab.pass(3.0);
    assert_trains(&lab, 3, 3);
}

/// A process that tries again on another connection has not ended, and what it gave up on may come.
#[test]
fn a_process_that_tries_again_is_not_lost() {
    let mut lab = Lab::soon();
    for n in 0..2 {
        rank(&mut lab, n, n, 3);
        lab.wait_for_rank(n, 2);
    }
    lab.pass(4.0);
    for n in 0..2 {
        lab.connect_as(20 + n, n);
        lab.cancel(n);
        lab.leave(n);
        lab.ping(20 + n);
        lab.add(20 + n, "init/", 1);
        lab.publish(20 + n, n, 3);
    }
    rank(&mut lab, 2, 2, 3);
    lab.pass(8.0);
    assert_trains(&lab, 3, 3);
    let errors: Vec<_> = lab.said.iter().filter(|(_, said)| said.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn those_who_gave_up_on_another_are_told_as_its_victims() {
    let mut lab = Lab::soon();
    for n in 0..2 {
        rank(&mut lab, n, n, 3);
        lab.wait_for_rank(n, 2);
    }
    lab.worker(9, "10.0.0.9");
    lab.pass(8.0);
    for n in 0..2 {
        lab.cancel(n);
        lab.leave(n);
    }
    lab.pass(5.0);
    let lost: Vec<_> = lab.said.iter().filter(|(_, said)| said.code == "lost").collect();
    assert!(lost.iter().all(|(_, said)| said.severity == Severity::Warning), "{lost:?}");
    assert!(!lost.is_empty());
}

/// Who tells no rank, gives up and leaves, again and again, leaves nothing behind.
#[test]
fn who_gave_up_is_forgotten_when_it_has_left() {
    let mut lab = job(2);
    for n in 10..20 {
        lab.worker(n, "10.0.9.9");
        lab.wait_for_rank(n, 7);
        lab.pass(1.5);
        lab.cancel(n);
        lab.leave(n);
    }
    lab.pass(5.0);
    let runs = &lab.insight.jobs.runs;
    assert!(runs.values().all(|run| run.life().gave_up.is_empty()), "{:?}", lab.said);
}

/// Two nodes of a static job that have met, and a copy of the second.
fn static_job_with_copy() -> Lab {
    let mut lab = Lab::soon();
    (0..2).for_each(|rank| lab.static_node(rank, "job", rank, 2));
    lab.assign_static(0, "job", 2, 1);
    lab.pass(6.0);
    lab.static_node(10, "job", 1, 2);
    lab.pass(6.0);
    lab
}

/// A copy of an agent of a static job, and what becomes of it.
#[test]
fn a_copy_of_a_static_node_leaves_the_job_as_it_was() {
    let mut lab = static_job_with_copy();
    assert!(!lab.texts("duplicate_rank").is_empty());
    let summary = lab.run("job").summary;
    assert_eq!((summary.state, summary.nodes.joined, summary.round), (RunState::Running, 2, 0));
    lab.leave(10);
    lab.pass(6.0);
    assert!(lab.texts("lost").is_empty() && lab.texts("lost").is_empty(), "{:?}", lab.said);
    let summary = lab.run("job").summary;
    assert_eq!((summary.state, summary.nodes.joined, summary.round), (RunState::Running, 2, 0));
    lab.exit_static(1, "job", false);
    lab.exit_static(0, "job", true);
    lab.pass(3.0);
    assert_eq!(lab.texts("run_finished").len(), 1);
}

#[test]
fn a_job_that_ends_beside_a_stranger_is_told_to_have_ended() {
    let mut lab = job(3);
    rank(&mut lab, 10, 1, 4);
    lab.wait_for_rank(10, 0);
    lab.pass(5.0);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 1);
    assert!(lab.run(RUN).explanations.iter().any(|said| said.code == "waiting"));
    lab.leave(10);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 2);
}

/// Torch counts in each process how often it makes its group.
#[test]
fn ranks_that_make_their_group_for_another_time_never_meet() {
    let mut lab = Lab::soon();
    let key = |made: u32, rank: u32| format!("/default_pg/{made}//cpu//0/{rank}");
    for n in 0..3 {
        lab.worker(n, &format!("10.0.0.{n}"));
        let made = if n == 2 { 0 } else { 2 };
        let value = super::lab::gloo(&format!("host{n}"), 3);
        lab.set(n, &key(made, n), &value);
    }
    lab.wait(0, &[&key(2, 2)]);
    lab.wait(2, &[&key(0, 0)]);
    lab.pass(8.0);
    assert!(lab.texts("round_complete").is_empty(), "{:?}", lab.said);
    let run = lab.run(RUN);
    assert_eq!(run.summary.state, RunState::Joining);
    assert!(run.explanations.iter().any(|said| said.code == "waiting"), "{:?}", lab.said);
}

#[test]
fn a_static_node_that_dies_beside_its_copy_is_told() {
    let mut lab = static_job_with_copy();
    lab.leave(1);
    lab.pass(4.0);
    lab.leave(10);
    lab.pass(4.0);
    assert_eq!(lab.texts("lost").len(), 1, "{:?}", lab.said);
}

/// It is not said to be there any more.
#[test]
fn a_copy_that_waits_for_a_static_node_that_died_is_told_that_it_ended() {
    let mut lab = static_job_with_copy();
    let is_told = |lab: &Lab| lab.run("job").explanations.iter().any(|said| said.holds);
    lab.delete(0, "/job/torchelastic/role_info/0");
    lab.wait(10, &["/job/torchelastic/role_info/0"]);
    lab.pass(6.0);
    assert!(is_told(&lab), "{:?}", lab.said);
    lab.leave(0);
    lab.pass(6.0);
    assert!(is_told(&lab), "{:?}", lab.said);
}

/// All ranks of a second job.
fn second(lab: &mut Lab, ranks: u32) {
    (0..ranks).for_each(|n| rank(lab, 10 + n, n, ranks as usize));
}

#[test]
fn a_second_job_beside_one_that_gathers_is_another() {
    let mut lab = Lab::soon();
    for n in 0..3 {
        rank(&mut lab, n, n, 4);
        lab.wait_for_rank(n, 3);
    }
    lab.pass(2.0);
    second(&mut lab, 2);
    lab.pass(6.0);
    assert_trains(&lab, 2, 2);
    assert!(!lab.texts("waiting").is_empty());
    lab.leave_all([10, 11]);
    lab.pass(8.0);
    assert!(lab.texts("lost").is_empty(), "{:?}", lab.said);
    // What it wrote over does not come back.
    rank(&mut lab, 3, 3, 4);
    lab.wait_for_rank(3, 0);
    lab.pass(8.0);
    assert_eq!(lab.texts("round_complete").len(), 1, "{:?}", lab.said);
}

#[test]
fn a_job_that_ends_beside_a_second_one_is_told_to_have_ended() {
    let mut lab = job(3);
    second(&mut lab, 2);
    lab.pass(5.0);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(8.0);
    assert_trains(&lab, 2, 2);
    assert!(lab.texts("ranks_ended").is_empty(), "{:?}", lab.said);
    assert_eq!(lab.texts("run_ended").len(), 1);
    lab.leave_all([10, 11]);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 2);
}

#[test]
fn a_death_is_told_of_its_own_job() {
    let mut lab = job(2);
    lab.pass(5.0);
    second(&mut lab, 3);
    lab.leave(0);
    lab.pass(8.0);
    assert!(!lab.texts("ranks_ended").is_empty());
}

#[test]
fn who_comes_in_the_place_of_one_that_ended_well_keeps_nobody_waiting() {
    let mut lab = job(3);
    lab.pass(10.0);
    lab.leave(2);
    lab.pass(4.0);
    rank(&mut lab, 10, 2, 3);
    lab.wait_for_rank(10, 0);
    lab.pass(5.0);
    lab.leave(10);
    lab.pass(5.0);
    assert_trains(&lab, 2, 3);
    assert!(!lab.texts("lost").is_empty());
    lab.leave_all([0, 1]);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 1, "{:?}", lab.said);
}

#[test]
fn a_rank_that_ends_again_and_again_is_told_as_such() {
    let mut lab = Lab::soon();
    rank(&mut lab, 0, 0, 3);
    for n in 1..4 {
        rank(&mut lab, n, 1, 3);
        lab.pass(1.0);
        lab.leave(n);
        lab.pass(4.0);
    }
    assert!(!lab.texts("lost").is_empty());
}

#[test]
fn the_time_until_all_have_come_is_that_of_those_who_met() {
    let mut lab = Lab::soon();
    rank(&mut lab, 10, 0, 3);
    rank(&mut lab, 11, 1, 3);
    lab.pass(9.0);
    lab.leave_all([10, 11]);
    (0..3).for_each(|n| rank(&mut lab, n, n, 3));
    lab.pass(4.0);
    assert!(!lab.texts("round_complete").is_empty());
}

#[test]
fn where_two_processes_claim_one_rank_the_missing_one_may_be_one_of_them() {
    let mut lab = Lab::soon();
    for n in 0..3 {
        lab.rank(n, &format!("10.0.0.{n}"), 0, 3);
        lab.wait_for_rank(n, 1);
    }
    lab.pass(8.0);
    let said = lab.run(RUN).explanations;
    assert!(said.iter().any(|said| said.code == "waiting"));
    assert!(said.iter().any(|said| said.code == "duplicate_rank"));
}

#[test]
fn the_end_of_a_rank_of_another_world_size_is_told_though_one_before_it_ended() {
    let mut lab = Lab::soon();
    for n in 1..3 {
        rank(&mut lab, n, n, 4);
        lab.wait_for_rank(n, 0);
    }
    lab.pass(5.0);
    lab.leave(2);
    lab.pass(5.0);
    rank(&mut lab, 5, 2, 3);
    lab.pass(0.5);
    lab.leave(5);
    lab.pass(5.0);
    assert_eq!(lab.texts("lost").len(), 2);
}

#[test]
fn jobs_of_one_rank_on_one_store_claim_nothing_from_each_other() {
    let mut lab = Lab::soon();
    for n in 0..3 {
        rank(&mut lab, n, 0, 1);
        lab.pass(2.0);
    }
    lab.pass(8.0);
    assert_eq!(lab.complaints(), Vec::<&str>::new());
}

/// Ranks without agents come from these addresses, and meet.
fn ranks_beside_agents(lab: &mut Lab, addrs: [&str; 2]) {
    for (n, addr) in (10..).zip(addrs) {
        lab.rank(n, addr, n - 10, 2);
    }
    (10..12).for_each(|n| (0..2).for_each(|rank| lab.get(n, &format!("/default_pg/0//cpu//0/{rank}"))));
    lab.pass(3.0);
}

#[test]
fn ranks_that_come_from_where_no_agent_is_are_a_job_of_their_own() {
    let mut lab = Lab::soon();
    lab.complete_run("job", 2);
    ranks_beside_agents(&mut lab, ["10.0.0.1", "10.0.0.2"]);
    let of_ranks = |lab: &Lab, run: &str| {
        let summary = lab.run(run).summary;
        (summary.state, summary.ranks.map(|ranks| (ranks.joined, ranks.gone, ranks.expected)))
    };
    assert_eq!(of_ranks(&lab, RUN), (RunState::Running, Some((2, 0, Some(2)))));
    lab.leave(11);
    lab.pass(15.0);
    assert_eq!(lab.texts("ranks_ended").len(), 1, "{:?}", lab.said);
    assert_eq!(of_ranks(&lab, "job").0, RunState::Running);
    assert!(lab.complaints().is_empty(), "{:?}", lab.said);
    lab.pass(20.0);
    assert_eq!(lab.texts("workers_elsewhere").len(), 1, "{:?}", lab.said);
    // A node of the run dies. It had no rank here.
    lab.leave(1);
    lab.pass(5.0);
    assert_eq!(of_ranks(&lab, RUN), (RunState::Running, Some((1, 1, Some(2)))));
}

#[test]
fn ranks_that_come_before_a_round_is_complete_are_a_job_of_their_own() {
    let mut lab = Lab::soon();
    lab.join("job", 0..1);
    // Rank 1 comes when the round is complete.
    lab.rank(10, "10.77.0.10", 0, 2);
    lab.pass(2.0);
    lab.joins(1, "job", "join complete");
    lab.exchange("job", 0, 2, 1);
    lab.rank(11, "10.77.0.11", 1, 2);
    lab.pass(3.0);
    assert_eq!(lab.run(RUN).summary.ranks.expect("ranks").joined, 2);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn ranks_beside_a_static_run_are_a_job_of_their_own_too() {
    for trains in [false, true] {
        let mut lab = Lab::soon();
        (0..2).for_each(|n| lab.static_node(n, "job", n, 3));
        if trains {
            lab.static_node(2, "job", 2, 3);
            lab.assign_static(0, "job", 3, 1);
        }
        // Before all nodes have come, none of them can have started a worker.
        ranks_beside_agents(
            &mut lab,
            if trains { ["10.0.0.1", "10.0.0.2"] } else { ["10.77.0.10", "10.0.0.2"] },
        );
        assert_eq!(lab.run(RUN).summary.ranks.expect("ranks").joined, 2);
        assert_eq!(lab.run("job").summary.ranks.map_or(0, |ranks| ranks.joined), 0);
        (10..12).for_each(|n| lab.leave(n));
        lab.pass(5.0);
        assert!(lab.complaints().iter().all(|text| !text.contains("closed")), "{:?}", lab.complaints());
    }
}

#[test]
fn ranks_beside_an_agent_are_its_workers_whatever_addresses_the_host_has() {
    for (agent, worker) in [("127.0.0.1", "10.0.0.1"), ("10.0.0.1", "127.0.0.1"), ("fd00::1", "10.0.0.1")] {
        let mut lab = Lab::soon();
        lab.come(0, agent, 1000);
        lab.first_cas(0, "job");
        lab.cas(0, "job", "join complete");
        lab.exchange("job", 0, 1, 2);
        ranks_beside_agents(&mut lab, [worker, worker]);
        assert_eq!(lab.run("job").summary.ranks.expect("ranks").joined, 2, "{agent} {worker}");
        lab.pass(40.0);
        assert!(lab.texts("workers_elsewhere").is_empty());
    }
}
