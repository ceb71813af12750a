//! Who asks for one key again and again is shown as one that waits, until it finds something else.

use super::{Client, World};
use crate::{Observed, Polled};

/// Who waits without blocking: each key with what is found there, or how long was waited for it.
fn asked(world: &World) -> Vec<String> {
    let mut inner = world.inner();
    let now = inner.now;
    let shown = inner.store.asking(now).into_iter().map(|wait| {
        let key = String::from_utf8_lossy(&wait.missing[0]).into_owned();
        match wait.polled.expect("it does not block") {
            Polled::AbsentAgain => format!("{key} after {:?}", wait.waited),
            found => format!("{key} {found:?}"),
        }
    });
    shown.collect()
}

fn two() -> (World, Client, Client) {
    let world = World::new();
    let [one, other] = world.clients();
    (world, one, other)
}

/// A client does this ten times a second, for three seconds.
fn again_and_again(world: &World, mut act: impl FnMut()) {
    for _ in 0..3 {
        (0..10).for_each(|_| act());
        world.pass(1);
    }
}

#[test]
fn who_looks_for_a_key_is_shown_until_it_is_there() {
    let (world, one, other) = two();
    assert!(!one.check(&["done"]));
    assert!(asked(&world).is_empty(), "it may look once");
    again_and_again(&world, || assert!(!one.check(&["done"])));
    assert_eq!(asked(&world), ["done Absent"]);
    other.set("done", "1");
    assert!(asked(&world).is_empty(), "it will find it");
    other.delete("done");
    assert_eq!(asked(&world), ["done Absent"]);
    other.set("done", "1");
    assert!(one.check(&["done"]));
    other.delete("done");
    assert!(asked(&world).is_empty(), "it has found it");
}

#[test]
fn who_looks_no_more_is_not_shown() {
    let (world, one, other) = two();
    again_and_again(&world, || assert!(!one.check(&["done"])));
    again_and_again(&world, || assert!(!other.check(&["done"])));
    assert_eq!(asked(&world), ["done Absent"], "the other one");
    drop(other);
    world.pass(3);
    assert!(asked(&world).is_empty());
}

#[test]
fn who_waits_in_vain_for_a_key_of_a_program_is_shown_with_how_long() {
    let (world, one, _) = two();
    for _ in 0..3 {
        assert!(!one.wait(&["table"]));
        world.pass(2);
        one.cancel();
    }
    assert_eq!(asked(&world), ["table after 6s"]);
    assert!(!one.wait(&["table"]));
    world.pass(9);
    assert_eq!(asked(&world), ["table after 15s"], "it waits at this moment");
    for _ in 0..3 {
        assert!(!one.wait(&["/default_pg/0//cpu//0/1"]));
        world.pass(1);
        one.cancel();
    }
    assert!(asked(&world).is_empty(), "that is told as giving up");
}

#[test]
fn who_asks_for_several_keys_is_shown_with_each() {
    let (world, one, other) = two();
    for _ in 0..9 {
        for key in ["a", "b"] {
            assert!(!one.check(&[key]));
            world.pass(1);
        }
    }
    assert_eq!(asked(&world), ["a Absent", "b Absent"]);
    other.set("a", "1");
    assert_eq!(asked(&world), ["b Absent"]);
}

#[test]
fn who_looks_for_a_key_beside_its_work_does_not_wait() {
    let works: [fn(&Client, &mut i64); 6] = [
        |one, _| one.set("step", "1"),
        |one, n| {
            *n += 1;
            assert_eq!(one.add("step", 1), *n);
        },
        |one, _| drop(one.get("config")),
        |one, _| one.append("log", "x"),
        |one, _| assert_eq!(one.delete("step"), 0),
        |one, _| one.push("todo", "x"),
    ];
    for work in works {
        let (world, one, other) = two();
        other.set("config", "1");
        let mut n = 0;
        again_and_again(&world, || {
            assert!(!one.check(&["stop"]));
            work(&one, &mut n);
        });
        assert!(asked(&world).is_empty());
    }
}

/// A thread with a connection of its own looks for a key, while the others of its process work or wait.
#[test]
fn who_looks_for_a_key_with_one_connection_and_works_with_another_does_not_wait() {
    for waits in [false, true] {
        let (world, one, other) = two();
        one.ping(7);
        other.ping(7);
        again_and_again(&world, || assert!(!one.check(&["stop"])));
        assert_eq!(asked(&world), ["stop Absent"], "it does nothing else");
        if waits {
            assert!(!other.wait(&["go"]));
        } else {
            other.set("step", "1");
        }
        world.pass(1);
        assert!(!one.check(&["stop"]));
        assert!(asked(&world).is_empty());
    }
}

#[test]
fn who_reads_a_counter_again_and_again_is_shown_with_its_number() {
    let (world, one, other) = two();
    other.add("arrived", 2);
    again_and_again(&world, || assert_eq!(one.get("arrived"), "2"));
    assert!(asked(&world).is_empty(), "it has not arrived itself");
    assert_eq!(one.add("arrived", 1), 3);
    for _ in 0..3 {
        assert_eq!(one.get("arrived"), "3");
        world.pass(1);
    }
    assert!(asked(&world).is_empty(), "it may only have looked");
    again_and_again(&world, || drop(one.get("arrived")));
    assert_eq!(asked(&world), ["arrived Is(3)"]);
    other.add("arrived", 1);
    assert!(asked(&world).is_empty(), "it is another");
    again_and_again(&world, || assert_eq!(one.get("arrived"), "4"));
    assert_eq!(asked(&world), ["arrived Is(4)"]);
    other.set("cfg", "x");
    one.get("cfg");
    assert!(asked(&world).is_empty());
}

#[test]
fn adding_nothing_is_reading() {
    let (world, one, other) = two();
    let barrier = "/default_pg/store_based_barrier_key:1";
    other.add(barrier, 1);
    one.add(barrier, 1);
    again_and_again(&world, || assert_eq!(one.add(barrier, 0), 2));
    assert_eq!(asked(&world), [format!("{barrier} Is(2)")]);
}

#[test]
fn who_reads_many_keys_or_what_pytorch_asks_for_besides_is_not_shown() {
    let (world, one, other) = two();
    let keys = ["a", "b", "c", "d", "e"];
    for key in keys {
        other.add(key, 1);
    }
    again_and_again(&world, || {
        for key in keys {
            one.get(key);
        }
        assert!(!one.check(&["/default_pg/0//exception_dump"]));
    });
    assert!(asked(&world).is_empty());
}

#[test]
fn who_asks_a_queue_for_items_again_and_again_is_shown() {
    let (world, one, other) = two();
    again_and_again(&world, || assert_eq!(one.queue_len("todo"), 0));
    assert_eq!(asked(&world), ["todo Absent"]);
    other.push("todo", "x");
    assert!(asked(&world).is_empty());
    again_and_again(&world, || assert_eq!(one.queue_len("todo"), 1));
    assert!(asked(&world).is_empty(), "there are some");
    assert_eq!(one.pop("todo").as_deref(), Some("x"));
    again_and_again(&world, || assert_eq!(one.pop("todo"), None));
    assert_eq!(asked(&world), ["todo Absent"]);
    other.push("todo", "y");
    assert_eq!(one.pop("todo").as_deref(), Some("y"));
    assert!(asked(&world).is_empty(), "it has found one");
}

#[test]
fn who_tries_to_take_a_lock_again_and_again_is_shown_until_it_has_it() {
    let (world, one, other) = two();
    assert_eq!(other.compare_set("lock", "", "other"), "other");
    again_and_again(&world, || assert_eq!(one.compare_set("lock", "", "one"), "other"));
    assert_eq!(asked(&world), ["lock Held"]);
    assert_eq!(other.compare_set("lock", "other", ""), "");
    assert_eq!(one.compare_set("lock", "", "one"), "one");
    assert!(asked(&world).is_empty());
}

#[test]
fn who_adds_to_a_lock_and_takes_it_back_is_shown_until_it_has_it() {
    let (world, one, other) = two();
    assert_eq!(other.add("lock", 1), 1);
    again_and_again(&world, || assert_eq!((one.add("lock", 1), one.add("lock", -1)), (2, 1)));
    assert_eq!(asked(&world), ["lock Shared"]);
    assert_eq!((other.add("lock", -1), one.add("lock", 1)), (0, 1));
    assert!(asked(&world).is_empty());
    again_and_again(&world, || assert_eq!((one.add("lock", -1), one.add("lock", 1)), (0, 1)));
    other.add("left", 90);
    let mut left = 90;
    again_and_again(&world, || {
        left -= 1;
        assert_eq!(one.add("left", -1), left);
    });
    assert!(asked(&world).is_empty(), "who has it, and who counts down");
}

#[test]
fn who_asks_again_and_again_for_what_is_there_does_not_wait() {
    let (world, one, other) = two();
    other.set("config", "1");
    other.set("state", "text");
    again_and_again(&world, || {
        assert!(one.check(&["config"]));
        assert_eq!(one.get("state"), "text");
        one.multi_get(&["config", "state"]);
    });
    assert!(asked(&world).is_empty());
}

#[test]
fn who_finds_what_it_waits_for_each_time_does_not_ask_for_it_again_and_again() {
    let (world, one, other) = two();
    for _ in 0..4 {
        assert!(!one.check(&["a"]));
        assert!(!one.wait(&["q"]));
        world.pass(1);
        one.cancel();
        assert!(!one.wait(&["q"]));
        other.set("q", "1");
        world.pass(1);
        assert_eq!(one.get("q"), "1");
        other.delete("q");
    }
    assert!(asked(&world).is_empty(), "what it waits for comes each time");
}

#[test]
fn each_time_that_a_wait_ends_in_vain_is_told() {
    let (world, one, _) = two();
    for _ in 0..3 {
        assert!(!one.wait(&["table"]));
        world.pass(4);
        asked(&world);
        one.cancel();
    }
    let gave_up = |it: &Observed| matches!(it, Observed::GaveUp { .. });
    assert_eq!(world.observed().iter().filter(|it| gave_up(it)).count(), 3);
}
