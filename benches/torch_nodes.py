"""Nodes of torchrun's c10d rendezvous as PyTorch has them, for benches/meeting. One JSON line on stdout.

    torch_nodes.py think                         milliseconds that a node takes between an answer of the store and its next attempt, by participants
    torch_nodes.py meet HOST:PORT NODES THINK    NODES handlers meet; attempts and reads of all. Each takes THINK seconds more for each participant
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import sys
import time
from base64 import b64encode
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torchs
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

ATTEMPTS = 100
FOR_EVER = timedelta(hours=1)


class Enough(Exception):
    """As often as was asked for."""


class LostAttempts:
    """A store in which another node is always faster. Measures the time of the node between two attempts."""

    def __init__(self, participants: int) -> None:
        state = torchs._RendezvousState()
        for number in range(participants):
            node = torchs._NodeDesc(f"trainer-{number:05d}.trainer.default.svc.cluster.local", 1000 + number, 0)
            state.participants[node] = 0
            state.last_heartbeats[node] = datetime.now(timezone.utc)
        self.state = b64encode(pickle.dumps(state))
        self.seconds: list[float] = []
        self.answered = 0.0

    def get(self, _key: str) -> bytes:
        return self.state

    def compare_set(self, _key: str, _expected: str, _desired: str) -> bytes:
        if self.answered:
            # Of this thread alone: whoever else uses the machine does not count.
            self.seconds.append(time.thread_time() - self.answered)
        if len(self.seconds) == ATTEMPTS:
            raise Enough
        self.answered = time.thread_time()
        return self.state


def milliseconds_of_thinking(participants: int) -> float:
    store = LostAttempts(participants)
    settings = torchs.RendezvousSettings("run", participants + 1, participants + 1, torchs.RendezvousTimeout(), FOR_EVER, 3)
    holder = torchs._BackendRendezvousStateHolder(C10dRendezvousBackend(store, "run"), settings)  # type: ignore[arg-type]
    executor = torchs._DistributedRendezvousOpExecutor(torchs._NodeDesc("me", 1, 1), holder, settings)
    try:
        executor.run(torchs._RendezvousJoinOp(), time.monotonic() + 3600)
    except Enough:
        pass
    return round(statistics.median(store.seconds) * 1e3, 2)


class Counted:
    """A node's client of the store, which counts what it does with the state."""

    def __init__(self, store: TCPStore) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.store, name)


def node(number: int, host: str, port: int, nodes: int, think: float) -> dict[str, int]:
    """Joins as one node; what that took."""
    sanitize = torchs._BackendRendezvousStateHolder._sanitize

    def slowly(self: torchs._BackendRendezvousStateHolder) -> None:
        time.sleep(think * len(self._state.participants))
        sanitize(self)

    torchs._BackendRendezvousStateHolder._sanitize = slowly  # type: ignore[method-assign]
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    counted = Counted(store)
    backend = C10dRendezvousBackend(counted, "meeting")  # type: ignore[arg-type]
    handler = torchs.DynamicRendezvousHandler.from_backend("meeting", store, backend, nodes, nodes, f"node-{number:05d}")
    deadline = time.monotonic() + 600
    # As `next_rendezvous` does, but for what comes after.
    torchs._delay(seconds=(0, 0.3))
    handler._op_executor.run(torchs._RendezvousExitOp(), deadline)
    handler._op_executor.run(torchs._RendezvousJoinOp(), deadline)
    # The first compare_set is the backend's own, before there is a state.
    return {"attempts": counted.calls["compare_set"] - 1, "reads": counted.calls["get"]}


def meet(endpoint: str, nodes: int, think: float) -> dict[str, int]:
    """Each node is a process of its own, as they are. They begin together."""
    host, _, port = endpoint.rpartition(":")
    ready, go = os.pipe()
    results = []
    for number in range(nodes):
        result, answer = os.pipe()
        if os.fork() == 0:
            os.close(go)
            os.read(ready, 1)
            os.write(answer, json.dumps(node(number, host, int(port), nodes, think)).encode())
            os._exit(0)
        os.close(answer)
        results.append(result)
    os.close(go)
    total: Counter[str] = Counter()
    for result in results:
        total.update(json.loads(os.read(result, 1000) or b"{}"))
    return dict(total)


def main() -> None:
    match sys.argv[1:]:
        case ["think"]:
            print(json.dumps({n: milliseconds_of_thinking(n) for n in (1, 10, 100, 500, 1000)}))
        case ["meet", endpoint, nodes, think]:
            print(json.dumps(meet(endpoint, int(nodes), float(think))), flush=True)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
