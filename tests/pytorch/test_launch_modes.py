"""Every launch mode of docs/launch-modes.md, with unmodified torchrun and torch, to a trained and checked result.

Standalone: the server has a pod of its own. Sidecar: it shares node 0's pod, so that a launcher which wants to host the store itself finds
the port taken. Modes that PyTorch itself makes fail are held to fail in the documented way.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from installed import PACKAGE
from jobs import PATIENCE, TRAIN, Job, Jobs, UnderRun, clients_only
from pods import Pod, Pods
from servers import TORCH_VERSION, Server, poll

pytest_plugins = ["job_fixtures"]

STANDALONE, SIDECAR = "server:29500", "node-0:29500"


@dataclass
class Mode:
    """One row of the table: how the job is launched, where the server is, and how many connections it should see."""

    name: str
    endpoint: str
    launch: Callable[..., Job]
    connections: int
    """2 agents, 2 plain ranks, or 2 agents and 2 workers. More or fewer means that a process used another store."""
    options: dict[str, Any] = field(default_factory=dict)


AGENTS, RANKS, AGENTS_AND_WORKERS = 2, 2, 4
STATIC_CLIENTS_ONLY = Mode(
    "static-clients_only-sidecar", SIDECAR, Jobs.torchrun, AGENTS_AND_WORKERS, {"backend": "static", "environment": clients_only(SIDECAR)}
)
MODES = [
    Mode("c10d-standalone", STANDALONE, Jobs.torchrun, AGENTS, {"conf": ""}),
    Mode("c10d-sidecar", SIDECAR, Jobs.torchrun, AGENTS, {"conf": ""}),
    Mode("c10d-is_host_0-sidecar", SIDECAR, Jobs.torchrun, AGENTS, {"conf": "is_host=0"}),
    Mode("c10d-wrapper-standalone", STANDALONE, Jobs.torchrun, AGENTS_AND_WORKERS, {"wrapped": True}),
    Mode("c10d-wrapper-sidecar", SIDECAR, Jobs.torchrun, AGENTS_AND_WORKERS, {"wrapped": True}),
    Mode("static-standalone", STANDALONE, Jobs.torchrun, AGENTS_AND_WORKERS, {"backend": "static"}),
    STATIC_CLIENTS_ONLY,
    Mode("env-standalone", STANDALONE, Jobs.ranks, RANKS),
    Mode("env-clients_only-sidecar", SIDECAR, Jobs.ranks, RANKS, {"environment": clients_only(SIDECAR)}),
    Mode("tcp-standalone", STANDALONE, Jobs.ranks, RANKS, {"init_method": f"tcp://{STANDALONE}"}),
    Mode("tcp-clients_only-sidecar", SIDECAR, Jobs.ranks, RANKS, {"init_method": f"tcp://{SIDECAR}", "environment": clients_only(SIDECAR)}),
]


def connections(server: Server) -> int:
    """How many clients have connected to the server's stores so far."""
    lines = server.metrics().splitlines()
    counts = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("rallypoint_connections_total{") and 'outcome="ok"' in line]
    return int(sum(map(float, counts)))


HANGS = 20
"""Seconds for which a job that hangs is looked at."""
AGENT_MUST_BIND = TORCH_VERSION < (2, 7)
"""Before 2.7 torchrun's static agent of node 0 hosts the store or fails, whatever the environment says."""


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("mode", [mode for mode in MODES if not (AGENT_MUST_BIND and mode is STATIC_CLIENTS_ONLY)], ids=lambda mode: mode.name)
def test_launch_mode_trains(mode: Mode, serve_in: Callable[[Pod], Server], pods: Pods, jobs: Jobs) -> None:
    pod = pods[mode.endpoint.partition(":")[0]]
    server = serve_in(pod)
    job = mode.launch(jobs, mode.endpoint, places=pods.nodes, **mode.options)
    results = job.results()
    assert [result["host"] for result in results] == ["node-0", "node-1"]
    poll(lambda: pod.call(lambda: connections(server)) >= mode.connections, f"{mode.connections} connections were served")
    assert pod.call(lambda: connections(server)) == mode.connections


@pytest.mark.parametrize("server_pod", ["server", "node-0"], ids=["standalone", "sidecar"])
def test_plugin_trains(server_pod: str, serve_in: Callable[[Pod], Server], pods: Pods, jobs: Jobs) -> None:
    """The torchrun plugin: workers get the round's store at the address of the server's pod."""
    serve_in(pods[server_pod])

    def variables(index: int) -> dict[str, str]:
        return {"PYTHONPATH": str(PACKAGE), "JOB_COMPLETION_INDEX": str(index)}

    job = jobs.torchrun(f"{server_pod}:29501", backend="rallypoint", conf="", environment=variables, places=pods.nodes)
    results = job.results()
    assert [result["host"] for result in results] == ["node-0", "node-1"]
    (store,) = {result["store"] for result in results}
    host, _, port = store.rpartition(":")
    assert host == pods[server_pod].address
    assert 29510 <= int(port) <= 29599


def test_c10d_four_nodes_of_two_ranks(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.torchrun(rallypoint.endpoint, nodes=4, procs=2, train=["--new-group"])
    results = job.results()
    assert len(results) == 8
    # torchrun gave the workers a store of rank 0's agent, as it does in this mode.
    assert all(result["store"] != rallypoint.endpoint for result in results)


@pytest.mark.parametrize(
    ("launch", "options"),
    [
        pytest.param(Jobs.torchrun, {"conf": "is_host=1"}, id="c10d-is_host_1"),
        pytest.param(Jobs.torchrun, {"backend": "static"}, id="static"),
        *([pytest.param(Jobs.torchrun, STATIC_CLIENTS_ONLY.options, id="static-clients_only")] if AGENT_MUST_BIND else []),
        pytest.param(Jobs.ranks, {}, id="env"),
        pytest.param(Jobs.ranks, {"init_method": f"tcp://{SIDECAR}"}, id="tcp"),
    ],
)
def test_sidecar_and_a_launcher_that_insists_to_host(
    launch: Callable[..., Job], options: dict[str, Any], serve_in: Callable[[Pod], Server], pods: Pods, jobs: Jobs
) -> None:
    """With nothing set these modes make node 0 bind the endpoint's port, which the sidecar has: PyTorch fails, at once and saying why."""
    server = serve_in(pods["node-0"])
    job = launch(jobs, SIDECAR, places=pods.nodes, start=[0], **options)
    output = job.failure(0).lower()
    assert "address already in use" in output or "eaddrinuse" in output
    assert server.process.poll() is None


def test_sidecar_that_starts_after_the_agent_says_that_its_port_is_taken(serve_in: Callable[[Pod], Server], pods: Pods, jobs: Jobs) -> None:
    """Without is_host=0 the first to bind wins: an agent that is earlier than its sidecar hosts the store itself."""
    jobs.torchrun(SIDECAR, places=pods.nodes, conf="", start=[0])
    poll(lambda: pods["node-0"].call(lambda: listening(29500)), "the agent hosts the store", 30)
    with pytest.raises(pytest.fail.Exception, match=r"(?i)address (already )?in use"):
        serve_in(pods["node-0"])


def test_c10d_restart_after_a_rank_crashed(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.torchrun(
        rallypoint.endpoint,
        options=["--max-restarts=1"],
        train=["--crash", "1:0"],
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    # The other node may notice the new round before its own worker fails: then it joins it without counting a restart.
    assert job.results()[1]["attempt"] == 1


def restart_with_a_late_rank(server: Server, jobs: Jobs, run_id: str, environment: dict[str, str]) -> Job:
    """Rank 0 of the second attempt looks for rank 1, which was held, and is let go."""
    options, train = ["--max-restarts=1"], ["--crash", "1:0", "--late", "1:1"]
    job = jobs.torchrun(server.endpoint, run_id=run_id, options=options, train=train, environment=environment)
    server.await_log(f"{run_id} round 1 complete", PATIENCE)
    job.forget_marks()
    poll(lambda: list(job.folder.glob("init-0-*")), "rank 0 has come again", PATIENCE)
    time.sleep(5)  # it reads the address of rank 1 if there is one
    job.release()
    return job


def test_c10d_restart_with_a_rank_that_comes_late(rallypoint: Server, jobs: Jobs) -> None:
    job = restart_with_a_late_rank(rallypoint, jobs, "job", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    job.results()
    rallypoint.await_log("job round 1 finished")


@pytest.mark.timeout(400)
@pytest.mark.skipif(TORCH_VERSION < (2, 5), reason="before 2.5 rank 0 hosts a new store each time")
def test_c10d_restart_meets_old_addresses_without_the_variable(rallypoint: Server, jobs: Jobs) -> None:
    """In the store of node 0's agent are the addresses of the ranks before. Who dials one hangs, ends, or meets anew with one more restart.

    Which rank looks first is chance, so one job of several may come through.
    """
    for number in range(5):
        run_id = f"job{number}"
        job = restart_with_a_late_rank(rallypoint, jobs, run_id, {})
        time.sleep(HANGS)
        if f"{run_id} round 1 finished" not in rallypoint.log_text():
            return
        job.kill()
    pytest.fail("all restarts came through")


def test_c10d_restart_under_run(rallypoint: Server, jobs: Jobs) -> None:
    places = [UnderRun(rallypoint, rank, 2) for rank in range(2)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--max-restarts=1"]

    def command(_: int) -> list[str]:
        return [*torchrun, str(TRAIN), "--out", str(job.folder), "--crash", "1:0"]

    job = jobs.planned(places, command, 2)
    job.start(0, 1)
    assert job.results()[1]["attempt"] == 1


def test_c10d_elastic_job_goes_on_when_the_node_of_rank_0_is_lost(rallypoint: Server, jobs: Jobs) -> None:
    """The store is not on node 0, so the survivor can form the next round alone. (Without a server outside, the job ends here.)"""
    job = jobs.torchrun(
        rallypoint.endpoint,
        nnodes="1:2",
        conf="is_host=0,last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=2",
        options=["--max-restarts=2"],
        train=["--hold"],
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    job.kill_node(job.node_of_rank(0))
    job.release()
    (result,) = job.results(world_size=1)
    assert result["attempt"] >= 1


def test_kill_of_a_rank_ends_the_job_everywhere(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.torchrun(rallypoint.endpoint, backend="static", train=["--kill", "1:0"], environment=clients_only(rallypoint.endpoint))
    assert "Signal 9 (SIGKILL)" in job.failure(1)
    assert "by peer" in job.failure(0)  # "Connection closed by peer" or "Connection reset by peer"
    assert rallypoint.process.poll() is None
