"""`dcp.async_save` in processes (docs/launch-modes.md), where MASTER_ADDR is the host of no rank: a server in a pod of its own.

The processes that save meet where DCP_USE_PREFIX_STORE=1 sends them. `run` and the plugin set it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import PACKAGE
from jobs import Job, Jobs, clients_only
from pods import Pod, Pods
from servers import TORCH_VERSION, Server, binary, poll

pytest_plugins = ["job_fixtures"]
pytestmark = pytest.mark.skipif(TORCH_VERSION < (2, 10), reason="DCP_USE_PREFIX_STORE is not read before 2.10")

SAVES = Path(__file__).with_name("support") / "save_by_process.py"
PATIENCE = 75
"""Seconds for a rank to start and to ask for its save."""
HANGS = 15
"""Seconds for which a save that hangs is looked at."""


@pytest.fixture
def server(serve_in: Callable[..., Server], pods: Pods) -> Server:
    return serve_in(pods["server"])


def by_variables(jobs: Jobs, pods: Pods) -> Job:
    return jobs.ranks("server:29500", program=SAVES, environment=clients_only("server:29500") | {"DCP_USE_PREFIX_STORE": "1"}, places=pods.nodes)


def by_run(jobs: Jobs, pods: Pods) -> Job:
    def command(index: int) -> list[str]:
        options = ["--endpoint=server:29500", "--nodes=2", f"--node-rank={index}", "--run-id=job"]
        return [str(binary()), "run", *options, "--", sys.executable, str(SAVES), "--out", str(job.folder)]

    job = jobs.planned(pods.nodes, command, 2)
    job.start(0, 1)
    return job


def by_plugin(jobs: Jobs, pods: Pods) -> Job:
    def command(index: int) -> list[str]:
        options = ["--nnodes=2", "--rdzv-backend=rallypoint", "--rdzv-endpoint=server:29501", "--rdzv-id=job"]
        torchrun = ["env", f"PYTHONPATH={PACKAGE}", f"JOB_COMPLETION_INDEX={index}", sys.executable, "-m", "torch.distributed.run"]
        return [*torchrun, *options, str(SAVES), "--out", str(job.folder)]

    job = jobs.planned(pods.nodes, command, 2)
    job.start(0, 1)
    return job


@pytest.mark.parametrize("launch", [by_variables, by_run, by_plugin])
def test_checkpoints_are_saved_by_processes(launch: Callable[[Jobs, Pods], Job], server: Server, pods: Pods, jobs: Jobs) -> None:
    # Only there both jobs use one store: a run that has finished is refused, and another one has a store of its own.
    for _ in range(2 if launch is by_variables else 1):
        # The second job finds none of the addresses that the processes of the first one had.
        job = launch(jobs, pods)
        job.finish()
        assert {path.name for path in job.folder.glob("saved-*")} == {"saved-0", "saved-1"}
        assert (job.folder / "checkpoint" / ".metadata").exists()
    assert " WARN " not in server.log_text()


def test_without_the_variable_a_save_by_processes_never_ends(server: Server, pods: Pods, jobs: Jobs) -> None:
    del server
    job = jobs.ranks("server:29500", program=SAVES, environment=clients_only("server:29500"), places=pods.nodes)
    poll(lambda: len(list(job.folder.glob("asked-*"))) == 2, "both ranks ask for their save", PATIENCE)
    job.assert_waits(0, HANGS)
    assert not list(job.folder.glob("saved-*"))
