"""Torch clients (2.8 and later): queues."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta

import pytest
import torch.distributed as dist
from servers import CLIENT_TIMEOUT, Server, StoreServer

pytestmark = pytest.mark.requires("queue_push", "queue_pop", "queue_len")
RESULT_SECONDS = CLIENT_TIMEOUT.total_seconds() + 5
QUEUE_EMPTY = getattr(dist, "QueueEmptyError", RuntimeError)


def test_first_in_first_out(store_server: StoreServer) -> None:
    store, other = store_server.clients(2)
    items = [b"one", b"", b"\0\xff", b"x" * (1024 * 1024), b"one"]
    for item in items:
        store.queue_push("queue", item)
    assert store.queue_len("queue") == len(items)
    assert [other.queue_pop("queue") for _ in items] == items
    assert other.queue_len("queue") == 0


def test_pop_of_an_empty_queue(store_server: StoreServer) -> None:
    store = store_server.client()
    assert store.queue_len("queue") == 0
    with pytest.raises(QUEUE_EMPTY):
        store.queue_pop("queue", block=False)
    store.queue_push("queue", "item")
    assert store.queue_pop("queue", block=False) == b"item"
    with pytest.raises(QUEUE_EMPTY):
        store.queue_pop("queue", False)
    assert store.num_keys() == 0


def test_blocking_pop_waits_for_a_push(store_server: StoreServer) -> None:
    consumer, producer = store_server.clients(2)
    with ThreadPoolExecutor() as pool:
        popping = pool.submit(consumer.queue_pop, "queue")
        store_server.await_parked(1)
        assert not popping.done()
        producer.queue_push("queue", "item")
        assert popping.result(RESULT_SECONDS) == b"item"
    assert producer.queue_len("queue") == 0


def test_each_push_serves_one_of_the_waiting(store_server: StoreServer) -> None:
    consumers, producer = store_server.clients(5), store_server.client()
    with ThreadPoolExecutor(len(consumers)) as pool:
        popping = [pool.submit(consumer.queue_pop, "queue") for consumer in consumers]
        store_server.await_parked(len(consumers))
        taken = set()
        for number in range(len(consumers)):
            producer.queue_push("queue", str(number))
            done = next(as_completed(popping, RESULT_SECONDS))
            popping.remove(done)
            taken.add(done.result())
    assert taken == {str(number).encode() for number in range(len(consumers))}


def test_timed_out_pop_gets_nothing_later(store_server: StoreServer) -> None:
    store, producer = store_server.clients(2)
    store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(dist.DistStoreError):
        store.queue_pop("queue")
    producer.queue_push("queue", "item")
    assert producer.queue_len("queue") == 1
    assert store.add("counter", 7) == 7
    assert store.queue_pop("queue") == b"item"


def test_a_queue_is_no_key(store_server: StoreServer) -> None:
    store = store_server.client()
    store.queue_push("name", "item")
    assert store.check(["name"]) is True  # satisfies check and wait, though
    store.wait(["name"], timedelta(seconds=5))
    assert store.num_keys() == 0
    assert store.delete_key("name") is False
    store.set("name", "value")
    assert store.get("name") == b"value"
    assert store.queue_pop("name") == b"item"
    assert store.num_keys() == 1
    assert store.delete_key("name") is True
    assert store.check(["name"]) is False


def test_push_beyond_8_mib_ends_only_its_connection(store_server: StoreServer) -> None:
    store, other = store_server.clients(2)
    store.queue_push("queue", b"x" * (8 * 1024 * 1024))
    with pytest.raises(RuntimeError):
        store.queue_push("queue", b"x" * (8 * 1024 * 1024 + 1))
        store.queue_len("queue")
    assert other.queue_len("queue") == 1


def test_many_producers_and_consumers(rallypoint: Server) -> None:
    """Every item is taken once. PyTorch's server would lose wake-ups here ("push reaches the next waiter")."""
    producers, consumers, each = 4, 4, 50

    def produce(number: int) -> None:
        store = rallypoint.client()
        for item in range(each):
            store.queue_push("queue", f"{number}:{item}")

    def consume() -> list[bytes]:
        store, items = rallypoint.client(), []
        while len(items) < each:
            try:
                items.append(store.queue_pop("queue"))
            except QUEUE_EMPTY:  # another consumer was faster between this one's wait and its pop
                continue
        return items

    with ThreadPoolExecutor(producers + consumers) as pool:
        consuming = [pool.submit(consume) for _ in range(consumers)]
        producing = [pool.submit(produce, number) for number in range(producers)]
        for done in producing:
            done.result(RESULT_SECONDS)
        taken = [item for done in consuming for item in done.result(RESULT_SECONDS)]
    assert sorted(taken) == sorted(f"{number}:{item}".encode() for number in range(producers) for item in range(each))
    assert rallypoint.client().queue_len("queue") == 0
