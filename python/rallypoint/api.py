"""The functions for users: meet on a server without torchrun, wait at a barrier, find the peers.

`endpoint` is the server's admin port, `HOST` or `HOST:PORT`. Without it, the variable RALLYPOINT_ADMIN is used, or else
`localhost:29501`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

from ._http import Client, Endpoint
from ._trouble import Trouble
from .rendezvous import WAIT_SECONDS, Identity, News, Node, Outcome, Peer, Round, Terms, Waiting, host_name, node_id, without_none

if TYPE_CHECKING:
    from typing_extensions import Unpack

Nodes = int | str | tuple[int, int]
"""How many nodes: `4`, `"2:4"` or `(2, 4)`."""


class OfNode(TypedDict, total=False):
    """What a node may say about itself and the round, as keyword arguments. All of them are optional."""

    endpoint: str | None
    """The server's admin port."""
    name: str | None
    """A name for people to read. By default it is the host's name."""
    address: str | None
    """The address where the others reach it. By default it is the address that the server sees."""
    role: str | None
    """What it does in the job."""
    payload: str | None
    """What it tells its peers with this join, in at most 4 KiB of text. They read it as `peer.payload`."""
    node_rank: int | None
    """The rank that it wants."""
    local_world_size: int | None
    """How many processes it will start."""
    timeout: float | None
    """How long the round may wait for its nodes, in seconds. It must be the same on all nodes."""
    last_call: float | None
    """How long a round that has enough nodes waits for more, in seconds. It must be the same on all nodes."""
    keep_alive: float | None
    """How often the server must hear from each node, in seconds. It must be the same on all nodes."""
    keep_alive_misses: int | None
    """For how many of these times a node may be silent before it is lost. It must be the same on all nodes."""


class Membership:
    """This process' place in a round of a run. As a context manager, it gives the place up at the end of the block: its work is
    done, unless an exception ends it, and the others go on.

    with rallypoint.join("my-run", nodes=4) as me:
        print(me.rank, me.world_size, [peer.address for peer in me.peers])
    """

    def __init__(self, node: Node, round: Round, on_waiting: Callable[[Waiting], None] | None) -> None:
        self._node = node
        self._on_waiting = on_waiting
        self.round = round
        """The round, with its number and its store."""

    @property
    def rank(self) -> int:
        """This node's rank in the round."""
        return self.round.group_rank

    @property
    def world_size(self) -> int:
        """How many nodes the round has."""
        return self.round.group_world_size

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Every node of the round, in the order of their ranks. This node is one of them."""
        return self.round.peers

    @property
    def news(self) -> News:
        """What the last keep-alive said: go on, or join again because nodes wait or a node is gone. This never asks the server."""
        return self._node.news

    def rejoin(self, payload: str | None = None) -> Round:
        """Joins the next round, and waits until it is complete. The rank stays the same if possible.

        The peers read `payload` in that round; without it, the node has none there.
        """
        self._node.identity = dataclasses.replace(self._node.identity, payload=payload)
        self.round = self._node.join(participants=True, on_waiting=self._on_waiting)
        return self.round

    def leave(self, reason: str = "it is done") -> None:
        """Gives up the place. The server tells the others to join again."""
        self._node.leave(reason)

    def close(self, reason: str = "it is done") -> None:
        """Closes the run, so that nobody can join it any more, and leaves it."""
        self._node.close(reason)
        self._node.leave(reason)

    def __enter__(self) -> Membership:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._node.leave("it is done", outcome=Outcome.SUCCEEDED)
        else:
            self.leave(f"it failed: {type(error).__name__}")


def join(
    run_id: str,
    nodes: Nodes,
    *,
    store: bool = False,
    on_waiting: Callable[[Waiting], None] | None = None,
    **of_node: Unpack[OfNode],
) -> Membership:
    """Joins a run and waits until enough nodes are there. Then it keeps the place, with keep-alives in the background.

    All nodes must give the same `nodes`. With `store` the round gets a TCPStore of its own (`round.store`). `on_waiting` is called
    every few seconds while the node waits. `of_node` may be any of the arguments that OfNode lists: `endpoint`, `name`, `address`,
    `role`, `payload`, `node_rank`, `local_world_size`, `timeout`, `last_call`, `keep_alive`, `keep_alive_misses`.
    Raises a RallypointError: TimedOutError, ClosedError, MismatchError, UnreachableError, …
    """
    node = _node(run_id, nodes, heartbeat=True, store=store, **of_node)
    return Membership(node, node.join(participants=True, on_waiting=on_waiting), on_waiting)


def peers(
    run_id: str,
    nodes: Nodes,
    *,
    on_waiting: Callable[[Waiting], None] | None = None,
    **of_node: Unpack[OfNode],
) -> tuple[Peer, ...]:
    """Meets the other nodes once. Returns all nodes in the order of their ranks, this one too. Afterwards no node holds a place.

    It is for launchers that only need to know which nodes are there, and where: for a hosts file, Ray's head, an MPI launcher. In all
    else it is like `join`.
    """
    node = _node(run_id, nodes, heartbeat=False, store=False, **of_node)
    return node.join(participants=True, on_waiting=on_waiting).peers


def barrier(
    name: str,
    world_size: int | None = None,
    *,
    members: Iterable[str] | None = None,
    participant: str | None = None,
    timeout: float = 300.0,
    endpoint: str | None = None,
) -> int:
    """Waits until `world_size` participants, or all `members`, have arrived at the barrier `name`. Returns how often it was used so far.

    `participant` names who arrives. By default it is this process. With `members` it must be one of them. When `timeout` (seconds) is
    over, TimedOutError is raised; with `members`, its `extra["missing"]` names those who are missing. If the server is away for a
    moment, this waits for it.
    """
    chosen = list(members) if members is not None else None
    if world_size is None and chosen is None:
        raise ValueError("barrier: pass world_size, or members")
    if chosen is not None and participant not in chosen:
        raise ValueError(f"barrier: participant={participant!r} is not one of the members")
    where = _endpoint(endpoint)
    client = Client(where)
    who, arrival_id = participant or node_id(), secrets.token_hex(8)
    deadline = time.monotonic() + timeout

    def body() -> dict[str, Any]:
        # A server that has lost the arrival measures the time-out from the repeated request.
        left = max(0.0, deadline - time.monotonic())
        return without_none(
            {
                "participant": who,
                "arrival_id": arrival_id,
                "world_size": world_size,
                "members": chosen,
                "timeout_seconds": left,
                "wait_seconds": min(WAIT_SECONDS, max(0.1, left)),
            }
        )

    trouble = Trouble(f"barrier {name!r}", "trying again")
    path = f"/api/v1/barriers/{quote(name, safe='')}/arrive"
    try:
        while True:
            patience = max(1.0, deadline - time.monotonic())
            answer = client.post(path, body, patience=patience, on_trouble=trouble)
            if answer.status == 200:
                return int(answer.body["generation"])
    finally:
        client.close()


def _endpoint(given: str | None) -> Endpoint:
    return Endpoint.parse(given or os.environ.get("RALLYPOINT_ADMIN") or "localhost")


def _bounds(nodes: Nodes) -> tuple[int, int]:
    if isinstance(nodes, str):
        least, _, most = nodes.partition(":")
        if not least.isdigit() or not (most or "0").isdigit():
            raise ValueError(f"nodes={nodes!r}: expected how many, such as 4 or '2:4'")
        bounds = int(least), int(most or least)
    else:
        bounds = (nodes, nodes) if isinstance(nodes, int) else nodes
    if not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(f"nodes={nodes!r}: the minimum must be at least 1 and not more than the maximum")
    return bounds


def _node(
    run_id: str,
    nodes: Nodes,
    *,
    heartbeat: bool,
    store: bool,
    endpoint: str | None = None,
    name: str | None = None,
    address: str | None = None,
    role: str | None = None,
    payload: str | None = None,
    node_rank: int | None = None,
    local_world_size: int | None = None,
    timeout: float | None = None,
    last_call: float | None = None,
    keep_alive: float | None = None,
    keep_alive_misses: int | None = None,
) -> Node:
    least, most = _bounds(nodes)
    terms = Terms(
        least,
        most,
        join_timeout=timeout,
        last_call=last_call,
        keep_alive=keep_alive,
        keep_alive_misses=keep_alive_misses,
        store=store,
    )
    identity = Identity(node_id(), name or host_name(), address, role, node_rank, local_world_size, payload=payload)
    return Node(_endpoint(endpoint), run_id, terms, identity, heartbeat=heartbeat)
