//! The search for addresses that are spent because others were: step by step, it comes to the same as at
//! once.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngAlgorithm;

use super::model::{Act, Key};
use super::random::{ADDRESS_KEYS, CLIENTS, Table};
use super::world::Inner;
use super::{Bytewise, Client, World, work};
use crate::{Progress, Store};
use rallypoint_protocol::keys::{KeyPattern, classify};
use rallypoint_protocol::{Op, Payload, Request};

/// The addresses of one group, of one more and of none.
fn key() -> impl Strategy<Value = Key> {
    select(ADDRESS_KEYS.to_vec())
}

/// What clients do who wait for one key at most.
fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => key().prop_map(|key| Act::Set(key, "x".to_owned())),
        8 => key().prop_map(Act::Get),
        1 => key().prop_map(|key| Act::Check(vec![key])),
        1 => key().prop_map(|key| Act::Wait(vec![key])),
        1 => key().prop_map(|key| Act::Add(key, 1)),
        1 => key().prop_map(|key| Act::Append(key, "z".to_owned())),
        1 => key().prop_map(Act::Delete),
        1 => key().prop_map(|key| Act::Push(key, "i".to_owned())),
        1 => key().prop_map(Act::Pop),
        1 => Just(Act::Cancel),
        3 => Just(Act::Leave),
    ]
}

fn group(key: Key) -> Option<&'static [u8]> {
    match classify(key.as_bytes()) {
        Some(KeyPattern::Address(address)) => Some(address.group),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    })]

    /// Whatever others do in the meantime, they get what they would get had the place been taken at once, and
    /// all that is left is the same.
    #[test]
    fn others_see_a_search_as_if_it_were_done_at_once(
        before in vec((0..CLIENTS, act()), 1..80),
        taker in 0..CLIENTS,
        place in select(ADDRESS_KEYS[2..].to_vec()),
        between in vec((0..CLIENTS, act()), 0..30),
        steps in 1_usize..4,
    ) {
        let mut tables = [(); 2].map(|()| Table::new(World::new()));
        for (client, act) in &before {
            let [whole, stepwise] = tables.each_mut().map(|table| table.act(*client, act));
            prop_assert_eq!(whole, stepwise);
        }
        let [mut whole, mut stepwise] = tables;
        stepwise.world.inner().store.search_at_once = steps;
        let take = Act::Set(place, "new".to_owned());
        let said = whole.act(taker, &take);
        let said_stepwise = stepwise.try_act(taker, &take);
        let mut put_off: Vec<&(usize, Act)> = Vec::new();
        for one @ (client, act) in &between {
            let begins_another = |key: Key| said_stepwise.is_some() || group(key) != group(place);
            match act {
                _ if *client == taker || stepwise.clients[*client].is_waiting() => continue,
                Act::Set(key, _) | Act::Add(key, _) | Act::Append(key, _) if begins_another(key) => continue,
                _ => {}
            }
            if put_off.iter().any(|(other, _)| other == client) {
                put_off.push(one);
            } else if let Some(outcomes) = stepwise.try_act(*client, act) {
                prop_assert_eq!(whole.act(*client, act), outcomes, "client {} does {:?}", client, act);
            } else {
                put_off.push(one);
            }
        }
        let said_stepwise = said_stepwise.unwrap_or_else(|| stepwise.act(taker, &take));
        prop_assert_eq!(said, said_stepwise);
        for (client, act) in put_off {
            let (at_once, in_steps) = (whole.act(*client, act), stepwise.act(*client, act));
            prop_assert_eq!(at_once, in_steps, "client {} does {:?}", client, act);
        }
        let left = [&whole, &stepwise].map(|table| {
            let keys = table.world.keys();
            keys.into_iter().map(|key| (table.world.value(&key), key)).collect::<Vec<_>>()
        });
        prop_assert_eq!(&left[0], &left[1]);
        whole.clear_up(&ADDRESS_KEYS);
        stepwise.clear_up(&ADDRESS_KEYS);
    }

    /// Who takes the place may leave before it has it, the store may be emptied, and some only come again.
    #[test]
    fn a_search_that_is_given_up_leaves_nothing_behind(
        before in vec((0..CLIENTS, act()), 1..80),
        between in vec((0..CLIENTS, act(), any::<bool>()), 0..60),
        reset in 0_usize..60,
    ) {
        let mut table = Table::new(World::new());
        for (client, act) in &before {
            table.act(*client, act);
        }
        table.world.inner().store.search_at_once = 1;
        for (n, (client, act, again)) in between.iter().enumerate() {
            if n == reset {
                let Inner { store, recorder, .. } = &mut *table.world.inner();
                store.begin(recorder);
                store.reset(recorder);
            }
            if table.try_act(*client, act).is_none() && *again {
                table.act(*client, act);
            }
        }
        table.world.inner().store.search_at_once = usize::MAX;
        table.clear_up(&ADDRESS_KEYS);
    }
}

fn address(rank: usize) -> String {
    format!("/default_pg/0//cpu//0/{rank}")
}

/// One critical section in which a client sets a key: how far it came and its steps.
fn section(client: &Client, key: &str) -> (Progress, u64) {
    let Inner { store, recorder, now, .. } = &mut *client.world.inner();
    let mut progress = Progress::Done;
    let steps = work::of(|| {
        store.begin(recorder);
        let request = Request::Set { key: key.as_bytes(), value: Payload::borrowed(b"new") };
        progress = store.apply(client.conn, &request, *now, recorder).expect("not refused");
    });
    (progress, steps)
}

/// Others are served in between; whoever names an address of the group has to wait.
fn take_place(world: &World, rank: usize, names: &[usize]) -> usize {
    let [taker, other, of_group] = world.clients();
    let mut sections = 0;
    loop {
        let (progress, steps) = section(&taker, &address(rank));
        assert!(steps < 8 * 4 * Store::WORK_AT_ONCE as u64, "{steps}");
        sections += 1;
        if progress == Progress::Done {
            break;
        }
        if sections == 2 {
            for &name in names {
                assert_eq!(section(&of_group, &address(name)).0, Progress::Begun);
            }
        }
        assert_eq!(section(&other, "a program's").0, Progress::Done);
    }
    world.settle();
    world.inner().check_now();
    sections
}

/// A full mesh of very many ranks, of which one comes again.
#[test]
fn taking_a_place_in_a_huge_group_goes_in_steps() {
    const RANKS: usize = 20_000;
    let world = World::unchecked();
    let ranks: Vec<Client> = (0..RANKS).map(|_| world.client()).collect();
    for (rank, client) in ranks.iter().enumerate() {
        client.set(address(rank), "1");
    }
    let all: Vec<String> = (0..RANKS).map(address).collect();
    for client in ranks.iter().take(20) {
        client.ask_list(Op::MultiGet, &all);
    }
    // The others have read those.
    for client in ranks.iter().skip(20) {
        client.ask_list(Op::MultiGet, &all[..3]);
    }
    assert!(take_place(&world, 1, &[0, RANKS - 1]) > 3);
    world.assert_no_names_but(&[&address(1), "a program's"]);
}

/// One peer has written very many addresses, others have read every second of them.
#[test]
fn taking_a_place_in_a_group_of_a_hostile_peer_goes_in_steps() {
    const NAMES: usize = 60_000;
    const READERS: usize = 40;
    let world = World::unchecked();
    let writer = world.client();
    let all: Vec<String> = (0..NAMES).map(address).collect();
    let pairs: Vec<&str> = all.iter().flat_map(|key| [key.as_str(), "1"]).collect();
    writer.ask_list(Op::MultiSet, &pairs);
    let readers: Vec<Client> = (0..READERS).map(|_| world.client()).collect();
    for (n, reader) in readers.iter().enumerate() {
        let some: Vec<&String> = all[2 * n..].iter().step_by(2).take(4000).collect();
        reader.ask_list(Op::MultiGet, &some);
        reader.set(address(NAMES + n), "1");
    }
    assert!(take_place(&world, READERS * 2, &[0]) > 5);
    // Who has read the address that was replaced is gone, and the writer, who has read none, stays.
    assert!(world.has(address(0)) && !world.has(address(NAMES)));
}

/// A place that was made free is kept for who asked for it, but not for ever.
#[test]
fn who_asks_for_a_place_and_does_not_take_it_is_not_waited_for() {
    let world = World::new();
    let [old, reader, taker, other] = world.clients();
    old.set(address(0), "1");
    reader.get(address(0));
    reader.set(address(1), "1");
    world.inner().store.search_at_once = 1;
    assert_eq!(section(&taker, &address(0)).0, Progress::Begun);
    world.settle();
    let put_off = (0..100_000).take_while(|_| section(&other, &address(2)).0 == Progress::Begun).count();
    assert!((1000..10_000).contains(&put_off), "{put_off}");
    assert_eq!(world.keys(), [address(0), address(2)]);
    while section(&taker, &address(0)).0 == Progress::Begun {}
    assert_eq!(world.value(address(0)).as_deref(), Some("new"));
    // Nor for who has gone.
    reader.get(address(0));
    reader.set(address(1), "1");
    assert_eq!(section(&old, &address(0)).0, Progress::Begun);
    old.leave();
    world.settle();
    assert_eq!(section(&other, &address(2)).0, Progress::Done);
    for client in [reader, taker, other] {
        client.leave();
    }
    world.assert_empty();
}

/// A request for several keys waits for the group of any of them.
#[test]
fn requests_for_several_keys_wait_for_a_search() {
    for (op, answered) in [(Op::MultiGet, 3), (Op::MultiSet, 0), (Op::Check, 1), (Op::Wait, 1)] {
        let world = World::new();
        let [old, reader, taker, other] = world.clients();
        old.set(address(0), "1");
        reader.get(address(0));
        reader.set(address(1), "1");
        other.set("a", "1");
        world.inner().store.search_at_once = 1;
        assert_eq!(section(&taker, &address(0)).0, Progress::Begun);
        let keys = ["a".to_owned(), address(0), "a".to_owned()];
        let strings: Vec<&[u8]> = match op {
            Op::MultiSet => keys.iter().flat_map(|key| [key.as_bytes(), b"2"]).collect(),
            _ => keys.iter().map(String::as_bytes).collect(),
        };
        let request = Bytewise::list(op, &strings);
        let once = || {
            let Inner { store, recorder, now, .. } = &mut *world.inner();
            request.with(|request| store.apply(other.conn, request, *now, recorder)).expect("not refused")
        };
        assert_eq!(once(), Progress::Begun, "{op:?}");
        while section(&taker, &address(0)).0 == Progress::Begun {}
        world.inner().store.search_at_once = usize::MAX;
        while once() == Progress::Begun {
            world.settle();
        }
        assert_eq!(world.inner().take_effects().len(), answered, "{op:?}");
        assert!(!world.has(address(1)), "{op:?}");
    }
}
