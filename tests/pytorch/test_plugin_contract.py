"""What torch's agent relies on of a rendezvous handler: the same tests for torch's c10d backend and for ours.

Handlers are made as torchrun makes them, by name from the registry, and used from threads as agents use them from processes. Both
meet on a rallypoint server: c10d on its store, ours on its admin port.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from installed import admin_endpoint  # (puts the package on the path, before torch looks for plugins)
from rallypoint._http import Client
from servers import Server, poll
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

pytest_plugins = ["plugin_fixtures"]

QUICK = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3", "join_timeout": "60", "timeout": 900}
TRANSLATED = {"rallypoint": {}, "c10d": {"is_host": "0"}}


class Handlers:
    """Makes handlers of one run, and shuts them down with the test."""

    def __init__(self, backend: str, server: Server) -> None:
        self.backend, self.server = backend, server
        self.made: list[RendezvousHandler] = []
        self.pool = ThreadPoolExecutor(8)

    def new(self, nodes: tuple[int, int] = (2, 2), run_id: str = "run", endpoint: str = "", **config: Any) -> RendezvousHandler:
        place = endpoint or (admin_endpoint(self.server) if self.backend == "rallypoint" else self.server.endpoint)
        conf = QUICK | TRANSLATED[self.backend] | config
        handler = get_rendezvous_handler(RendezvousParameters(self.backend, place, run_id, *nodes, local_addr="127.0.0.1", **conf))
        self.made.append(handler)
        return handler

    def join(self, *handlers: RendezvousHandler) -> list[Future[RendezvousInfo]]:
        return [self.pool.submit(handler.next_rendezvous) for handler in handlers]

    def together(self, *handlers: RendezvousHandler) -> list[RendezvousInfo]:
        return [joined.result(60) for joined in self.join(*handlers)]


@pytest.fixture(params=["c10d", "rallypoint"])
def handlers(request: pytest.FixtureRequest, meeting: Server) -> Iterator[Handlers]:
    made = Handlers(request.param, meeting)
    yield made
    for handler in made.made:
        handler.shutdown()
    made.pool.shutdown()


@pytest.fixture
def ours(meeting: Server) -> Iterator[Handlers]:
    made = Handlers("rallypoint", meeting)
    yield made
    for handler in made.made:
        handler.shutdown()
    made.pool.shutdown()


def test_names(handlers: Handlers) -> None:
    handler = handlers.new(run_id="some run/with ü")
    assert handler.get_backend() == handlers.backend
    assert handler.get_run_id() == "some run/with ü"
    assert isinstance(handler, RendezvousHandler)


def test_ranks_world_and_a_store_that_all_share(handlers: Handlers) -> None:
    infos = handlers.together(handlers.new(), handlers.new())
    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert len({(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}) == 1


def test_the_bootstrap_store_answers(handlers: Handlers) -> None:
    """Workers find a store at MASTER_ADDR:MASTER_PORT, and all of them are its clients."""
    first, second = handlers.new(), handlers.new()
    info = handlers.together(first, second)[0].bootstrap_store_info
    assert first.use_agent_store
    clients = [dist.TCPStore(info.master_addr, info.master_port, is_master=False, timeout=timedelta(seconds=10)) for _ in range(2)]
    clients[0].set("from", "worker 0")
    assert clients[1].get("from") == b"worker 0"


def test_a_second_round_does_not_see_the_first_ones_keys(handlers: Handlers) -> None:
    both = handlers.new(), handlers.new()
    first = handlers.together(*both)
    first[0].store.set("key", "old")
    second = handlers.together(*both)
    assert second[0].store.check(["key"]) is False
    assert [info.rank for info in second] == [info.rank for info in first], "nodes keep their ranks"


def test_nobody_waits_in_a_settled_round(handlers: Handlers) -> None:
    both = handlers.new(), handlers.new()
    handlers.together(*both)
    time.sleep(1)  # a moment in which nothing must change
    assert [handler.num_nodes_waiting() for handler in both] == [0, 0]
    assert not any(handler.is_closed() for handler in both)


def test_a_late_node_is_counted_and_taken_in(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it c10d's nodes wait for each other for ever here, as the next test shows. Ours do not look at it.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    a, b, late = (handlers.new((2, 3)) for _ in range(3))
    handlers.together(a, b)
    joined = handlers.join(late)
    poll(lambda: a.num_nodes_waiting() == 1 and b.num_nodes_waiting() == 1, "both see the late node", 20)
    infos = [*handlers.together(a, b), joined[0].result(60)]
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}


@pytest.mark.skipif(not torch.__version__.startswith("2.15."), reason="a defect of PyTorch 2.15; other releases may have it")
def test_c10d_does_not_take_in_a_late_node(meeting: Server) -> None:
    """What the plugin is for: rank 0 keeps its cached address and never publishes it in the new round's store."""
    c10d = Handlers("c10d", meeting)
    a, b, late = (c10d.new((2, 3), read_timeout="3") for _ in range(3))
    c10d.together(a, b)
    joined = c10d.join(late)
    poll(lambda: a.num_nodes_waiting() == 1, "the late node is seen", 20)
    again = c10d.join(a, b)
    with pytest.raises(RuntimeError, match="MASTER_ADDR"):
        joined[0].result(60)
    assert [future.result(60).world_size for future in again] == [3, 3], "the others believe that all is well"
    for handler in (a, b, late):
        handler.shutdown()


def test_a_closed_run_is_seen_by_all_and_joined_by_nobody(handlers: Handlers) -> None:
    a, b = handlers.new(), handlers.new()
    handlers.together(a, b)
    a.set_closed()
    assert a.is_closed()
    poll(b.is_closed, "b sees it", 20)
    assert b.num_nodes_waiting() == 0, "who trains may finish"
    for handler in (b, handlers.new()):
        with pytest.raises(RendezvousClosedError):
            handler.next_rendezvous()


def test_shutdown_closes(handlers: Handlers) -> None:
    a, b = handlers.new(), handlers.new()
    handlers.together(a, b)
    assert a.shutdown() is True
    poll(b.is_closed, "b sees it", 20)
    assert b.shutdown() is True


def test_waiting_ends_when_the_run_is_closed(handlers: Handlers) -> None:
    a, b, c = handlers.new((1, 2)), handlers.new((1, 2)), handlers.new((1, 2))
    handlers.together(a, b)
    standby = handlers.join(c)
    # Earlier it would be refused instead.
    poll(lambda: handlers.server.get_json("/api/v1/runs/run")["nodes"]["redundant"] == 1, "the third stands by", 20)
    a.set_closed()
    with pytest.raises(RendezvousGracefulExitError):
        standby[0].result(60)


def test_too_few_nodes_time_out(handlers: Handlers) -> None:
    with pytest.raises(RendezvousTimeoutError):
        handlers.new(join_timeout="2").next_rendezvous()


def test_two_runs_do_not_meet(handlers: Handlers) -> None:
    pairs = [(handlers.new(run_id=run), handlers.new(run_id=run)) for run in ("one", "two")]
    infos = handlers.together(*pairs[0], *pairs[1])
    assert [sorted(info.rank for info in infos[at : at + 2]) for at in (0, 2)] == [[0, 1], [0, 1]]
    infos[0].store.set("key", "one")
    assert infos[2].store.check(["key"]) is False


# What only ours does.


def test_looking_sends_nothing(ours: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's agent calls these two up to ten times a second for as long as it trains."""
    handler = ours.new((1, 1))
    ours.together(handler)
    sent: list[str] = []
    post = Client.post

    def counted(self: Client, path: str, *args: Any, **kwargs: Any) -> Any:
        sent.append(path)
        return post(self, path, *args, **kwargs)

    time.sleep(0.5)  # until the keep-alive's request is out
    monkeypatch.setattr(Client, "post", counted)
    for _ in range(1000):
        handler.num_nodes_waiting()
        handler.is_closed()
    assert len(sent) <= 1, "at most the keep-alive's own"


def test_the_workers_store_is_the_rounds_own(ours: Handlers) -> None:
    both = ours.new(), ours.new()
    first = ours.together(*both)[0].bootstrap_store_info
    second = ours.together(*both)[0].bootstrap_store_info
    assert first.master_port != second.master_port
    assert str(ours.server.port) not in (str(first.master_port), str(second.master_port))
    with pytest.raises(RuntimeError):  # the fence: the last round's store is gone, and its clients with it
        dist.TCPStore(first.master_addr, first.master_port, is_master=False, timeout=timedelta(seconds=1))


def test_processes_that_save_checkpoints_meet_in_the_rounds_store(ours: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "DCP_USE_PREFIX_STORE"
    monkeypatch.delenv(name, raising=False)
    ours.new()
    assert os.environ[name] == "1", "the workers inherit it"
    monkeypatch.setenv(name, "0")
    ours.new()
    assert os.environ[name] == "0", "the user's word stays"


def test_a_lost_node_makes_the_others_join_again(ours: Handlers) -> None:
    """c10d's agents are not told: they train on with a peer that is gone."""
    a, b = ours.new((1, 2)), ours.new((1, 2))
    ours.together(a, b)
    b._node._stop_keep_alive()
    poll(lambda: a.num_nodes_waiting() > 0, "a is to join again", 20)
    assert a.next_rendezvous().world_size == 1


def test_shutdown_before_any_round_closes_nothing(ours: Handlers) -> None:
    """An agent that could not even join must not end the run of the others."""
    a, b = ours.new(), ours.new()
    assert ours.new().shutdown() is True
    assert {info.world_size for info in ours.together(a, b)} == {2}


def test_an_agent_that_loses_the_rounds_store_leaves_the_run_open(ours: Handlers) -> None:
    """A relay that was killed, or a node that died before it had said its rank, is not the end of the job."""
    a, b = ours.new((1, 2)), ours.new((1, 2))
    ours.together(a, b)
    try:
        raise dist.DistNetworkError("Connection reset by peer")
    except dist.DistNetworkError:
        assert a.shutdown() is True  # torch calls it in a `finally`
    assert b.next_rendezvous().world_size == 1


def test_errors_say_where_and_what(ours: Handlers) -> None:
    with pytest.raises(RendezvousTimeoutError, match=rf"rallypoint at 127.0.0.1:{ours.server.admin_port}, run 'run', round 1.*1 more node"):
        ours.new(join_timeout="1").next_rendezvous()
    with pytest.raises(RendezvousConnectionError, match="rallypoint at 127.0.0.1:1, run 'run'.*nothing listens on port 1"):
        ours.new(join_timeout="1", endpoint="127.0.0.1:1").next_rendezvous()
    with pytest.raises(RendezvousConnectionError, match="is the port of a store, and not the server's admin port"):
        ours.new(join_timeout="1", endpoint=ours.server.endpoint).next_rendezvous()
    a = ours.new(run_id="ranks", node_rank="0")
    waiting = ours.join(a)
    ours.server.await_log("ranks round 1 gathers: ")
    with pytest.raises(RendezvousStateError, match="run 'ranks', round 1.*rank 0 is asked for by"):
        ours.new(run_id="ranks", node_rank="0").next_rendezvous()
    ours.together(ours.new(run_id="ranks"))
    waiting[0].result(20)


@pytest.mark.parametrize(
    ("endpoint", "config", "message"),
    [
        ("", {}, "--rdzv-endpoint"),
        ("host:port", {}, "is not a port"),
        ("host", {"join_timeouts": "1"}, "did you mean 'join_timeout'"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_sent(endpoint: str, config: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_rendezvous_handler(RendezvousParameters("rallypoint", endpoint, "run", 1, 1, **config))
