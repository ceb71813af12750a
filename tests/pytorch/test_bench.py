"""`rallypoint bench` works against PyTorch's own server too, and the states it makes are ones that Python can read."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
from typing import Any

import pytest
from servers import Server, StoreServer, binary


def bench(server: StoreServer, scenario: str, *arguments: str) -> dict[str, Any]:
    command = [str(binary()), "bench", scenario, f"{server.host}:{server.port}", "--json", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["complete"]
    return report


@pytest.mark.requires("queue_push")
def test_every_scenario_ends_well_with_either_server(store_server: StoreServer) -> None:
    def facts(scenario: str, *arguments: str) -> dict[str, int]:
        return bench(store_server, scenario, *arguments)["facts"]

    for scenario in ("rtt", "mix"):
        report = bench(store_server, scenario, "-c", "4", "-z", "200ms")
        (requests,) = (section for section in report["sections"] if section["name"] == "requests")
        assert requests["units"] > 0
    assert facts("fanout", "-n", "30") == {"released": 30, "waiters": 30}
    assert facts("init", "-n", "30") == {"init_count": 30, "released": 30}
    assert facts("exchange", "-n", "10", "--size", "50") == {"bytes_read": 10 * 10 * 50}
    cancelled = facts("cancel", "-n", "20", "-z", "200ms")
    assert cancelled["waiters"] == 20 and cancelled["cancelled"] > 0
    assert facts("leave", "-n", "30") == {"left": 30, "waiters": 30}
    joined = facts("cas", "-n", "20")
    assert joined["joined"] == joined["participants"] == 20
    assert facts("big", "--size", "100KiB", "--rounds", "2") == {"bytes_read": 2 * 100 * 1024}
    assert facts("big", "--keys", "100", "--rounds", "1") == {"bytes_read": 100 * 8}
    assert store_server.client().num_keys() <= 1, "bench clears up; one key may be PyTorch's own"


@pytest.mark.requires("barrier")
def test_barrier_ends_well_with_either_server(store_server: StoreServer) -> None:
    assert bench(store_server, "barrier", "-n", "20")["facts"] == {"released": 20}


@pytest.mark.requires("list_keys")
def test_the_states_that_bench_makes_are_ones_of_torchrun(rallypoint: Server) -> None:
    client = rallypoint.client()
    command = [str(binary()), "bench", "cas", rallypoint.endpoint, "-n", "300"]
    values: set[bytes] = set()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        while running.poll() is None:
            # The keys are those of the wire; a client puts the slash there again.
            keys = [key.removeprefix("/") for key in client.list_keys() if "torch.rendezvous.bench-" in key]
            # Reads without waiting: bench may have cleared up by now.
            values.update(client.compare_set(key, "absent", "absent") for key in keys)
    assert running.returncode == 0
    states = [pickle.loads(base64.b64decode(value)) for value in values - {b"Y2FuaW1hZGFt", b"absent"}]
    assert states, "the state was seen while nodes joined"
    for state in states:
        assert type(state).__name__ == "_RendezvousState" and not state.complete
        assert state.participants.keys() == state.last_heartbeats.keys()
        assert all(node.addr.startswith("node") and node.pid >= 1000 for node in state.participants)
    assert max(len(state.participants) for state in states) > 1
