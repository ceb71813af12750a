//! Rule 1 (c): an address is also spent when its writer was paired with a process that another process has
//! replaced.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::{Client, World};
use crate::DropCause;
use rallypoint_protocol::Op;

fn gloo(rank: usize) -> String {
    format!("/default_pg/0//cpu//0/{rank}")
}

fn role_info(node: usize) -> String {
    format!("/none/torchelastic/role_info/{node}")
}

fn assigned_ranks(node: usize) -> String {
    format!("/none/torchelastic/assigned_ranks/{node}")
}

/// Ranks that have written their addresses and read all others.
fn full_mesh(world: &World, size: usize) -> Vec<Client> {
    let ranks: Vec<Client> = (0..size).map(|_| world.client()).collect();
    for (rank, client) in ranks.iter().enumerate() {
        client.set(gloo(rank), "1");
    }
    for (rank, client) in ranks.iter().enumerate() {
        for other in (0..size).filter(|&other| other != rank) {
            client.wait_and_get(gloo(other));
        }
    }
    ranks
}

/// Agents of a static run after their role exchange.
fn role_exchange(world: &World, nodes: usize) -> Vec<Client> {
    let agents: Vec<Client> = (0..nodes).map(|_| world.client()).collect();
    for (node, agent) in agents.iter().enumerate() {
        agent.set(role_info(node), "{}");
    }
    for node in 0..nodes {
        agents[0].wait_and_get(role_info(node));
    }
    for node in 0..nodes {
        agents[0].set(assigned_ranks(node), "[]");
    }
    for (node, agent) in agents.iter().enumerate() {
        agent.wait_and_get(assigned_ranks(node));
    }
    agents
}

#[test]
fn ranks_that_got_one_answer_have_each_read_the_addresses() {
    let world = World::new();
    let mut ranks: Vec<Client> = (0..4).map(|_| world.client()).collect();
    for (rank, client) in ranks.iter().enumerate() {
        client.set(gloo(rank), "1");
    }
    let all: Vec<String> = (0..4).map(gloo).collect();
    for client in &ranks {
        assert_eq!(client.ask_list(Op::MultiGet, &all).len(), 4);
    }
    ranks.remove(2).leave();
    world.client().set(gloo(2), "new");
    assert_eq!(world.keys(), [gloo(2)], "all others were paired with the one that is gone");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    /// The addresses of a whole group are noted at once; parts of a group, and addresses of two groups, are
    /// noted one by one.
    #[test]
    fn an_answer_of_many_addresses_counts_as_reading_each(
        steps in vec((0..20_usize, 0..20_usize, 0..8_u8), 1..60),
    ) {
        let nccl = |root: usize| format!("/default_pg/0//cuda//0/nccl_storekey_0_{root}");
        let lists: [Vec<String>; 4] = [
            (0..20).map(gloo).collect(),
            (2..18).map(gloo).collect(),
            (1..18).map(nccl).collect(),
            (0..9).map(gloo).chain((1..10).map(nccl)).collect(),
        ];
        let worlds = [World::unchecked(), World::unchecked()];
        let mut ranks = worlds.each_ref().map(|world| (0..20).map(|_| world.client()).collect::<Vec<_>>());
        for (one, other, what) in steps {
            for (by_list, (world, ranks)) in worlds.iter().zip(&mut ranks).enumerate() {
                let rank = &ranks[one];
                match what {
                    0 => std::mem::replace(&mut ranks[one], world.client()).leave(),
                    1 => rank.set(gloo(other), "1"),
                    2 => rank.set(nccl(other.max(1)), "1"),
                    // From now on all missing addresses are there.
                    3 => (0..20).filter(|&n| !world.has(gloo(n))).for_each(|n| ranks[n].set(gloo(n), "1")),
                    4 => (1..20).filter(|&n| !world.has(nccl(n))).for_each(|n| ranks[n].set(nccl(n), "1")),
                    _ if by_list == 0 => drop(rank.ask_list(Op::MultiGet, &lists[other % 4])),
                    _ => lists[other % 4].iter().for_each(|key| drop(rank.get(key))),
                }
            }
            prop_assert_eq!(worlds[0].keys(), worlds[1].keys());
            prop_assert_eq!(worlds[0].dropped(), worlds[1].dropped());
        }
    }
}

#[test]
fn a_group_in_which_one_rank_is_replaced_has_only_the_address_of_the_new_one() {
    let world = World::new();
    let mut ranks = full_mesh(&world, 4);
    ranks.remove(2).leave();
    assert_eq!(world.keys(), [gloo(0), gloo(1), gloo(3)]);
    assert_eq!(world.dropped(), [(DropCause::WriterGone, 1)]);
    world.client().set(gloo(2), "new");
    assert_eq!(world.keys(), [gloo(2)]);
    assert_eq!(world.dropped(), [(DropCause::PairedWithGone, 3)]);
}

/// Lazy gloo: an address is read when two ranks first speak to each other. By then other ranks may have
/// ended.
#[test]
fn a_rank_that_ends_early_takes_no_address_from_those_that_read_late() {
    let world = World::new();
    let [a, early] = world.clients();
    a.set(gloo(0), "0");
    early.set(gloo(2), "2");
    a.wait_and_get(gloo(2));
    early.wait_and_get(gloo(0));
    early.leave();
    let late = world.client();
    late.set(gloo(1), "1");
    a.wait_and_get(gloo(1));
    assert_eq!(late.wait_and_get(gloo(0)), "0");
}

#[test]
fn a_rank_that_has_not_read_the_address_of_the_replaced_one_keeps_its_own() {
    let world = World::new();
    let [gone, paired, next] = world.clients();
    gone.set(gloo(0), "0");
    paired.set(gloo(1), "1");
    next.set(gloo(2), "2");
    paired.wait_and_get(gloo(0));
    next.wait_and_get(gloo(1));
    assert_eq!(next.get("/x"), "");
    gone.leave();
    let new = world.client();
    new.set(gloo(0), "new");
    assert_eq!(world.keys(), [gloo(0)], "1 was paired with the old 0, and 2 with 1");
    new.leave();

    let [gone, paired, fresh, new] = world.clients();
    gone.set(gloo(0), "0");
    paired.set(gloo(1), "1");
    fresh.set(gloo(2), "2");
    paired.wait_and_get(gloo(0));
    paired.wait_and_get(gloo(2));
    gone.leave();
    new.set(gloo(0), "new");
    assert_eq!(world.keys(), [gloo(0), gloo(2)], "2 has read nobody's address");
}

/// Reads of a new process count even before it writes its own address.
#[test]
fn an_address_that_was_read_before_ones_own_was_written_makes_a_pair() {
    let world = World::new();
    let [gone, other, reader] = world.clients();
    gone.set(gloo(0), "0");
    other.set(gloo(1), "1");
    reader.wait_and_get(gloo(0));
    other.leave();
    world.client().set(gloo(1), "new 1");
    reader.set(gloo(2), "2");
    gone.leave();
    world.client().set(gloo(0), "new 0");
    assert_eq!(world.keys(), [gloo(0), gloo(1)]);
}

#[test]
fn only_waiting_for_an_address_is_not_reading_it() {
    let world = World::new();
    let [gone, waiter] = world.clients();
    waiter.set(gloo(1), "1");
    waiter.wait(&[gloo(0)]);
    gone.set(gloo(0), "0");
    assert!(waiter.is_woken());
    assert!(waiter.check(&[&gloo(0)]));
    gone.leave();
    world.client().set(gloo(0), "new");
    assert_eq!(world.keys(), [gloo(0), gloo(1)]);
}

#[test]
fn pairs_are_of_one_group() {
    let world = World::new();
    let [a, b] = world.clients();
    let other_group = "/default_pg/0//9f3c//cpu//0/1";
    a.set(gloo(0), "0");
    b.wait_and_get(gloo(0));
    b.set(other_group, "1");
    a.leave();
    world.client().set(gloo(0), "new");
    assert_eq!(world.keys(), [other_group.to_owned(), gloo(0)]);
}

#[test]
fn overwriting_an_address_spends_those_paired_with_the_old_one() {
    let world = World::new();
    let ranks = full_mesh(&world, 3);
    let new = world.client();
    new.set(gloo(1), "new");
    assert_eq!(world.keys(), [gloo(1)]);
    assert_eq!(world.dropped(), [(DropCause::PairedWithGone, 2)]);
    for (rank, client) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        client.set(gloo(rank), "again");
    }
    assert_eq!(world.keys().len(), 3, "their next addresses are of a new pairing");
}

/// Tried with PyTorch: without rule (c) the new rank 0 reads the old rank 1's address and fails.
#[test]
fn a_new_rank_0_waits_for_the_new_rank_1_while_the_old_one_still_lives() {
    let world = World::new();
    let mut ranks = full_mesh(&world, 2);
    let old_1 = ranks.pop().unwrap();
    ranks.pop().unwrap().leave();

    let new_0 = world.client();
    new_0.set(gloo(0), "new 0");
    assert!(!new_0.wait(&[gloo(1)]), "the old rank 1 was paired with the old rank 0");
    old_1.leave();
    assert!(new_0.is_waiting());

    let new_1 = world.client();
    new_1.set(gloo(1), "new 1");
    assert!(new_0.is_woken());
    assert_eq!(new_0.get(gloo(1)), "new 1");
    assert_eq!(new_1.wait_and_get(gloo(0)), "new 0");
}

#[test]
fn the_old_rank_1_may_go_after_the_new_one_has_come() {
    let world = World::new();
    let mut ranks = full_mesh(&world, 2);
    let old_1 = ranks.pop().unwrap();
    ranks.pop().unwrap().leave();
    let [new_0, new_1] = world.clients();
    new_0.set(gloo(0), "new 0");
    new_1.set(gloo(1), "new 1");
    new_0.wait_and_get(gloo(1));
    new_1.wait_and_get(gloo(0));
    old_1.leave();
    assert_eq!(world.keys(), [gloo(0), gloo(1)]);
}

#[test]
fn a_second_env_job_reads_nothing_of_the_first() {
    let world = World::new();
    for _ in 0..2 {
        let mut ranks = full_mesh(&world, 4);
        let last = ranks.pop().unwrap();
        ranks.into_iter().for_each(Client::leave);
        let early = world.client();
        early.set(gloo(0), "next job");
        assert!(!early.wait(&[gloo(3)]), "the last rank of the old job still holds its connection");
        last.leave();
        early.leave();
        world.assert_empty();
    }
}

#[test]
fn a_node_that_is_replaced_takes_all_of_its_role_exchange_with_it() {
    let world = World::new();
    let mut agents = role_exchange(&world, 4);
    assert_eq!(world.keys().len(), 8);
    agents.remove(3).leave();
    assert_eq!(world.dropped(), [(DropCause::WriterGone, 1)]);
    world.client().set(role_info(3), "{}");
    assert_eq!(world.keys(), [role_info(3)]);
    assert_eq!(world.dropped(), [(DropCause::PairedWithGone, 7)]);
}

#[test]
fn a_node_whose_work_fails_at_once_leaves_the_ranks_of_the_others() {
    let world = World::new();
    let [node_0, node_1, failed] = world.clients();
    for (node, agent) in [&node_0, &node_1, &failed].into_iter().enumerate() {
        agent.set(role_info(node), "{}");
    }
    for node in 1..3 {
        node_0.wait_and_get(role_info(node));
    }
    for node in 0..3 {
        node_0.set(assigned_ranks(node), "[]");
    }
    failed.wait_and_get(assigned_ranks(2));
    failed.leave();
    assert_eq!(node_1.wait_and_get(assigned_ranks(1)), "[]");
}

/// Otherwise the new node 0 would start its workers from the role info of the old node 1, which is about to
/// go.
#[test]
fn a_new_node_0_waits_for_the_new_node_1_while_the_old_one_still_lives() {
    let world = World::new();
    let mut agents = role_exchange(&world, 2);
    let old_1 = agents.pop().unwrap();
    agents.pop().unwrap().leave();
    let [new_0, new_1] = world.clients();
    new_0.set(role_info(0), "{}");
    assert!(!new_0.wait(&[role_info(0), role_info(1)]));
    old_1.leave();
    new_1.set(role_info(1), "{}");
    assert!(new_0.is_woken());
    new_0.get(role_info(1));
    for node in 0..2 {
        new_0.set(assigned_ranks(node), "[]");
        assert_eq!(world.keys().len(), 3 + node);
    }
    assert_eq!(new_1.wait_and_get(assigned_ranks(1)), "[]");
}

#[test]
fn a_second_static_run_waits_for_its_own_role_exchange() {
    let world = World::new();
    role_exchange(&world, 2).into_iter().for_each(Client::leave);
    let [node_0, node_1] = world.clients();
    node_0.set(role_info(0), "{}");
    assert!(!node_0.wait(&[role_info(0), role_info(1)]));
    assert!(!node_1.wait(&[assigned_ranks(1)]));
    node_1.set(role_info(1), "{}");
    assert!(node_0.is_woken());
}

#[test]
fn agents_that_stay_repeat_their_role_exchange_unhindered() {
    let world = World::new();
    let agents = role_exchange(&world, 3);
    for (node, agent) in agents.iter().enumerate() {
        agent.set(role_info(node), "{\"restart\": 1}");
    }
    agents[0].set(assigned_ranks(1), "[1]");
    assert_eq!(agents[1].wait_and_get(assigned_ranks(1)), "[1]");
    assert_eq!(world.keys().len(), 6);
    assert_eq!(world.cleanups(), []);
}

/// Node 0 starts its workers again after node 1 has died. It must find the role info that it has just written
/// itself.
#[test]
fn a_node_that_repeats_its_role_exchange_before_the_new_one_comes_keeps_its_role() {
    for (survivor, lost) in [(0, 1), (1, 0)] {
        let world = World::new();
        let mut agents = role_exchange(&world, 2);
        agents.remove(lost).leave();
        let survivor_again = agents.remove(0);
        survivor_again.set(role_info(survivor), "{}");
        let wanted = if survivor == 0 { role_info(1) } else { assigned_ranks(1) };
        assert!(!survivor_again.wait(&[wanted]));
        let new = world.client();
        new.set(role_info(lost), "{}");
        assert!(world.has(role_info(survivor)));
        if survivor == 1 {
            new.set(assigned_ranks(1), "[]");
        }
        assert!(survivor_again.is_woken());
    }
}

#[test]
fn the_role_exchange_of_a_round_is_left_alone() {
    let world = World::new();
    let [a, b, other] = world.clients();
    let key = |node| format!("/torch.rendezvous.job.0/torchelastic/role_info/{node}");
    a.set(key(0), "{}");
    b.set(key(1), "{}");
    a.wait_and_get(key(1));
    other.get("/torch.rendezvous.job");
    other.wait(&["/torch.rendezvous.job"]);
    b.leave();
    a.leave();
    assert_eq!(world.keys(), [key(0), key(1)]);
}

#[test]
fn a_chain_of_pairs_goes_to_its_end() {
    let world = World::new();
    let ranks: Vec<Client> = (0..10).map(|_| world.client()).collect();
    for (rank, client) in ranks.iter().enumerate() {
        client.set(gloo(rank), "1");
    }
    for (rank, client) in ranks.iter().enumerate().skip(1) {
        client.wait_and_get(gloo(rank - 1));
    }
    ranks.into_iter().nth(4).unwrap().leave();
    world.client().set(gloo(4), "new");
    assert_eq!(world.keys(), (0..5).map(gloo).collect::<Vec<_>>(), "the new one and those before it");
}

#[test]
fn what_a_client_read_long_ago_does_not_hurt_its_next_address() {
    let world = World::new();
    let [old, a] = world.clients();
    old.set(gloo(0), "old");
    a.set(gloo(1), "1");
    a.wait_and_get(gloo(0));
    old.leave();
    let [new, newer] = world.clients();
    new.set(gloo(0), "new");
    assert_eq!(world.keys(), [gloo(0)]);
    a.set(gloo(1), "2");
    new.leave();
    newer.set(gloo(0), "newer");
    assert_eq!(world.keys(), [gloo(0), gloo(1)], "a has not read the new one");
}

#[test]
fn a_second_writer_that_had_read_the_first_keeps_what_it_writes() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set(gloo(0), "a");
    b.wait_and_get(gloo(0));
    b.set(gloo(0), "b");
    assert_eq!(world.value(gloo(0)).as_deref(), Some("b"));
    a.leave();
    assert_eq!(world.value(gloo(0)).as_deref(), Some("b"));
}

#[test]
fn the_order_in_which_addresses_were_written_does_not_matter() {
    let world = World::new();
    let root = world.client();
    root.set(gloo(0), "0");
    let write = |rank, of| {
        let client = world.client();
        client.set(gloo(rank), "1");
        client.wait_and_get(gloo(of));
        client
    };
    let _inner: Vec<Client> = (1..10).rev().map(|rank| write(rank, 0)).collect();
    let _outer: Vec<Client> = (1..10).map(|rank| write(10 + rank, rank)).collect();
    root.leave();
    world.client().set(gloo(0), "new");
    assert_eq!(world.keys(), [gloo(0)]);
}

/// A client that has read the earlier holder of its own place is not paired with itself, but still with the
/// other ranks.
#[test]
fn what_the_new_holder_of_a_place_has_read_still_counts() {
    let world = World::new();
    let [old_0, old_1, new_1, new_0] = world.clients();
    let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
    old_0.set(key(0), "old");
    old_1.set(key(1), "old");
    (0..2).for_each(|rank| assert_eq!(new_1.get(key(rank)), "old"));
    new_1.set(key(1), "new");
    assert_eq!(world.value(key(1)).as_deref(), Some("new"));
    assert!(world.has(key(0)));
    new_0.set(key(0), "new");
    assert!(!world.has(key(1)), "it has met the old rank 0");
}

/// A name of the group exists at every moment, so the group whose old rank 1 was read stays the same group.
#[test]
fn a_barrier_that_ends_the_last_wait_in_a_group_takes_no_pair_from_it() {
    let world = World::new();
    let [reader, old_1, next_1] = world.clients();
    next_1.wait(&[gloo(0)]);
    old_1.set(gloo(1), "old");
    assert_eq!(reader.get(gloo(1)), "old");
    old_1.leave();
    assert!(next_1.barrier(&gloo(1), 0));
    reader.set(gloo(0), "0");
    assert_eq!(world.keys(), [gloo(0), gloo(1)]);
    world.client().set(gloo(1), "new");
    assert_eq!(world.keys(), [gloo(1)], "0 has read an earlier 1");
}
