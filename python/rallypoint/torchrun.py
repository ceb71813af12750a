"""The torchrun plugin: `torchrun --rdzv-backend=rallypoint --rdzv-endpoint=HOST:29501 …`.

torch finds `handler` through the entry-point group `torchrun.handlers` (PyTorch 2.6 and newer). It does so whenever its rendezvous
package is imported. So an import of this module only defines things. torch's agent calls the handler from its main thread.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ._conf import Settings, parse
from ._http import Endpoint
from ._text import plain
from .errors import (
    ClosedError,
    GracefulExitError,
    MismatchError,
    NotRallypointError,
    ProblemError,
    RallypointError,
    TimedOutError,
    UnreachableError,
)
from .rendezvous import LEAVE_SECONDS, Action, Identity, Node, Outcome, Round, Terms, Waiting, host_name, node_id

log = logging.getLogger("rallypoint")

BACKEND = "rallypoint"
"""The name of both the entry point and the backend: torch requires that they are equal."""
SAVE_BY_STORE = "DCP_USE_PREFIX_STORE"
"""With 1, the processes that save checkpoints for the ranks (`dcp.async_save` in processes) meet in the round's store. Otherwise they look
for the host of rank 0 at MASTER_ADDR, which is the server. PyTorch 2.10 and newer read it."""
EXPLAIN_AFTER = 30.0
"""After so many seconds of waiting, the log explains it, and then again with growing pauses."""


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point: returns the function with which torch creates handlers."""
    return RallypointRendezvousHandler.from_parameters


class RallypointRendezvousHandler(RendezvousHandler):
    """The side of one torchrun agent in a rendezvous. The server makes the decisions."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._closed = False
        self._where = f"rallypoint at {node.endpoint}, run {node.run_id!r}"

    @classmethod
    def from_parameters(cls, params: RendezvousParameters) -> RallypointRendezvousHandler:
        """Reads torchrun's parameters. A ValueError says what is wrong with them."""
        if not params.run_id:
            raise ValueError("the run needs an id: pass --rdzv-id, the same on every node")
        if not params.endpoint:
            raise ValueError("--rdzv-endpoint is missing: pass the server's admin port, such as --rdzv-endpoint=rallypoint:29501")
        settings = parse(params.config, os.environ, params.max_nodes)
        for note in settings.notes:
            log.warning("rallypoint: %s", note)
        if settings.node_rank_from:
            log.info("rallypoint: node rank %d, from %s", settings.node_rank, settings.node_rank_from)
        terms = Terms(
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            join_timeout=settings.join_timeout,
            last_call=settings.last_call,
            keep_alive=settings.keep_alive,
            keep_alive_misses=settings.keep_alive_misses,
        )
        identity = Identity(
            node=node_id(),
            name=host_name(),
            address=params.local_addr,
            node_rank=settings.node_rank,
            torch_version=str(torch.__version__),
        )
        endpoint = Endpoint.parse(params.endpoint)
        os.environ.setdefault(SAVE_BY_STORE, "1")  # the workers inherit it
        return cls(Node(endpoint, params.run_id, terms, identity, late=settings.heartbeat_timeout), settings)

    def get_backend(self) -> str:
        """See base class."""
        return BACKEND

    def get_run_id(self) -> str:
        """See base class."""
        return self._node.run_id

    @property
    def use_agent_store(self) -> bool:
        """Always True: so every worker is a client of the round's store, and no worker has to host one."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """See base class."""
        log.info("rallypoint: joining run %r at %s as %s", self._node.run_id, self._node.endpoint, self._node.identity.node)
        try:
            round = self._node.join(on_waiting=_Explain(self._node.run_id))
        except RallypointError as error:
            raise self._translated(error) from error
        log.info(
            "rallypoint: run %r, round %d is complete: node rank %d of %d, gathered in %.1f s",
            round.run_id,
            round.number,
            round.group_rank,
            round.group_world_size,
            round.gathered_seconds,
        )
        return self._info(round)

    def is_closed(self) -> bool:
        """See base class. This never asks the server: the answer to the last keep-alive counts."""
        return self._closed or self._node.news.action is Action.CLOSED

    def set_closed(self) -> None:
        """See base class."""
        try:
            self._node.close("closed by an agent", patience=self._settings.close_timeout)
        except RallypointError as error:
            raise self._translated(error) from error
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """See base class. This never asks the server, because agents call it all the time.

        It is also not 0 when a node of the round is gone and no node waits yet, because the agent must then stop its workers and join
        again, too.
        """
        news = self._node.news
        return max(1, news.num_nodes_waiting) if news.action is Action.REJOIN else 0

    def shutdown(self) -> bool:
        """See base class. As with torch's own backends, an agent that ends closes the run, unless it never was in a round.

        An agent that a signal stops does not close the run. Its launcher wants the run to stay open, but the agent of PyTorch 2.6 calls
        this nevertheless. Nor does one that has lost its connection to the round's store, or has waited there in vain for a node that
        is gone: that is the end of this node and not of the job, as if the node had died.
        """
        error = sys.exc_info()[1]
        if _tells_to_stop(error):
            self._node.leave("its agent was told to stop", patience=LEAVE_SECONDS)
            return True
        if isinstance(error, (DistError, RendezvousConnectionError)):
            self._node.leave(f"its agent lost the round's store: {type(error).__name__}", patience=LEAVE_SECONDS)
            return True
        # torch calls this in a `finally`. If there is an exception (ChildFailedError, if a worker failed), the agent failed.
        # An agent that succeeded has waited at the exit barrier for the others.
        outcome = Outcome.SUCCEEDED if error is None else Outcome.FAILED
        reason = "its workers have succeeded" if error is None else f"its agent failed: {type(error).__name__}"
        done = True
        if self._node.round and not self._closed:
            try:
                self._node.close(reason, patience=self._settings.close_timeout)
                self._closed = True
            except ProblemError as refusal:
                log.info("rallypoint: run %r is not closed by this agent: %s", self._node.run_id, refusal)
            except RallypointError as error:
                log.warning("rallypoint: cannot close run %r: %s", self._node.run_id, error)
                done = False
        # A closed run is over when its last node is gone. It has finished if all nodes succeeded.
        self._node.leave(reason, outcome=outcome, patience=LEAVE_SECONDS)
        return done

    def _info(self, round: Round) -> RendezvousInfo:
        from torch.distributed import PrefixStore, TCPStore

        if round.store is None:
            raise RendezvousStateError(
                f'{self._where}, round {round.number} has no store: a node joined with "store": false; torchrun needs one'
            )
        host, port = round.store
        timeout = timedelta(seconds=self._settings.read_timeout)
        try:
            store = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
        except (RuntimeError, OSError) as error:  # torch's DistNetworkError is a RuntimeError
            cause = next(iter(str(error).splitlines()), type(error).__name__)
            raise RendezvousConnectionError(
                f"{self._where}, round {round.number} is complete, but its store {plain(host)}:{port} cannot be reached from here "
                f"({cause}): let this network reach the server's --store-ports, and check its --advertise-host"
            ) from error
        # The same prefix as that of torch's own backends, so that tools which know it find the keys.
        prefixed = PrefixStore(f"torch.rendezvous.{round.run_id}.{round.number}", store)
        return RendezvousInfo(prefixed, round.group_rank, round.group_world_size, RendezvousStoreInfo(host, port))

    def _translated(self, error: RallypointError) -> RendezvousError:
        """torch's exception for ours. The agent treats some of torch's exceptions in a special way."""
        number = self._node.round.number + 1 if self._node.round else 1
        text = f"{self._where}, round {number} or later: {error}"
        if isinstance(error, GracefulExitError):
            # Then torchrun (up to 2.15) fails, with an AttributeError and exit code 1, because its agent has no result.
            log.warning("rallypoint: %s; nothing is wrong, whatever torchrun says next", error)
            return RendezvousGracefulExitError(text)
        if isinstance(error, ClosedError):
            return RendezvousClosedError(text)
        if isinstance(error, TimedOutError):
            return RendezvousTimeoutError(text)
        if isinstance(error, (UnreachableError, NotRallypointError)):
            return RendezvousConnectionError(f"{self._where}: {error}")
        if isinstance(error, MismatchError):
            return RendezvousStateError(text)
        return RendezvousError(text)


def _tells_to_stop(error: BaseException | None) -> bool:
    """Whether it is what torch raises for SIGTERM and similar signals."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    return isinstance(error, SignalException)


class _Explain:
    """Logs what a round waits for: at once with level INFO, and as a warning when it takes long."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._next = EXPLAIN_AFTER
        self._last = ""

    def __call__(self, waiting: Waiting) -> None:
        left = "" if waiting.deadline_seconds is None else f", {waiting.deadline_seconds:.0f} s left"
        text = f"run {self._run_id!r}, round {waiting.round}: {waiting.reason} (waiting for {waiting.waited_seconds:.0f} s{left})"
        if waiting.waited_seconds >= self._next:
            log.warning("rallypoint: %s", text)
            self._next = 2 * waiting.waited_seconds
        elif waiting.reason != self._last:
            log.info("rallypoint: %s", text)
        self._last = waiting.reason
