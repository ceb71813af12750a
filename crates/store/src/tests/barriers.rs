//! BARRIER: released by arrivals only, and an arrival that goes away before the release is withdrawn.

use super::{Effect, Said, World};
use crate::Refusal;
use rallypoint_protocol::Request;

#[test]
fn a_barrier_lets_all_go_when_the_last_arrives() {
    let world = World::new();
    let [a, b, c] = world.clients();
    assert!(!a.barrier("k", 3));
    assert!(!b.barrier("k", 3));
    assert!(!a.is_woken() && !b.is_woken());
    let effects = c.request(&Request::Barrier { key: b"k", world_size: 3 }).unwrap();
    assert_eq!(
        effects,
        [Effect::Reply(Said::StopWaiting), Effect::Wake(a.conn), Effect::Wake(b.conn)],
        "the last one first, then the others as they came"
    );
}

#[test]
fn the_count_is_an_ordinary_key() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 3);
    assert_eq!(b.get("k"), "1");
    assert_eq!(b.num_keys(), 1);
    assert_eq!(b.list_keys(), ["k"]);
    assert_eq!(b.delete("k"), 1);
}

#[test]
fn a_barrier_that_was_passed_stays_open_and_counts_on() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 2);
    assert!(b.barrier("k", 2));
    assert!(a.is_woken());
    assert_eq!(a.get("k"), "2");
    assert!(a.barrier("k", 2));
    assert!(b.barrier("k", 2));
    assert_eq!(a.get("k"), "4");
}

#[test]
fn a_barrier_of_one_or_less_is_passed_at_once() {
    let world = World::new();
    let a = world.client();
    for (key, world_size) in [("one", 1), ("zero", 0), ("negative", -5)] {
        assert!(a.barrier(key, world_size));
        assert_eq!(a.get(key), "1");
    }
}

/// In PyTorch the arrival still counts: the next one would complete a barrier of two.
#[test]
fn a_cancelled_arrival_is_withdrawn() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 2);
    a.cancel();
    assert_eq!(b.get("k"), "0", "the key stays");
    assert!(!a.barrier("k", 2), "a retry is not counted twice");
    assert!(b.barrier("k", 2));
    assert!(a.is_woken());
}

#[test]
fn an_arrival_whose_client_disconnects_is_withdrawn() {
    let world = World::new();
    let [a, b, c] = world.clients();
    a.barrier("k", 3);
    b.barrier("k", 3);
    a.leave();
    assert_eq!(world.value("k").as_deref(), Some("1"));
    assert!(!c.barrier("k", 3));
    assert!(world.client().barrier("k", 3));
    assert!(b.is_woken() && c.is_woken());
}

#[test]
fn a_released_arrival_is_not_withdrawn() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 2);
    b.barrier("k", 2);
    a.cancel();
    a.leave();
    assert_eq!(b.get("k"), "2");
}

#[test]
fn an_arrival_counted_before_the_key_was_deleted_or_set_is_not_withdrawn() {
    let world = World::new();
    let [a, b, c] = world.clients();
    a.barrier("k", 9);
    b.delete("k");
    b.barrier("k", 9);
    a.cancel();
    assert_eq!(c.get("k"), "1", "b's arrival");
    c.set("k", "5");
    b.leave();
    assert_eq!(c.get("k"), "5");
    let d = world.client();
    d.barrier("k", 9);
    assert_eq!(c.compare_set("k", "6", "3"), "3");
    d.leave();
    assert_eq!(c.get("k"), "3");
    c.barrier("k", 9);
    c.append("k", "0");
    c.cancel();
    assert_eq!(c.get("k"), "40");
}

#[test]
fn an_arrival_whose_key_is_deleted_is_not_brought_back() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 9);
    b.delete("k");
    a.cancel();
    assert!(!world.has("k"));
    a.leave();
    world.assert_empty_after(b);
}

#[test]
fn withdrawing_never_makes_the_count_negative_nor_repairs_it() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 9);
    b.add("k", -1);
    a.cancel();
    assert_eq!(b.get("k"), "0");
    a.barrier("k", 9);
    b.add("k", -8);
    a.cancel();
    assert_eq!(b.get("k"), "-7", "a count that is wrong anyway stays as it is");
}

#[test]
fn adding_to_the_count_keeps_the_arrivals_in_it() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 9);
    b.add("k", 3);
    a.cancel();
    assert_eq!(b.get("k"), "3");
}

/// PyTorch releases the barrier on any write.
#[test]
fn writing_the_count_releases_nobody() {
    let world = World::new();
    let [a, b, c] = world.clients();
    a.barrier("k", 3);
    b.set("k", "5");
    b.add("k", 5);
    b.append("k", "0");
    assert!(!a.is_woken() && a.is_waiting());
    assert!(c.barrier("k", 3), "the next arrival finds the count passed");
    assert!(a.is_woken());
}

#[test]
fn a_deleted_count_starts_again_and_the_earlier_arrivals_go_with_the_others() {
    let world = World::new();
    let [a, b, c] = world.clients();
    a.barrier("k", 2);
    b.delete("k");
    assert!(!b.barrier("k", 2));
    assert!(!a.is_woken());
    assert!(c.barrier("k", 2));
    assert!(a.is_woken() && b.is_woken());
}

#[test]
fn arriving_twice_counts_twice_and_is_answered_once() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 3);
    a.barrier("k", 3);
    assert!(b.barrier("k", 3));
    assert!(a.is_woken(), "is_woken sees to it that it is once");
}

#[test]
fn both_arrivals_of_one_client_are_withdrawn() {
    let world = World::new();
    let [a, b] = world.clients();
    b.barrier("k", 9);
    a.barrier("k", 9);
    a.barrier("k", 9);
    assert_eq!(world.value("k").as_deref(), Some("3"));
    a.cancel();
    assert_eq!(world.value("k").as_deref(), Some("1"));
    a.barrier("k", 9);
    b.delete("k");
    a.barrier("k", 9);
    a.cancel();
    assert_eq!(world.value("k").as_deref(), Some("0"), "only the one since the key was deleted");
}

#[test]
fn the_smaller_of_two_world_sizes_releases_both() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 3);
    assert!(b.barrier("k", 2));
    assert!(a.is_woken());
}

#[test]
fn arriving_at_what_is_no_number_is_refused_and_ends_no_wait() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("k", "abc");
    b.wait(&["other"]);
    let refusal = b.request(&Request::Barrier { key: b"k", world_size: 1 }).unwrap_err();
    assert_eq!(refusal, Refusal::NotANumber { op: "barrier", key: "k".into() });
    assert_eq!(a.get("k"), "abc");
    assert!(b.is_waiting());
}

/// PyTorch wakes the waiter only at the release, though CHECK would say ready.
#[test]
fn waiting_for_a_barrier_key_ends_with_the_first_arrival() {
    let world = World::new();
    let [a, b, c] = world.clients();
    c.wait(&["k"]);
    a.barrier("k", 2);
    assert!(c.is_woken());
    assert!(c.wait(&["k"]));
    assert!(b.barrier("k", 2));
    assert!(a.is_woken() && !c.is_woken());
}

#[test]
fn a_barrier_replaces_a_wait_and_a_wait_a_barrier() {
    let world = World::new();
    let [a, b] = world.clients();
    a.wait(&["w"]);
    a.barrier("k", 2);
    b.set("w", "1");
    assert!(!a.is_woken() && a.is_waiting());
    a.wait(&["x"]);
    assert_eq!(b.get("k"), "0", "its arrival is withdrawn");
    assert!(!b.barrier("k", 2));
    b.barrier("other", 2);
    assert_eq!(world.value("k").as_deref(), Some("0"));
    b.wait(&["w"]);
    assert_eq!(world.value("other").as_deref(), Some("0"));
}

#[test]
fn other_requests_are_answered_while_a_barrier_holds() {
    let world = World::new();
    let [a, b] = world.clients();
    a.barrier("k", 2);
    a.ping(1);
    assert_eq!(a.get("k"), "1");
    assert!(a.is_waiting());
    b.barrier("k", 2);
    assert!(a.is_woken());
}
