//! Plain keys (PROTOCOL section 5).

use super::{Said, World};
use crate::Refusal;
use rallypoint_protocol::Request;

#[test]
fn a_value_is_got_as_it_was_set() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("k", "v");
    assert_eq!(b.get("k"), "v");
    a.set("k", "w");
    assert_eq!(b.get("k"), "w", "the last SET wins");
    a.set("k", "");
    assert_eq!(b.get("k"), "");
    assert!(b.check(&["k"]), "an empty value is a value");
}

#[test]
fn keys_and_values_are_any_bytes() {
    let world = World::new();
    let a = world.client();
    a.set(b"\0\xff", b"\xfe\0");
    a.set("", "the empty key");
    assert_eq!(a.ask(&Request::Get { key: b"\0\xff" }), [Said::Bytes(b"\xfe\0".to_vec())]);
    assert_eq!(a.get(""), "the empty key");
    assert_eq!(a.get("\0"), "", "a key is not cut at a NUL, nor does it match a longer one");
}

#[test]
fn getting_a_missing_key_answers_an_empty_value_and_makes_no_key() {
    let world = World::new();
    let a = world.client();
    assert_eq!(a.get("k"), "");
    assert_eq!(a.num_keys(), 0);
    assert!(!a.check(&["k"]));
    world.assert_empty_after(a);
}

#[test]
fn multi_get_answers_in_order_with_an_empty_value_for_a_missing_key() {
    let world = World::new();
    let a = world.client();
    a.multi_set(&[("a", "1"), ("b", "2")]);
    assert_eq!(a.multi_get(&["b", "missing", "a", "a"]), ["2", "", "1", "1"]);
    assert!(a.multi_get(&[]).is_empty());
}

#[test]
fn multi_set_sets_all_and_the_last_value_of_a_doubled_key_wins() {
    let world = World::new();
    let a = world.client();
    a.multi_set(&[("k", "1"), ("other", "x"), ("k", "2")]);
    assert_eq!(a.get("k"), "2");
    assert_eq!(a.num_keys(), 2);
    a.multi_set(&[]);
    assert_eq!(a.num_keys(), 2);
}

#[test]
fn adding_starts_at_zero_and_leaves_decimal_text() {
    let world = World::new();
    let a = world.client();
    assert_eq!(a.add("n", 5), 5);
    assert_eq!(a.get("n"), "5");
    assert_eq!(a.add("n", -7), -2);
    assert_eq!(a.get("n"), "-2");
    assert_eq!(a.add("zero", 0), 0);
    assert_eq!(a.get("zero"), "0", "ADD 0 makes the key");
}

#[test]
fn adding_reads_the_leading_number_and_replaces_the_text() {
    let world = World::new();
    let a = world.client();
    for (text, sum) in
        [("12abc", 13), ("1.5", 2), ("0x10", 1), (" 7", 8), ("+5", 6), ("007", 8), ("5\0", 6), ("-3", -2)]
    {
        a.set("n", text);
        assert_eq!(a.add("n", 1), sum, "{text:?}");
        assert_eq!(a.get("n"), sum.to_string());
    }
}

#[test]
fn adding_to_what_is_no_number_is_refused_and_changes_nothing() {
    let world = World::new();
    let a = world.client();
    for text in ["abc", "", "-", "\x0012", "9223372036854775808"] {
        a.set("n", text);
        let refusal = a.request(&Request::Add { key: b"n", delta: 1 }).unwrap_err();
        assert_eq!(refusal, Refusal::NotANumber { op: "add", key: "n".into() }, "{text:?}");
        assert_eq!(a.get("n"), text);
    }
}

#[test]
fn adding_wraps_around() {
    let world = World::new();
    let a = world.client();
    a.set("n", i64::MAX.to_string());
    assert_eq!(a.add("n", 1), i64::MIN);
    assert_eq!(a.get("n"), i64::MIN.to_string());
    assert_eq!(a.add("n", -1), i64::MAX);
}

#[test]
fn compare_set_of_a_missing_key_with_nothing_expected_makes_it() {
    let world = World::new();
    let a = world.client();
    assert_eq!(a.compare_set("k", "", "new"), "new");
    assert_eq!(a.get("k"), "new");
    assert_eq!(a.compare_set("empty", "", ""), "");
    assert!(a.check(&["empty"]), "also when what is desired is empty");
}

#[test]
fn compare_set_of_a_missing_key_with_something_expected_answers_that_and_makes_nothing() {
    let world = World::new();
    let a = world.client();
    assert_eq!(a.compare_set("k", "expected", "new"), "expected");
    assert!(!a.check(&["k"]));
    world.assert_empty_after(a);
}

#[test]
fn compare_set_of_a_present_key_sets_it_if_it_is_as_expected() {
    let world = World::new();
    let a = world.client();
    a.set("k", "old");
    assert_eq!(a.compare_set("k", "other", "new"), "old");
    assert_eq!(a.compare_set("k", "", "new"), "old", "a present value is not the empty one");
    assert_eq!(a.get("k"), "old");
    assert_eq!(a.compare_set("k", "old", "new"), "new");
    assert_eq!(a.get("k"), "new");
    a.set("k", "");
    assert_eq!(a.compare_set("k", "", "filled"), "filled", "an empty value equals an empty one");
}

#[test]
fn deleting_tells_how_many_keys_went() {
    let world = World::new();
    let a = world.client();
    assert_eq!(a.delete("k"), 0);
    a.set("k", "v");
    assert_eq!(a.delete("k"), 1);
    assert_eq!(a.delete("k"), 0);
    assert_eq!(a.get("k"), "");
    world.assert_empty_after(a);
}

#[test]
fn appending_starts_from_nothing_and_may_go_on_without_end() {
    let world = World::new();
    let a = world.client();
    a.append("k", "ab");
    a.append("k", "");
    a.append("k", "cd");
    assert_eq!(a.get("k"), "abcd");
    a.append("empty", "");
    assert!(a.check(&["empty"]));
    let half = "x".repeat(5 << 20);
    a.set("large", &half);
    a.append("large", &half);
    assert_eq!(a.get("large").len(), 10 << 20, "only a value in a request has a limit of 8 MiB");
}

#[test]
fn appending_leaves_a_value_alone_that_is_being_sent() {
    let world = World::new();
    let a = world.client();
    a.set("k", "ab");
    let sent = {
        let inner = world.inner();
        let id = inner.store.keys.find(b"k").unwrap();
        inner.store.keys.slot(id).value().unwrap().clone()
    };
    a.append("k", "cd");
    assert_eq!(&sent[..], b"ab");
    assert_eq!(a.get("k"), "abcd");
}

#[test]
fn check_asks_for_all_keys_and_is_ready_for_none() {
    let world = World::new();
    let a = world.client();
    a.set("a", "");
    assert!(a.check(&[]));
    assert!(a.check(&["a", "a"]));
    assert!(!a.check(&["a", "b"]));
    a.set("b", "");
    assert!(a.check(&["a", "b"]));
}

#[test]
fn keys_are_counted_and_listed_without_those_that_are_only_waited_for() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("x", "1");
    a.set("y", "1");
    b.wait(&["z"]);
    a.push("queue", "item");
    assert_eq!(a.num_keys(), 2);
    assert_eq!(a.list_keys(), ["x", "y"]);
    assert_eq!(world.keys(), ["x", "y"]);
    a.delete("x");
    assert_eq!(a.list_keys(), ["y"]);
    assert_eq!(world.inner().store.key_names(0).len(), 0);
}

#[test]
fn a_ping_is_echoed_and_tells_the_process_id() {
    let world = World::new();
    let a = world.client_at("10.0.0.7");
    let peer = || world.inner().store.peer(a.conn).map(|(from, pid)| (from.ip().to_string(), pid));
    assert_eq!(peer(), Some(("10.0.0.7".into(), None)));
    a.ping(4711);
    assert_eq!(peer(), Some(("10.0.0.7".into(), Some(4711))));
    let conn = a.conn;
    a.leave();
    assert_eq!(world.inner().store.peer(conn), None);
}

#[test]
fn keys_outlive_the_connection_that_set_them() {
    let world = World::new();
    let [a, b] = world.clients();
    a.set("/done_3", "1");
    a.leave();
    assert_eq!(b.get("/done_3"), "1");
}

#[test]
fn a_connection_that_is_gone_is_gone_once() {
    let world = World::new();
    let a = world.client();
    let conn = a.conn;
    a.leave();
    // The next client takes its place in the table.
    let b = world.client();
    assert_eq!((b.conn.slot(), b.conn == conn), (conn.slot(), false));
    let mut inner = world.inner();
    let now = inner.now;
    inner.store.disconnect(conn, now, &mut super::Recorder::default());
    assert_eq!(inner.store.stats().connections, 1);
    assert!(inner.store.peer(b.conn).is_some());
}
