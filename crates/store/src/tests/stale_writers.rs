//! Rule 1 (a) and (b): an address is spent when its writer leaves, or when another writer overwrites it.

use super::{Client, World};
use crate::{Cleanup, DropCause, Observed};

const GLOO_0: &str = "/default_pg/0//cpu//0/0";
const NCCL: &str = "/default_pg/0//cuda//0";
const NCCL2: &str = "/default_pg/0//cuda//0/nccl_storekey_0";

/// Keys of every kind that rule 1 knows.
const ADDRESSES: [&str; 19] = [
    GLOO_0,
    "/default_pg/0//9f3c//cpu//0/7",
    "//worker/attempt_0/default_pg/0//cpu//0/1",
    NCCL,
    "/default_pg/0//2//cuda//p2p:0:1",
    "/default_pg/0//cuda//0/nccl_storekey_0",
    "/default_pg/0//cuda//0/nccl_storekey_0_3",
    "/default_pg/0//cuda//nccl2_reconfigure/1/claimed",
    "/default_pg/0//cuda//nccl2_reconfigure/1/unique_id/nccl2:0:0:1:host:1",
    "/default_pg/0//cpu//pg_wrapper:0/0/1",
    "/default_pg/0//cpu//reconfigure/1/0/1",
    "/0//cpu//0/1",
    "/AsyncCheckpointProcess//0//cpu//0/1",
    "/tcp://10.0.0.1:4000/0/1",
    "/torchft/1/0/0/1",
    "/rpc_prefix_0/addrs/worker1",
    "/none/torchelastic/role_info/0",
    "/none/torchelastic/role_info0",
    "/none/torchelastic/assigned_ranks/1",
];

fn two_writers(world: &World) -> Vec<(String, Client, Client)> {
    let found = world.observed().into_iter().filter_map(|observed| match observed {
        Observed::TwoWriters { key, first, second } => {
            let client = |conn| Client { world: world.clone(), conn };
            Some((super::client::lossy(&key), client(first), client(second)))
        }
        _ => None,
    });
    found.collect()
}

#[test]
fn an_address_goes_with_its_writer() {
    for key in ADDRESSES {
        let world = World::new();
        let [writer, other] = world.clients();
        writer.set(key, "address");
        assert_eq!(other.get("unrelated"), "");
        writer.leave();
        assert!(!world.has(key), "{key}");
        let drop =
            Cleanup::KeysDropped { cause: DropCause::WriterGone, keys: 1, example: key.as_bytes().into() };
        assert_eq!(world.cleanups(), [drop]);
    }
}

#[test]
fn every_way_of_writing_makes_a_writer() {
    type Write = fn(&Client);
    let writes: [Write; 5] = [
        |a| a.set(GLOO_0, "x"),
        |a| a.multi_set(&[(GLOO_0, "x"), ("other", "y")]),
        |a| a.append(GLOO_0, "x"),
        |a| assert_eq!(a.compare_set(GLOO_0, "", "x"), "x"),
        |a| assert_eq!(a.add(GLOO_0, 1), 1),
    ];
    for write in writes {
        let world = World::new();
        let writer = world.client();
        write(&writer);
        writer.leave();
        assert_eq!(world.dropped(), [(DropCause::WriterGone, 1)]);
    }
}

#[test]
fn the_keys_of_others_and_of_programs_stay_when_a_client_goes() {
    let world = World::new();
    let [gone, stays] = world.clients();
    let kept = [
        "/done_3",
        "/default_pg/0//anything",
        "/torch.rendezvous.job.0/torchelastic/role_info/0",
        "/torch.rendezvous.job.0/torchelastic/assigned_ranks/0",
        "/torch.rendezvous.job.0/MASTER_ADDR",
        "/my_default_pg/0//cpu//0/0",
        "/a//cpu//0/1",
    ];
    for key in kept {
        gone.set(key, "v");
    }
    stays.set(GLOO_0, "address");
    gone.leave();
    assert!(kept.iter().all(|key| world.has(key)));
    assert!(world.has(GLOO_0));
    assert_eq!(world.cleanups(), []);
}

#[test]
fn who_reads_an_address_does_not_own_it() {
    let world = World::new();
    let [writer, reader] = world.clients();
    writer.set(GLOO_0, "address");
    assert_eq!(reader.wait_and_get(GLOO_0), "address");
    reader.leave();
    assert!(world.has(GLOO_0));
}

#[test]
fn waiters_and_later_readers_wait_for_the_next_address() {
    let world = World::new();
    let [writer, early, next] = world.clients();
    early.wait(&[GLOO_0, "/x"]);
    writer.set(GLOO_0, "dead");
    writer.leave();
    let late = world.client();
    assert!(!late.wait(&[GLOO_0]));
    next.set("/x", "");
    assert!(!early.is_woken(), "the address it had waited for is missing again");
    next.set(GLOO_0, "alive");
    assert!(early.is_woken() && late.is_woken());
    assert_eq!(late.get(GLOO_0), "alive");
}

#[test]
fn a_new_writer_takes_over_an_address() {
    let world = World::new();
    let [old, new] = world.clients();
    old.set(GLOO_0, "old");
    new.set(GLOO_0, "new");
    assert_eq!(new.get(GLOO_0), "new");
    old.leave();
    assert!(world.has(GLOO_0), "the address is not the old writer's any more");
    new.leave();
    assert!(!world.has(GLOO_0));
}

#[test]
fn overwriting_ones_own_address_spends_nothing() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set(GLOO_0, "1");
    b.wait_and_get(GLOO_0);
    b.set("/default_pg/0//cpu//0/1", "1");
    a.set(GLOO_0, "2");
    assert!(world.has("/default_pg/0//cpu//0/1"));
    assert_eq!(world.cleanups(), []);
    assert_eq!(two_writers(&world).len(), 0);
}

#[test]
fn an_address_that_was_deleted_is_nobodys() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set(GLOO_0, "1");
    b.delete(GLOO_0);
    b.set(GLOO_0, "2");
    a.leave();
    assert!(world.has(GLOO_0));
    assert_eq!(world.cleanups(), []);
    assert_eq!(two_writers(&world).len(), 0);
}

#[test]
fn an_nccl_id_goes_with_group_rank_0_and_not_with_its_readers() {
    let world = World::new();
    let [root, a, b] = world.clients();
    root.set(NCCL, "id");
    a.wait_and_get(NCCL);
    b.wait_and_get(NCCL);
    a.leave();
    assert!(world.has(NCCL));
    root.leave();
    assert!(!world.has(NCCL));
    assert!(!b.wait(&[NCCL]));
    world.client().set(NCCL, "next id");
    assert!(b.is_woken());
}

/// A second run, a restart of both ranks, and a restart of rank 0 alone while the old rank 1 lives on: the
/// store cannot tell them apart.
#[test]
fn an_nccl_id_of_either_form_is_a_new_one_for_the_next_rank_1() {
    for key in [NCCL, NCCL2] {
        for old_1_lives_on in [false, true] {
            let world = World::new();
            let [root, old_1, new_1, new_root] = world.clients();
            root.set(key, "dead id");
            assert_eq!(old_1.wait_and_get(key), "dead id");
            root.leave();
            let old_1 = if old_1_lives_on {
                Some(old_1)
            } else {
                old_1.leave();
                None
            };
            assert!(!new_1.wait(&[key]), "{key}");
            new_root.set(key, "new id");
            assert!(new_1.is_woken());
            assert_eq!(new_1.get(key), "new id");
            drop(old_1);
        }
    }
}

/// Several roots make the ids of a communicator, and read each other's ids. A new root gets none of the old
/// ids.
#[test]
fn the_ids_of_several_nccl_roots_are_of_one_meeting() {
    let world = World::new();
    let id = |root: usize| format!("{NCCL2}_{root}");
    let roots: Vec<Client> = (0..3).map(|_| world.client()).collect();
    roots.iter().enumerate().for_each(|(root, client)| client.set(id(root), "old"));
    for client in &roots {
        (0..3).for_each(|root| assert_eq!(client.wait_and_get(id(root)), "old"));
    }
    let mut roots = roots.into_iter();
    roots.next().expect("root 0").leave();
    let late = world.client();
    assert_eq!(late.wait_and_get(id(1)), "old", "nobody has come again");
    world.client().set(id(0), "new");
    assert_eq!(world.keys(), [id(0)]);
}

#[test]
fn two_live_processes_that_write_one_address_are_reported() {
    let world = World::new();
    let [a, b] = [world.client_at("10.0.0.1"), world.client_at("10.0.0.2")];
    a.ping(1);
    b.ping(1);
    a.set(GLOO_0, "a");
    b.set(GLOO_0, "b");
    let found = two_writers(&world);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0.as_str(), found[0].1.conn, found[0].2.conn), (GLOO_0, a.conn, b.conn));
    b.set(GLOO_0, "b again");
    assert_eq!(two_writers(&world).len(), 0);
}

#[test]
fn processes_without_a_known_id_are_taken_as_two() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set(GLOO_0, "a");
    b.set(GLOO_0, "b");
    assert_eq!(two_writers(&world).len(), 1, "PyTorch 2.4 tells no process id");
}

#[test]
fn two_connections_of_one_process_are_one_writer() {
    let world = World::new();
    let [a, b, other] = world.clients();
    a.ping(77);
    b.ping(77);
    other.ping(78);
    a.set(GLOO_0, "a");
    b.set(GLOO_0, "b");
    assert_eq!(two_writers(&world).len(), 0);
    other.set(GLOO_0, "c");
    assert_eq!(two_writers(&world).len(), 1);
}

#[test]
fn a_writer_that_is_gone_is_no_second_writer() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set(GLOO_0, "a");
    a.leave();
    b.set(GLOO_0, "b");
    assert_eq!(two_writers(&world).len(), 0);
}

#[test]
fn a_client_that_owned_many_addresses_frees_them_all() {
    let world = World::new();
    let [root, other] = world.clients();
    for n in 0..50 {
        root.set(format!("/none/torchelastic/assigned_ranks/{n}"), "[]");
    }
    other.set("/x", "1");
    root.leave();
    assert_eq!(world.keys(), ["/x"]);
    assert_eq!(world.dropped(), [(DropCause::WriterGone, 50)]);
    other.delete("/x");
    world.assert_empty_after(other);
}

#[test]
fn an_address_that_is_also_a_queue_loses_its_value_only() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set(GLOO_0, "address");
    b.push(GLOO_0, "item");
    a.leave();
    assert!(!world.has(GLOO_0));
    assert!(b.check(&[GLOO_0]));
    assert_eq!(b.pop(GLOO_0).as_deref(), Some("item"));
    world.assert_empty_after(b);
}
