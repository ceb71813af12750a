//! What things cost, in steps: looks at names, registrations and ranges of ranks.

use super::{Client, World, work};

/// Asserts that four times as much costs at most eight times the steps.
fn assert_about_linear(size: usize, steps: impl Fn(usize) -> u64) {
    let (small, large) = (steps(size), steps(4 * size));
    assert!(large <= 8 * small, "{size}: {small} steps, {}: {large} steps", 4 * size);
}

fn waiters(world: &World, count: usize, keys: &[&str]) -> Vec<Client> {
    let clients: Vec<Client> = (0..count).map(|_| world.client()).collect();
    for client in &clients {
        assert!(!client.wait(keys));
    }
    clients
}

#[test]
fn ending_a_wait_costs_the_same_however_many_others_wait() {
    type End = fn(Client, &Client);
    let ends: [(&str, End); 5] = [
        ("cancel", |waiter, _| waiter.cancel()),
        ("disconnect", |waiter, _| waiter.leave()),
        ("another wait", |waiter, _| assert!(!waiter.wait(&["elsewhere"]))),
        ("wake", |waiter, other| {
            other.set("own", "1");
            assert!(waiter.is_woken());
        }),
        ("an item", |waiter, other| {
            other.push("own", "1");
            assert!(waiter.is_woken());
        }),
    ];
    for (name, end) in ends {
        let among = |others| {
            let world = World::unchecked();
            let _before = waiters(&world, others, &["shared", "missing"]);
            let [waiter, other] = world.clients();
            // The shared key is there when the wait is to end.
            assert!(!waiter.wait(&["shared", "own"]));
            let _after = waiters(&world, others, &["shared", "missing"]);
            other.set("shared", "1");
            work::of(|| end(waiter, &other))
        };
        assert_eq!(among(1), among(10_000), "{name}");
    }
}

#[test]
fn withdrawing_an_arrival_costs_the_same_however_many_have_arrived() {
    let among = |others| {
        let world = World::unchecked();
        let arrive = || {
            let client = world.client();
            assert!(!client.barrier("k", 1 << 20));
            client
        };
        let _before: Vec<Client> = (0..others).map(|_| arrive()).collect();
        let gone = arrive();
        let _after: Vec<Client> = (0..others).map(|_| arrive()).collect();
        work::of(|| gone.leave())
    };
    assert_eq!(among(1), among(10_000));
}

#[test]
fn passing_on_an_item_costs_the_same_however_many_wait() {
    let among = |others| {
        let world = World::unchecked();
        let clients = waiters(&world, others, &["q"]);
        world.client().push("q", "1");
        let mut clients = clients.into_iter();
        let first = clients.next().unwrap();
        assert!(first.is_woken());
        let steps = work::of(|| first.leave());
        assert!(clients.next().unwrap().is_woken());
        steps
    };
    assert_eq!(among(2), among(10_000));
}

#[test]
fn waking_many_costs_as_much_as_they_are() {
    assert_about_linear(1000, |count| {
        let world = World::unchecked();
        let clients = waiters(&world, count, &["k"]);
        let setter = world.client();
        let steps = work::of(|| setter.set("k", "1"));
        assert!(clients.iter().all(Client::is_woken));
        steps
    });
}

/// Every rank writes its address and reads all others, then they go one by one.
#[test]
fn tearing_down_a_gloo_group_of_512_ranks_is_linear() {
    let group = |size: usize| {
        let world = World::unchecked();
        let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
        let ranks: Vec<Client> = (0..size).map(|_| world.client()).collect();
        ranks.iter().enumerate().for_each(|(rank, client)| client.set(key(rank), "1"));
        for client in &ranks {
            (0..size).for_each(|rank| assert_eq!(client.get(key(rank)), "1"));
        }
        let steps = work::of(|| ranks.into_iter().for_each(Client::leave));
        world.assert_empty();
        steps
    };
    assert_about_linear(128, group);
}

/// Of a full mesh one rank goes and comes again while the old ranks live on, then the others come again.
#[test]
fn replacing_a_gloo_group_of_512_ranks_is_linear() {
    let group = |size: usize| {
        let world = World::unchecked();
        let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
        let mut ranks: Vec<Client> = (0..size).map(|_| world.client()).collect();
        ranks.iter().enumerate().for_each(|(rank, client)| client.set(key(rank), "1"));
        for client in &ranks {
            (0..size).for_each(|rank| assert_eq!(client.get(key(rank)), "1"));
        }
        ranks.remove(0).leave();
        let new: Vec<Client> = (0..size).map(|_| world.client()).collect();
        let steps = work::of(|| new.iter().enumerate().for_each(|(rank, client)| client.set(key(rank), "2")));
        assert!(new.iter().all(|client| client.check(&[&key(0), &key(size - 1)])));
        ranks.into_iter().chain(new).for_each(Client::leave);
        world.assert_empty();
        steps
    };
    assert_about_linear(128, group);
}

/// All but one have written their addresses, have read those before the missing one, and wait for it.
#[test]
fn tearing_down_a_gloo_group_that_never_came_to_be_is_linear() {
    for missing in [0, 3] {
        let group = |size: usize| {
            let world = World::unchecked();
            let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
            let ranks: Vec<Client> = (0..size).map(|_| world.client()).collect();
            let present = || ranks.iter().enumerate().filter(|(rank, _)| *rank != missing);
            present().for_each(|(rank, client)| client.set(key(rank), "1"));
            for (_, client) in present() {
                (0..missing).for_each(|rank| assert_eq!(client.get(key(rank)), "1"));
                assert!(!client.wait(&[key(missing)]));
            }
            let steps = work::of(|| ranks.into_iter().rev().for_each(Client::leave));
            world.assert_empty();
            steps
        };
        assert_about_linear(1000, group);
    }
}

#[test]
fn tearing_down_the_role_exchange_of_4000_agents_is_linear() {
    let exchange = |nodes: usize| {
        let world = World::unchecked();
        let role_info = |node: usize| format!("/none/torchelastic/role_info/{node}");
        let assigned = |node: usize| format!("/none/torchelastic/assigned_ranks/{node}");
        let agents: Vec<Client> = (0..nodes).map(|_| world.client()).collect();
        agents.iter().enumerate().for_each(|(node, agent)| agent.set(role_info(node), "{}"));
        for node in 0..nodes {
            agents[0].get(role_info(node));
            agents[0].set(assigned(node), "[]");
        }
        agents.iter().enumerate().for_each(|(node, agent)| assert_eq!(agent.get(assigned(node)), "[]"));
        let steps = work::of(|| agents.into_iter().for_each(Client::leave));
        world.pass(60);
        world.assert_empty();
        steps
    };
    assert_about_linear(1000, exchange);
}

/// Each round leaves names behind that are gone; the lists that remember them are cleaned seldom and stay short.
#[test]
fn names_that_come_and_go_cost_the_same_each_time() {
    const KEYS: [&str; 3] =
        ["/default_pg/0//cpu//0", "/torch.rendezvous.job.0", "/default_pg/0//store_based_barrier_key"];
    for prefix in KEYS {
        assert_about_linear(2000, |times| {
            let world = World::unchecked();
            let [a, b] = world.clients();
            // Names that stay, so that the lists are long.
            (0..1000).for_each(|n| a.set(format!("{prefix}/{n}"), "1"));
            let steps = work::of(|| {
                for n in 0..times {
                    let key = format!("{prefix}/{}", 1000 + n);
                    a.set(&key, "1");
                    assert_eq!(b.get(&key), "1");
                    a.delete(&key);
                }
            });
            world.inner().check_now();
            steps
        });
    }
}

#[test]
fn groups_that_come_and_go_cost_their_reader_the_same_each_time() {
    assert_about_linear(2000, |times| {
        let world = World::unchecked();
        let [writer, reader] = world.clients();
        work::of(|| {
            for n in 0..times {
                let key = format!("/default_pg/0//{n}//cpu//0/0");
                writer.set(&key, "1");
                assert_eq!(reader.get(&key), "1");
                writer.delete(&key);
            }
        })
    });
}
