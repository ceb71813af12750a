//! What the store shows of itself.

use std::time::Duration;

use super::World;
use crate::Stats;

#[test]
fn sizes_are_counted() {
    let world = World::new();
    assert_eq!(world.inner().store.stats(), Stats::default());
    let [a, b, c] = world.clients();
    a.set("k", "v");
    a.push("q", "v");
    b.wait(&["x", "y"]);
    c.barrier("b", 2);
    let stats = world.inner().store.stats();
    assert_eq!((stats.keys, stats.connections, stats.waiters), (2, 3, 2));
    b.leave();
    c.cancel();
    let stats = world.inner().store.stats();
    assert_eq!((stats.keys, stats.connections, stats.waiters), (2, 2, 0));
}

#[test]
fn waits_are_shown_with_what_they_miss_the_oldest_first() {
    let world = World::new();
    let [a, b, c] = world.clients();
    a.ping(4711);
    b.barrier("barrier", 8);
    world.pass(5);
    c.set("there", "1");
    a.wait(&["there", "x", "y", "z"]);
    world.pass(2);
    let inner = world.inner();
    assert_eq!(inner.store.oldest_wait(inner.now), Some(Duration::from_secs(7)));
    let waits = inner.store.waits(inner.now, 10, 2);
    assert_eq!(waits.len(), 2);
    let barrier = &waits[0];
    assert_eq!((barrier.conn, barrier.waited), (b.conn, Duration::from_secs(7)));
    assert_eq!((barrier.barrier_size, barrier.keys, barrier.pid), (Some(8), 1, None));
    assert_eq!(barrier.missing, [b"barrier".as_slice().into()]);
    let wait = &waits[1];
    assert_eq!((wait.conn, wait.waited, wait.pid), (a.conn, Duration::from_secs(2), Some(4711)));
    assert_eq!((wait.barrier_size, wait.keys, wait.peer.ip().to_string()), (None, 4, "10.0.0.1".into()));
    assert_eq!(wait.missing, [b"x".as_slice().into(), b"y".as_slice().into()], "at most two");
    assert_eq!(inner.store.waits(inner.now, 1, 2), waits[..1]);
}

#[test]
fn a_wait_that_is_over_is_shown_no_more() {
    let world = World::new();
    let a = world.client();
    a.wait(&["x"]);
    a.set("x", "1");
    let inner = world.inner();
    assert_eq!(inner.store.waits(inner.now, 10, 10), []);
    assert_eq!(inner.store.oldest_wait(inner.now), None);
}
