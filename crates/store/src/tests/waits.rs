//! WAIT: it ends exactly when CHECK of the same keys would say ready.

use super::{Effect, Said, World};
use rallypoint_protocol::{Op, Payload, Request};

#[test]
fn waiting_for_what_is_there_or_for_nothing_ends_at_once() {
    let world = World::new();
    let a = world.client();
    a.set("k", "v");
    assert!(a.wait(&["k"]));
    assert!(a.wait::<&str>(&[]));
    assert!(!a.is_waiting());
}

#[test]
fn every_kind_of_write_wakes_and_does_so_after_its_own_reply() {
    type Write = fn(&super::Client);
    let writes: [(&str, Write); 6] = [
        ("SET", |a| a.set("k", "v")),
        ("ADD", |a| assert_eq!(a.add("k", 1), 1)),
        ("APPEND", |a| a.append("k", "v")),
        ("MULTI_SET", |a| a.multi_set(&[("j", "v"), ("k", "v")])),
        ("COMPARE_SET", |a| assert_eq!(a.compare_set("k", "", "v"), "v")),
        ("BARRIER", |a| assert!(!a.barrier("k", 9))),
    ];
    for (name, write) in writes {
        let world = World::new();
        let [a, b] = world.clients();
        assert!(!b.wait(&["k"]));
        assert!(b.is_waiting() && !b.is_woken());
        write(&a);
        assert!(b.is_woken(), "{name}");
    }
}

#[test]
fn replies_come_before_the_wake_ups_they_cause() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["n"]);
    let effects = a.request(&Request::Add { key: b"n", delta: 1 }).unwrap();
    assert_eq!(effects, [Effect::Reply(Said::Number(1)), Effect::Wake(b.conn)]);
}

#[test]
fn waiters_of_one_key_are_woken_in_the_order_in_which_they_came() {
    let world = World::new();
    let [a, b, c, d] = world.clients();
    for waiter in [&c, &b, &d] {
        waiter.wait(&["k"]);
    }
    c.cancel();
    c.wait(&["k"]);
    let effects = a.request(&Request::Set { key: b"k", value: Payload::borrowed(b"") }).unwrap();
    assert_eq!(effects, [Effect::Wake(b.conn), Effect::Wake(d.conn), Effect::Wake(c.conn)]);
}

#[test]
fn a_wait_for_several_keys_ends_with_the_last_of_them() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["a", "b"]);
    a.set("a", "1");
    a.set("a", "2");
    assert!(!b.is_woken(), "setting one key twice is not setting two");
    a.set("b", "1");
    assert!(b.is_woken());
}

#[test]
fn a_key_that_is_there_already_is_not_waited_for() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("there", "1");
    b.wait(&["there", "absent"]);
    a.set("absent", "1");
    assert!(b.is_woken());
}

#[test]
fn a_key_named_twice_is_one_key() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k", "k"]);
    a.set("k", "1");
    assert!(b.is_woken());
    world.assert_no_names_but(&["k"]);
}

/// PyTorch counts arrivals here and wakes the waiter.
#[test]
fn a_key_that_was_set_and_deleted_is_missing_again() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["u1", "u2"]);
    a.set("u1", "1");
    a.delete("u1");
    a.set("u2", "1");
    assert!(!b.is_woken());
    a.set("u1", "1");
    assert!(b.is_woken());
}

/// PyTorch never checks again a key that was there once.
#[test]
fn a_key_that_was_there_and_is_deleted_is_waited_for_too() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("v1", "1");
    b.wait(&["v1", "v2"]);
    a.delete("v1");
    a.set("v2", "1");
    assert!(!b.is_woken());
    a.set("v1", "1");
    assert!(b.is_woken());
}

#[test]
fn deleting_a_missing_key_leaves_its_waiters_alone() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k"]);
    assert_eq!(a.delete("k"), 0);
    assert!(!b.is_woken() && b.is_waiting());
    a.set("k", "1");
    assert!(b.is_woken());
}

/// PyTorch's libuv server always wakes the waiter here, and its older server never does.
#[test]
fn a_failed_compare_set_wakes_nobody() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k"]);
    a.compare_set("k", "expected", "new");
    assert!(!b.is_woken() && b.is_waiting());
}

#[test]
fn a_connection_may_end_its_own_wait() {
    let world = World::new();
    let a = world.client();
    a.wait(&["k"]);
    a.set("k", "v");
    assert!(a.is_woken());
}

#[test]
fn other_requests_are_answered_while_a_wait_goes_on() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k"]);
    b.ping(7);
    b.set("other", "1");
    assert_eq!(b.get("other"), "1");
    assert_eq!(b.get("k"), "");
    assert!(b.is_waiting());
    a.set("k", "1");
    assert!(b.is_woken());
}

#[test]
fn a_second_wait_replaces_the_first() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["first"]);
    b.wait(&["second"]);
    a.set("first", "1");
    assert!(!b.is_woken());
    a.set("second", "1");
    assert!(b.is_woken());
    b.wait(&["third"]);
    assert!(b.wait(&["first"]), "also when the second is over at once");
    a.set("third", "1");
    assert!(!b.is_woken());
}

#[test]
fn the_same_wait_twice_is_answered_once() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k"]);
    b.wait(&["k"]);
    a.set("k", "1");
    assert!(b.is_woken());
}

#[test]
fn a_cancelled_wait_is_over_for_good() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k", "j"]);
    b.cancel();
    assert!(!b.is_waiting());
    a.multi_set(&[("k", "1"), ("j", "1")]);
    assert!(!b.is_woken(), "no late byte");
    b.cancel();
    b.cancel();
}

#[test]
fn a_cancel_that_comes_after_the_wake_up_is_answered_too() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k"]);
    a.set("k", "1");
    assert!(b.is_woken());
    b.cancel();
}

#[test]
fn a_cancel_ends_ones_own_wait_only() {
    let world = World::new();
    let [a, b, c] = world.clients();
    b.wait(&["k"]);
    c.wait(&["k"]);
    b.cancel();
    a.set("k", "1");
    assert!(c.is_woken() && !b.is_woken());
}

#[test]
fn a_waiter_that_disconnects_is_forgotten() {
    let world = World::new();
    let [a, b, c] = world.clients();
    b.wait(&["k", "j"]);
    c.wait(&["k"]);
    let gone = b.conn;
    b.leave();
    let other = world.client();
    assert_eq!(other.conn.slot(), gone.slot(), "its place is taken");
    a.multi_set(&[("k", "1"), ("j", "1")]);
    assert!(c.is_woken() && !other.is_woken());
}

/// A client of PyTorch 2.0 cannot cancel. The server drops the wait when the client plainly goes on.
#[test]
fn a_wait_can_be_abandoned_without_a_reply() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["k"]);
    world.inner().store.abandon_wait(b.conn);
    a.set("k", "1");
    assert!(!b.is_woken());
}

#[test]
fn names_that_are_only_waited_for_go_with_their_waiters() {
    let world = World::new();
    let [a, b] = world.clients();
    a.wait(&["a", "b", "c"]);
    b.wait(&["b"]);
    assert_eq!(world.inner().store.keys.names(), 3);
    a.cancel();
    assert_eq!(world.inner().store.keys.names(), 1);
    a.leave();
    world.assert_empty_after(b);
}

#[test]
fn a_large_wait_is_woken_once_all_its_keys_are_there() {
    let world = World::new();
    let [a, b] = world.clients();
    let keys: Vec<String> = (0..1000).map(|n| format!("k{n}")).collect();
    assert!(!b.wait(&keys));
    let strings: Vec<&str> = keys.iter().flat_map(|key| [key.as_str(), "v"]).collect();
    a.ask_list(Op::MultiSet, &strings[2..]);
    assert!(!b.is_woken());
    a.set("k0", "v");
    assert!(b.is_woken());
}

/// One client is registered for all. It may leave at any time: each of the others still shows what it waits
/// for, and wakes in its turn.
#[test]
fn who_waits_for_the_same_keys_waits_as_if_alone() {
    let keys: Vec<String> = (0..20).map(|n| format!("/default_pg/0//cpu//0/{n}")).collect();
    let world = World::new();
    let setter = world.client();
    let ranks: [_; 6] = world.clients();
    for rank in &ranks {
        assert!(!rank.wait(&keys));
    }
    let [first, second, third, fourth, fifth, last] = ranks;
    keys[1..].iter().for_each(|key| setter.set(key, "1"));
    first.cancel();
    third.leave();
    second.leave();
    let seen = {
        let inner = world.inner();
        inner.store.waits(inner.now, 10, 10)
    };
    let expected = [&fourth, &fifth, &last].map(|rank| (rank.conn, 20, vec![keys[0].as_bytes().into()]));
    let seen: Vec<_> = seen.into_iter().map(|wait| (wait.conn, wait.keys, wait.missing)).collect();
    assert_eq!(seen, expected);
    // A key goes and comes again: all clients miss it.
    setter.delete(&keys[5]);
    setter.set(&keys[0], "1");
    assert!(!fourth.is_woken() && !last.is_woken());
    assert!(!first.wait(&keys), "it waits again, now as the last");
    assert!(!fifth.wait(&["/other"]), "it waits for something else");
    let set = Request::Set { key: keys[5].as_bytes(), value: Payload::borrowed(b"") };
    let effects = setter.request(&set).unwrap();
    assert_eq!(effects, [&fourth, &last, &first].map(|rank| Effect::Wake(rank.conn)));
    assert!(!fifth.is_woken());
}
