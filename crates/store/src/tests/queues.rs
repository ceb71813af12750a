//! Queues, and a key that is both a plain key and a queue.

use super::{Said, World};
use rallypoint_protocol::Request;

#[test]
fn items_come_out_in_the_order_in_which_they_went_in() {
    let world = World::new();
    let a = world.client();
    for item in ["1", "", "3"] {
        a.push("q", item);
    }
    assert_eq!(a.queue_len("q"), 3);
    assert_eq!(a.pop("q").as_deref(), Some("1"));
    assert_eq!(a.pop("q").as_deref(), Some(""), "an empty item is an item");
    assert_eq!(a.pop("q").as_deref(), Some("3"));
    assert_eq!(a.pop("q"), None);
    assert_eq!(a.queue_len("q"), 0);
    world.assert_empty_after(a);
}

#[test]
fn a_pop_tells_the_length_before_it() {
    let world = World::new();
    let a = world.client();
    a.push("q", "x");
    a.push("q", "y");
    let pop = || a.ask(&Request::QueuePop { key: b"q" });
    assert_eq!(pop(), [Said::Number(2), Said::Bytes(b"x".to_vec())]);
    assert_eq!(pop(), [Said::Number(1), Said::Bytes(b"y".to_vec())]);
    assert_eq!(pop(), [Said::Number(0)]);
}

#[test]
fn a_queue_is_no_plain_key() {
    let world = World::new();
    let a = world.client();
    a.push("q", "item");
    assert_eq!(a.num_keys(), 0);
    assert!(a.list_keys().is_empty());
    assert_eq!(a.get("q"), "");
    assert_eq!(a.delete("q"), 0);
    assert_eq!(a.queue_len("q"), 1, "DELETE leaves the queue");
    assert_eq!(a.add("q", 2), 2, "ADD starts at 0");
    assert_eq!(a.pop("q").as_deref(), Some("item"));
    assert_eq!(a.get("q"), "2");
}

#[test]
fn a_key_is_there_if_it_has_a_value_or_an_item() {
    let world = World::new();
    let a = world.client();
    a.push("q", "item");
    assert!(a.check(&["q"]) && a.wait(&["q"]));
    a.set("q", "value");
    a.pop("q");
    assert!(a.check(&["q"]));
    a.delete("q");
    assert!(!a.check(&["q"]));
}

#[test]
fn waiting_for_a_queue_ends_with_a_plain_set_of_its_name() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["q"]);
    a.set("q", "value");
    assert!(b.is_woken());
}

#[test]
fn each_push_wakes_one_waiter_in_the_order_in_which_they_came() {
    let world = World::new();
    let [a, b, c] = world.clients();
    b.wait(&["q"]);
    c.wait(&["q"]);
    a.push("q", "1");
    assert!(b.is_woken() && !c.is_woken());
    a.push("q", "2");
    assert!(c.is_woken());
    assert_eq!(b.pop("q").as_deref(), Some("1"));
    assert_eq!(c.pop("q").as_deref(), Some("2"));
}

#[test]
fn a_cancelled_or_dead_waiter_at_the_head_is_skipped() {
    let world = World::new();
    let [a, b, c, d] = world.clients();
    for waiter in [&b, &c, &d] {
        waiter.wait(&["q"]);
    }
    b.cancel();
    c.leave();
    a.push("q", "1");
    assert!(d.is_woken() && !b.is_woken());
}

/// PyTorch wakes the waiter only at the next push.
#[test]
fn a_wait_for_a_plain_key_and_a_filled_queue_ends_with_the_plain_key() {
    let world = World::new();
    let [a, b] = world.clients();
    a.push("q", "1");
    b.wait(&["plain", "q"]);
    a.set("plain", "1");
    assert!(b.is_woken());
}

/// PyTorch takes the second push for the missing key.
#[test]
fn two_pushes_are_not_a_plain_key() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["plain", "q"]);
    a.push("q", "1");
    a.push("q", "2");
    assert!(!b.is_woken());
    a.set("plain", "1");
    assert!(b.is_woken());
}

/// PyTorch leaves a woken waiter registered at the queue: a later push wakes it again, and nobody else.
#[test]
fn a_woken_waiter_is_out_of_all_its_lists() {
    let world = World::new();
    let [pusher, a, c] = world.clients();
    a.wait(&["q"]);
    pusher.push("q", "1");
    assert!(a.is_woken());
    assert_eq!(a.pop("q").as_deref(), Some("1"));
    a.wait(&["unrelated"]);
    c.wait(&["q"]);
    pusher.push("q", "2");
    assert!(!a.is_woken() && a.is_waiting());
    assert!(c.is_woken());
}

#[test]
fn a_push_wakes_the_first_waiter_whose_whole_condition_holds() {
    let world = World::new();
    let [a, both, one] = world.clients();
    both.wait(&["q", "plain"]);
    one.wait(&["q"]);
    a.push("q", "1");
    assert!(one.is_woken() && !both.is_woken());
    one.pop("q");
    a.set("plain", "1");
    assert!(!both.is_woken(), "the queue is empty again");
    a.push("q", "2");
    assert!(both.is_woken());
}

#[test]
fn an_item_offered_to_a_client_that_goes_away_is_offered_to_the_next() {
    let world = World::new();
    let [a, b, c] = world.clients();
    b.wait(&["q"]);
    c.wait(&["q"]);
    a.push("q", "1");
    assert!(b.is_woken() && !c.is_woken());
    b.leave();
    assert!(c.is_woken());
    assert_eq!(c.pop("q").as_deref(), Some("1"));
}

#[test]
fn an_item_offered_to_a_client_that_does_something_else_is_offered_to_the_next() {
    let world = World::new();
    let [a, b, c, d] = world.clients();
    for waiter in [&b, &c, &d] {
        waiter.wait(&["q"]);
    }
    a.push("q", "1");
    assert!(b.is_woken());
    b.cancel();
    assert!(c.is_woken(), "its cancel and the push crossed each other");
    assert_eq!(c.pop("another queue"), None);
    assert!(d.is_woken());
    assert_eq!(d.pop("q").as_deref(), Some("1"));
}

#[test]
fn an_offered_item_that_somebody_else_took_is_offered_no_more() {
    let world = World::new();
    let [a, b, c, thief] = world.clients();
    b.wait(&["q"]);
    c.wait(&["q"]);
    a.push("q", "1");
    assert!(b.is_woken());
    assert_eq!(thief.pop("q").as_deref(), Some("1"));
    assert_eq!(b.pop("q"), None);
    assert!(!c.is_woken() && c.is_waiting());
    a.push("q", "2");
    assert!(c.is_woken());
}

#[test]
fn an_offer_keeps_its_queue_and_nothing_longer() {
    let world = World::new();
    let [a, b] = world.clients();
    b.wait(&["q"]);
    a.push("q", "1");
    assert_eq!(a.pop("q").as_deref(), Some("1"));
    assert_eq!(world.inner().store.keys.names(), 1, "b may still come for it");
    b.leave();
    world.assert_empty_after(a);
}

#[test]
fn a_plain_set_wakes_all_who_wait_for_the_queue() {
    let world = World::new();
    let [a, b, c] = world.clients();
    b.wait(&["q"]);
    c.wait(&["q"]);
    a.push("q", "1");
    assert!(b.is_woken() && !c.is_woken());
    a.set("q", "value");
    assert!(c.is_woken());
}

#[test]
fn who_asks_for_a_filled_queue_need_not_wait_though_its_item_is_offered() {
    let world = World::new();
    let [a, b, c] = world.clients();
    b.wait(&["q"]);
    a.push("q", "1");
    assert!(c.wait(&["q"]), "CHECK says ready");
    assert!(b.is_woken());
}
