//! Faults of ranks without agents.

use super::super::lab::{Lab, PORT, gloo};
use super::{check_all, check_free, container, fault, gather, ranks, read_each_other, replace};
use crate::StoreOwner;
use rallypoint_api::{RunKind, RunState, Severity};
use rallypoint_protocol::ids::ConnId;
use rallypoint_store::Observed;

#[test]
fn faults_of_ranks_without_agents() {
    check_all(&[
        fault("env: two of four never come", |lab| {
            gather(lab, &[0, 3], 4);
        })
        .waits("waiting", &["rank 1", "rank 2"]),
        fault("env: ranks 0 and 2 never come", |lab| {
            gather(lab, &[1, 3], 4);
        })
        .waits("waiting", &["rank 0", "rank 2"]),
        fault("env: rank 0 waits for a key of the program on a second connection", |lab| {
            gather(lab, &[0, 1], 2);
            lab.pass(5.0);
            lab.connect_as(10, 0);
            lab.ping(10);
            lab.wait(10, &["data_redy"]);
            lab.wait(1, &["/default_pg/0//cpu//1/0"]);
        })
        .waits("waiting", &["key data_redy", "rank 0", "host0"])
        .never(&["waits for nothing"]),
        fault("env: the address of rank 0 was dropped, its peer was replaced", |lab| {
            gather(lab, &[0, 1], 3);
            lab.pass(2.0);
            lab.leave(1);
            lab.pass(2.0);
            replace(lab, 11, 1, 3);
            lab.wait_for_rank(11, 0);
        })
        .waits("waiting", &["rank 0", "host0", "rank 1"])
        .never(&["waiting for rank 0: never seen"]),
        fault("env: an operator resets the store while ranks come", |lab| {
            gather(lab, &[0, 1], 3);
            lab.pass(2.0);
            lab.reset();
            ranks(lab, &[2], 3);
            lab.wait_for_rank(2, 0);
        })
        .waits("waiting", &["rank 0", "host0"])
        .never(&["waiting for rank 0: never seen", "wait_cycle"]),
        fault("env: a rank dies in the middle of it", |lab| {
            gather(lab, &[0, 1, 2], 4);
            lab.pass(2.0);
            lab.leave(1);
        })
        .says("lost", &["rank 1", "host1"])
        .never(&["0 of 4"]),
        fault("env: a rank dies, and another that was not there yet comes", |lab| {
            gather(lab, &[0, 1, 2], 4);
            lab.pass(2.0);
            lab.leave(0);
            ranks(lab, &[3], 4);
            lab.wait_for_rank(3, 0);
        })
        .waits("waiting", &["rank 0", "host0"])
        .never(&["never seen"]),
        fault("env: a rank dies, and others have never come", |lab| {
            ranks(lab, &[0, 1], 4);
            read_each_other(lab, &[0], 4);
            lab.leave(1);
            lab.rank(12, "10.0.0.12", 3, 4);
            lab.wait_for_rank(12, 1);
        })
        .waits("waiting", &["rank 1", "host1", "rank 2"])
        .never(&["not published either: rank 1"]),
        fault("env: one that met the others before dies while they meet again", |lab| {
            gather(lab, &[0, 1, 2], 3);
            lab.pass(1.0);
            lab.leave(2);
            replace(lab, 12, 2, 3);
            lab.leave(1);
            lab.wait_for_rank(12, 0);
        })
        .waits("waiting", &["rank 0", "host0", "rank 1", "host1"])
        .never(&["never seen"]),
        fault("env: three processes with one rank", |lab| {
            for n in [0, 1, 2] {
                lab.rank(n, &format!("10.0.0.{n}"), 0, 3);
                lab.wait_for_rank(n, 1);
                lab.pass(0.2);
            }
        })
        .says("duplicate_rank", &["rank 0", "host0", "pid 2000", "pid 2001", "10.0.0.1", "pid 2002"])
        .never(&["host2 and rank 0 on host2", "host2 and process", "ranks 0"]),
        fault("env: a process connects and ends without publishing", |lab| {
            ranks(lab, &[0], 2);
            lab.worker(7, "10.0.0.7");
            lab.pass(0.2);
            lab.leave(7);
            lab.wait_for_rank(0, 1);
        })
        .waits("waiting", &["rank 1", "pid 2007", "10.0.0.7"]),
        fault("env: of two containers with one address and process id, one tells its rank", |lab| {
            ranks(lab, &[0], 3);
            container(lab, 1);
            lab.publish(1, 1, 3);
            container(lab, 2);
            lab.wait_for_rank(0, 2);
            lab.wait_for_rank(1, 2);
        })
        .waits("waiting", &["rank 2", "pid 1", "10.0.0.9"]),
        fault("env: two containers with one address and process id tell no rank", |lab| {
            ranks(lab, &[0], 3);
            container(lab, 1);
            container(lab, 2);
            lab.wait_for_rank(0, 1);
        })
        .waits("waiting", &["pid 1", "10.0.0.9"]),
        fault("env: of containers with one address and process id, one tells no rank and ends", |lab| {
            for n in [0, 1] {
                container(lab, n);
                lab.publish(n, n, 3);
            }
            container(lab, 2);
            lab.pass(0.2);
            lab.leave(2);
            lab.wait_for_rank(0, 2);
            lab.wait_for_rank(1, 2);
        })
        .waits("waiting", &["pid 1", "10.0.0.9"]),
        fault("a store made by hand: a process that has used no key of PyTorch's", |lab| {
            ranks(lab, &[0], 2);
            lab.come(7, "10.0.0.7", 77);
            lab.wait_for_rank(0, 1);
        })
        .waits("waiting", &["pid 77", "10.0.0.7"]),
        fault("a store made by hand with a prefix", |lab| {
            for n in [1, 2] {
                lab.come(n, &format!("10.0.0.{n}"), 2000 + n);
                lab.set(n, &format!("/mine/0//cpu//0/{n}"), b"address");
                lab.wait(n, &["/mine/0//cpu//0/0"]);
            }
        })
        .waits("waiting", &["key mine"])
        .never(&["wait_cycle"]),
        fault("env: all end before they publish", |lab| {
            for n in [1, 2] {
                lab.worker(n, "10.0.0.7");
            }
            lab.pass(0.5);
            lab.leave_all([1, 2]);
        })
        .says("ranks_ended", &["pid 2001", "10.0.0.7", "pid 2002"]),
        fault("nccl: rank 0 ends before it writes the id", |lab| {
            for n in [0, 1, 2] {
                lab.worker(n, &format!("10.0.0.{n}"));
            }
            lab.pass(0.5);
            lab.leave(0);
            lab.wait(1, &["/default_pg/0//cuda//0"]);
            lab.wait(2, &["/default_pg/0//cuda//0"]);
        })
        .waits("waiting", &["rank 0", "pid 2000", "10.0.0.0"]),
        fault("env: a rank comes to another store", |lab| {
            ranks(lab, &[0, 1], 3);
            let (conn, peer) = (ConnId::new(7, 7), ([10, 0, 0, 2], 40000).into());
            let (port, at, key) = (PORT + 1, lab.now, |key: &str| key.as_bytes().into());
            let came = Observed::Client { conn, peer, pid: Some(7), key: key("init/") };
            lab.insight.observe(port, at, came);
            let (key, value) = (key("/default_pg/0//cpu//0/2"), gloo("host2", 3).into());
            lab.insight.observe(port, at, Observed::Wrote { conn, key, value });
            read_each_other(lab, &[0, 1], 3);
        })
        .waits("waiting", &["rank 2", "host2"]),
        fault("env: a reset takes the addresses of those who wait", |lab| {
            gather(lab, &[0, 1], 3);
            lab.pass(1.0);
            lab.reset();
        })
        .says("store_reset", &["rank 0", "host0", "rank 1", "host1"])
        .never(&["0 of 3", "none of 3"]),
        fault("env: two of four have another WORLD_SIZE", |lab| {
            ranks(lab, &[0, 1], 4);
            ranks(lab, &[2, 3], 5);
        })
        .says("world_sizes_differ", &["rank 0", "rank 1", "rank 2", "rank 3"]),
        fault("env: ranks give up where two have not come", |lab| {
            gather(lab, &[0, 3], 4);
            lab.pass(2.0);
            for n in [0, 3] {
                lab.cancel(n);
                lab.leave(n);
            }
        })
        .says("gave_up", &["rank 0", "host0", "rank 3", "host3", "rank 1", "rank 2"]),
        fault("env: a key that the job before has deleted is waited for", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.set(0, "once", b"1");
            lab.delete(0, "once");
            lab.leave_all([0, 1]);
            lab.pass(40.0);
            ranks(lab, &[2, 3], 4);
            lab.wait(2, &["once"]);
        })
        .waits("waiting_for_key", &["rank 2", "host2", "key once"])
        .never(&["deleted"]),
        fault("env: a key is deleted before all have read it", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.set(0, "once", b"1");
            lab.delete(0, "once");
            lab.wait(1, &["once"]);
        })
        .waits("waiting_for_key", &["rank 1", "host1", "key once"])
        .never(&["nobody has written"]),
        fault("env: a reset while training takes a key of the program", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.set(0, "once", b"1");
            lab.pass(2.0);
            lab.reset();
            lab.wait(1, &["once"]);
        })
        .waits("waiting_for_key", &["key once"])
        .never(&["nobody has written"]),
        fault("env: a rank dies in training, and another with it", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.pass(20.0);
            lab.leave(2);
            lab.pass(0.5);
            lab.leave(1);
        })
        .waits("ranks_ended", &["rank 2", "host2", "rank 1", "host1"])
        .never(&["GLOO_SOCKET_IFNAME"]),
        fault("env: ranks that had made a sub-group could connect to each other", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.set(0, "/default_pg/0//1//cpu//0/0", &gloo("host0", 2));
            lab.pass(2.0);
            lab.leave(1);
        })
        .waits("ranks_ended", &["rank 1", "host1"])
        .never(&["GLOO_SOCKET_IFNAME"]),
        fault("env: a barrier of torch.distributed is called by its name", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.wait(0, &["/default_pg/0//store_based_barrier_key:grp:last_worker"]);
            lab.wait(1, &["/default_pg/0//store_based_barrier_key:grp:last_worker"]);
        })
        .waits("waiting", &["key grp", "rank 2", "host2"]),
        fault("env: ranks wait for a key of the program that nobody writes", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.wait(1, &["data_redy"]);
            lab.wait(2, &["data_redy"]);
        })
        .waits("waiting_for_key", &["rank 1", "host1", "rank 2", "host2", "key data_redy", "rank 0", "host0"])
        .never(&["wait_cycle"]),
        fault("env: ranks give up on a key that is one slip from one that is there", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.set(0, "/default_pg/data_ready", b"1");
            lab.wait(1, &["/default_pg/data_redy"]);
            lab.wait(2, &["/default_pg/data_redy"]);
            lab.pass(8.0);
            (1..3).for_each(|n| lab.cancel(n));
            (1..3).for_each(|n| lab.leave(n));
        })
        .says("gave_up", &["rank 1", "host1", "rank 2", "host2", "rank 0", "host0"])
        .never(&["should have written"]),
        fault("env: ranks give up on a sub-group that one does not make, as another has ended", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            lab.pass(6.0);
            lab.leave(3);
            lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
            lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
            lab.pass(8.0);
            (0..2).for_each(|n| lab.cancel(n));
        })
        .says("gave_up", &["rank 0", "host0", "rank 1", "host1", "rank 3", "host3", "rank 2", "host2"])
        .never(&["missing:"]),
        fault("env: a rank does not make a sub-group with the others", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
            lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
        })
        .waits("waiting", &["rank 2", "host2"])
        .never(&["ended", "wait_cycle"]),
        fault("env: a rank does not make the sub-groups of a device mesh, and many wait in each", |lab| {
            ranks(lab, &[0, 1, 2, 3, 4, 5, 6], 7);
            lab.wait(6, &["/default_pg/0//2//cpu//0/1"]);
            lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
            lab.wait(1, &["/default_pg/0//3//cpu//0/2"]);
            lab.wait(2, &["/default_pg/0//1//cpu//0/1"]);
            lab.wait(3, &["/default_pg/0//3//cpu//0/2"]);
            lab.wait(5, &["/default_pg/0//3//cpu//0/1"]);
        })
        .waits("waiting", &["rank 4", "host4"])
        .never(&["ended", "wait_cycle", "waits for `", "the address of rank"]),
        fault("env: a rank has ended before the sub-groups of a device mesh are made", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            lab.leave(2);
            lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
            lab.wait(1, &["/default_pg/0//3//cpu//0/1"]);
            lab.wait(3, &["/default_pg/0//2//cpu//0/0"]);
        })
        .waits("waiting", &["rank 2", "host2"])
        .never(&["not there", "wait_cycle"]),
        fault(
            "env: ranks make sub-groups in another order, and one that waits for nothing is first",
            |lab| {
                ranks(lab, &[0, 1, 2, 3], 4);
                lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
                lab.wait(1, &["/default_pg/own"]);
            },
        )
        .waits("waiting", &["rank 2", "host2", "rank 3", "host3", "rank 1", "host1"])
        .never(&["ended", "wait_cycle"]),
        fault("env: a rank has ended when the others make a sub-group", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.leave(2);
            lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
            lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
        })
        .waits("waiting", &["rank 2", "host2"])
        .never(&["not there", "wait_cycle"]),
        fault("env: a key that nobody writes is one slip from a key that is there", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.set(0, "data_ready", b"1");
            lab.wait(1, &["data_redy"]);
            lab.wait(2, &["data_redy"]);
        })
        .waits("waiting_for_key", &["key data_redy", "key data_ready"])
        .never(&["ended"]),
        fault("env: a key of the next step is no slip", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.set(0, "step/10", b"1");
            lab.wait(1, &["step/11"]);
        })
        .waits("waiting_for_key", &["host0", "host1", "rank 0", "rank 1"])
        .never(&["exists", "slip"]),
        fault("env: the rank that would write a key of the program dies", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.pass(40.0);
            lab.wait(0, &["checkpoint/written"]);
            lab.leave(2);
        })
        .waits("waiting_for_key", &["rank 0", "host0", "rank 2", "host2"])
        .never(&["exists", "wait_cycle"]),
        fault("env: a barrier of the program that a rank does not reach", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.pass(10.0);
            for n in [0, 2] {
                lab.add(n, "ckpt/num_members", 1);
                lab.wait(n, &["ckpt/last_member"]);
            }
        })
        .waits("waiting_at_barrier", &["rank 0", "host0", "rank 2", "host2", "key ckpt", "rank 1", "host1"])
        .never(&["ended", "does not exist"]),
        fault("env: a BARRIER of which one rank is on another connection, and one has died", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            lab.pass(40.0);
            lab.connect_as(10, 1);
            lab.ping(10);
            lab.barrier(0, "ckpt", 4);
            lab.barrier(10, "ckpt", 4);
            lab.leave(3);
        })
        .waits("waiting_at_barrier", &["key ckpt", "rank 3", "host3", "rank 2", "host2"])
        .never(&["not there: rank 1"]),
        fault("env: at a BARRIER waits a process that is not known", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.pass(40.0);
            lab.connect(10, "10.0.0.1", 9999);
            lab.barrier(0, "ckpt", 2);
            lab.barrier(10, "ckpt", 3);
        })
        .waits("waiting_at_barrier", &["rank 0", "host0", "key ckpt"])
        .never(&["not there"]),
        fault("env: a client that gives up and tries again", |lab| {
            ranks(lab, &[0], 2);
            for _ in 0..20 {
                lab.wait_for_rank(0, 1);
                lab.pass(1.2);
                lab.cancel(0);
                lab.pass(0.1);
            }
            lab.wait_for_rank(0, 1);
        })
        .says("gave_up", &["host0", "rank 0", "rank 1"])
        .within(0.0),
    ]);
}

#[test]
fn faults_at_the_end_of_ranks() {
    check_all(&[
        fault("env: all ranks are killed at once", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.pass(20.0);
            (0..3).for_each(|n| lab.leave(n));
        })
        .says("run_ended", &[])
        .never(&["finished", "SOCKET_IFNAME"]),
        fault("env: a rank ends in a collective, and with it all others", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.pass(10.0);
            lab.leave(1);
            lab.pass(0.5);
            lab.leave(0);
            lab.pass(1.0);
            lab.leave(2);
        })
        .says("run_ended", &["rank 1", "host1"])
        .never(&["SOCKET_IFNAME"]),
        fault("env: all ranks end soon after they have met", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.pass(4.0);
            (0..2).for_each(|n| lab.leave(n));
        })
        .says("run_ended", &[])
        .never(&["all 2"]),
        fault("env: rank 0 and another one have not come", |lab| {
            gather(lab, &[2, 3], 4);
        })
        .waits("waiting", &["rank 0", "rank 1"])
        .never(&["rank 0's process:"]),
        fault("env: rank 0 has ended, and another one has not come", |lab| {
            ranks(lab, &[0, 2, 3], 4);
            lab.leave(0);
            read_each_other(lab, &[2, 3], 4);
        })
        .waits("waiting", &["rank 0", "host0", "rank 1"]),
        fault("env: NCCL ranks, of which only rank 0 writes anything, are killed", |lab| {
            (0..3).for_each(|n| lab.worker(n, "10.0.0.1"));
            lab.set(0, "/default_pg/0//cuda//0", &[7; 128]);
            (1..3).for_each(|n| lab.get(n, "/default_pg/0//cuda//0"));
            lab.pass(8.0);
            (0..3).for_each(|n| lab.leave(n));
        })
        .says("run_ended", &[])
        .never(&["finished", " 0 processes"]),
        fault("env: a rank comes again alone, and the others go on", |lab| {
            gather(lab, &[0, 1, 2], 3);
            lab.pass(20.0);
            lab.leave(2);
            lab.pass(1.0);
            replace(lab, 12, 2, 3);
            lab.wait_for_rank(12, 0);
        })
        .waits("waiting", &["rank 0", "host0"])
        .never(&["never seen", "none of 3"]),
        fault(
            "env: a process that tells no process id does not publish, on the host of a rank that has",
            |lab| {
                ranks(lab, &[0, 1], 3);
                lab.connect(7, "10.0.0.1", 4242);
                lab.add(7, "init/", 1);
                lab.wait_for_rank(0, 2);
            },
        )
        .waits("waiting", &["rank 2", "10.0.0.1"]),
        fault("env: a process connects and does not publish its address", |lab| {
            ranks(lab, &[0, 1], 3);
            lab.worker(2, "10.0.0.2");
            read_each_other(lab, &[0, 1], 3);
        })
        .waits("waiting", &["rank 2", "pid 2002", "10.0.0.2"])
        .never(&["missing"]),
        fault("env: a rank cannot connect to another and ends", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.pass(1.0);
            lab.leave(2);
        })
        .waits("ranks_ended", &["rank 2", "host2"])
        .never(&["have met"]),
    ]);
}

/// Whether it failed cannot be seen: only who waits for it shows that it is needed.
#[test]
fn a_rank_that_ends_soon_alarms_if_others_wait_for_it() {
    check_free(&[
        fault("env: ranks end one after the other soon after they have met", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            read_each_other(lab, &[0, 1, 2, 3], 4);
            for n in 0..3 {
                lab.pass(2.5);
                lab.leave(n);
            }
            lab.pass(9.0);
            assert!(lab.said.iter().all(|(_, said)| said.severity == Severity::Info), "{:?}", lab.said);
        })
        .names(&["rank 0 on host0, rank 1 on host1 and rank 2 on host2 closed their connections"]),
        fault("env: a rank ends soon, and another waits for it in a sub-group", |lab| {
            ranks(lab, &[0, 1], 2);
            read_each_other(lab, &[0, 1], 2);
            lab.pass(2.0);
            lab.leave(1);
            lab.wait(0, &["/default_pg/0//1//cpu//0/1"]);
            lab.pass(9.0);
            assert!(lab.said.iter().any(|(_, said)| said.severity == Severity::Warning), "{:?}", lab.said);
        })
        .words(&["rank 1 of the sub-group 1", "rank 1 on host1"]),
    ]);
}

#[test]
fn who_gives_up_or_ends_is_named_once_and_with_whom_it_waited_for() {
    check_free(&[
        fault("env: a process gives up on a key on two connections", |lab| {
            ranks(lab, &[0, 1], 2);
            lab.pass(20.0);
            lab.connect_as(10, 0);
            lab.ping(10);
            for n in [0, 10] {
                lab.wait(n, &["/default_pg/data"]);
            }
            lab.pass(2.0);
            for n in [0, 10] {
                lab.cancel(n);
            }
        })
        .words(&["rank 0 on host0 gave up on"])
        .never(&["and process 2000", "rank 0 on host0 and"]),
        fault("env: all ranks are killed at one moment while they wait for one that never came", |lab| {
            gather(lab, &[0, 1, 2], 4);
            lab.pass(2.0);
            lab.leave_all([0, 1, 2]);
        })
        .words(&[
            "the connections of all 3 processes closed within 1 ms while they waited; never published: rank 3",
        ])
        .never(&["within 0 s"]),
    ]);
}

/// These publish below the first sub-group, each as this of its ranks.
fn make_group(lab: &mut Lab, as_ranks: &[(u32, u32)]) {
    for (n, rank) in as_ranks {
        lab.set(*n, &format!("/default_pg/0//1//cpu//0/{rank}"), &gloo(&format!("host{n}"), 3));
    }
}

#[test]
fn ranks_that_disagree_on_a_sub_group_are_told_apart_from_ranks_that_do_not_come() {
    check_free(&[
        fault("env: ranks 0 and 1 make one group first, and ranks 2 and 3 another", |lab| {
            ranks(lab, &[0, 1, 2, 3], 4);
            make_group(lab, &[(0, 0), (1, 1)]);
            lab.get(0, "/default_pg/0//1//cpu//0/1");
            lab.get(1, "/default_pg/0//1//cpu//0/0");
            make_group(lab, &[(2, 1), (3, 2)]);
            for n in [2, 3] {
                lab.wait(n, &["/default_pg/0//1//cpu//0/0"]);
            }
        })
        .names(&[
            "two live processes have claimed rank 1 of the sub-group 1: rank 1 on host1 (pid 2001) and rank 2 on \
             host2 (pid 2002); they disagree on the order or the members of new_group",
            "have published there: rank 0 on host0 (dropped since) and rank 1 on host1",
        ])
        .never(&["not there"]),
        fault("env: a rank does not come to a group that others make", |lab| {
            lab.pass(1.0);
            ranks(lab, &[0, 1, 2], 3);
            make_group(lab, &[(0, 0), (1, 1)]);
            for n in [0, 1] {
                lab.wait(n, &["/default_pg/0//1//cpu//0/2"]);
            }
        })
        .words(&["not there: rank 2 on host2 (connected, asked last", "look for ranks that have not reached"])
        .never(&["published there", "claimed", "disagree"]),
        fault("env: who is awaited in a group does not answer any more, and is given up", |lab| {
            ranks(lab, &[0, 1, 2], 3);
            lab.wait(0, &["/default_pg/0//1//cpu//0/2"]);
            lab.wait(1, &["/default_pg/0//1//cpu//0/2"]);
            lab.pass(1.0);
            lab.cut_off(2, None);
        })
        .words(&["gone: rank 2 on host2 (given up", "nothing came back"])
        .never(&["not there"]),
    ]);
}

#[test]
fn a_process_that_never_was_a_rank_leaves_without_a_word() {
    let mut lab = Lab::soon();
    lab.worker(0, "10.0.0.0");
    lab.pass(10.0);
    lab.leave(0);
    lab.pass(5.0);
    assert!(lab.run("store:29500").summary.state.is_over());
    assert_eq!(lab.complaints(), Vec::<&str>::new());
}

#[test]
fn who_takes_the_place_of_a_rank_that_ended_is_not_said_to_have_ended() {
    let mut lab = Lab::soon();
    ranks(&mut lab, &[0, 1], 3);
    lab.pass(1.0);
    lab.leave(1);
    lab.pass(0.5);
    lab.rank(10, "10.0.0.1", 1, 3);
    lab.pass(3.0);
    assert_eq!(lab.texts("lost").len(), 1);
}

/// What gathers again has begun when that began.
#[test]
fn ranks_that_come_again_join_since_then() {
    let mut lab = Lab::soon();
    ranks(&mut lab, &[0, 1, 2], 3);
    lab.pass(20.0);
    lab.leave(1);
    lab.pass(5.0);
    lab.rank(11, "10.0.0.1", 1, 3);
    lab.pass(2.0);
    let run = lab.run("store:29500").summary;
    let now = lab.now.0.as_secs_f64();
    assert_eq!(run.state, RunState::Joining);
    assert!(now - run.started_at < 3.0, "{run:?} at {now}");
}

#[test]
fn a_rank_is_the_first_ones_again_when_the_second_that_claimed_it_has_ended() {
    let mut lab = Lab::soon();
    ranks(&mut lab, &[0, 1], 3);
    lab.wait_for_rank(1, 2);
    lab.pass(2.0);
    lab.rank(2, "10.0.0.2", 1, 3);
    lab.pass(5.0);
    lab.leave(2);
    lab.pass(3.0);
    lab.wait_for_rank(0, 1);
    lab.pass(6.0);
    assert!(lab.texts("lost").is_empty(), "{:?}", lab.said);
    assert!(!lab.texts("waiting").is_empty());
}

#[test]
fn a_rank_of_the_job_before_that_ended_well_is_not_the_one_that_is_missing() {
    // Ranks that meet again close their connections, too: they are the same processes.
    let processes: [fn(u32) -> (u32, u32); 2] = [|rank| (1, 2010 + rank), |rank| (rank, 2000 + rank)];
    for process in processes {
        let mut lab = Lab::soon();
        ranks(&mut lab, &[0, 1, 2], 3);
        lab.pass(3.0);
        (0..3).for_each(|n| lab.leave(n));
        lab.pass(0.2);
        for rank in [0, 2] {
            let ((host, pid), n) = (process(rank), 10 + rank);
            lab.come(n, &format!("10.0.0.{host}"), pid);
            lab.add(n, "init/", 1);
            lab.publish(n, rank, 3);
            lab.wait_for_rank(n, 1);
        }
        lab.pass(6.0);
        assert!(!lab.texts("waiting").is_empty());
    }
}

#[test]
fn two_jobs_that_meet_with_each_others_ranks_are_two_jobs() {
    let mut lab = Lab::soon();
    for (n, rank) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        lab.rank(n, &format!("10.0.0.{n}"), rank, 2);
        lab.pass(2.0);
    }
    lab.pass(4.0);
}

#[test]
fn ranks_in_a_store_that_was_opened_for_announced_pods_are_a_run_without_agents() {
    let mut lab = Lab::soon();
    lab.insight.own_store(PORT, StoreOwner::Run("job".into()));
    lab.gate("job", &[("a", 0, 2), ("b", 1, 2)], &[]);
    lab.pass(1.0);
    ranks(&mut lab, &[0, 1], 2);
    lab.pass(2.0);
    let list = lab.insight.list(0, lab.now);
    let shown: Vec<_> = list.runs.iter().map(|run| (run.run_id.as_str(), run.kind, run.state)).collect();
    assert_eq!(shown, [("job", RunKind::Env, RunState::Running)]);
    lab.leave_all([0, 1]);
    lab.pass(3.0);
    assert_eq!(lab.run("job").summary.state, RunState::Ended);
}

/// Containers with one network may have the same process ids.
#[test]
fn processes_with_one_address_and_process_id_are_not_taken_for_one() {
    let mut lab = Lab::soon();
    let come = |lab: &mut Lab, n| {
        lab.come(n, "10.0.0.1", 7);
        lab.add(n, "init/", 1);
    };
    (0..3).for_each(|n| come(&mut lab, n));
    lab.publish(0, 0, 3);
    lab.publish(1, 1, 3);
    read_each_other(&mut lab, &[0, 1], 3);
    lab.pass(20.0);
    assert!(!lab.texts("waiting").is_empty());

    // What another of them waits for is not what node rank 0 does.
    let mut lab = Lab::soon();
    for n in 0..2 {
        lab.come(n, "10.0.0.1", 7);
        lab.set(n, &format!("/job/torchelastic/role_info/{n}"), b"{}");
    }
    lab.wait(1, &["/job/torchelastic/assigned_ranks/1"]);
    lab.pass(20.0);
    assert_eq!(lab.texts("wait_cycle"), Vec::<&str>::new());
    assert!(!lab.texts("waiting").is_empty());
}

/// A script that watches the store counts itself as ranks do. Once all ranks have met without it, it is none.
#[test]
fn who_was_there_when_all_met_is_no_rank_that_is_missing() {
    let mut lab = Lab::soon();
    lab.worker(9, "10.0.0.9");
    lab.pass(1.0);
    gather(&mut lab, &[0, 1], 2);
    lab.pass(10.0);
    for n in [0, 1] {
        lab.leave(n);
    }
    lab.pass(3.0);
    lab.rank(2, "10.0.0.1", 0, 2);
    lab.wait_for_rank(2, 1);
    lab.pass(20.0);
    // One that has come since may be it.
    lab.worker(3, "10.0.0.2");
    lab.pass(30.0);
    assert!(!lab.texts("waiting").is_empty());
}

/// Who was waited for waited itself until just now: it is not busy yet.
#[test]
fn a_node_whose_wait_was_answered_just_now_is_not_called_busy() {
    let mut lab = Lab::soon();
    lab.static_node(0, "job", 0, 3);
    lab.static_node(1, "job", 1, 3);
    lab.pass(20.0);
    lab.static_node(2, "job", 2, 3);
    let since = lab.said.len();
    lab.pass(4.0);
    let slow = |lab: &Lab| lab.said[since..].iter().filter(|(_, said)| said.code == "waiting").count();
    assert_eq!(slow(&lab), 0, "{:?}", lab.said);
    lab.pass(6.0);
    assert!(slow(&lab) > 0, "it has been quiet for long");
}

/// The API has the same number as the metric: those who are there.
#[test]
fn a_rank_that_is_gone_has_not_joined() {
    let mut lab = Lab::soon();
    gather(&mut lab, &[0, 1, 2], 3);
    lab.pass(3.0);
    lab.leave(1);
    lab.pass(3.0);
    let shown = lab.run("store:29500").summary.ranks.expect("ranks");
    assert_eq!((shown.joined, shown.gone, shown.expected), (2, 1, Some(3)));
}

/// A rank that only some count on is not said to be missing.
#[test]
fn a_rank_beyond_the_smaller_world_size_may_not_exist() {
    let mut lab = Lab::soon();
    ranks(&mut lab, &[0, 1], 3);
    ranks(&mut lab, &[3], 5);
    read_each_other(&mut lab, &[0, 1], 3);
    lab.wait_for_rank(3, 4);
    lab.pass(6.0);
    assert!(!lab.texts("waiting").is_empty());

    // When the one that is prepared for more has gone, nothing is missing but what the others count on.
    lab.leave(3);
    ranks(&mut lab, &[2], 3);
    lab.pass(3.0);
    let held: Vec<_> = lab.run("store:29500").explanations.into_iter().filter(|said| said.holds).collect();
    assert!(held.iter().all(|said| !said.text.contains("rank 4")), "{held:?}");
}

/// Only those who can meet are counted: 3 of 3, and not 1 or 4.
#[test]
fn ranks_that_can_meet_are_counted_whatever_another_is_prepared_for() {
    for comes_first in [true, false] {
        let mut lab = Lab::soon();
        let other = |lab: &mut Lab| {
            ranks(lab, &[3], 4);
            lab.pass(3.0);
        };
        if comes_first {
            other(&mut lab);
        }
        gather(&mut lab, &[0, 1, 2], 3);
        lab.pass(3.0);
        if !comes_first {
            other(&mut lab);
        }
        let shown = lab.run("store:29500").summary.ranks.expect("ranks");
        assert_eq!((shown.joined, shown.expected, shown.connected), (3, Some(3), 4), "first: {comes_first}");
        assert_eq!(lab.texts("world_sizes_differ").len(), 1);
    }
}
