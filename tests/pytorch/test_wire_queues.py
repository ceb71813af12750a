"""Hand-made requests against both servers: who is woken when queues have waiters, and what lets a barrier go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from differences import expected
from servers import StoreServer, poll
from wire import CANCELLED, WOKEN, WireClient

Connect = Callable[..., WireClient]


def test_pushes_wake_in_the_order_of_the_waits(store_server: StoreServer, connect: Connect) -> None:
    waiters, producer = [connect() for _ in range(4)], connect()
    for waiter in waiters:
        waiter.park(b"/queue")
    for number, waiter in enumerate(waiters):
        producer.push(b"/queue", str(number).encode())
        assert waiter.receive(1) == WOKEN
        assert all(other.fence() == b"" for other in waiters[number + 1 :])
        assert waiter.pop(b"/queue") == str(number).encode()


@pytest.mark.parametrize("how", ["cancels", "leaves"])
def test_push_skips_a_waiter_that_is_gone(store_server: StoreServer, connect: Connect, how: str) -> None:
    first, second, producer = connect(), connect(), connect()
    first.park(b"/queue")
    second.park(b"/queue")
    if how == "cancels":
        assert first.cancel() == CANCELLED
    else:
        first.close()
        producer.settle()
    producer.push(b"/queue", b"item")
    assert second.receive(1) == WOKEN
    assert second.pop(b"/queue") == b"item"
    assert second.pop(b"/queue") is None


def test_plain_key_of_the_same_name_wakes(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/name")
    writer.set(b"/name", b"")
    assert waiter.fence() == WOKEN


def test_plain_key_completes_a_wait_with_a_non_empty_queue(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    writer.push(b"/queue", b"item")
    waiter.park(b"/plain", b"/queue")
    writer.set(b"/plain", b"")
    assert writer.check(b"/plain", b"/queue")
    assert waiter.fence() == expected("plain key completes a wait with a non-empty queue", store_server.kind)


def test_two_pushes_are_not_two_keys(store_server: StoreServer, connect: Connect) -> None:
    waiter, writer = connect(), connect()
    waiter.park(b"/plain", b"/queue")
    writer.push(b"/queue", b"one")
    writer.push(b"/queue", b"two")
    assert not writer.check(b"/plain", b"/queue")
    assert waiter.fence() == expected("two pushes count as two keys", store_server.kind)


def test_push_after_a_woken_waiter_moved_on(store_server: StoreServer, connect: Connect) -> None:
    moved_on, waiting, producer = connect(), connect(), connect()
    moved_on.park(b"/queue")
    producer.push(b"/queue", b"one")
    assert moved_on.receive(1) == WOKEN
    assert moved_on.pop(b"/queue") == b"one"
    moved_on.park(b"/unrelated")
    waiting.park(b"/queue")
    producer.push(b"/queue", b"two")
    assert moved_on.fence() == expected("push wakes a client that waits for something else", store_server.kind)
    assert waiting.fence() == expected("push reaches the next waiter", store_server.kind)


def test_item_of_a_woken_client_that_left(store_server: StoreServer, connect: Connect) -> None:
    first, second, producer = connect(), connect(), connect()
    first.park(b"/queue")
    second.park(b"/queue")
    producer.push(b"/queue", b"item")
    assert first.receive(1) == WOKEN
    first.close()
    if expected("item of a woken client that left", store_server.kind) == WOKEN:
        assert second.receive(1) == WOKEN  # whenever the server has seen that the first one left
        assert second.pop(b"/queue") == b"item"
    else:
        assert second.settle() == b""
        assert second.check(b"/queue")


@pytest.mark.parametrize("what", ["writes", "waits for another key", "cancels"])
def test_item_of_a_woken_client_that_does_something_else(
    store_server: StoreServer, connect: Connect, what: str
) -> None:
    first, second, producer = connect(), connect(), connect()
    first.park(b"/queue")
    second.park(b"/queue")
    producer.push(b"/queue", b"item")
    assert first.receive(1) == WOKEN
    if what == "writes":
        first.set(b"/else", b"")
    elif what == "cancels":
        assert first.cancel() == CANCELLED
    else:
        first.park(b"/else")
    assert second.fence() == expected("item of a woken client that does something else", store_server.kind)
    assert producer.check(b"/queue")


def test_push_passes_a_waiter_with_another_key_missing(store_server: StoreServer, connect: Connect) -> None:
    first, second, producer = connect(), connect(), connect()
    first.park(b"/missing", b"/queue")
    second.park(b"/queue")
    producer.push(b"/queue", b"item")
    assert first.fence() == b""
    assert second.fence() == WOKEN
    assert second.pop(b"/queue") == b"item"


def test_popped_empty_queue_is_no_longer_there(store_server: StoreServer, connect: Connect) -> None:
    client, producer = connect(), connect()
    producer.push(b"/queue", b"item")
    assert client.check(b"/queue")
    assert client.pop(b"/queue") == b"item"
    assert not client.check(b"/queue")
    client.park(b"/queue")


@pytest.mark.parametrize("write", ["set", "add"])
def test_write_to_the_key_of_a_barrier(store_server: StoreServer, connect: Connect, write: str) -> None:
    arrived, writer = connect(), connect()
    arrived.arrive(b"/barrier", 3)
    assert arrived.fence() == b""
    if write == "set":
        writer.set(b"/barrier", b"1")
    else:
        writer.add(b"/barrier", 0)
    assert arrived.fence() == expected(f"{write} on a barrier's key", store_server.kind)


def test_arrival_that_is_cancelled(store_server: StoreServer, connect: Connect) -> None:
    first, second = connect(), connect()
    first.arrive(b"/barrier", 3)
    assert first.fence() == b""
    assert first.cancel() == CANCELLED
    second.arrive(b"/barrier", 3)
    assert second.fence() == b""
    assert second.get(b"/barrier") == expected("cancelled arrival", store_server.kind)


def test_arrival_of_a_client_that_left(store_server: StoreServer, connect: Connect) -> None:
    first, second = connect(), connect()
    first.arrive(b"/barrier", 3)
    assert first.fence() == b""
    first.close()
    count = expected("arrival of a client that left", store_server.kind)
    if count == b"1":
        poll(lambda: second.get(b"/barrier") == b"0", "the arrival is withdrawn")
    else:
        assert second.settle() == b""
    second.arrive(b"/barrier", 3)
    assert second.fence() == b""
    assert second.get(b"/barrier") == count


def test_wait_for_the_key_of_a_barrier(store_server: StoreServer, connect: Connect) -> None:
    waiter, first, second = connect(), connect(), connect()
    waiter.park(b"/barrier")
    first.arrive(b"/barrier", 2)
    assert first.fence() == b""
    assert first.check(b"/barrier")
    at_first = expected("wait for a barrier's key", store_server.kind)
    assert waiter.fence() == at_first
    second.arrive(b"/barrier", 2)
    assert second.receive(1) == WOKEN
    assert first.receive(1) == WOKEN
    assert waiter.fence() == (b"" if at_first else WOKEN)


def test_key_deleted_between_arrivals(store_server: StoreServer, connect: Connect) -> None:
    """The count starts again; who was there before is let go with the others."""
    first, second, third = connect(), connect(), connect()
    first.arrive(b"/barrier", 2)
    assert first.fence() == b""
    assert third.delete(b"/barrier") == 1
    second.arrive(b"/barrier", 2)
    assert second.fence() == b""
    third.arrive(b"/barrier", 2)
    assert [client.receive(1) for client in (third, second, first)] == [WOKEN] * 3
    assert third.get(b"/barrier") == b"2"


def test_different_world_sizes(store_server: StoreServer, connect: Connect) -> None:
    """The call whose world size is reached lets everybody go."""
    first, second = connect(), connect()
    first.arrive(b"/barrier", 3)
    assert first.fence() == b""
    second.arrive(b"/barrier", 2)
    assert second.receive(1) == WOKEN
    assert first.receive(1) == WOKEN


def test_arrival_at_a_key_that_is_no_number(store_server: StoreServer, connect: Connect) -> None:
    client, other = connect(), connect()
    other.set(b"/barrier", b"text")
    client.arrive(b"/barrier", 2)
    assert client.is_closed()
    assert other.get(b"/barrier") == b"text"
