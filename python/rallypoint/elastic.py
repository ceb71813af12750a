"""A process group that goes on in its own processes when ranks die or come: nobody is started again.

PyTorch 2.15 can give a living process group new peers, if something tells all of them the same fresh number and the same ordered list.
A round of the native rendezvous is that. docs/elastic.md says what this can do, and what not.

The interface of PyTorch is experimental, so this module works with the releases in `TORCH` only. Everything that it uses of that
interface is in `_Group`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

from ._http import Endpoint
from .api import Membership, Nodes, _bounds, _endpoint
from .errors import ClosedError, TimedOutError
from .rendezvous import Action, Identity, Node, Outcome, Round, Terms, host_name, node_id

log = logging.getLogger("rallypoint")

TORCH = ("2.15",)
"""The releases of PyTorch whose interface is known here."""
STORE_PORT = 29500
"""The port of the server's first store, unless the caller names another one."""
CONNECT_SECONDS = 0.5, 0.02, 10.0
"""How long the ranks of a new round may take to connect to each other, in seconds: at first, for each rank in addition, and at most.
gloo waits for so long until a peer has said its address, and five times as long until it connects, and cannot be interrupted. If a rank
dies in this moment, the others do not wait for long. If all are only slow, each further attempt may take twice as long."""
LOOK_SECONDS = 0.01
"""How often a rank that waits looks for news, in seconds."""


class Stateful(Protocol):
    """What has a state that a new rank needs: a model, an optimizer, or an object of yours, as for torch.distributed.checkpoint."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class World:
    """The ranks of a run, in this moment, and the default process group between them.

    with rallypoint.elastic.World("my-run", nodes="2:8", state={"model": model, "optimizer": optimizer}) as world:
        while world.step < STEPS:
            with world.try_step():
                train(world.step, world.rank, world.size)
    """

    def __init__(
        self,
        run_id: str,
        nodes: Nodes,
        *,
        state: Mapping[str, Stateful],
        step: int = 0,
        endpoint: str | None = None,
        store: str | None = None,
        name: str | None = None,
        backend: str = "gloo",
        timeout: float = 60.0,
        join_timeout: float = 600.0,
        last_call: float = 0.2,
        keep_alive: float = 1.0,
        keep_alive_misses: int = 5,
        grace: float = 1.0,
    ) -> None:
        """Joins the run and waits until the minimum of `nodes` is there, but for at most `join_timeout` seconds.

        A rank that has done fewer steps than another one, and each that starts, gets `state` from the rank that has done the most. `step`
        says how many steps the state has seen that this process has loaded from a checkpoint. `store` is `HOST:PORT` of a store of the
        server; by default RALLYPOINT_ENDPOINT, or port 29500 beside the endpoint. No collective takes longer than `timeout` seconds.
        `grace` says how soon a process is lost whose connection closed and that has not come again; with the server's, one
        `keep_alive` later. One that is silent behind an open connection is lost after `keep_alive` times `keep_alive_misses`. All
        ranks must give the same times. Raises a RallypointError, or a RuntimeError if PyTorch cannot do this.
        """
        where, bounds = _endpoint(endpoint), _bounds(nodes)
        self.step = step
        """How many steps are done. Only `try_step` changes it."""
        self._state = dict(state)
        self._is_fresh = True
        self._patience = join_timeout
        self._suspicion = grace + keep_alive * keep_alive_misses + 5.0
        self._group = _Group(run_id, _store(store, where), backend, timeout)
        terms = Terms(
            *bounds,
            join_timeout=join_timeout,
            last_call=last_call,
            keep_alive=keep_alive,
            keep_alive_misses=keep_alive_misses,
            grace=grace,
            store=False,
        )
        identity = Identity(node_id(), name or host_name(), payload=self._payload())
        node = Node(where, run_id, terms, identity)
        self._me = Membership(node, node.join(participants=True), None)
        self._number = 0
        self._come_together()

    @property
    def rank(self) -> int:
        """This process' rank, at present."""
        return self._me.rank

    @property
    def size(self) -> int:
        """How many ranks there are, at present."""
        return self._me.world_size

    @property
    def round(self) -> int:
        """The number of the round: a greater one each time that the ranks have changed."""
        return self._me.round.number

    @contextlib.contextmanager
    def try_step(self) -> Iterator[None]:
        """One step, as the body of a `with`. It counts if the body ends without an error.

        If a collective fails because a rank was lost, the body ends there. The ranks that are left meet, and `step` stays as it was, or
        becomes that of a rank that had ended the step. Every other error is raised as it is. The body may change `state` only after
        its last collective.
        """
        if self._has_news():
            self._regroup()
        try:
            yield
        except RuntimeError as error:
            if not self._others_regroup():
                raise
            log.warning("rallypoint: %s: step %d is done again: %s", self._about(), self.step, str(error)[:200])
            # The frames keep what failed, and that keeps the connections to the peers open.
            traceback.clear_frames(error.__traceback__)
        else:
            self.step += 1
            return
        self._regroup()

    def finish(self) -> None:
        """Waits until all ranks have done as many steps as this one, but for at most `join_timeout` seconds. Then it leaves the run."""
        while not self._are_all_at("finished", 10 * LOOK_SECONDS):
            self._regroup()
        self._leave("it is done", Outcome.SUCCEEDED)

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.finish()
        else:
            self._leave(f"it failed: {type(error).__name__}", None)

    def _leave(self, why: str, outcome: Outcome | None) -> None:
        self._me._node.leave(why, outcome=outcome)
        self._group.destroy()

    def _about(self) -> str:
        return f"run {self._me.round.run_id!r}, round {self.round}"

    def _hint(self, problem: str) -> str:
        is_loopback = "[127." in problem and len({peer.address for peer in self._me.peers}) > 1
        return "; a rank told ranks of other hosts an address of loopback: set GLOO_SOCKET_IFNAME there" if is_loopback else ""

    def _has_news(self) -> bool:
        """Whether the ranks of this round must meet again."""
        news = self._me.news
        if news.action is Action.CLOSED:
            raise ClosedError(410, "closed", news.reason)
        return news.action is Action.REJOIN

    def _others_regroup(self) -> bool:
        """Whether the server says, soon enough, that this round is over: if not, an error is the program's own.

        A server that was away learns only afterwards who is lost.
        """
        failed = time.monotonic()
        while not self._has_news():
            now, reached = time.monotonic(), self._me._node.reached_since
            if now > min(max(failed, reached) + self._suspicion, failed + self._patience):
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def _payload(self) -> str:
        return json.dumps({"handle": self._group.handle(), "slot": self._group.slot, "step": self.step, "is_fresh": self._is_fresh})

    def _regroup(self) -> None:
        """Meets the ranks that are left, and those that came."""
        self._meet()
        self._come_together()

    def _meet(self) -> None:
        self._group.disconnect()
        self._me.rejoin(self._payload())

    def _come_together(self) -> None:
        """Connects the ranks of the round. If one of them dies meanwhile, the others join the next round."""
        until = time.monotonic() + self._patience
        for attempt in itertools.count():
            try:
                self._connect(self._me.round, attempt)
                return
            except RuntimeError as error:
                if time.monotonic() > until:
                    raise
                log.warning("rallypoint: %s: the ranks meet again: %s%s", self._about(), str(error)[:200], self._hint(str(error)))
                traceback.clear_frames(error.__traceback__)
            self._meet()

    def _connect(self, round: Round, attempt: int) -> None:
        said = [json.loads(peer.payload or "{}") for peer in round.peers]
        if not all("handle" in one for one in said):
            raise ValueError(f"run {round.run_id!r} has nodes that are no ranks of a rallypoint.elastic.World; use another run id")
        # Rounds are counted anew when a run was forgotten, and slots never.
        self._number = said[0]["slot"] << 32 | round.number
        # PyTorch would wait up to a minute to connect to a rank that has died.
        if not self._are_all_at("here", LOOK_SECONDS):
            raise RuntimeError("the ranks have changed again")
        least, each, most = CONNECT_SECONDS
        seconds = min(most, (least + each * self.size) * 2.0**attempt)
        self._group.connect(self._number, [one["handle"] for one in said], seconds)
        self._share_state([(one["step"], not one["is_fresh"]) for one in said])
        log.info("rallypoint: %s: rank %d of %d goes on with step %d", self._about(), self.rank, self.size, self.step)

    def _are_all_at(self, point: str, pause: float) -> bool:
        """Waits until all ranks of the round have come to this point, or must meet again. All of them get the same answer."""
        key, until = f"{point}/{self._number}", time.monotonic() + self._patience
        here = self._group.count(key, 1)
        while here < self.size and not self._has_news():
            if time.monotonic() > until:
                late = f"{self._about()}: {here} of {self.size} ranks are {point} after {self._patience:g} s"
                raise TimedOutError(408, "rank_timeout", late)
            time.sleep(pause)
            here = self._group.count(key, 0)
        return self._group.decide(key, "go on" if here == self.size else "meet") == "go on"

    def _share_state(self, progress: list[tuple[int, bool]]) -> None:
        """Gives the state of the rank that has done the most to those that have done less."""
        most = max(progress)
        source = progress.index(most)
        if not (most[1] and all(one == most for one in progress)):
            mine = {name: it.state_dict() for name, it in self._state.items()} if self.rank == source else None
            step, state = self._group.broadcast((self.step, mine), source)
            if self.rank != source and (progress[self.rank] != most or not most[1]):
                for name, it in self._state.items():
                    it.load_state_dict(state[name])
            self.step = step
        self._is_fresh = False


def _store(given: str | None, endpoint: Endpoint) -> tuple[str, int]:
    named = given or os.environ.get("RALLYPOINT_ENDPOINT")
    if not named:
        return endpoint.host, STORE_PORT
    host, _, port = named.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"store={named!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)


class _Group:
    """The default process group, and all that is used of PyTorch's experimental interface."""

    def __init__(self, run_id: str, address: tuple[str, int], backend: str, timeout: float) -> None:
        import torch
        import torch.distributed as dist

        if ".".join(torch.__version__.split(".")[:2]) not in TORCH:
            raise RuntimeError(
                f"rallypoint.elastic uses an experimental interface of PyTorch that may change with each release: it works with "
                f"{', '.join(TORCH)}, and this is {torch.__version__}"
            )
        self._dist = dist
        self._solo = 0
        self._backend, self._limit = backend, timedelta(seconds=timeout)
        self._store = dist.PrefixStore(f"rallypoint/elastic/{run_id}", dist.TCPStore(*address, is_master=False, timeout=self._limit))
        self.slot: int = self.count("slots", 1)
        """A number that no other process of the run has or had."""
        self._make()
        if not dist._supports_reconfigure():
            raise RuntimeError(f"PyTorch's backend {backend!r} cannot give a process group new peers; gloo can")

    def _make(self) -> None:
        """Makes the group. It needs a rank of its own until it gets peers; the size that it has until then means nothing."""
        alone = {"rank": self.slot, "world_size": self.slot + 1}
        self._dist.init_process_group(self._backend, store=self._store, timeout=self._limit, enable_reconfigure=True, **alone)

    def count(self, key: str, more: int) -> int:
        """Adds to a counter that all ranks share."""
        return int(self._store.add(key, more))

    def decide(self, key: str, proposal: str) -> str:
        """What the first rank proposed that asked."""
        return str(self._store.compare_set(f"{key}/decision", "", proposal).decode())

    def handle(self) -> str:
        """What a peer must know of this process to connect. Another one after each `connect`."""
        return str(self._dist._get_reconfigure_handle())

    def connect(self, number: int, handles: list[str], seconds: float) -> None:
        """Gives the group these peers, in the order of their ranks. No number may come twice."""
        try:
            self._dist._reconfigure(uuid=number, handles=handles, timeout=timedelta(seconds=seconds)).wait()
        except RuntimeError:
            # The peer that did not come may come late. gloo ends the process that has given it up, unless nothing listens there.
            self.destroy()
            self._make()
            raise

    def disconnect(self) -> None:
        """Makes a group of this process alone. So the connections to the peers close, and none of them waits for this one any more."""
        self._solo += 1
        self.connect(1 << 62 | self.slot << 24 | self._solo, [self.handle()], CONNECT_SECONDS[-1])

    def broadcast(self, what: Any, source: int) -> Any:
        """What the rank `source` says."""
        box = [what]
        self._dist.broadcast_object_list(box, src=source)
        return box[0]

    def destroy(self) -> None:
        self._dist.destroy_process_group()
