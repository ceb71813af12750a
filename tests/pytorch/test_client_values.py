"""Torch clients against both servers: the calls that read and write, one after the other, and what they give."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from servers import StoreServer

MIB = 1024 * 1024
BINARY = bytes(range(256))


def test_set_then_get(store_server: StoreServer) -> None:
    store = store_server.client()
    store.set("key", "first")
    store.set("key", "second")
    assert store.get("key") == b"second"
    assert store_server.client().get("key") == b"second"


@pytest.mark.parametrize(
    "value", [b"", b"\0", BINARY, b"\xff\xfe\0", BINARY * 4096], ids=["empty", "nul", "binary", "not-utf-8", "1MiB"]
)
def test_value_comes_back_unchanged(store_server: StoreServer, value: bytes) -> None:
    store = store_server.client()
    store.set("key", value)
    assert store.get("key") == value


@pytest.mark.parametrize(
    "key", ["", "/", "\0", "a\0b", b"\xff\0\xfe", "ключ", " ", "k" * 8191], ids=lambda key: repr(key[:8])
)
def test_any_bytes_are_a_key(store_server: StoreServer, key: str | bytes) -> None:
    store = store_server.client()
    store.set(key, "value")
    assert store.get(key) == b"value"
    assert store.num_keys() == 1
    assert store.add("other", 1) == 1
    assert store.delete_key(key) is True
    assert store.num_keys() == 1


def test_keys_with_a_nul_differ_after_it(store_server: StoreServer) -> None:
    store = store_server.client()
    store.set("a\0b", "1")
    store.set("a\0c", "2")
    store.set("a", "3")
    assert [store.get(key) for key in ("a\0b", "a\0c", "a")] == [b"1", b"2", b"3"]


def test_value_of_8_mib_is_the_largest(store_server: StoreServer) -> None:
    store, other = store_server.clients(2)
    largest = BINARY * (8 * MIB // 256)
    store.set("key", largest)
    assert other.get("key") == largest
    with pytest.raises(RuntimeError):
        store.set("key", largest + b"!")
        store.num_keys()  # set has no reply: the closed connection shows with the next call
    assert other.get("key") == largest


def test_key_beyond_the_limit_ends_only_its_connection(store_server: StoreServer) -> None:
    store, other = store_server.clients(2)
    with pytest.raises(RuntimeError):
        store.set("k" * 8192, "value")  # with the client's leading slash: 8193
        store.num_keys()
    other.set("key", "value")
    assert other.num_keys() == 1


def test_add_counts_in_text(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.add("counter", 5) == 5
    assert store.add("counter", -7) == -2
    assert store.get("counter") == b"-2"
    assert store.add("created", 0) == 0
    assert store.get("created") == b"0"
    store.set("text", "41")
    assert store.add("text", 1) == 42


@pytest.mark.parametrize(
    ("text", "delta", "sum"),
    [
        (b"12abc", 1, 13),
        (b"1.5", 1, 2),
        (b"0x10", 1, 1),
        (b" 7", 1, 8),
        (b"+5", 1, 6),
        (b"007", 1, 8),
        (b"5\0", 1, 6),
        (b"9223372036854775807", 1, -(2**63)),
        (b"-9223372036854775808", -1, 2**63 - 1),
    ],
)
def test_add_reads_the_leading_integer_and_wraps(store_server: StoreServer, text: bytes, delta: int, sum: int) -> None:
    store = store_server.client()
    store.set("counter", text)
    assert store.add("counter", delta) == sum
    assert store.get("counter") == str(sum).encode()


@pytest.mark.parametrize("text", [b"abc", b"", b"-", b"\x0012", b"9223372036854775808"])
def test_add_to_no_number_ends_the_connection_and_keeps_the_value(store_server: StoreServer, text: bytes) -> None:
    store, other = store_server.clients(2)
    store.set("counter", text)
    with pytest.raises(RuntimeError):
        store.add("counter", 1)
    assert other.get("counter") == text


def test_compare_set(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.compare_set("key", "expected", "new") == b"expected"  # missing, and stays so, whatever the answer says
    assert store.num_keys() == 0
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "other", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"


def test_compare_set_with_empty_values(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.compare_set("key", "", "") == b""
    assert store.num_keys() == 1
    assert store.compare_set("key", "", "new") == b"new"
    assert store.compare_set("key", "", "newer") == b"new"


@pytest.mark.requires("check")
def test_check_tells_whether_all_keys_exist(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.check([]) is True
    assert store.check(["one"]) is False
    store.set("one", "")
    assert store.check(["one"]) is True
    assert store.check(["one", "two"]) is False
    store.set("two", "2")
    assert store.check(["two", "one", "one"]) is True


def test_delete_and_num_keys(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.num_keys() == 0
    store.set("one", "1")
    store.add("two", 2)
    assert store.num_keys() == 2
    assert store.delete_key("one") is True
    assert store.delete_key("one") is False
    assert store.num_keys() == 1
    assert store.compare_set("one", "", "again") == b"again"


@pytest.mark.requires("append")
def test_append(store_server: StoreServer) -> None:
    store = store_server.client()
    store.append("key", "one")
    store.append("key", b"\0")
    store.append("key", "")
    assert store.get("key") == b"one\0"
    assert store.num_keys() == 1


@pytest.mark.requires("append")
def test_append_may_pass_the_limit_of_one_value(store_server: StoreServer) -> None:
    store = store_server.client()
    store.set("key", b"x" * (8 * MIB))
    store.append("key", "y")
    assert store.get("key") == b"x" * (8 * MIB) + b"y"


@pytest.mark.requires("multi_get", "multi_set")
def test_multi_set_and_multi_get(store_server: StoreServer) -> None:
    store = store_server.client()
    store.multi_set(["one", "two", "empty"], ["1", "2", ""])
    assert store.multi_get(["empty", "two", "one", "two"]) == [b"", b"2", b"1", b"2"]
    store.multi_set(["one", "one"], ["first", "last"])
    assert store.get("one") == b"last"
    store.multi_set([], [])
    assert store.multi_get([]) == []
    assert store.num_keys() == 3


@pytest.mark.requires("multi_get", "multi_set")
def test_multi_set_of_many_and_large(store_server: StoreServer) -> None:
    store = store_server.client()
    keys = [f"key-{number}" for number in range(2000)]
    store.multi_set(keys, [str(number) * 50 for number in range(2000)])
    assert store.multi_get(keys) == [(str(number) * 50).encode() for number in range(2000)]
    store.multi_set(["large-1", "large-2"], ["x" * MIB, "y" * (2 * MIB)])
    assert store.multi_get(["large-2", "large-1"]) == [b"y" * (2 * MIB), b"x" * MIB]


@pytest.mark.requires("list_keys")
def test_list_keys(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.list_keys() == []
    names = ["", "one", "two/three", "/slash"]
    for name in names:
        store.set(name, "")
    store.queue_push("queue", "item")
    assert sorted(store.list_keys()) == sorted(names)
    store.delete_key("one")
    assert sorted(store.list_keys()) == sorted(set(names) - {"one"})


@pytest.mark.requires("has_extended_api")
def test_has_extended_api(store_server: StoreServer) -> None:
    assert store_server.client().has_extended_api() is True


def test_prefix_store(store_server: StoreServer) -> None:
    store = store_server.client()
    prefixed = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    prefixed.set("key", "value")
    assert store.get("inner/outer/key") == b"value"
    assert prefixed.add("count", 3) == 3
    assert prefixed.compare_set("key", "value", "new") == b"new"
    assert prefixed.num_keys() == 2
    assert prefixed.delete_key("key") is True
    prefixed.wait(["count"])
    assert store.num_keys() == 1


@pytest.mark.requires("append", "multi_set", "check")
def test_prefix_store_extended_api(store_server: StoreServer) -> None:
    store = store_server.client()
    prefixed = dist.PrefixStore("run", store)
    prefixed.append("log", "a")
    prefixed.multi_set(["one", "two"], ["1", "2"])
    assert prefixed.multi_get(["two", "log"]) == [b"2", b"a"]
    assert prefixed.check(["one", "two"]) is True
    assert store.check(["one"]) is False
    assert store.get("run/one") == b"1"
