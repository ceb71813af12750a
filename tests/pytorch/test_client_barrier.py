"""Torch clients (2.12 and later): barriers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from differences import expected
from servers import CLIENT_TIMEOUT, StoreServer

pytestmark = pytest.mark.requires("barrier")
RESULT_SECONDS = CLIENT_TIMEOUT.total_seconds() + 5
SHORT = timedelta(milliseconds=100)


@pytest.mark.parametrize("world_size", [2, 8])
def test_barrier_lets_go_when_all_are_there(store_server: StoreServer, world_size: int) -> None:
    stores = store_server.clients(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        waiting = [pool.submit(store.barrier, "barrier", world_size, CLIENT_TIMEOUT) for store in stores[1:]]
        store_server.await_parked(world_size - 1)
        assert not any(wait.done() for wait in waiting)
        stores[0].barrier("barrier", world_size, CLIENT_TIMEOUT)
        for wait in waiting:
            wait.result(RESULT_SECONDS)
    assert stores[0].get("barrier") == str(world_size).encode()


@pytest.mark.parametrize("world_size", [-1, 0, 1])
def test_barrier_for_one_returns_at_once(store_server: StoreServer, world_size: int) -> None:
    store = store_server.client()
    store.barrier("barrier", world_size, CLIENT_TIMEOUT)
    assert store.get("barrier") == b"1"


def test_barrier_of_the_same_name_is_over_for_ever(store_server: StoreServer) -> None:
    """A name is used once: later arrivals pass, and are counted on."""
    stores = store_server.clients(2)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(stores[1].barrier, "barrier", 2, CLIENT_TIMEOUT)
        stores[0].barrier("barrier", 2, CLIENT_TIMEOUT)
        other.result(RESULT_SECONDS)
    stores[0].barrier("barrier", 2, CLIENT_TIMEOUT)
    assert stores[0].get("barrier") == b"3"


def test_timed_out_arrival_is_not_counted(store_server: StoreServer) -> None:
    """One client that arrives at a barrier for two, gives up, and tries again, is alone all the same."""
    store = store_server.client()
    with pytest.raises(dist.DistStoreError):
        store.barrier("barrier", 2, SHORT)
    try:
        store.barrier("barrier", 2, SHORT)
        outcome = "let through"
    except dist.DistStoreError:
        outcome = "timed out"
    assert outcome == expected("a retried arrival", store_server.kind)
    assert store.add("counter", 7) == 7


def test_retry_after_a_time_out_meets_the_other(store_server: StoreServer) -> None:
    first, second = store_server.clients(2)
    with pytest.raises(dist.DistStoreError):
        first.barrier("barrier", 2, SHORT)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(first.barrier, "barrier", 2, CLIENT_TIMEOUT)
        second.barrier("barrier", 2, CLIENT_TIMEOUT)
        again.result(RESULT_SECONDS)
    assert first.get("barrier") == expected("count after a retry", store_server.kind)
