//! Rule 5: what a process has published goes some time after its connection has closed.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::{Client, World};
use crate::{DropCause, StaleKeyConfig, Walk};
use rallypoint_journal::{Image, OpenStore, Row, rows};
use rallypoint_protocol::ids::ConnId;

fn key(agent: &str) -> String {
    format!("/nixl/agents/metadata/{agent}/NULL_AGENT")
}

/// An agent of this process, which says its id as NIXL's client does.
fn agent(world: &World, addr: &str, pid: u32) -> Client {
    let agent = world.client_at(addr);
    agent.ping(pid);
    agent
}

fn publisher(world: &World, name: &str) -> Client {
    let agent = agent(world, "10.0.0.1", 7);
    agent.set(key(name), "blob");
    agent
}

#[test]
fn what_a_process_published_goes_a_minute_after_its_connection() {
    let world = World::new();
    let a = publisher(&world, "a");
    a.set("/nixl/agents/part/a/b", "blob");
    let reader = agent(&world, "10.0.0.2", 7);
    world.pass(100_000);
    assert_eq!(reader.get(key("a")), "blob", "a live agent's");
    a.leave();
    world.pass(59);
    assert_eq!(reader.get(key("a")), "blob");
    world.pass(1);
    assert!(!reader.check(&[&key("a")]) && reader.get(key("a")).is_empty(), "who reads it does not keep it");
    assert_eq!(world.dropped(), [(DropCause::WriterGone, 2)]);
    world.assert_empty_after(reader);
}

#[test]
fn it_stays_where_the_rule_is_off() {
    let config = StaleKeyConfig { forget_run_after: None, ..StaleKeyConfig::default() };
    let world = World::with(World::CAPACITY, config);
    publisher(&world, "a").leave();
    world.pass(100_000);
    assert!(world.has(key("a")));
}

#[test]
fn it_stays_when_its_process_comes_back_in_time_with_another_connection() {
    let world = World::new();
    publisher(&world, "a").leave();
    world.pass(59);
    let again = agent(&world, "10.0.0.1", 7);
    world.pass(100_000);
    assert!(world.has(key("a")));
    again.leave();
    let others = [agent(&world, "10.0.0.1", 8), agent(&world, "10.0.0.2", 7)];
    world.pass(59);
    assert!(world.has(key("a")), "gone for less than a minute");
    world.pass(61);
    assert!(!world.has(key("a")), "another process, or another host");
    others.into_iter().for_each(Client::leave);
    world.assert_empty();
}

#[test]
fn a_process_that_says_no_id_has_its_one_connection() {
    let world = World::new();
    let [a, other] = world.clients();
    a.set(key("a"), "blob");
    a.leave();
    world.pass(60);
    assert!(!world.has(key("a")));
    world.assert_empty_after(other);
}

#[test]
fn who_publishes_a_name_again_has_it() {
    let world = World::new();
    let (old, new) = (publisher(&world, "a"), agent(&world, "10.0.0.2", 9));
    old.leave();
    world.pass(30);
    new.set(key("a"), "new blob");
    world.pass(100_000);
    assert_eq!(new.get(key("a")), "new blob");
    assert_eq!(new.delete(key("a")), 1);
    new.set(key("a"), "third");
    new.leave();
    world.pass(60);
    assert!(!world.has(key("a")));
    world.assert_empty();
}

/// A torch job beside agents: neither keeps the other's keys, nor takes them.
#[test]
fn agents_belong_to_no_job() {
    let world = World::new();
    let a = publisher(&world, "a");
    let worker = world.client();
    worker.add("init/", 1);
    worker.set("/default_pg/0//store_based_barrier_key:0", "1");
    assert_eq!(worker.get(key("a")), "blob");
    worker.leave();
    assert_eq!(world.keys(), [key("a")], "the attempt is over, although agents are connected");
    world.pass(100_000);
    a.leave();
    assert!(world.has(key("a")), "an idle store keeps it for its minute");
    world.pass(60);
    world.assert_empty();
}

/// The next server cannot tell which agents live: they do not speak again before they need something.
#[test]
fn with_a_journal_it_outlives_the_server_until_it_is_published_again() {
    let world = World::new();
    world.inner().store.keep_rows(7);
    let [a, b] = [publisher(&world, "a"), publisher(&world, "b")];
    let (mut image, mut walk, mut out) = (Image::default(), Walk::default(), Vec::new());
    image.apply(Row::Store(7, Some(OpenStore { port: 1, owner: b"" })));
    while world.inner().store.copy_rows(&mut walk, 64, &mut out) {}
    for row in rows(&out) {
        image.apply(row.expect("a row").expect("a known one"));
    }
    // One agent's connection goes on over a relay's link.
    let live = [(a.conn.serial(), "10.0.0.1:4000".parse().expect("an address"))];

    let again = World::new();
    {
        let mut inner = again.inner();
        let super::world::Inner { store, recorder, now, free, .. } = &mut *inner;
        store.restore(7, image.stores[&7].clone(), &live, *now, recorder);
        store.check_invariants();
        *free = vec![2, 1];
    }
    let a = Client { world: again.clone(), conn: ConnId::new(0, a.conn.serial()) };
    again.pass(100_000);
    assert_eq!(again.keys(), [key("a"), key("b")]);
    a.leave();
    again.pass(60);
    assert_eq!(again.keys(), [key("b")], "b may live");
    let b_again = agent(&again, "10.0.0.1", b.conn.serial());
    b_again.set(key("b"), "new blob");
    b_again.leave();
    again.pass(60);
    assert!(!again.has(key("b")));
}

const AGENTS: usize = 4;

/// What happens to one agent's process.
#[derive(Debug, Clone)]
enum Step {
    /// It connects, if it has no connection.
    Connect(usize),
    /// It publishes, if it has a connection.
    Publish(usize),
    /// Its connection closes.
    Close(usize),
    /// It takes back what it published.
    Invalidate(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..AGENTS).prop_map(Step::Connect),
        3 => (0..AGENTS).prop_map(Step::Publish),
        3 => (0..AGENTS).prop_map(Step::Close),
        1 => (0..AGENTS).prop_map(Step::Invalidate),
        4 => (1_u64..100).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    /// What a process published stays while the process is away for less than a minute at a time, and is gone
    /// when it has been away for three.
    #[test]
    fn only_what_processes_that_are_gone_published_goes(steps in vec(step(), 1..80)) {
        let world = World::new();
        let mut clients: [Option<Client>; AGENTS] = Default::default();
        let mut published = [false; AGENTS];
        let mut away = [0_u64; AGENTS];
        for step in steps {
            match step {
                Step::Connect(n) => {
                    clients[n].get_or_insert_with(|| agent(&world, "10.0.0.1", n as u32));
                    // What it had published may be gone if it was away for a minute.
                    published[n] &= away[n] < 60;
                    away[n] = 0;
                }
                Step::Publish(n) => if let Some(client) = &clients[n] {
                    client.set(key(&n.to_string()), "blob");
                    published[n] = true;
                },
                Step::Close(n) => if let Some(client) = clients[n].take() {
                    client.leave();
                },
                Step::Invalidate(n) => if let Some(client) = &clients[n] {
                    client.delete(key(&n.to_string()));
                    published[n] = false;
                },
                Step::Pass(seconds) => {
                    world.pass(seconds);
                    for n in 0..AGENTS {
                        away[n] = if clients[n].is_some() { 0 } else { away[n] + seconds };
                    }
                }
            }
            for n in 0..AGENTS {
                let has = world.has(key(&n.to_string()));
                prop_assert!(has || !published[n] || away[n] >= 60, "agent {} lost its key", n);
                prop_assert!(!has || away[n] < 180, "agent {} has been away for {} s", n, away[n]);
            }
        }
        clients.into_iter().flatten().for_each(Client::leave);
        world.pass(180);
        world.assert_empty();
    }
}
