//! What a store may hold, and what a full one still does.

use super::{Bytewise, Client, Effect, World};
use crate::{Capacity, Refusal, StaleKeyConfig, Stats};
use rallypoint_protocol::{Op, Payload, Request};

fn holding(keys: usize, bytes: usize) -> World {
    World::with(Capacity { keys, bytes }, StaleKeyConfig::default())
}

fn set<'a>(key: &'a str, value: &'a str) -> Request<'a> {
    Request::Set { key: key.as_bytes(), value: Payload::borrowed(value.as_bytes()) }
}

fn list(client: &Client, op: Op, strings: &[&str]) -> Result<Vec<Effect>, Refusal> {
    let strings: Vec<&[u8]> = strings.iter().map(|string| string.as_bytes()).collect();
    Bytewise::list(op, &strings).with(|request| client.request(request))
}

fn stats(world: &World) -> Stats {
    world.inner().store.stats()
}

/// Every request that makes a name, for the name `new`.
fn makers() -> Vec<Bytewise> {
    let key = b"new";
    let value = Payload::borrowed(b"v");
    let mut makers: Vec<Bytewise> = [
        Request::Set { key, value },
        Request::CompareSet { key, expected: b"", desired: value },
        Request::Add { key, delta: 1 },
        Request::Append { key, value: b"v" },
        Request::QueuePush { key, value },
        Request::Barrier { key, world_size: 2 },
    ]
    .iter()
    .map(Bytewise::new)
    .collect();
    makers.push(Bytewise::list(Op::Wait, &[b"new"]));
    makers.push(Bytewise::list(Op::MultiSet, &[b"new", b"v"]));
    makers
}

#[test]
fn one_name_too_many_is_refused_however_it_is_made_and_nothing_changes() {
    for maker in makers() {
        let world = holding(2, 1 << 20);
        let [a, b] = world.clients();
        a.set("k", "v");
        b.wait(&["waited for"]);
        let before = (stats(&world), world.keys());
        let refusal = maker.with(|request| a.request(request)).unwrap_err();
        assert_eq!(refusal, Refusal::TooManyKeys { limit: 2 });
        assert_eq!((stats(&world), world.keys()), before);
        world.assert_no_names_but(&["k", "waited for"]);
        b.cancel();
        assert!(maker.with(|request| a.request(request)).is_ok(), "a place is free again");
    }
}

#[test]
fn one_byte_too_many_is_refused_however_it_is_made_and_nothing_changes() {
    for maker in makers() {
        let world = holding(100, 1 << 20);
        let a = world.client();
        a.set("k", "v");
        let held = stats(&world);
        world.inner().store.capacity.bytes = held.bytes + 3;
        assert_eq!(maker.with(|request| a.request(request)), Err(Refusal::OutOfMemory));
        assert_eq!((stats(&world), world.keys()), (held, vec!["k".to_owned()]));
    }
}

#[test]
fn a_full_store_goes_on_with_the_names_it_has() {
    let world = holding(2, 1 << 20);
    let [a, b] = world.clients();
    a.set("n", "1");
    b.wait(&["w"]);
    assert!(a.request(&set("x", "")).is_err());
    assert_eq!(a.add("n", 1), 2);
    a.append("n", "5");
    assert_eq!(a.get("n"), "25");
    assert_eq!(a.compare_set("n", "25", "1"), "1");
    assert!(!a.barrier("n", 9));
    assert!(!a.wait(&["n", "w"]), "no name is new");
    assert_eq!(
        list(&a, Op::MultiSet, &["n", "3", "w", "4"]),
        Ok(vec![Effect::Wake(b.conn), Effect::Wake(a.conn),])
    );
    assert_eq!(a.multi_get(&["n", "w", "x"]), ["3", "4", ""]);
    a.delete("w");
    assert!(a.request(&set("x", "")).is_ok());
}

#[test]
fn a_store_without_memory_left_goes_on_with_what_takes_no_more() {
    let world = holding(100, 1 << 20);
    let [a, b] = world.clients();
    a.set("k", "12345");
    a.set("n", "99");
    a.push("q", "item");
    world.inner().store.capacity.bytes = 1;
    a.set("k", "abcde");
    a.set("k", "abc");
    assert_eq!(a.request(&set("k", "abcd")), Err(Refusal::OutOfMemory));
    assert_eq!(a.request(&Request::Add { key: b"n", delta: 1 }), Err(Refusal::OutOfMemory));
    assert_eq!(a.add("n", -1), 98);
    assert_eq!(list(&a, Op::MultiSet, &["k", "ab", "n", "97"]), Ok(vec![]));
    assert_eq!(a.multi_get(&["k", "n"]), ["ab", "97"]);
    assert!(b.wait(&["k"]));
    assert_eq!(a.pop("q").as_deref(), Some("item"));
    assert_eq!(a.delete("k"), 1);
    a.cancel();
}

#[test]
fn what_is_taken_away_is_given_back() {
    let world = World::new();
    let [a, b] = world.clients();
    let bytes = || stats(&world).bytes;
    a.set("k", "12345");
    let with_key = bytes();
    a.set("k", "123");
    assert_eq!(bytes(), with_key - 2);
    a.append("k", "45");
    assert_eq!(bytes(), with_key);
    b.wait(&["k", "missing"]);
    assert!(bytes() > with_key);
    b.cancel();
    assert_eq!(bytes(), with_key);
    a.push("k", "item");
    a.pop("k");
    assert_eq!(bytes(), with_key);
    a.delete("k");
    assert_eq!(bytes(), 0);
    b.leave();
    world.assert_empty_after(a);
}

#[test]
fn a_refused_peer_keeps_its_wait_and_the_others_are_untouched() {
    let world = holding(1, 1 << 20);
    let [a, b] = world.clients();
    a.wait(&["k"]);
    assert!(list(&a, Op::Wait, &["k", "new"]).is_err());
    assert!(a.is_waiting());
    b.set("k", "1");
    assert!(a.is_woken());
}

/// A store that has become small has not yet given all of its memory back to the system.
#[test]
fn room_that_many_names_have_left_behind_counts_until_it_is_free() {
    let world = World::unchecked();
    let [a, b] = world.clients();
    for n in 0..100_000 {
        a.set(format!("/{n}"), "1");
        a.push("q", "");
    }
    let names: Vec<String> = (0..100_000).map(|n| format!("w{n}")).collect();
    assert!(!b.wait(&names));
    let stays = |n: &usize| n.is_multiple_of(500);
    (0..100_000).filter(|n| !stays(n)).for_each(|n| assert_eq!(a.delete(format!("/{n}")), 1));
    (0..99_999).for_each(|_| assert!(a.pop("q").is_some()));
    b.cancel();
    world.settle();
    assert!(stats(&world).bytes > 90_000 * 80, "{}", stats(&world).bytes);
    let room = |world: &World| {
        let queue = world.inner().store.keys.find(b"q").expect("the queue");
        world.inner().store.keys.slot(queue).queue.as_ref().map_or(0, |queue| queue.items.capacity())
    };
    assert!(room(&world) < 5000, "{}", room(&world));
    a.pop("q");
    (0..100_000).filter(stays).for_each(|n| assert_eq!(a.delete(format!("/{n}")), 1));
    assert_eq!(stats(&world).bytes, 0, "nothing is left that a place could be between");
    b.leave();
    world.assert_empty_after(a);
}
