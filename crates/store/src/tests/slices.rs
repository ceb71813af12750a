//! Requests of very many keys, with requests of other clients in between.

use super::world::Inner;
use super::{Bytewise, Client, Effect, Said, World, work};
use crate::{Progress, Store};
use rallypoint_protocol::{Op, Request};

const MANY: usize = 20_000;

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("/{n}")).collect()
}

fn list(op: Op, keys: &[String]) -> Bytewise {
    let strings: Vec<&[u8]> = match op {
        Op::MultiSet => keys.iter().flat_map(|key| [key.as_bytes(), b"1"]).collect(),
        _ => keys.iter().map(String::as_bytes).collect(),
    };
    Bytewise::list(op, &strings)
}

/// One critical section of a request: its replies, how far it came, and its steps.
fn section(client: &Client, request: &Request<'_>) -> (Vec<Said>, Progress, u64) {
    let mut inner = client.world.inner();
    let Inner { store, recorder, now, .. } = &mut *inner;
    let mut progress = Progress::Done;
    let steps = work::of(|| {
        store.begin(recorder);
        progress = store.apply(client.conn, request, *now, recorder).expect("not refused");
    });
    let replies = inner.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::Reply(said) => Some(said),
        Effect::Wake(_) => None,
    });
    (replies.collect(), progress, steps)
}

/// All critical sections of a request, with requests of others in between: its replies, and the number of
/// sections.
fn sections(client: &Client, request: &Bytewise, mut between: impl FnMut(usize)) -> (Vec<Said>, usize) {
    request.with(|request| {
        let mut said = Vec::new();
        for count in 1.. {
            let (more, progress, steps) = section(client, request);
            assert!(steps < 200_000, "{:?}: {steps}", request.op());
            said.extend(more);
            if progress == Progress::Done {
                return (said, count);
            }
            between(count);
        }
        unreachable!()
    })
}

#[test]
fn requests_of_very_many_keys_are_done_in_slices_and_answered_once() {
    let world = World::unchecked();
    let [client, other] = world.clients();
    let names = keys(MANY);
    let slices = MANY.div_ceil(Store::KEYS_AT_ONCE);
    let mut served = 0;
    let mut between = |_| served = other.add("n", 1) as usize;
    assert_eq!(sections(&client, &list(Op::MultiSet, &names), &mut between), (vec![], slices));
    assert_eq!(sections(&client, &list(Op::Check, &names), &mut between), (vec![Said::Ready(true)], slices));
    assert_eq!(sections(&client, &list(Op::Wait, &names), &mut between), (vec![Said::StopWaiting], slices));
    let values = vec![Said::Bytes(b"1".to_vec()); MANY];
    assert_eq!(sections(&client, &list(Op::MultiGet, &names), &mut between), (values, slices));
    assert_eq!(served, 4 * (slices - 1), "another is served in between");
}

#[test]
fn requests_of_fewer_keys_are_done_at_once() {
    let world = World::unchecked();
    let [client] = world.clients();
    let names = keys(Store::KEYS_AT_ONCE);
    for op in [Op::MultiSet, Op::MultiGet, Op::Check, Op::Wait] {
        assert_eq!(sections(&client, &list(op, &names), |_| ()).1, 1, "{op:?}");
    }
    client.delete("/0");
    assert_eq!(sections(&client, &list(Op::Wait, &names), |_| ()), (vec![], 1));
}

#[test]
fn a_wait_in_slices_ends_when_all_its_keys_are_there() {
    let world = World::unchecked();
    let [client, other] = world.clients();
    let names = keys(MANY);
    sections(&other, &list(Op::MultiSet, &names), |_| ());
    // A key that the request has seen is deleted. A key that it has not seen is deleted and set again.
    let between = |count| {
        if count == 1 {
            assert!(client.is_waiting());
            other.delete("/0");
            other.delete(&names[MANY - 1]);
            other.set(&names[MANY - 1], "1");
        }
    };
    assert_eq!(sections(&client, &list(Op::Wait, &names), between).0, vec![]);
    assert!(client.is_waiting());
    other.set("/1", "2");
    assert!(!client.is_woken());
    other.set("/0", "1");
    assert!(client.is_woken());
    world.settle();
    world.inner().check_now();
}

/// The reply gives the right number of names, whoever adds or deletes names while they are collected.
#[test]
fn a_list_in_slices_is_as_long_as_it_says() {
    const NAMES: usize = 150_000;
    let world = World::unchecked();
    let [client, other] = world.clients();
    sections(&other, &list(Op::MultiSet, &keys(NAMES)), |_| ());
    let mut gone = 0;
    let between = |count: usize| {
        for n in 0..10 {
            gone += other.delete(format!("/{}", NAMES - 10 * count + n));
            other.set(format!("/new/{count}/{n}"), "1");
        }
    };
    let (said, sections) = sections(&client, &Bytewise::new(&Request::ListKeys), between);
    assert!(sections > 3, "{sections}");
    assert_eq!(said[0], Said::Number(said.len() as i64 - 1));
    let stayed = (0..NAMES - 10 * sections).all(|n| {
        // Names are listed in the order of their creation.
        said[n + 1] == Said::Bytes(format!("/{n}").into_bytes())
    });
    assert!(stayed && gone > 0);
    let mut inner = world.inner();
    assert_eq!(inner.store.unfinished_bytes, 0);
    inner.check_now();
    inner.take_effects();
}

#[test]
fn who_leaves_in_the_middle_leaves_nothing_behind() {
    let names = keys(MANY);
    for request in [list(Op::Wait, &names), list(Op::Check, &names), Bytewise::new(&Request::ListKeys)] {
        let world = World::unchecked();
        let [client, other] = world.clients();
        let many = keys(10 * MANY);
        sections(&other, &list(Op::MultiSet, &many), |_| ());
        request.with(|request| assert_eq!(section(&client, request).1, Progress::Begun));
        client.leave();
        for key in &many {
            other.delete(key);
        }
        world.settle();
        world.assert_no_names_but(&[]);
        world.assert_empty_after(other);
    }
}

/// A wait makes a slot for each missing name. At its end the slots are freed in steps.
#[test]
fn the_names_of_a_wait_that_is_over_go_in_steps() {
    const NAMES: usize = 60_000;
    let world = World::unchecked();
    let [client] = world.clients();
    sections(&client, &list(Op::Wait, &keys(NAMES)), |_| ());
    let steps = work::of(|| client.cancel());
    assert!(steps < 3 * NAMES as u64, "{steps}");
    assert!(world.inner().store.is_unsettled());
    world.settle();
    world.assert_empty_after(client);
}

/// Other requests come in between. They may even write the value that is being copied.
#[test]
fn appending_to_a_large_value_that_somebody_still_reads_is_done_in_slices() {
    const SIZE: usize = 30 << 20;
    let append = Bytewise::new(&Request::Append { key: b"k", value: b"more" });
    for overwrites in [false, true] {
        let world = World::new();
        let [client, other] = world.clients();
        client.set("k", vec![b'x'; SIZE]);
        let value = || {
            let inner = world.inner();
            let id = inner.store.keys.find(b"k").expect("it is there");
            inner.store.keys.slot(id).value().cloned().expect("a value")
        };
        let read = value();
        let (said, sections) = sections(&client, &append, |count| {
            assert_eq!(other.add("n", 1), count as i64);
            if overwrites && count == 3 {
                other.set("k", "other");
            }
        });
        assert_eq!(said, []);
        assert!(read.iter().all(|&b| b == b'x') && read.len() == SIZE);
        if overwrites {
            assert_eq!((sections, &*value()), (4, &b"othermore"[..]));
        } else {
            assert!(sections > 5 && value()[..SIZE] == read && value()[SIZE..] == *b"more", "{sections}");
        }
    }
    // A client that leaves in the middle leaves nothing behind.
    let world = World::new();
    let [client, other] = world.clients();
    other.set("k", vec![b'x'; SIZE]);
    let before = world.inner().store.stats().bytes;
    let id = world.inner().store.keys.find(b"k").expect("it is there");
    let _read = world.inner().store.keys.slot(id).value().cloned();
    append.with(|request| section(&client, request));
    assert!(world.inner().store.stats().bytes > before + SIZE);
    client.leave();
    assert_eq!(world.inner().store.stats().bytes, before);
}
