//! Processes that are none of a job beside it: copies, old pods, ranks of another world size, a second job, tools.

use super::lab::Lab;
use crate::Settings;
use rallypoint_api::{RunState, Severity};
use rallypoint_store::StaleKeyConfig;

const RUN: &str = "store:29500";

fn lab() -> Lab {
    let explain_after = std::time::Duration::from_secs(3);
    Lab::with(Settings { explain_after, ..Settings::default() }, StaleKeyConfig::default())
}

/// A rank with this process, which publishes its address for so many ranks.
fn rank(lab: &mut Lab, n: u32, rank: u32, world: usize) {
    lab.worker(n, &format!("10.0.{}.{rank}", n / 10));
    lab.publish(n, rank, world);
}

/// Ranks that all have met, and the seconds that they have trained since.
fn job(world: u32) -> Lab {
    let mut lab = lab();
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
            let waits = run.explanations.iter().find(|said| said.text.contains("has met with others"));
            // What a rank of a larger world reads first is still there.
            assert_eq!(waits.is_some(), world != 4, "{name}: {:?}", lab.said);
            if let Some(waits) = waits {
                assert!(waits.remedy.starts_with("those who have met"), "{name}: {}", waits.remedy);
            }
            let gives_up = gives_up && waits.is_some();
            if gives_up {
                lab.cancel(10);
            }
            lab.leave(10);
            lab.pass(8.0);
            assert_trains(&lab, 3, 3);
            assert!(lab.texts("rank_lost").is_empty(), "{name}: {:?}", lab.said);
            let gave_up = lab.texts("gave_up");
            assert_eq!(gave_up.len(), usize::from(gives_up), "{name}: {gave_up:?}");
            assert!(gave_up.iter().all(|text| !text.contains("should have written")), "{name}: {gave_up:?}");

            // A real death is told as one.
            lab.leave(2);
            lab.pass(8.0);
            let ended = lab.texts("ranks_ended");
            assert!(
                ended.first().is_some_and(|text| text.contains("rank 2 on host2 closed its connection")),
                "{name}: {ended:?}"
            );
            (0..2).for_each(|n| lab.leave(n));
            lab.pass(5.0);
            assert_eq!(lab.texts("run_ended").len(), 1, "{name}: {:?}", lab.said);
            assert!(lab.texts("all_left").is_empty(), "{name}: {:?}", lab.said);
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
    let ended = lab.texts("ranks_ended");
    assert!(
        ended.first().is_some_and(
            |text| text.starts_with(&format!("{RUN}: rank 2 on host2 (pid 2002) closed its connection"))
        ),
        "{ended:?}"
    );
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
    assert_eq!(lab.texts("ranks_complete").len(), 2, "{:?}", lab.said);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn a_second_job_that_meets_and_ends_leaves_the_first_as_it_was() {
    let mut lab = job(3);
    for n in 0..2 {
        rank(&mut lab, 10 + n, n, 2);
    }
    lab.pass(4.0);
    assert_eq!(lab.texts("ranks_complete").len(), 2, "{:?}", lab.said);
    lab.leave(10);
    lab.leave(11);
    lab.pass(8.0);
    assert_trains(&lab, 3, 3);
    assert!(lab.texts("ranks_ended").is_empty(), "{:?}", lab.said);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    let ended = lab.texts("run_ended");
    assert!(ended.last().is_some_and(|text| text.contains("all 3 processes")), "{ended:?}");
}

#[test]
fn a_job_has_ended_when_its_ranks_have_whoever_watches_its_store() {
    let mut lab = job(2);
    lab.worker(10, "10.0.9.9");
    lab.pass(5.0);
    lab.leave(0);
    lab.leave(1);
    lab.pass(3.0);
    assert_eq!(lab.run(RUN).summary.state, RunState::Ended);
    let ended = lab.texts("run_ended").first().map(ToString::to_string);
    lab.pass(9.0);
    lab.leave(10);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 1, "{:?}", lab.said);
    let ended = ended.expect("it has ended");
    assert!(ended.contains("after 10 s"), "{ended}");
}

#[test]
fn after_a_stranger_has_gone_those_who_agree_can_meet() {
    let mut lab = lab();
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
    let mut lab = lab();
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
    let mut lab = lab();
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
    let lost: Vec<_> = lab.said.iter().filter(|(_, said)| said.code == "rank_lost").collect();
    assert!(lost.iter().all(|(_, said)| said.severity == Severity::Warning), "{lost:?}");
    let text = &lost.first().expect("they have ended").1.text;
    assert!(text.contains("after they had given up on others"), "{text}");
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
    assert!(runs.values().all(|run| run.world().gave_up.is_empty()), "{:?}", lab.said);
}

/// Two nodes of a static job that have met, and a copy of the second.
fn static_job_with_copy() -> Lab {
    let mut lab = lab();
    for rank in 0..2 {
        lab.static_node(rank, "job", rank, 2);
    }
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
    let twice = lab.texts("duplicate_rank");
    let text = "two live processes have claimed node rank 1: process ";
    assert!(twice.first().is_some_and(|said| said.contains(text)), "{twice:?}");
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
    let finished = lab.texts("run_finished");
    assert!(finished.first().is_some_and(|text| text.contains("finished: 2 nodes")), "{finished:?}");
}

#[test]
fn a_job_that_ends_beside_a_stranger_is_told_to_have_ended() {
    let mut lab = job(3);
    rank(&mut lab, 10, 1, 4);
    lab.wait_for_rank(10, 0);
    lab.pass(5.0);
    (0..3).for_each(|n| lab.leave(n));
    lab.pass(5.0);
    let ended = lab.texts("run_ended");
    assert!(ended.first().is_some_and(|text| text.contains("all 3 processes")), "{ended:?}");
    let run = lab.run(RUN);
    let waits = run
        .explanations
        .iter()
        .find(|said| said.text.contains("closed") && said.text.contains("it has met with others"));
    assert!(waits.is_some_and(|said| said.remedy.starts_with("those who have met")), "{:?}", lab.said);
    lab.leave(10);
    lab.pass(5.0);
    assert_eq!(lab.texts("all_left"), [format!("{RUN}: the connection of its only process closed")]);
}

/// Torch counts in each process how often it makes its group.
#[test]
fn ranks_that_make_their_group_for_another_time_never_meet() {
    let mut lab = lab();
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
    assert!(lab.texts("ranks_complete").is_empty(), "{:?}", lab.said);
    let run = lab.run(RUN);
    assert_eq!(run.summary.state, RunState::Joining);
    let text = "it makes its process group for time number 1, and those who wait for it for time number 3";
    let said = run.explanations.iter().find(|said| said.text.contains(text));
    let said = said.unwrap_or_else(|| panic!("{:?}", lab.said));
    assert!(said.remedy.contains("start all ranks anew"), "{}", said.remedy);
}

#[test]
fn a_static_node_that_dies_beside_its_copy_is_told() {
    let mut lab = static_job_with_copy();
    lab.leave(1);
    lab.pass(4.0);
    let died = lab.texts("lost");
    assert!(died.first().is_some_and(|text| text.contains("node 1 at 10.77.0.11")), "{:?}", lab.said);
    lab.leave(10);
    lab.pass(4.0);
    assert_eq!(lab.texts("lost").len(), 1, "{:?}", lab.said);
}

/// It is not said to be there any more.
#[test]
fn a_copy_that_waits_for_a_static_node_that_died_is_told_that_it_ended() {
    let mut lab = static_job_with_copy();
    let told = |lab: &Lab| {
        let said = lab.run("job").explanations.into_iter().filter(|said| said.holds);
        said.map(|said| said.text).find(|text| text.contains("has met") || text.contains("had met"))
    };
    lab.delete(0, "/job/torchelastic/role_info/0");
    lab.wait(10, &["/job/torchelastic/role_info/0"]);
    lab.pass(6.0);
    let text = told(&lab).unwrap_or_else(|| panic!("{:?}", lab.said));
    assert!(
        text.contains("connected, asked last 6 s ago, waits for nothing here, it has met with others before"),
        "{text}"
    );
    lab.leave(0);
    lab.pass(6.0);
    let text = told(&lab).unwrap_or_else(|| panic!("{:?}", lab.said));
    assert!(text.contains("connection closed 6 s ago, it has met with others before"), "{text}");
}

/// All ranks of a second job.
fn second(lab: &mut Lab, ranks: u32) {
    (0..ranks).for_each(|n| rank(lab, 10 + n, n, ranks as usize));
}

#[test]
fn a_second_job_beside_one_that_gathers_is_another() {
    let mut lab = lab();
    for n in 0..3 {
        rank(&mut lab, n, n, 4);
        lab.wait_for_rank(n, 3);
    }
    lab.pass(2.0);
    second(&mut lab, 2);
    lab.pass(6.0);
    assert_trains(&lab, 2, 2);
    let complete = lab.texts("ranks_complete");
    assert!(complete.first().is_some_and(|text| text.contains("both ranks")), "{:?}", lab.said);
    let waits = lab.texts("waiting").join("; ");
    assert!(waits.contains("3 of 4 ranks have published; for "), "{waits}");
    assert!(!waits.contains("of 2 ranks"), "{waits}");
    lab.leave(10);
    lab.leave(11);
    lab.pass(8.0);
    assert!(lab.texts("rank_lost").is_empty(), "{:?}", lab.said);
    let ended = lab.texts("run_ended");
    assert!(ended.first().is_some_and(|text| text.contains("both processes")), "{:?}", lab.said);
    // What it wrote over does not come back.
    rank(&mut lab, 3, 3, 4);
    lab.wait_for_rank(3, 0);
    lab.pass(8.0);
    assert_eq!(lab.texts("ranks_complete").len(), 1, "{:?}", lab.said);
    let waits = lab.texts("waiting").join("; ");
    assert!(waits.contains("another process with that rank wrote it as well"), "{waits}");
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
    let ended = lab.texts("run_ended");
    assert!(ended.first().is_some_and(|text| text.contains("all 3 processes")), "{:?}", lab.said);
    lab.leave(10);
    lab.leave(11);
    lab.pass(5.0);
    let ended = lab.texts("run_ended");
    assert!(ended.last().is_some_and(|text| text.contains("both processes")), "{:?}", lab.said);
}

#[test]
fn a_death_is_told_of_its_own_job() {
    let mut lab = job(2);
    lab.pass(5.0);
    second(&mut lab, 3);
    lab.leave(0);
    lab.pass(8.0);
    let ended = lab.texts("ranks_ended").join("; ");
    assert!(ended.contains("rank 0 on host0 (pid 2000) closed its connection"), "{:?}", lab.said);
    assert!(ended.contains("while 1 process is still connected"), "{ended}");
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
    let lost = lab.texts("rank_lost").join("; ");
    assert!(lost.contains("2 of 3 are still there, and had met before"), "{lost}");
    lab.leave(0);
    lab.leave(1);
    lab.pass(5.0);
    assert_eq!(lab.texts("run_ended").len(), 1, "{:?}", lab.said);
    assert!(lab.texts("all_left").is_empty(), "{:?}", lab.said);
}

#[test]
fn a_rank_that_ends_again_and_again_is_told_as_such() {
    let mut lab = lab();
    rank(&mut lab, 0, 0, 3);
    for n in 1..4 {
        rank(&mut lab, n, 1, 3);
        lab.pass(1.0);
        lab.leave(n);
        lab.pass(4.0);
    }
    let lost = lab.texts("rank_lost");
    assert!(lost.iter().take(2).all(|text| !text.contains("times")), "{lost:?}");
    assert!(lost.last().is_some_and(|text| text.contains(", 3 times by now")), "{lost:?}");
}

#[test]
fn the_time_until_all_have_come_is_that_of_those_who_met() {
    let mut lab = lab();
    rank(&mut lab, 10, 0, 3);
    rank(&mut lab, 11, 1, 3);
    lab.pass(9.0);
    lab.leave(10);
    lab.leave(11);
    (0..3).for_each(|n| rank(&mut lab, n, n, 3));
    lab.pass(4.0);
    let complete = lab.texts("ranks_complete");
    assert!(complete.first().is_some_and(|text| text.contains("in 0 s")), "{complete:?}");
}

#[test]
fn where_two_processes_claim_one_rank_the_missing_one_may_be_one_of_them() {
    let mut lab = lab();
    for n in 0..3 {
        lab.worker(n, &format!("10.0.0.{n}"));
        lab.publish(n, 0, 3);
        lab.wait_for_rank(n, 1);
    }
    lab.pass(8.0);
    let said = lab.run(RUN).explanations;
    let waits = said.iter().find(|said| said.code == "waiting").expect("a wait");
    let because = "waiting for rank 1: never seen; not published either: rank 2";
    assert!(waits.text.contains(because), "{}", waits.text);
    let twice = said.iter().find(|said| said.code == "duplicate_rank").expect("two claim rank 0");
    assert!(twice.remedy.starts_with("give each process its own RANK"), "{}", twice.remedy);
}

#[test]
fn the_end_of_a_rank_of_another_world_size_is_told_though_one_before_it_ended() {
    let mut lab = lab();
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
    let told = lab.texts("rank_lost");
    assert!(told.len() == 2 && told[1].contains(": rank 2 on host5: connection closed"), "{told:?}");
}

#[test]
fn jobs_of_one_rank_on_one_store_claim_nothing_from_each_other() {
    let mut lab = lab();
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
        lab.worker(n, addr);
        lab.publish(n, n - 10, 2);
    }
    for n in 10..12 {
        (0..2).for_each(|rank| lab.get(n, &format!("/default_pg/0//cpu//0/{rank}")));
    }
    lab.pass(3.0);
}

#[test]
fn ranks_that_come_from_where_no_agent_is_are_a_job_of_their_own() {
    let mut lab = lab();
    lab.complete_run("job", 2);
    ranks_beside_agents(&mut lab, ["10.0.0.1", "10.0.0.2"]);
    let of_ranks = |lab: &Lab, run: &str| {
        let summary = lab.run(run).summary;
        (summary.state, summary.ranks.map(|ranks| (ranks.joined, ranks.gone, ranks.expected)))
    };
    assert_eq!(of_ranks(&lab, RUN), (RunState::Running, Some((2, 0, Some(2)))));
    lab.leave(11);
    lab.pass(15.0);
    let ended = lab.texts("ranks_ended");
    assert!(
        ended.first().is_some_and(|text| text.starts_with(&format!("{RUN}: rank 1 on host11"))),
        "{ended:?}"
    );
    assert_eq!(of_ranks(&lab, "job").0, RunState::Running);
    assert_eq!(lab.complaints().len(), ended.len(), "{:?}", lab.said);
    lab.pass(20.0);
    assert_eq!(lab.texts("workers_elsewhere").len(), 1, "{:?}", lab.said);
    // A node of the run dies. It had no rank here.
    lab.leave(1);
    lab.pass(5.0);
    assert!(lab.texts("lost")[0].starts_with("job round 0: node1"), "{:?}", lab.said);
    assert_eq!(of_ranks(&lab, RUN), (RunState::Running, Some((1, 1, Some(2)))));
}

#[test]
fn ranks_that_come_before_a_round_is_complete_are_a_job_of_their_own() {
    let mut lab = lab();
    lab.join("job", 0..1);
    // Rank 1 comes when the round is complete.
    lab.worker(10, "10.77.0.10");
    lab.publish(10, 0, 2);
    lab.pass(2.0);
    lab.agent(1, "job");
    lab.cas(1, "job", "join complete");
    lab.exchange("job", 0, 2, 1);
    lab.worker(11, "10.77.0.11");
    lab.publish(11, 1, 2);
    lab.pass(3.0);
    assert_eq!(lab.run(RUN).summary.ranks.expect("ranks").joined, 2);
    assert_eq!(lab.complaints(), [""; 0]);
}

#[test]
fn ranks_beside_a_static_run_are_a_job_of_their_own_too() {
    for trains in [false, true] {
        let mut lab = lab();
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
        assert_eq!(lab.texts("all_left"), [""; 0]);
    }
}

#[test]
fn ranks_beside_an_agent_are_its_workers_whatever_addresses_the_host_has() {
    for (agent, worker) in [("127.0.0.1", "10.0.0.1"), ("10.0.0.1", "127.0.0.1"), ("fd00::1", "10.0.0.1")] {
        let mut lab = lab();
        lab.connect(0, agent, 1000);
        lab.ping(0);
        lab.first_cas(0, "job");
        lab.cas(0, "job", "join complete");
        lab.exchange("job", 0, 1, 2);
        ranks_beside_agents(&mut lab, [worker, worker]);
        assert_eq!(lab.run("job").summary.ranks.expect("ranks").joined, 2, "{agent} {worker}");
        lab.pass(40.0);
        assert!(lab.texts("workers_elsewhere").is_empty());
    }
}
