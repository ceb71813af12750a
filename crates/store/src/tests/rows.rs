//! What the store writes to a journal: after each critical section the rows add up to the store, and a store
//! made of these rows equals the store after all its clients have left.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::random::{Table, config, step};
use super::{Client, World};
use crate::{StaleKeyConfig, Store, Walk};
use rallypoint_journal::{Image, OpenStore, Row, StoreImage, rows};
use rallypoint_map::NameMap;

const ID: u32 = 7;

/// What a journal knows of a store.
struct Told {
    image: Image,
}

/// What clients can see: values, and items of queues.
type Seen = (BTreeMap<Box<[u8]>, Vec<u8>>, BTreeMap<Box<[u8]>, Vec<Vec<u8>>>);

fn seen(store: &Store) -> Seen {
    let values = store.keys.iter().filter_map(|(_, slot)| Some((slot.key().into(), slot.value()?.to_vec())));
    let queues = store.keys.iter().filter_map(|(_, slot)| {
        let items: Vec<_> = slot.queue.as_ref()?.items.iter().map(|item| item.to_vec()).collect();
        (!items.is_empty()).then(|| (slot.key().into(), items))
    });
    (values.collect(), queues.collect())
}

fn seen_in(image: &StoreImage) -> Seen {
    let values = image.keys.entries().map(|(key, it)| (key.into(), it.value.to_vec()));
    let items =
        |queue: &rallypoint_journal::QueueImage| queue.items.values().map(|item| item.to_vec()).collect();
    (values.collect(), image.queues.iter().map(|(key, queue)| (key.clone(), items(queue))).collect())
}

impl Told {
    fn new(world: &World) -> Self {
        world.inner().store.keep_rows(ID);
        Self { image: nothing() }
    }

    fn store(&self) -> &StoreImage {
        &self.image.stores[&ID]
    }

    /// Reads the rows of what has changed.
    fn listen(&mut self, store: &mut Store) {
        let mut out = Vec::new();
        store.take_rows(&mut out);
        for row in rows(&out) {
            self.image.apply(row.expect("a row").expect("a known one"));
        }
        assert_eq!(seen_in(self.store()), seen(store));
    }
}

fn nothing() -> Image {
    let mut image = Image::default();
    image.apply(Row::Store(ID, Some(OpenStore { port: 1, owner: b"" })));
    image
}

/// The life of a barrier key matters only while a client waits there, and reads matter only while the reader
/// is there.
fn without_the_past(image: &StoreImage) -> StoreImage {
    let mut image = image.clone();
    let waiting: Vec<_> = image.clients.values().filter_map(|client| client.barrier.clone()).collect();
    let mut keys = NameMap::default();
    for (key, mut it) in std::mem::take(&mut image.keys) {
        if waiting.iter().all(|(awaited, ..)| *awaited != key) {
            it.life = 0;
        }
        keys.insert(key, it);
    }
    image.keys = keys;
    for readers in image.reads.values_mut() {
        readers.retain(|reader, _| image.clients.contains_key(reader));
    }
    image.reads.retain(|_, readers| !readers.is_empty());
    image
}

/// A store made of an image, without what is dropped because all clients are gone.
fn rebuilt(image: &StoreImage, config: StaleKeyConfig, world: &World) -> World {
    let again = World::with(World::CAPACITY, config);
    {
        let mut inner = again.inner();
        let super::world::Inner { store, recorder, now, .. } = &mut *inner;
        *now = world.inner().now;
        store.restore(ID, image.clone(), &[], *now, recorder);
        store.check_invariants();
    }
    again.settle();
    again
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_store_made_of_rows_is_the_one_whose_clients_have_gone(
        config in config(),
        steps in vec(step(), 1..60),
    ) {
        let closed = super::stale_idle::state("closed after success");
        let mut table = Table::new(World::with(World::CAPACITY, config.clone()));
        let mut told = Told::new(&table.world);
        for step in &steps {
            table.step(step, &closed);
            told.listen(&mut table.world.inner().store);
        }

        // A copy of the whole store gives the same image.
        let (mut copy, mut walk, mut out) = (nothing(), Walk::default(), Vec::new());
        while table.world.inner().store.copy_rows(&mut walk, 64, &mut out) {}
        for row in rows(&out) {
            copy.apply(row.expect("a row").expect("a known one"));
        }
        prop_assert_eq!(without_the_past(&copy.stores[&ID]), without_the_past(told.store()));

        let again = rebuilt(told.store(), config, &table.world);
        let mut clients = table.clients;
        clients.sort_by_key(|client| client.conn.serial());
        clients.into_iter().for_each(Client::leave);
        table.world.settle();
        told.listen(&mut table.world.inner().store);
        prop_assert!(told.store().clients.is_empty(), "{:?}", told.store().clients);
        prop_assert_eq!(seen(&again.inner().store), seen(&table.world.inner().store));

        // The rows of the new store continue the rows of the old one.
        let mut out = Vec::new();
        again.inner().store.take_rows(&mut out);
        for world in [&again, &table.world] {
            world.pass(1_000_000);
        }
        prop_assert_eq!(seen(&again.inner().store), seen(&table.world.inner().store));
    }
}

#[test]
fn nothing_is_said_of_what_did_not_change() {
    let world = World::new();
    let mut told = Told::new(&world);
    let [one, other] = world.clients();
    one.set("a", "1");
    told.listen(&mut world.inner().store);
    one.get("a");
    other.wait(&["b"]);
    other.cancel();
    let mut out = Vec::new();
    world.inner().store.take_rows(&mut out);
    assert_eq!(rows(&out).count(), 0);
}

/// Tried with PyTorch: ranks that form their group again before and after a restart would read each other's
/// old addresses.
#[test]
fn who_had_read_an_address_is_known_after_a_restart() {
    let world = World::new();
    let mut told = Told::new(&world);
    let old = world.clients::<2>();
    let address = |rank: usize| format!("/default_pg/0//cpu//0/{rank}");
    for (rank, client) in old.iter().enumerate() {
        client.set(address(rank), "old");
    }
    for client in &old {
        client.multi_get(&[&address(0), &address(1)]);
    }
    told.listen(&mut world.inner().store);

    let again = World::new();
    {
        let mut inner = again.inner();
        let super::world::Inner { store, recorder, now, free, .. } = &mut *inner;
        let live = old.each_ref().map(|client| (client.conn.serial(), "10.0.0.1:4000".parse().expect("one")));
        store.restore(ID, told.store().clone(), &live, *now, recorder);
        store.check_invariants();
        *free = vec![3, 2];
    }
    let [new_0, new_1] = again.clients();
    new_0.set(address(0), "new 0");
    assert!(!new_0.wait(&[&address(1)]), "the old rank 1 had read the old address of rank 0");
    new_1.set(address(1), "new 1");
    assert!(new_0.is_woken());
    assert_eq!((new_0.get(address(1)), new_1.get(address(0))), ("new 1".to_owned(), "new 0".to_owned()));
}

#[test]
fn a_barrier_counts_nobody_who_is_gone() {
    let world = World::new();
    let mut told = Told::new(&world);
    let [one, other] = world.clients();
    assert!(!one.barrier("b", 3));
    assert!(!other.barrier("b", 3));
    told.listen(&mut world.inner().store);
    let again = rebuilt(told.store(), StaleKeyConfig::default(), &world);
    assert_eq!(again.value("b").as_deref(), Some("0"));
}

#[test]
fn those_who_are_gone_leave_one_after_the_other() {
    let world = World::new();
    let mut told = Told::new(&world);
    let [one, other] = world.clients();
    one.add("init/", -1);
    one.set("/default_pg/0//cpu//0/0", "");
    other.set("/none/torchelastic/role_info/0", "");
    assert!(!other.barrier("init/", 1), "it is the first where -1 were");
    told.listen(&mut world.inner().store);
    let again = rebuilt(told.store(), StaleKeyConfig::default(), &world);
    [one, other].into_iter().for_each(Client::leave);
    assert_eq!((again.value("init/").as_deref(), world.value("init/").as_deref()), (Some("0"), Some("0")));
}

#[test]
fn items_are_said_once() {
    let world = World::new();
    let mut told = Told::new(&world);
    let one = world.client();
    for n in 0..100 {
        one.push("q", &"x".repeat(100));
        let mut out = Vec::new();
        world.inner().store.take_rows(&mut out);
        assert!(out.len() < 200, "{} bytes for item {n}", out.len());
        for row in rows(&out) {
            told.image.apply(row.expect("a row").expect("known"));
        }
    }
    assert_eq!(told.store().queues[&b"q"[..]].items.len(), 100);
}

/// A log text that is appended to again and again would be written whole each time.
#[test]
fn of_what_is_appended_to_a_large_value_only_that_is_said() {
    let world = World::new();
    let mut told = Told::new(&world);
    let one = world.client();
    one.set("k", "x".repeat(2 << 20));
    told.listen(&mut world.inner().store);
    for n in 0..1000 {
        one.append("k", "0123456789");
        let mut out = Vec::new();
        world.inner().store.take_rows(&mut out);
        assert!(out.len() < 100, "{} bytes for piece {n}", out.len());
        for row in rows(&out) {
            told.image.apply(row.expect("a row").expect("known"));
        }
    }
    assert_eq!(seen_in(told.store()), seen(&world.inner().store));
    // Two appends in one critical section are written in parts too, but not an append that follows another
    // value.
    one.append("k", "ab");
    one.append("k", "cd");
    told.listen(&mut world.inner().store);
    one.append("k", "ef");
    one.set("k", "y".repeat(2000));
    one.append("k", "z");
    told.listen(&mut world.inner().store);
    one.append("k", "z");
    one.delete("k");
    one.append("k", "z");
    told.listen(&mut world.inner().store);
}
