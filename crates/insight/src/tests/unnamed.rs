//! Ranks that meet without telling a rank: with NCCL rank 0 publishes an id, and the others read it; workers
//! of RPC tell their names only.

use super::lab::Lab;
use rallypoint_api::Severity;

const RUN: &str = "store:29500";
/// The id of all ranks, in the two forms of PyTorch's process groups.
const IDS: [&str; 2] = ["/default_pg/0//cuda//0", "/default_pg/0//cuda//0/nccl_storekey_0"];
const ID: &str = IDS[1];

/// Processes of `env://`, each on a host of its own, of which 0 publishes the id and the others read it.
fn met(ranks: u32, id: &str) -> Lab {
    let mut lab = Lab::soon();
    (0..ranks).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
    lab.pass(1.0);
    publish(&mut lab, 0, 1..ranks, id);
    lab
}

fn publish(lab: &mut Lab, root: u32, others: impl IntoIterator<Item = u32>, id: &str) {
    lab.set(root, id, &[7; 128]);
    others.into_iter().for_each(|n| lab.get(n, id));
}

/// A static run of two nodes with `local` workers each. Node `n` is at 10.77.0.1n, and its workers are 10n,
/// 10n + 1, …
fn static_run(local: u32) -> Lab {
    let mut lab = Lab::soon();
    (0..2).for_each(|n| lab.static_node(n, "job", n, 2));
    lab.assign_static(0, "job", 2, local);
    (0..2).for_each(|n| lab.get(n, &format!("/job/torchelastic/assigned_ranks/{n}")));
    lab.pass(0.5);
    for node in 0..2 {
        (0..local).for_each(|n| lab.worker(10 * (node + 1) + n, &format!("10.77.0.{}", 10 + node)));
    }
    lab.pass(0.5);
    lab
}

#[track_caller]
fn assert_no_complaints(lab: &Lab) {
    assert_eq!(lab.complaints(), Vec::<&str>::new());
}

#[test]
fn the_end_of_a_process_that_told_no_rank_is_said() {
    for id in IDS {
        let mut lab = met(4, id);
        lab.pass(60.0);
        lab.leave(2);
        lab.pass(4.0);
        assert_eq!(lab.texts("ranks_ended").len(), 1);
        // The end of rank 0, which is known, is said as well.
        lab.leave(0);
        lab.pass(4.0);
        assert_no_complaints(&lab);
        (1..4).filter(|n| *n != 2).for_each(|n| lab.leave(n));
        lab.pass(5.0);
    }
}

#[test]
fn a_process_that_told_no_rank_and_does_not_answer_is_cut_off() {
    for id in IDS {
        let mut lab = met(4, id);
        lab.pass(60.0);
        lab.cut_off(2, None);
        lab.pass(4.0);
        assert_eq!(lab.texts("lost").len(), 1);
        assert_eq!(lab.complaints().len(), 1, "{:?}", lab.said);
    }
}

#[test]
fn rank_0_that_published_the_id_and_does_not_answer_is_not_said_to_have_ended() {
    let mut lab = met(3, ID);
    lab.pass(2.0);
    lab.cut_off(0, None);
    lab.pass(1.0);
    lab.delete(1, ID);
    (1..3).for_each(|n| lab.wait(n, &[ID]));
    lab.pass(5.0);
    assert!(!lab.texts("waiting").is_empty());
}

#[test]
fn workers_are_not_taken_for_the_agent_of_a_node_that_ended() {
    let mut lab = Lab::soon();
    (0..3).for_each(|n| lab.static_node(n, "job", n, 3));
    lab.assign_static(0, "job", 3, 1);
    lab.pass(0.5);
    (0..3).for_each(|n| lab.worker(10 + n, &format!("10.77.0.{}", 10 + n)));
    publish(&mut lab, 10, [11, 12], ID);
    lab.pass(2.0);
    for n in [0, 10, 1, 11] {
        lab.leave(n);
    }
    lab.pass(1.0);
    // Node 1 begins another attempt, while node 2 and its worker go on.
    lab.static_node(3, "job", 1, 3);
    lab.pass(5.0);
    assert!(lab.run("job").waits.iter().any(|wait| wait.reason.is_some()));
}

#[test]
fn who_makes_its_group_again_has_not_ended() {
    let mut lab = met(3, ID);
    lab.pass(60.0);
    for (id, again) in
        [("/default_pg/1//cuda//0/nccl_storekey_0", 10), ("/default_pg/2//cuda//0/nccl_storekey_0", 20)]
    {
        for n in 0..3 {
            lab.connect_as(again + n, again - 10 + n);
            lab.ping(again + n);
            lab.add(again + n, "init/", 1);
            lab.leave(again - 10 + n);
        }
        publish(&mut lab, again, [again + 1, again + 2], id);
        lab.pass(40.0);
    }
    assert_no_complaints(&lab);
    assert_eq!(lab.texts("ranks_ended"), Vec::<&str>::new());
    // Nor has one that makes it again later than the others.
    lab.leave(21);
    lab.pass(2.0);
    lab.connect("10.0.0.1".len() as u32 + 30, "10.0.0.1", 2001);
    lab.pass(20.0);
    assert_eq!(lab.texts("run_ended"), Vec::<&str>::new());
}

#[test]
fn a_client_that_only_counts_itself_is_no_rank() {
    let mut lab = met(3, ID);
    lab.worker(7, "10.0.0.7");
    lab.pass(20.0);
    lab.leave(7);
    lab.pass(20.0);
    assert_eq!(lab.texts("ranks_ended"), Vec::<&str>::new());
    assert_no_complaints(&lab);
}

#[test]
fn a_job_that_is_started_again_does_not_miss_the_processes_of_before() {
    let mut lab = met(3, ID);
    lab.pass(20.0);
    lab.leave(1);
    lab.pass(8.0);
    assert_eq!(lab.texts("ranks_ended").len(), 1);
    // A supervisor starts them again one by one, so that some are always there.
    for n in [10, 11, 12] {
        lab.worker(n, &format!("10.0.1.{n}"));
        lab.leave(n - 10);
    }
    publish(&mut lab, 10, [11, 12], ID);
    lab.pass(60.0);
    let run = lab.run(RUN);
    assert!(
        run.explanations.iter().all(|said| said.code != "ranks_ended" || !said.holds),
        "{:?}",
        run.explanations
    );
    assert_no_complaints(&lab);
}

#[test]
fn an_ended_process_is_named_with_its_node_and_its_ranks() {
    for local in 1..4 {
        let mut lab = static_run(local);
        let others = (0..local).map(|n| 20 + n).chain((1..local).map(|n| 10 + n));
        publish(&mut lab, 10, others.collect::<Vec<_>>(), ID);
        lab.pass(30.0);
        assert_no_complaints(&lab);
        lab.leave(20);
        lab.pass(4.0);
        assert_eq!(lab.texts("ranks_ended").len(), 1);
        // The agent notices.
        lab.leave(1);
        lab.pass(4.0);
        assert_eq!(lab.texts("lost").len(), 1);
    }
}

#[test]
fn a_rank_that_does_not_come_for_the_id_is_said() {
    let mut lab = static_run(2);
    publish(&mut lab, 10, [11, 21], ID);
    lab.pass(6.0);
    assert!(!lab.texts("waiting").is_empty());
    lab.get(20, ID);
    lab.pass(2.0);
    assert!(lab.run("job").explanations.iter().all(|said| said.code != "waiting" || !said.holds));

    // All ranks of a node, and one whose process has ended.
    let mut lab = static_run(2);
    lab.leave_all([20, 21]);
    publish(&mut lab, 10, [11], ID);
    lab.pass(6.0);
    assert!(!lab.texts("waiting").is_empty());

    // Who makes its group again, or has ended, has come.
    let mut lab = static_run(2);
    publish(&mut lab, 10, [11, 20, 21], ID);
    lab.pass(10.0);
    lab.connect_as(22, 21);
    lab.leave_all([21, 20]);
    lab.ping(22);
    lab.add(22, "init/", 1);
    lab.pass(10.0);
    assert_no_complaints(&lab);

    // Where two nodes have one address, how many there are is all that is known.
    let mut lab = static_run(1);
    publish(&mut lab, 10, [], ID);
    lab.pass(10.0);
    assert!(!lab.texts("waiting").is_empty());
    let mut healthy = static_run(2);
    healthy.pass(10.0);
    publish(&mut healthy, 10, [11, 20, 21], ID);
    healthy.pass(60.0);
    assert_no_complaints(&healthy);
}

#[test]
fn where_rank_0_is_that_has_not_published_its_id() {
    type Case = (&'static str, fn() -> Lab);
    fn ask(lab: &mut Lab, ranks: &[u32]) {
        for &n in ranks {
            lab.wait(n, &[ID]);
        }
    }
    let cases: [Case; 10] = [
        ("one is connected that does not ask", || {
            let mut lab = Lab::soon();
            (0..3).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
            ask(&mut lab, &[1, 2]);
            lab
        }),
        ("two are", || {
            let mut lab = Lab::soon();
            (0..3).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
            ask(&mut lab, &[1]);
            lab
        }),
        ("all that are connected ask", || {
            let mut lab = Lab::soon();
            (1..3).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
            ask(&mut lab, &[1, 2]);
            lab
        }),
        (
            "containers with one network have made their stores themselves, and count themselves nowhere",
            || {
                let mut lab = Lab::soon();
                (0..3).for_each(|n| lab.come(n, "10.0.0.9", 1));
                ask(&mut lab, &[1, 2]);
                lab
            },
        ),
        ("the watchdogs of those that ask have connections of their own", || {
            let mut lab = Lab::soon();
            for n in 1..3 {
                lab.worker(n, &format!("10.0.0.{n}"));
                lab.connect_as(10 + n, n);
                lab.ping(10 + n);
            }
            ask(&mut lab, &[1, 2]);
            lab
        }),
        ("it published the id, and ended before all had read it", || {
            let mut lab = Lab::soon();
            (0..3).for_each(|n| lab.worker(n, &format!("10.0.0.{n}")));
            publish(&mut lab, 0, [1], ID);
            lab.leave(0);
            lab.pass(1.0);
            ask(&mut lab, &[2]);
            lab
        }),
        ("it made its group before, and does not make it again", || {
            let mut lab = met(3, ID);
            lab.pass(10.0);
            let next = "/default_pg/1//cuda//0/nccl_storekey_0";
            (1..3).for_each(|n| lab.wait(n, &[next]));
            lab
        }),
        ("an operator reset the store", || {
            let mut lab = met(3, ID);
            lab.worker(3, "10.0.0.3");
            lab.pass(1.0);
            lab.reset();
            ask(&mut lab, &[3]);
            lab
        }),
        ("static: its node has died", || {
            let mut lab = static_run(2);
            for n in [10, 11, 0] {
                lab.leave(n);
            }
            ask(&mut lab, &[20, 21]);
            lab
        }),
        ("static: it is one of the processes of its node", || {
            let mut lab = static_run(2);
            ask(&mut lab, &[11, 20]);
            lab
        }),
    ];
    for (name, play) in cases {
        let mut lab = play();
        lab.pass(6.0);
        let said: Vec<_> = lab.said.iter().filter(|(_, said)| said.code == "waiting").collect();
        assert!(!said.is_empty(), "{name}: {:?}", lab.said);
    }
}

#[test]
fn who_is_absent_from_a_sub_group_or_a_barrier_is_said_without_ranks() {
    let mut lab = met(4, ID);
    lab.pass(10.0);
    lab.wait(2, &["/default_pg/0//7//cuda//7/nccl_storekey_0"]);
    lab.wait(3, &["/default_pg/0//7//cuda//7/nccl_storekey_0"]);
    lab.leave(1);
    lab.pass(6.0);
    assert!(!lab.texts("waiting").is_empty());
    let mut lab = met(3, ID);
    lab.pass(10.0);
    lab.wait(1, &["/ckpt/last_member"]);
    lab.wait(2, &["/data_redy"]);
    lab.pass(6.0);
    assert!(!lab.texts("waiting_at_barrier").is_empty());
    assert!(!lab.texts("waiting_for_key").is_empty(), "{:?}", lab.said);
    assert!(lab.said.iter().all(|(_, said)| said.severity == Severity::Info));
}

#[test]
fn the_id_of_two_ranks_is_not_that_of_rank_0() {
    let mut lab = met(4, ID);
    lab.pass(10.0);
    lab.wait(3, &["/default_pg/0//cuda//1:3"]);
    lab.pass(6.0);
    assert!(!lab.texts("waiting").is_empty());
}
