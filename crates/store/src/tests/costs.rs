//! What requests cost, in steps: looks at names, registrations and ranges of ranks.

use std::time::Duration;

use super::{Client, World, work};
use crate::{Cleanup, DropCause};
use rallypoint_protocol::{Op, Payload, Request};

/// Asserts that four times the size costs at most eight times the steps.
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
            // The shared key is there before the wait is to end.
            assert!(!waiter.wait(&["shared", "own"]));
            let _after = waiters(&world, others, &["shared", "missing"]);
            other.set("shared", "1");
            work::of(|| end(waiter, &other))
        };
        assert_eq!(among(1), among(10_000), "{name}");
    }
}

/// The rest of the waits is removed in steps. A connection that waits again meanwhile is not confused with
/// its old wait.
#[test]
fn a_write_that_ends_many_large_waits_takes_few_steps() {
    for (waits, keys_each) in [(3, 20_000), (30, 2000)] {
        let world = World::unchecked();
        let setter = world.client();
        let keys: Vec<String> = (0..keys_each).map(|n| format!("/{n}")).collect();
        for key in &keys {
            setter.set(key, "1");
        }
        let with = |last: &str| [&keys[..], &[last.to_owned()]].concat();
        let waiters: Vec<Client> = (0..waits).map(|_| world.client()).collect();
        for (n, waiter) in waiters.iter().enumerate() {
            // Each in another order, because equal lists would share one wait.
            let mut keys = with("last");
            keys.rotate_left(n);
            assert!(!waiter.wait(&keys));
        }
        let steps = work::of(|| setter.set("last", "1"));
        assert!(steps < 100_000, "{steps}");
        assert!(waiters.iter().all(Client::is_woken));
        assert!(world.inner().store.is_unsettled());
        // A key of these waits goes and comes while one client waits again and another has left.
        let mut waiters = waiters.into_iter();
        let [first, again, gone] = std::array::from_fn(|_| waiters.next().unwrap());
        gone.leave();
        assert!(!again.wait(&["/0", "/other"]));
        assert!(!first.wait(&with("/never")));
        setter.delete("/0");
        setter.set("/other", "1");
        assert!(!again.is_woken());
        setter.set("/0", "1");
        assert!(again.is_woken() && !first.is_woken());
        first.cancel();
        world.settle();
        world.inner().check_now();
    }
}

/// The ranks of a job wait for the same keys: each further rank costs one step, when it comes and when a key
/// appears.
#[test]
fn ranks_that_wait_for_the_same_keys_cost_little_more_than_one() {
    const KEYS: usize = 2000;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("/default_pg/0//cpu//0/{n}")).collect();
    let among = |ranks: usize| {
        let world = World::unchecked();
        let ranks: Vec<Client> = (0..ranks).map(|_| world.client()).collect();
        let steps = work::of(|| {
            for rank in &ranks {
                assert!(!rank.wait(&keys));
            }
            for (key, rank) in keys.iter().zip(ranks.iter().cycle()) {
                rank.set(key, "address");
            }
        });
        assert!(ranks.iter().all(Client::is_woken));
        world.inner().check_now();
        steps
    };
    let (few, many) = (among(10), among(1000));
    assert!(many < 2 * few, "{few} {many}");
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

/// Every rank writes its address and reads all others. Then the ranks leave one by one.
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

/// One rank of a full mesh is replaced while the other old ranks live on. Then the others are replaced.
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

/// All ranks but one have written their addresses, have read the addresses before the missing one, and wait
/// for that one.
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

/// Each round leaves the names of removed keys behind. The lists that remember them are cleaned rarely and
/// stay short.
#[test]
fn names_that_come_and_go_cost_the_same_each_time() {
    const KEYS: [&str; 3] =
        ["/default_pg/0//cpu//0", "/torch.rendezvous.job.0", "/default_pg/0//store_based_barrier_key"];
    for prefix in KEYS {
        assert_about_linear(2000, |times| {
            let world = World::unchecked();
            let [a, b] = world.clients();
            // These names stay, so the lists are long.
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

/// No list and no table of names is walked when it grows or when a client leaves.
#[test]
fn a_name_among_many_costs_no_more_than_among_few() {
    const NAMES: usize = 60_000;
    let forms: [fn(usize) -> String; 6] = [
        |n| format!("/{n}"),
        |n| format!("/default_pg/0//cpu//0/{n}"),
        |n| format!("/default_pg/0//{n}//cpu//0/0"),
        |n| format!("/default_pg/0//cuda//{n}"),
        |n| format!("/default_pg/0//store_based_barrier_key:{n}"),
        |n| format!("/torch.rendezvous.job.0/torchelastic/agent/terminal_state/{n}"),
    ];
    for form in forms {
        let world = World::unchecked();
        let [writer, other] = world.clients();
        other.set(form(NAMES), "1");
        let most = (0..NAMES).map(|n| work::of(|| writer.set(form(n), "1"))).max();
        assert!(most < Some(2000), "{}: {most:?}", form(0));
        let most = (0..NAMES / 2).map(|n| work::of(|| assert_eq!(writer.delete(form(n)), 1))).max();
        assert!(most < Some(2000), "{}: {most:?}", form(0));
        world.inner().check_now();
    }
}

/// However many names a store has, none is moved when it grows, and memory is freed in small parts.
#[test]
fn a_store_grows_and_shrinks_in_small_steps() {
    const NAMES: usize = 60_000;
    let world = World::unchecked();
    let writer = world.client();
    let form = |n| format!("/default_pg/0//{n}//cpu//0/0");
    let early = (0..3000).step_by(100).map(form).collect::<Vec<_>>();
    (0..3000).for_each(|n| writer.set(form(n), "1"));
    let addresses = || {
        let inner = world.inner();
        let address = |name: &String| {
            let id = inner.store.keys.find(name.as_bytes()).expect("it stays");
            std::ptr::from_ref(inner.store.keys.slot(id)).addr()
        };
        early.iter().map(address).collect::<Vec<_>>()
    };
    let before = addresses();
    (3000..NAMES).for_each(|n| writer.set(form(n), "1"));
    assert_eq!(addresses(), before);
    let bytes = || world.inner().store.stats().bytes;
    let given_back = |act: &dyn Fn()| {
        let before = bytes();
        act();
        before.saturating_sub(bytes())
    };
    let most = (0..NAMES).map(|n| given_back(&|| assert_eq!(writer.delete(form(n)), 1))).max();
    assert!(most < Some(256 * 1024), "{most:?}");
    world.inner().check_now();
}

#[test]
fn leaving_a_run_costs_no_more_where_very_many_names_may_tell_of_its_end() {
    let leaving = |names| {
        let world = World::unchecked();
        let [agent] = world.clients();
        (0..names).for_each(|n| {
            agent.set(format!("/torch.rendezvous.job.0/torchelastic/agent/terminal_state/{n}"), "1");
        });
        work::of(|| agent.leave())
    };
    assert!(leaving(100) < 1000);
    assert_eq!(leaving(40_000), leaving(80_000));
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

#[test]
fn naming_a_key_many_times_in_a_wait_costs_its_writers_nothing() {
    let named = |times| {
        let world = World::unchecked();
        let [waiter, other] = world.clients();
        let keys = vec!["k"; times].into_iter().chain(["missing"]).collect::<Vec<_>>();
        assert!(!waiter.wait(&keys));
        let steps = work::of(|| {
            other.set("k", "1");
            other.delete("k");
        });
        other.set("missing", "1");
        assert!(!waiter.is_woken());
        other.set("k", "1");
        assert!(waiter.is_woken());
        steps
    };
    assert_eq!(named(1), named(10_000));
}

/// A batch of one connection ends after costly requests, so that other connections get their turn.
#[test]
fn a_critical_section_ends_soon_after_it_has_cost_much() {
    let within_one_section = |others| {
        let world = World::unchecked();
        let _waiters = waiters(&world, others, &["k", "missing"]);
        let writer = world.client();
        let mut inner = world.inner();
        let super::world::Inner { store, recorder, now, .. } = &mut *inner;
        store.begin(recorder);
        let set = Request::Set { key: b"k", value: Payload::borrowed(b"1") };
        let pairs = [set, Request::Delete { key: b"k" }].into_iter().cycle().take(64);
        let applied = pairs.take_while(|request| {
            let tired = store.has_worked_enough();
            assert!(tired || store.apply(writer.conn, request, *now, recorder).is_ok());
            !tired
        });
        applied.count()
    };
    assert_eq!(within_one_section(10), 64);
    assert_eq!(within_one_section(20_000), 1);
    // A counter may begin with megabytes of zeros.
    let world = World::new();
    let client = world.client();
    client.set("n", "0".repeat(4 << 20));
    client.add("n", 0);
    assert!(world.inner().store.has_worked_enough());
}

/// Requests in between are served in between, and what they write stays.
#[test]
fn a_reset_of_many_keys_goes_in_steps() {
    const KEYS: usize = 50_000;
    let world = World::unchecked();
    let [client, waiter] = world.clients();
    (0..KEYS).for_each(|n| client.set(format!("/{n}"), "1"));
    (0..KEYS).for_each(|_| client.push("q", "item"));
    assert!(!waiter.wait(&[format!("/{}", KEYS - 1).as_str(), "missing"]));
    {
        let super::world::Inner { store, recorder, .. } = &mut *world.inner();
        store.reset(recorder);
        assert!(store.is_unsettled());
    }
    assert_eq!(world.cleanups(), []);
    let mut sections = 0;
    while world.inner().store.is_unsettled() {
        let steps = work::of(|| client.set(format!("/new/{sections}"), "1"));
        assert!(steps < 100_000, "{steps}");
        sections += 1;
    }
    assert!(sections > 5);
    assert_eq!(client.num_keys(), sections);
    let reset = Cleanup::StoreReset { cause: DropCause::Operator, keys: KEYS + 1 };
    assert_eq!(world.cleanups(), [reset]);
    client.set("missing", "1");
    assert!(!waiter.is_woken(), "its other key is gone");
    world.inner().check_now();
}

/// Each rank has read only the address of the rank before it, and the first rank is replaced.
#[test]
fn spending_a_long_chain_of_pairs_is_linear() {
    assert_about_linear(500, |size| {
        let world = World::unchecked();
        let ranks: Vec<Client> = (0..size).map(|_| world.client()).collect();
        let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
        for (rank, client) in ranks.iter().enumerate() {
            if rank > 0 {
                assert_eq!(client.get(key(rank - 1)), "1");
            }
            client.set(key(rank), "1");
        }
        let again = world.client();
        let steps = work::of(|| again.set(key(0), "2"));
        world.settle();
        world.assert_no_names_but(&[&key(0)]);
        steps
    });
}

/// Notes on reads are dropped at once, and their memory is freed in steps.
#[test]
fn a_reset_frees_what_was_read_in_steps() {
    const READERS: usize = 20;
    let world = World::unchecked();
    let writer = world.client();
    let ids: Vec<String> = (0..5000).map(|n| format!("/default_pg/0//cuda//{n}")).collect();
    for id in &ids {
        writer.set(id, "1");
    }
    let readers: Vec<Client> = (0..READERS).map(|_| world.client()).collect();
    for reader in &readers {
        reader.ask_list(Op::MultiGet, &ids);
    }
    let before = world.inner().store.stats().bytes;
    {
        let super::world::Inner { store, recorder, .. } = &mut *world.inner();
        store.reset(recorder);
        let freed = before - store.stats().bytes;
        assert!(freed < READERS * ids.len() * 64 / 3, "{freed}");
    }
    world.settle();
    assert_eq!(world.inner().store.stats().bytes, 0);
    world.inner().check_now();
}

/// One peer wrote addresses for many ranks, and another overwrites them: with and without readers that have
/// addresses of their own.
#[test]
fn overwriting_many_addresses_that_others_wrote_and_read_is_linear() {
    for step in [1, 2] {
        let overwrite = |size: usize| {
            let world = World::unchecked();
            let [first, second, reader] = world.clients();
            let key = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
            let keys: Vec<String> = (0..size).map(key).collect();
            let pairs: Vec<&str> = keys.iter().flat_map(|key| [key.as_str(), "1"]).collect();
            first.ask_list(Op::MultiSet, &pairs);
            let some: Vec<&String> = keys.iter().step_by(step).collect();
            for client in [&second, &reader] {
                client.ask_list(Op::MultiGet, &some);
            }
            reader.set(key(size), "1");
            let steps = work::of(|| drop(second.ask_list(Op::MultiSet, &pairs)));
            world.inner().check_now();
            steps
        };
        assert_about_linear(4000, overwrite);
    }
}

/// NCCL leaves one group behind for each id. A reader remembers only some of them.
#[test]
fn reading_very_many_ids_is_linear() {
    assert_about_linear(16 * 1024, |size| {
        let world = World::unchecked();
        let [writer, reader] = world.clients();
        let ids: Vec<String> = (0..size).map(|n| format!("/default_pg/0//cuda//{n}")).collect();
        let pairs: Vec<&str> = ids.iter().flat_map(|id| [id.as_str(), "1"]).collect();
        writer.ask_list(Op::MultiSet, &pairs);
        let steps = work::of(|| assert_eq!(reader.ask_list(Op::MultiGet, &ids).len(), size));
        world.inner().check_now();
        steps
    });
}

#[test]
fn what_is_known_of_many_groups_is_counted_and_goes_with_them() {
    for form in ["/default_pg/0//cuda//", "/default_pg/0//cpu//"] {
        let world = World::unchecked();
        let [writer, reader] = world.clients();
        let keys: Vec<String> = (0..10_000)
            .map(|n| format!("{form}{n}{}", if form.contains("cpu") { "/0" } else { "" }))
            .collect();
        for key in &keys {
            writer.set(key, "1");
        }
        let before = world.inner().store.stats().bytes;
        reader.ask_list(Op::MultiGet, &keys);
        assert!(world.inner().store.stats().bytes > before + 10_000 * 64);
        reader.leave();
        assert!(world.inner().store.stats().bytes <= before + 10_000 * 64);
        writer.leave();
        assert!(world.inner().store.is_unsettled(), "so many go in steps");
        world.settle();
        world.assert_empty();
    }
}

/// Without a limit, each client that leaves an attempt which is over would make a list of everything it left
/// behind.
#[test]
fn lists_of_what_attempts_leave_behind_are_counted_and_few() {
    const KEYS: usize = 120_000;
    let world = World::unchecked();
    let [agent, worker] = world.clients();
    agent.set("/torch.rendezvous.job", "state");
    let others: Vec<Client> = (0..5).map(|_| world.client()).collect();
    for other in &others {
        assert!(other.add("init/", 1) > 0);
    }
    for n in 0..KEYS {
        worker.set(format!("/default_pg/0//store_based_barrier_key:{n}"), "1");
    }
    let bytes = || world.inner().store.stats().bytes;
    let before = bytes();
    let dropped = || world.inner().store.dropped() as usize;
    worker.leave();
    let of_a_key = before / KEYS;
    assert!(bytes() > before - dropped() * of_a_key + KEYS, "the list is counted");
    others.into_iter().for_each(Client::leave);
    assert!(dropped() < KEYS, "not all have gone");
    assert!(bytes() < before - dropped() * of_a_key + 4 * KEYS * size_of::<u32>(), "few lists");
    world.inner().check_now();
    world.settle();
    assert_eq!(dropped(), KEYS);
    world.inner().check_now();
}

/// Requests of any size, beside clients that wait, write and read much: the steps of a critical section are
/// bounded by the size of the request, the number of clients and the work that is done at once.
#[test]
fn no_critical_section_takes_more_steps_than_its_request_allows() {
    const CLIENTS: usize = 40;
    const NAMES: usize = 30_000;
    let forms: [fn(usize) -> String; 6] = [
        |n| format!("/default_pg/0//cpu//0/{n}"),
        |n| format!("/default_pg/0//{n}//cpu//0/0"),
        |n| format!("/default_pg/0//cuda//{n}"),
        |n| format!("/default_pg/0//store_based_barrier_key:{n}"),
        |n| format!("/torch.rendezvous.job.0/torchelastic/agent/terminal_state/{n}"),
        |n| format!("/{n}"),
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let world = World::unchecked();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| world.client()).collect();
    for turn in 0..600 {
        let form = forms[random(forms.len())];
        let (start, step) = (random(NAMES), 1 + random(3));
        let size = [1, 1, 40, 10_000][random(4)];
        let keys: Vec<String> = (0..size).map(|n| form((start + n * step) % NAMES)).collect();
        let who = random(CLIENTS);
        let mut own = size;
        let kind = random(14);
        let steps = work::of(|| {
            let client = &clients[who];
            let key = keys[0].as_bytes();
            match kind {
                0..=2 => {
                    let pairs: Vec<&str> = keys.iter().flat_map(|key| [key.as_str(), "1"]).collect();
                    client.ask_list(Op::MultiSet, &pairs);
                }
                3 | 4 => drop(client.ask_list(Op::MultiGet, &keys)),
                5 => drop(client.wait(&[&keys[..], &["missing".to_owned()]].concat())),
                6 => drop(client.ask_list(Op::Check, &keys)),
                7 => drop(client.delete(key)),
                8 => drop(client.add(key, 1)),
                9 => drop(client.request(&Request::Barrier { key, world_size: 3 })),
                10 => client.push(&keys[0], "item"),
                11 => client.cancel(),
                12 => {
                    let inner = &mut *world.inner();
                    inner.store.begin(&mut inner.recorder);
                    match turn % 3 {
                        0 => inner.store.reset(&mut inner.recorder),
                        1 => inner.store.drop_run(b"job", &mut inner.recorder),
                        _ => inner.store.tick(inner.now + Duration::from_mins(2), &mut inner.recorder),
                    }
                    own = 0;
                }
                _ => {
                    clients.swap_remove(who).leave();
                    clients.push(world.client());
                }
            }
        });
        // Ending a wait costs what beginning it cost, and each client has only one wait.
        let bound = 30 * (own + 2 * 16 * 1024) + 10 * 10_000 * CLIENTS / 4;
        assert!(steps < bound as u64, "turn {turn}, kind {kind} of {own}: {steps} steps, {bound} allowed");
    }
    clients.into_iter().for_each(Client::leave);
    world.settle();
    world.inner().check_now();
}

#[test]
fn showing_waits_takes_no_longer_for_many_keys() {
    const EACH: usize = 10_000;
    let world = World::unchecked();
    let setter = world.client();
    let mut keys: Vec<String> = (0..EACH).map(|n| format!("/{n}")).collect();
    for key in &keys {
        setter.set(key, "1");
    }
    keys.push("missing".to_owned());
    let clients: Vec<Client> = (0..20).map(|_| world.client()).collect();
    for client in &clients {
        assert!(!client.wait(&keys));
    }
    let mut inner = world.inner();
    let now = inner.now;
    let steps = work::of(|| {
        let shown = inner.store.waits(inner.now, 100, 4);
        assert_eq!(shown.len(), 20);
        assert_eq!(&*shown[0].missing[0], b"missing");
    });
    assert!(steps < 100_000, "{steps}");
    let steps = work::of(|| {
        let (shown, total) = inner.store.long_waits(now, Duration::ZERO, 100, 4);
        assert_eq!((shown.len(), total), (20, 20));
    });
    assert!(steps < 100_000, "{steps}");
}
