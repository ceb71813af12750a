"""Looking at the jobs must not delay them: other clients' round trips beside a rendezvous of 1200 nodes, with insight on and off."""

from __future__ import annotations

import base64
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from servers import REPOSITORY, Server, poll
from wire import PING, WireClient

SAMPLE = REPOSITORY / "tests" / "data" / "samples" / "rdzv_state_1200_nodes.json"
STATE = b"/torch.rendezvous.big"
CHANGES_A_SECOND = 100
WINDOW, WINDOWS = 1.0, 4
"""Seconds, and how many for each server; the servers take turns, so that whatever else runs here slows both."""
MOST = 3.0
"""How many times slower a round trip may be with insight. Decoding on the way of a request would cost 50 times."""


class Heartbeats:
    """The state of 1200 nodes; each change is a heartbeat of one of them."""

    def __init__(self) -> None:
        self.pickle = bytearray(base64.b64decode(json.loads(SAMPLE.read_text())["value_base64"]))
        self.microseconds = self.pickle.index(b"C\x0a\x07") + 2 + 7  # ten bytes of a time that begins with the year

    def change(self, number: int) -> bytes:
        self.pickle[self.microseconds : self.microseconds + 3] = (number % 1_000_000).to_bytes(3, "big")
        return base64.b64encode(self.pickle)


@contextmanager
def changing(server: Server) -> Iterator[list[int]]:
    """Changes the state at that rate in a thread of its own. Gives the number of changes so far."""
    heartbeats, done, stop = Heartbeats(), [0], threading.Event()

    def change() -> None:
        with WireClient(server.host, server.port) as client:
            value = client.compare_set(STATE, b"", heartbeats.change(0))
            due = time.monotonic()
            while not stop.is_set():
                new = heartbeats.change(done[0] + 1)
                assert client.compare_set(STATE, value, new) == new
                value, done[0], due = new, done[0] + 1, due + 1 / CHANGES_A_SECOND
                stop.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=change)
    thread.start()
    yield done
    stop.set()
    thread.join()


def round_trips(client: WireClient) -> list[float]:
    """A bystander's PINGs in one window, in seconds each."""
    taken: list[float] = []
    end = time.monotonic() + WINDOW
    while time.monotonic() < end:
        started = time.perf_counter()
        client.send(bytes([PING]) + b"\1\2\3\4")
        assert client.receive(4) == b"\1\2\3\4"
        taken.append(time.perf_counter() - started)
    return taken


def test_a_large_state_that_changes_all_the_time_delays_nobody(rallypoint_factory: Callable[..., Server]) -> None:
    taken: dict[str, list[float]] = {"on": [], "off": []}
    servers = {setting: rallypoint_factory("--insight", setting) for setting in taken}
    for _ in range(WINDOWS):
        for setting, server in servers.items():
            server.client().delete_key("torch.rendezvous.big")
            with changing(server) as changes, WireClient(server.host, server.port) as bystander:
                poll(lambda: changes[0] > 10, "the state changes")
                before, started = changes[0], time.monotonic()
                taken[setting] += round_trips(bystander)
                rate = (changes[0] - before) / (time.monotonic() - started)
            assert rate > CHANGES_A_SECOND / 4
    listed = servers["on"].get_json("/api/v1/runs")
    # The node that changed the state has left.
    assert [(run["run_id"], run["nodes"]["joined"] + run["nodes"]["gone"]) for run in listed["runs"]] == [("big", 1200)]
    assert listed["lost_observations"] == 0
    for name, figure in {"median": statistics.median, "90th percentile": lambda all: statistics.quantiles(all, n=10)[-1]}.items():
        on, off = figure(taken["on"]), figure(taken["off"])
        print(f"{name} of a bystander's round trip: {on * 1e6:.0f} µs with insight, {off * 1e6:.0f} µs without")
        assert on < MOST * off, f"{name}: {on * 1e6:.0f} µs with insight, {off * 1e6:.0f} µs without"
