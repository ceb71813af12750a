"""A node of a run, as the server's HTTP API knows it: it joins, keeps its place, leaves, or closes the run.

This module does not use torch. The torchrun plugin (`torchrun.py`) and the functions for users (`api.py`) both use this module.
docs/http-api.md says what each field means.
"""

from __future__ import annotations

import enum
import itertools
import logging
import os
import secrets
import socket
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._http import ANSWER_SECONDS, LONGEST_PAUSE, Client, Endpoint, Interrupted
from ._text import plain
from ._trouble import Trouble
from .errors import NotRallypointError, PlaceLostError, ProblemError, RallypointError

log = logging.getLogger("rallypoint")

WAIT_SECONDS = 15.0
"""How long one request waits at the server for something new, in seconds."""
DEFAULT_PATIENCE = 1800.0
"""How long a server may be away before a node that joins gives up, in seconds."""
LEAVE_SECONDS = 2.0
"""How long a process that ends may try to tell the server, in seconds."""


@dataclass(frozen=True)
class Terms:
    """What the nodes of a run must agree on. None means that the run's first node or the server decides."""

    min_nodes: int
    max_nodes: int
    join_timeout: float | None = None
    last_call: float | None = None
    keep_alive: float | None = None
    keep_alive_misses: int | None = None
    grace: float | None = None
    store: bool | None = None

    def body(self) -> dict[str, Any]:
        return {
            "min_nodes": self.min_nodes,
            "max_nodes": self.max_nodes,
            "join_timeout_seconds": self.join_timeout,
            "last_call_seconds": self.last_call,
            "keep_alive_seconds": self.keep_alive,
            "keep_alive_misses": self.keep_alive_misses,
            "grace_seconds": self.grace,
            "store": self.store,
        }


@dataclass(frozen=True)
class Identity:
    """Who a node is. No other live node may have the same `node`."""

    node: str
    name: str
    address: str | None = None
    role: str | None = None
    node_rank: int | None = None
    local_world_size: int | None = None
    torch_version: str | None = None
    payload: str | None = None
    """What it tells its peers with the next join. May be another text at each join."""

    def body(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "name": self.name,
            "address": self.address,
            "role": self.role,
            "node_rank": self.node_rank,
            "local_world_size": self.local_world_size,
            "torch_version": self.torch_version,
            "payload": self.payload,
        }


def node_id() -> str:
    """A name that no other node has. It is made of the host's name, the process id and random digits."""
    return f"{host_name()[:200]}-{os.getpid()}-{secrets.token_hex(4)}"


def host_name() -> str:
    """The name of this pod or machine."""
    return os.environ.get("POD_NAME") or socket.gethostname() or "localhost"


@dataclass(frozen=True)
class Peer:
    """A node of a round, as the other nodes see it."""

    group_rank: int
    node: str
    name: str
    address: str
    role: str | None = None
    local_world_size: int | None = None
    payload: str | None = None


@dataclass(frozen=True)
class Round:
    """A complete round, and this node's place in it."""

    run_id: str
    number: int
    group_rank: int
    group_world_size: int
    store: tuple[str, int] | None
    """Host and port of the store that all workers of the round use."""
    keep_alive: float
    keep_alive_misses: int
    gathered_seconds: float
    peers: tuple[Peer, ...] = ()
    """Every node, in the order of their ranks. Empty if the join did not ask for them."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Round:
        store = body.get("store")
        peers = sorted((_peer(entry) for entry in body.get("participants") or ()), key=lambda peer: peer.group_rank)
        return cls(
            run_id=str(body["run_id"]),
            number=int(body["round"]),
            group_rank=int(body["group_rank"]),
            group_world_size=int(body["group_world_size"]),
            store=(str(store["host"]), int(store["port"])) if store else None,
            keep_alive=float(body["keep_alive_seconds"]),
            keep_alive_misses=int(body["keep_alive_misses"]),
            gathered_seconds=float(body["gathered_seconds"]),
            peers=tuple(peers),
        )


def _peer(body: Mapping[str, Any]) -> Peer:
    return Peer(
        int(body["group_rank"]),
        body["node"],
        body["name"],
        body["address"],
        body.get("role"),
        body.get("local_world_size"),
        body.get("payload"),
    )


@dataclass(frozen=True)
class Waiting:
    """The state of a round that is not complete yet."""

    redundant: bool
    round: int
    joined: int
    min_nodes: int
    max_nodes: int
    waited_seconds: float
    deadline_seconds: float | None
    reason: str
    """Whom or what the round waits for, in words."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Waiting:
        deadline = body.get("deadline_seconds")
        return cls(
            redundant=body["state"] == "redundant",
            round=int(body["round"]),
            joined=int(body["joined"]),
            min_nodes=int(body["min_nodes"]),
            max_nodes=int(body["max_nodes"]),
            waited_seconds=float(body["waited_seconds"]),
            deadline_seconds=None if deadline is None else float(deadline),
            reason=plain(str(body["reason"])),
        )


class Outcome(enum.Enum):
    """How a node's work ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Action(enum.Enum):
    """What a node of a complete round must do."""

    CONTINUE = "continue"
    REJOIN = "rejoin"
    CLOSED = "closed"


@dataclass(frozen=True)
class News:
    """What the server answered to the last keep-alive."""

    action: Action = Action.CONTINUE
    reason: str = ""
    num_nodes_waiting: int = 0


class KeepAlive:
    """Keeps a node's place in a round, and holds the latest news: in daemon threads, which never outlive their process.

    The server notices at once that a process has died if one of its heartbeats waits there. So in a run with a grace there are two
    threads, and one sends its heartbeat while that of the other still waits.
    """

    def __init__(self, endpoint: Endpoint, run_id: str, identity: Identity, terms: Terms, round: Round, join_id: str, late: float) -> None:
        self.news = News()
        self._reached = self._asked = time.monotonic()
        # A server that was away must hear from a living node in the keep-alive time, or it takes it for lost.
        pause = min(LONGEST_PAUSE, round.keep_alive)
        self._clients = [Client(endpoint, pause) for _ in range(1 if terms.grace is None else 2)]
        self._numbers = itertools.count(1)
        self._heard = 0
        self._path = f"{run_path(run_id)}/heartbeat"
        self._late = late
        self._pause = min(1.0, round.keep_alive / 4)
        self._turn = round.keep_alive * round.keep_alive_misses / 4  # half of what the server lets it wait
        self._trouble = Trouble(f"run {run_id!r}: keep-alive", "the workers go on", quiet=2 * round.keep_alive)
        self._body: dict[str, Any] = {
            "node": identity.node,
            "join_id": join_id,
            "name": identity.name,
            "address": identity.address,
            "round": round.number,
            "rank": round.group_rank,
            "world_size": round.group_world_size,
            "min_nodes": terms.min_nodes,
            "max_nodes": terms.max_nodes,
            "wait_seconds": max(1.0, min(WAIT_SECONDS, round.keep_alive * round.keep_alive_misses)),
        }
        self._about = f"run {run_id!r}, round {round.number}"
        for client in self._clients:
            threading.Thread(target=self._run, args=[client], name="rallypoint-keep-alive", daemon=True).start()

    def stop(self) -> None:
        """Ends the threads, without waiting for them."""
        for client in self._clients:
            client.interrupt()

    def _run(self, client: Client) -> None:
        try:
            while True:
                self._beat(client)
                if len(self._clients) > 1:
                    client.pause(self._turn)  # the heartbeat of the other thread waits meanwhile
        except Interrupted:
            pass
        finally:
            client.close()

    @property
    def reached_since(self) -> float:
        """Since when the server has answered in time. A relay holds a request while the server is away."""
        now = time.monotonic()
        return now if now > self._asked + self._body["wait_seconds"] + 1 else self._reached

    def _in_trouble(self, cause: str, lasted: float) -> None:
        self._reached = time.monotonic()
        self._trouble(cause, lasted)

    def _beat(self, client: Client) -> None:
        seen, started = self.news.action, time.monotonic()
        self._asked = started
        number = next(self._numbers)
        try:
            answer = client.post(
                self._path,
                {**without_none(self._body), "seen": seen.value},
                patience=float("inf"),
                late=self._late,
                on_trouble=self._in_trouble,
            )
            self._reached = self.reached_since
            body = answer.body
            news = News(Action(body["action"]), plain(str(body["reason"])), int(body["num_nodes_waiting"]))
        except ProblemError as refusal:
            # The server refuses this node in the round: the node has to join again to hear more.
            news = News(Action.REJOIN, str(refusal))
        except (RallypointError, KeyError, TypeError, ValueError) as error:
            log.warning("rallypoint: %s: keep-alive: %s: %s", self._about, type(error).__name__, error)
            client.pause(10 * self._pause)
            return
        if number < self._heard:
            return
        self._heard = number
        if news.action is not seen and news.action is not Action.CONTINUE:
            level = logging.WARNING if news.action is Action.REJOIN else logging.INFO
            log.log(level, "rallypoint: %s: %s: %s", self._about, news.action.value, news.reason)
        self.news = news
        if news.action is seen and time.monotonic() - started < self._pause:
            client.pause(self._pause)  # a server that is about to stop answers at once: do not ask it without a pause


@dataclass
class _Presence:
    """What must be ended when a node is no longer used, or when its process ends."""

    endpoint: Endpoint
    run_id: str
    node: str
    keep_alive: KeepAlive | None = None
    joined: bool = False
    """Whether the server may know the node."""
    pid: int = field(default_factory=os.getpid)

    def end(self, reason: str, patience: float, outcome: Outcome | None = None) -> bool:
        """Stops the keep-alive and leaves the run. Returns whether the server heard it."""
        if self.pid != os.getpid():
            return True  # a forked child: the place and the connections belong to its parent
        if self.keep_alive:
            self.keep_alive.stop()
            self.keep_alive = None
        if not self.joined:
            return True
        self.joined = False
        client = Client(self.endpoint)
        body = without_none({"node": self.node, "reason": reason, "outcome": outcome.value if outcome else None})
        try:
            client.post(f"{run_path(self.run_id)}/leave", body, patience=patience, late=patience)
            return True
        except RallypointError:
            return False
        finally:
            client.close()


def _farewell(presence: _Presence) -> None:
    presence.end("its process ended", LEAVE_SECONDS)


OnWaiting = Callable[[Waiting], None]


class Node:
    """One node of one run.

    It leaves the run by itself when its process ends normally, or when no variable refers to it any more. A process that is killed
    cannot tell the server. Then the server notices that its keep-alives do not come.
    """

    def __init__(
        self, endpoint: Endpoint, run_id: str, terms: Terms, identity: Identity, *, heartbeat: bool = True, late: float = ANSWER_SECONDS
    ) -> None:
        self.endpoint, self.run_id, self.terms, self.identity = endpoint, run_id, terms, identity
        self.round: Round | None = None
        """The last round that this node was in."""
        self._heartbeat = heartbeat
        self._late = late
        self._client = Client(endpoint)
        self._joins = 0
        self._presence = _Presence(endpoint, run_id, identity.node)
        self._finalizer = weakref.finalize(self, _farewell, self._presence)

    @property
    def news(self) -> News:
        """The last keep-alive's answer; never asks the server."""
        keep_alive = self._presence.keep_alive
        return keep_alive.news if keep_alive else News()

    @property
    def reached_since(self) -> float:
        """Since when the server has answered each keep-alive of this round, on the clock of time.monotonic()."""
        keep_alive = self._presence.keep_alive
        return keep_alive.reached_since if keep_alive else time.monotonic()

    def join(self, *, participants: bool = False, patience: float | None = None, on_waiting: OnWaiting | None = None) -> Round:
        """Joins the next round and waits until it is complete. Then it keeps the place in it, if the node has a heartbeat.

        `patience` says for how many seconds a server may not answer at all (default: the run's join timeout). The server decides how
        long a round may wait for its nodes. Raises a RallypointError.
        """
        self._stop_keep_alive()
        if patience is None:
            patience = self.terms.join_timeout or DEFAULT_PATIENCE
        body: dict[str, Any] = {
            **self.identity.body(),
            **self.terms.body(),
            "heartbeat": self._heartbeat,
            "participants": participants,
            "wait_seconds": WAIT_SECONDS,
        }
        if self.round:
            body["previous"] = {"round": self.round.number, "rank": self.round.group_rank}
        trouble = Trouble(f"run {self.run_id!r}: join", "trying again")
        while True:
            self._joins += 1
            join_id = f"{self._joins}-{secrets.token_hex(4)}"
            try:
                round = self._wait_for_round({**body, "join_id": join_id}, patience, trouble, on_waiting)
                break
            except PlaceLostError as lost:
                if lost.code != "lost":
                    raise
                # The network was broken for longer than the keep-alive allows. The node still runs, so it joins again.
                log.warning("rallypoint: run %r: %s; joining again", self.run_id, lost)
        self.round = round
        if self._heartbeat:
            self._presence.keep_alive = KeepAlive(self.endpoint, self.run_id, self.identity, self.terms, round, join_id, self._late)
        else:
            self._presence.joined = False  # it had a place only until the round was complete
        return round

    def _wait_for_round(self, body: Mapping[str, Any], patience: float, trouble: Trouble, on_waiting: OnWaiting | None) -> Round:
        while True:
            try:
                answer = self._client.post(f"{run_path(self.run_id)}/join", without_none(body), patience=patience, on_trouble=trouble)
            finally:
                # This must run also if a signal ended the wait.
                self._presence.joined |= self._client.has_sent
            try:
                step = Round.read(answer.body) if answer.status == 200 else Waiting.read(answer.body)
            except (KeyError, TypeError, ValueError) as error:
                raise NotRallypointError(
                    f"{self.endpoint} answers a join with something else ({type(error).__name__}: {error}); "
                    f"server and package must be of the same version"
                ) from error
            if isinstance(step, Round):
                return step
            if on_waiting:
                on_waiting(step)

    def leave(self, reason: str, *, outcome: Outcome | None = None, patience: float = 10.0) -> bool:
        """Gives up the node's place. Returns whether the server heard it.

        The server tells the others to join again, unless the node succeeded. When all nodes of the round have succeeded, the run has
        finished.
        """
        self._client.close()
        return self._presence.end(reason, patience, outcome)

    def close(self, reason: str, *, patience: float = 30.0) -> bool:
        """Closes the run: nobody can join it any more. Returns whether it was open until now."""
        client = Client(self.endpoint)
        try:
            body = {"node": self.identity.node, "reason": reason}
            answer = client.post(f"{run_path(self.run_id)}/close", body, patience=patience)
        finally:
            client.close()
        return bool(answer.body.get("closed"))

    def _stop_keep_alive(self) -> None:
        if self._presence.keep_alive:
            self._presence.keep_alive.stop()
            self._presence.keep_alive = None


def run_path(run_id: str) -> str:
    """The route of a run."""
    return f"/api/v1/runs/{urllib.parse.quote(run_id, safe='')}"


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request's body without the fields that are None."""
    return {name: value for name, value in body.items() if value is not None}
