"""Torch clients against both servers: calls that block, time-outs, and several clients and threads at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from servers import CLIENT_TIMEOUT, StoreServer
from wire import WireClient

STORE_ERROR = getattr(dist, "DistStoreError", RuntimeError)
"""What a client raises when its time is up (torch 2.0 has no class of its own for it)."""
SHORT = timedelta(milliseconds=100)
RESULT_SECONDS = CLIENT_TIMEOUT.total_seconds() + 5

WRITES = {
    "set": lambda store: store.set("key", "value"),
    "add": lambda store: store.add("key", 1),
    "compare_set": lambda store: store.compare_set("key", "", "value"),
    "append": lambda store: store.append("key", "value"),
    "multi_set": lambda store: store.multi_set(["other", "key"], ["1", "2"]),
    "queue_push": lambda store: store.queue_push("key", "item"),
}


@pytest.mark.parametrize("call", [pytest.param(name, marks=pytest.mark.requires(name)) for name in WRITES])
def test_a_write_wakes_a_parked_wait(store_server: StoreServer, call: str) -> None:
    waiter, writer = store_server.clients(2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.wait, ["key"], CLIENT_TIMEOUT)
        store_server.await_parked(1)
        assert not waiting.done()
        WRITES[call](writer)
        waiting.result(RESULT_SECONDS)


def test_get_waits_for_its_key(store_server: StoreServer) -> None:
    reader, writer = store_server.clients(2)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.get, "key")
        store_server.await_parked(1)
        assert not reading.done()
        writer.set("key", "value")
        assert reading.result(RESULT_SECONDS) == b"value"


@pytest.mark.requires("multi_get")
def test_multi_get_waits_for_all_its_keys(store_server: StoreServer) -> None:
    reader, writer = store_server.clients(2)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.multi_get, ["a", "b", "c"])
        store_server.await_parked(1)
        writer.set("c", "3")
        writer.set("a", "1")
        store_server.await_parked(1)
        assert not reading.done()
        writer.set("b", "2")
        assert reading.result(RESULT_SECONDS) == [b"1", b"2", b"3"]


def test_wait_needs_all_keys(store_server: StoreServer) -> None:
    waiter, writer = store_server.clients(2)
    writer.set("a", "")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.wait, ["a", "b", "b", "c"], CLIENT_TIMEOUT)
        store_server.await_parked(1)
        writer.set("b", "")
        writer.set("b", "again")
        store_server.await_parked(1)
        assert not waiting.done()
        writer.set("c", "")
        waiting.result(RESULT_SECONDS)


def test_wait_for_what_is_there_returns(store_server: StoreServer) -> None:
    store = store_server.client()
    store.set("a", "")
    store.wait(["a"], SHORT)
    store.wait(["a", "a"], SHORT)
    store.wait([], SHORT)
    assert store.num_keys() == 1


def test_one_write_wakes_every_waiter(store_server: StoreServer) -> None:
    waiters = store_server.clients(20)
    with ThreadPoolExecutor(len(waiters)) as pool:
        waiting = [pool.submit(waiter.get, "key") for waiter in waiters]
        store_server.await_parked(len(waiters))
        store_server.client().set("key", "value")
        assert [wait.result(RESULT_SECONDS) for wait in waiting] == [b"value"] * len(waiters)


BLOCKING = {
    "wait": lambda store: store.wait(["absent"]),
    "get": lambda store: store.get("absent"),
    "multi_get": lambda store: store.multi_get(["present", "absent"]),
    "queue_pop": lambda store: store.queue_pop("absent"),
    "barrier": lambda store: store.barrier("absent", 2),
}


@pytest.mark.parametrize("call", [pytest.param(name, marks=pytest.mark.requires(name)) for name in BLOCKING])
def test_time_out_leaves_the_connection_usable(store_server: StoreServer, call: str) -> None:
    store = store_server.client()
    store.set("present", "value")
    store.set_timeout(SHORT)
    for attempt in range(3):
        if call != "barrier" or attempt == 0:  # a second arrival alone: see test_client_barrier.py
            before = time.monotonic()
            with pytest.raises(STORE_ERROR, match=r"(?i)time"):
                BLOCKING[call](store)
            assert time.monotonic() - before >= SHORT.total_seconds() * 0.9
        store.set_timeout(CLIENT_TIMEOUT)
        assert store.add("counter", 7) == 7 * (attempt + 1)
        assert store.get("present") == b"value"
        store.set_timeout(SHORT)


@pytest.mark.requires(
    "append"
)  # as the mark of 2.1: the 2.0 client cannot cancel, so a late wake-up shifts its replies
def test_no_wake_up_comes_after_a_time_out(store_server: StoreServer) -> None:
    waiter, writer = store_server.clients(2)
    for turn in range(20):
        with pytest.raises(STORE_ERROR):
            waiter.wait([f"late-{turn}"], timedelta(milliseconds=10))
        writer.set(f"late-{turn}", "value")
        assert waiter.add("counter", 7) == 7 * (turn + 1)
        assert waiter.get(f"late-{turn}") == b"value"


@pytest.mark.requires("append")  # as above
def test_time_out_that_races_the_write(store_server: StoreServer) -> None:
    """Whichever comes first, the replies after it are in step."""
    waiter, writer = store_server.clients(2)
    outcomes = set()
    with ThreadPoolExecutor() as pool:
        for turn in range(60):
            waiting = pool.submit(waiter.wait, [f"key-{turn}"], timedelta(milliseconds=3))
            time.sleep(turn % 6 / 1000)
            writer.set(f"key-{turn}", "value")
            outcomes.add("time-out" if waiting.exception(RESULT_SECONDS) else "woken")
            assert waiter.add("counter", 1) == turn + 1
    assert "woken" in outcomes


def test_a_waiter_that_goes_away_disturbs_nobody(store_server: StoreServer) -> None:
    waiter, writer = store_server.clients(2)
    with WireClient(store_server.host, store_server.port) as leaving, ThreadPoolExecutor() as pool:
        leaving.park(b"/key")
        reading = pool.submit(waiter.get, "key")
        store_server.await_parked(2)
        leaving.close()
        writer.set("key", "value")
        assert reading.result(RESULT_SECONDS) == b"value"
    assert writer.num_keys() == 1


def test_threads_share_one_client(store_server: StoreServer) -> None:
    store = store_server.client()

    def work(thread: int) -> None:
        for turn in range(50):
            store.add("total", 1)
            store.set(f"key-{thread}", f"{thread}:{turn}")
            assert store.get(f"key-{thread}") == f"{thread}:{turn}".encode()

    in_threads(work, 16)
    assert store.add("total", 0) == 16 * 50
    assert store.num_keys() == 17


def test_threads_with_their_own_clients(store_server: StoreServer) -> None:
    stores = store_server.clients(16)

    def work(thread: int) -> None:
        """A ring: each thread waits for its left neighbour's key of the turn before."""
        for turn in range(30):
            stores[thread].set(f"{turn}/{thread}", str(thread))
            left = (thread - 1) % len(stores)
            assert stores[thread].get(f"{turn}/{left}") == str(left).encode()
            stores[thread].add("total", 1)

    in_threads(work, len(stores))
    assert stores[0].add("total", 0) == len(stores) * 30


def test_many_clients(store_server: StoreServer) -> None:
    stores = store_server.clients(200)
    for number, store in enumerate(stores):
        assert store.add("clients", 1) == number + 1
    assert stores[0].get("clients") == b"200"
    del stores[1:]
    assert stores[0].add("clients", 1) == 201


@pytest.mark.requires("clone")
def test_clone_is_a_connection_of_its_own(store_server: StoreServer) -> None:
    store = store_server.client()
    twin = store.clone()
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(store.get, "key")
        store_server.await_parked(1)
        twin.set("key", "from the clone")  # would hang if it shared the connection, whose client is blocked
        assert reading.result(RESULT_SECONDS) == b"from the clone"
    del store
    assert twin.clone().get("key") == b"from the clone"


def test_workers_are_counted_in_init(store_server: StoreServer) -> None:
    """Each worker with a world size adds itself to `init/`; only a master waits there for the others."""
    workers = [store_server.client(world_size=3, wait_for_workers=True) for _ in range(3)]
    with WireClient(store_server.host, store_server.port) as observer:
        assert observer.get(b"init/") == b"3"
    assert workers[0].num_keys() == 1
    workers[1].set("key", "value")
    assert workers[2].get("key") == b"value"


def test_set_timeout_applies_to_later_calls(store_server: StoreServer) -> None:
    store = store_server.client()
    store.set_timeout(timedelta(milliseconds=300))
    before = time.monotonic()
    with pytest.raises(STORE_ERROR):
        store.get("absent")
    assert 0.25 <= time.monotonic() - before < 10


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Runs `work(0)` to `work(count - 1)` at once, all starting together; raises what they raise."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(run, number) for number in range(count)]:
            done.result(100)
