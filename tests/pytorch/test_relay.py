"""Jobs behind relays: the network between a node and the server breaks, or the server dies, and the job does not notice.

Each node's pod has a relay, and the job's endpoint is the node's own loopback. A break: the server's pod refuses every packet for a while, which
ends all connections that say something. A death: kill -9 at moments without a pattern, and a start with the same journal.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from installed import PACKAGE
from jobs import Job, Jobs, clients_only
from pods import Pod, Pods
from servers import TORCH_VERSION, Server, binary, poll

pytest_plugins = ["job_fixtures"]

HERE = "127.0.0.1:29500"
DEATHS_IN_INIT = 3
BREAK = 3.0
"""Seconds. Shorter than what a c10d agent allows its peers (15 s), and longer than any retry of TCP's own."""


def plugin(index: int) -> dict[str, str]:
    return {"PYTHONPATH": str(PACKAGE), "JOB_COMPLETION_INDEX": str(index)}


MODES: dict[str, tuple[Callable[..., Job], str, dict[str, Any]]] = {
    "c10d": (Jobs.torchrun, HERE, {}),
    "static": (Jobs.torchrun, HERE, {"backend": "static", "environment": clients_only(HERE)}),
    "env": (Jobs.ranks, HERE, {"environment": clients_only(HERE)}),
    "tcp": (Jobs.ranks, HERE, {"init_method": f"tcp://{HERE}", "environment": clients_only(HERE)}),
    "plugin": (Jobs.torchrun, "127.0.0.1:29501", {"backend": "rallypoint", "conf": "", "environment": plugin}),
}
if TORCH_VERSION < (2, 7):
    del MODES["static"]  # node 0's agent hosts the store or fails, whatever the environment says


@pytest.fixture
def server(serve_in: Callable[..., Server], pods: Pods, tmp_path: Path) -> Server:
    """A server with a journal, in its pod."""
    return serve_in(pods["server"], "--journal", str(tmp_path / "journal"))


@pytest.fixture
def relays(server: Server, pods: Pods, tmp_path: Path) -> Iterator[list[Path]]:
    """A relay in each node's pod; their logs."""
    del server
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    processes, logs = [], []
    for node in pods.nodes:
        log = tmp_path / f"relay-{node.name}.log"
        command = [str(binary()), "relay", "--server", f"{pods['server'].address}:29501", "--name", node.name]
        with log.open("wb") as output:
            processes.append(subprocess.Popen(node.inside(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment))
        logs.append(log)
    for node in pods.nodes:
        poll(lambda node=node: node.call(ready), f"the relay of {node.name} has its link")
    yield logs
    for process in processes:
        process.kill()
        process.wait()


def ready() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:29501/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


@contextmanager
def broken(pods: Pods) -> Iterator[None]:
    """Every packet between the nodes and the server ends its connection."""
    server = pods["server"].address
    refused = ["OUTPUT", "-d", server, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]
    for node in pods.nodes:
        node.firewall("-I", *refused)
    yield
    for node in pods.nodes:
        node.firewall("-D", *refused)


@pytest.mark.parametrize("mode", MODES)
def test_a_break_of_the_network_is_not_noticed(mode: str, relays: list[Path], pods: Pods, jobs: Jobs) -> None:
    launch, endpoint, options = MODES[mode]
    job = launch(jobs, endpoint, places=pods.nodes, train=["--late", "1:0"], **options)
    # Rank 0 waits in the store for rank 1, which is held.
    job.wait_for_mark("init", 0)
    with broken(pods):
        time.sleep(BREAK)
    job.release()
    assert [result["host"] for result in job.results()] == ["node-0", "node-1"]
    for log in relays:
        assert "is back after" in log.read_text()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("relays")
def test_a_server_that_dies_again_and_again_is_not_noticed(
    mode: str, server: Server, serve_in: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path
) -> None:
    alarms: list[str] = []

    def die_and_live() -> None:
        nonlocal server
        server.process.kill()
        server.process.wait()
        alarms.extend(line for line in server.log_text().splitlines() if " WARN " in line or " ERROR " in line)
        server = serve_in(pods["server"], "--journal", str(tmp_path / "journal"))

    launch, endpoint, options = MODES[mode]
    moments = random.Random(mode)
    job = launch(jobs, endpoint, places=pods.nodes, train=["--late", "1:0"], **options)
    deaths = 0
    while not job.mark_seen("init", 0) or deaths < DEATHS_IN_INIT:
        if any(node.process.poll() is not None for node in job.nodes.values()):
            break  # one has failed, as `results` will say
        time.sleep(moments.uniform(0.1, 1))
        die_and_live()
        deaths += 1
    job.release()
    while any(node.process.poll() is None for node in job.nodes.values()):
        time.sleep(moments.uniform(0.1, 1))
        die_and_live()
        deaths += 1
    assert [result["host"] for result in job.results()] == ["node-0", "node-1"], f"after {deaths} deaths"
    assert not alarms, "nobody but the server has died"


def test_without_a_relay_the_death_of_the_server_ends_the_job(
    server: Server, serve_in: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs.torchrun("server:29500", places=pods.nodes, train=["--late", "1:0"])
    job.wait_for_mark("init", 0)
    server.process.kill()
    server.process.wait()
    serve_in(pods["server"], "--journal", str(tmp_path / "journal"))
    job.release()
    assert "Connection" in job.failure(0) + job.failure(1)


@pytest.mark.usefixtures("server")
def test_without_a_relay_the_same_break_ends_the_job(pods: Pods, jobs: Jobs) -> None:
    job = jobs.torchrun("server:29500", places=pods.nodes, train=["--late", "1:0"])
    job.wait_for_mark("init", 0)
    with broken(pods):
        time.sleep(BREAK + 5)  # an agent speaks every 5 s
    job.release()
    assert "Connection" in job.failure(0) + job.failure(1)
