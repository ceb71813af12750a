"""Hand-made requests against both servers: who wakes a wait, and what a connection may start with."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from differences import expected
from servers import StoreServer
from wire import CANCELLED, HELLO, WOKEN, WireClient, blob, keys_request

Connect = Callable[..., WireClient]


def test_creating_compare_set_wakes(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/key")
    writer.compare_set(b"/key", b"", b"")
    assert waiter.receive(1) == WOKEN
    assert waiter.fence() == b""


def test_failed_compare_set_on_a_missing_key(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/key")
    assert writer.compare_set(b"/key", b"expected", b"new") == b"expected"
    assert waiter.fence() == expected("failed compare_set on a missing key", store_server.kind)


def test_key_deleted_while_waiting_for_another(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/one", b"/two")
    writer.set(b"/one", b"")
    assert writer.delete(b"/one") == 1
    writer.set(b"/two", b"")
    woken = expected("key deleted while waiting for another", store_server.kind)
    assert waiter.fence() == woken
    writer.set(b"/one", b"")
    assert waiter.fence() == (b"" if woken else WOKEN)


def test_present_key_deleted_while_waiting_for_another(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    writer.set(b"/one", b"")
    waiter.park(b"/one", b"/two")
    assert writer.delete(b"/one") == 1
    writer.set(b"/two", b"")
    woken = expected("present key deleted while waiting for another", store_server.kind)
    assert waiter.fence() == woken
    writer.set(b"/one", b"")
    assert waiter.fence() == (b"" if woken else WOKEN)


def test_each_wait_is_answered_once(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/key", b"/key")
    writer.set(b"/key", b"1")
    writer.set(b"/key", b"2")
    writer.add(b"/key", 1)
    assert waiter.fence() == WOKEN


def test_two_writes_of_one_key_are_not_two_keys(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/one", b"/two")
    writer.set(b"/one", b"1")
    writer.set(b"/one", b"2")
    assert waiter.fence() == b""
    writer.set(b"/two", b"")
    assert waiter.fence() == WOKEN


def test_cancel_is_answered_once(store_server: StoreServer, connect: Connect) -> None:
    waiter, other, writer = connect(), connect(), connect()
    assert waiter.cancel() == CANCELLED  # nothing to cancel
    waiter.park(b"/key")
    other.park(b"/key")
    assert waiter.cancel() == CANCELLED
    writer.set(b"/key", b"")
    assert waiter.fence() == b""
    assert other.fence() == WOKEN
    assert waiter.get(b"/key") == b""


def test_cancel_after_the_wake_up(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/key")
    writer.set(b"/key", b"")
    assert waiter.cancel() == WOKEN + CANCELLED
    assert waiter.fence() == b""


def test_get_of_a_missing_key_is_empty(store_server: StoreServer, connect: Connect) -> None:
    """It happens to real clients when a delete comes between their wait and their get."""
    client = connect()
    assert client.get(b"/missing") == b""
    client.send(keys_request(10, b"/missing", b"/missing"))
    assert client.receive(16) == bytes(16)
    assert client.add(b"/counter", 1) == 1


def test_half_a_request_stops_nobody_else(store_server: StoreServer, connect: Connect) -> None:
    slow, other = connect(), connect()
    whole = bytes([1]) + blob(b"/key") + blob(b"value")
    slow.send(whole[:-3])
    other.set(b"/other", b"1")
    assert not other.check(b"/key")
    slow.send(whole[-3:])
    assert slow.get(b"/key") == b"value"
    assert other.get(b"/key") == b"value"


def test_requests_in_one_segment_are_answered_in_order(store_server: StoreServer, connect: Connect) -> None:
    client = connect(b"")
    add = bytes([4]) + blob(b"/counter") + (1).to_bytes(8, "little")
    client.send(HELLO + add * 1000)
    assert [client.receive_integer() for _ in range(1000)] == list(range(1, 1001))


@pytest.mark.parametrize("cut", range(1, len(HELLO)))
def test_split_hello(store_server: StoreServer, connect: Connect, cut: int) -> None:
    client = connect(HELLO[:cut])
    connect().settle()
    time.sleep(0.05)  # nothing shows that a server of many threads has read the first part
    client.send(HELLO[cut:])
    if expected("split hello", store_server.kind) == "accepted":
        client.set(b"/key", b"value")
        assert client.get(b"/key") == b"value"
    else:
        assert client.is_closed()


def test_foreign_first_request(store_server: StoreServer, connect: Connect) -> None:
    """A web browser, say. Whatever becomes of its connection, it changes nothing and disturbs nobody."""
    stranger, client = connect(b""), connect()
    stranger.send(b"GET / HTTP/1.1\r\nHost: rallypoint\r\n\r\n")
    if expected("foreign first request", store_server.kind) == "closed":
        assert stranger.is_closed()
    else:
        assert client.settle() == b""
        assert not has_ended(stranger)
        stranger.send(b"\r\n")
        assert stranger.is_closed()
    client.set(b"/key", b"value")
    assert client.get(b"/key") == b"value"


def test_wrong_magic(store_server: StoreServer, connect: Connect) -> None:
    stranger, client = connect(bytes.fromhex("00deadbeef")), connect()
    if expected("wrong magic", store_server.kind) == "closed":
        assert stranger.is_closed()
    else:
        assert client.settle() == b""
        assert not has_ended(stranger)
        stranger.send(b"\0")
        assert stranger.is_closed()
    assert client.add(b"/counter", 1) == 1


@pytest.mark.parametrize(
    "request_bytes", [b"\x13", b"\xff", HELLO, b"\x01" + b"\xff" * 8, b"\x06" + (131073).to_bytes(8, "little")]
)
def test_invalid_request_ends_only_its_connection(
    store_server: StoreServer, connect: Connect, request_bytes: bytes
) -> None:
    client, other = connect(), connect()
    client.set(b"/before", b"")
    client.send(request_bytes)
    assert client.is_closed()
    assert other.get(b"/before") == b""


def has_ended(client: WireClient) -> bool:
    """Whether the server has closed this connection (without waiting for it)."""
    client.socket.settimeout(0.05)
    try:
        return client.socket.recv(1) == b""
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(10)
