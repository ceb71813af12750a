//! Who asks for one key again and again is told, once a second, and when that ends.

use super::{Client, World};
use crate::Observed;

/// What was told since the last call: each key with what was read there, or that it ends.
fn told(world: &World) -> Vec<String> {
    let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let told = world.observed().into_iter().filter_map(|observed| match observed {
        Observed::Polls { key, found, waited, .. } if waited.is_zero() => {
            Some(format!("{} {found:?}", shown(&key)))
        }
        Observed::Polls { key, waited, .. } => Some(format!("{} after {waited:?}", shown(&key))),
        Observed::PollEnds { key, .. } => Some(format!("ends {:?}", key.map(|key| shown(&key)))),
        _ => None,
    });
    told.collect()
}

fn two() -> (World, Client, Client) {
    let world = World::new();
    let [one, other] = world.clients();
    (world, one, other)
}

#[test]
fn who_looks_for_a_key_is_told_once_a_second_until_it_is_there() {
    let (world, one, other) = two();
    for _ in 0..10 {
        assert!(!one.check(&["done"]));
    }
    assert_eq!(told(&world), ["done Absent"]);
    world.pass(1);
    assert!(!one.check(&["done"]));
    assert_eq!(told(&world), ["done Absent"]);
    other.set("done", "1");
    assert!(one.check(&["done"]));
    assert_eq!(told(&world), ["ends Some(\"done\")"]);
}

#[test]
fn who_waits_in_vain_for_a_key_of_a_program_is_told_with_how_long() {
    let (world, one, _) = two();
    for _ in 0..3 {
        assert!(!one.wait(&["table"]));
        world.pass(2);
        one.cancel();
    }
    assert_eq!(told(&world), ["table after 2s"; 3]);
    assert!(!one.wait(&["/default_pg/0//cpu//0/1"]));
    one.cancel();
    assert!(told(&world).is_empty(), "that is told as giving up");
}

#[test]
fn who_reads_a_counter_again_and_again_is_told_with_its_number() {
    let (world, one, other) = two();
    other.add("arrived", 3);
    for _ in 0..3 {
        assert_eq!(one.get("arrived"), "3");
    }
    assert!(told(&world).is_empty(), "it may only have looked");
    for _ in 0..10 {
        one.get("arrived");
    }
    assert_eq!(told(&world), ["arrived Is(3)"]);
    world.pass(1);
    one.get("arrived");
    assert_eq!(told(&world), ["arrived Is(3)"]);
    other.set("cfg", "x");
    one.get("cfg");
    assert_eq!(told(&world), ["ends None"]);
}

#[test]
fn adding_nothing_is_reading() {
    let (world, one, other) = two();
    let barrier = "/default_pg/store_based_barrier_key:1";
    other.add(barrier, 2);
    for _ in 0..10 {
        assert_eq!(one.add(barrier, 0), 2);
    }
    assert_eq!(told(&world), [format!("{barrier} Is(2)")]);
}

#[test]
fn nothing_is_told_of_who_reads_many_keys_or_what_pytorch_asks_for_besides() {
    let (world, one, other) = two();
    other.add("a", 1);
    other.add("b", 1);
    for _ in 0..10 {
        one.get("a");
        one.get("b");
        assert!(!one.check(&["/default_pg/0//exception_dump"]));
    }
    assert!(told(&world).is_empty());
}

#[test]
fn who_tries_to_take_a_lock_again_and_again_is_told_until_it_has_it() {
    let (world, one, other) = two();
    assert_eq!(other.compare_set("lock", "", "other"), "other");
    for _ in 0..10 {
        assert_eq!(one.compare_set("lock", "", "one"), "other");
    }
    assert_eq!(told(&world), ["lock Held"]);
    assert_eq!(other.compare_set("lock", "other", ""), "");
    assert_eq!(one.compare_set("lock", "", "one"), "one");
    assert_eq!(told(&world), ["ends None"]);
}

#[test]
fn who_adds_to_a_lock_and_takes_it_back_is_told_until_it_has_it() {
    let (world, one, other) = two();
    assert_eq!(other.add("lock", 1), 1);
    for _ in 0..10 {
        assert_eq!((one.add("lock", 1), one.add("lock", -1)), (2, 1));
    }
    assert_eq!(told(&world), ["lock Shared"]);
    assert_eq!((other.add("lock", -1), one.add("lock", 1)), (0, 1));
    assert_eq!(told(&world), ["ends None"]);
    for _ in 0..10 {
        assert_eq!((one.add("lock", -1), one.add("lock", 1)), (0, 1));
    }
    other.add("left", 50);
    for left in 0..10 {
        assert_eq!(one.add("left", -1), 49 - left);
    }
    assert!(told(&world).is_empty(), "who has it, and who counts down");
}

#[test]
fn who_reads_a_text_again_and_again_is_told_with_what_tells_it_from_others() {
    let (world, one, other) = two();
    let mut seen = std::collections::BTreeSet::new();
    for text in ["writing", "ready", "ready"] {
        other.set("state", text);
        world.pass(1);
        for _ in 0..10 {
            one.get("state");
        }
        seen.extend(told(&world));
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|told| told.starts_with("state Same(")), "{seen:?}");
}

#[test]
fn who_looks_again_and_again_for_a_key_that_is_there_is_told_until_it_is_gone() {
    let (world, one, other) = two();
    other.set("lock", "other");
    for _ in 0..10 {
        assert!(one.check(&["lock"]));
    }
    assert_eq!(told(&world), ["lock There"]);
    other.delete("lock");
    assert!(!one.check(&["lock"]));
    one.set("lock", "one");
    assert!(one.check(&["lock"]));
    assert_eq!(told(&world), ["ends None"]);
}
