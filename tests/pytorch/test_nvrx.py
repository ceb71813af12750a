"""`ft_launcher` of nvidia-resiliency-ext 0.7 (docs/recipes.md): two nodes of one process each, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from jobs import TRAIN, Job, Jobs, ThisMachine, UnderRun
from nvrx_package import nvrx_path
from servers import Server, poll
from torch.distributed import TCPStore

pytest_plugins = ["job_fixtures"]

FT_LAUNCHER = [sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher", "--ft-ignore-missing-cfg", "--nproc-per-node=1"]
BARRIER = "ft_rendezvous_barrier:job"
pytestmark = pytest.mark.timeout(300)  # the package may have to be downloaded


@pytest.fixture(scope="module")
def nvrx() -> dict[str, str]:
    """The variable with which Python finds the package."""
    return {"PYTHONPATH": nvrx_path()}


class Node(UnderRun):
    """Two launchers with one address are taken for a mistake."""

    def __init__(self, server: Server, rank: int) -> None:
        super().__init__(server, rank, 2, "--gather=off")
        self.environment |= {"POD_IP": f"127.0.0.{rank + 1}"}


def start(job: Job, environment: dict[str, str]) -> Job:
    job.environment = lambda index: environment
    job.start(0, 1)
    return job


def under_run(jobs: Jobs, server: Server, nvrx: dict[str, str]) -> Job:
    def command(_: int) -> list[str]:
        return [*FT_LAUNCHER, str(TRAIN), "--out", str(job.folder)]

    job = jobs.planned([Node(server, rank) for rank in range(2)], command, 2)
    return start(job, nvrx)


def by_hand(jobs: Jobs, server: Server, nvrx: dict[str, str], leader: int | None) -> Job:
    def command(index: int) -> list[str]:
        flags = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={server.endpoint}", "--rdzv-id=job"]
        flags += [f"--rdzv-conf=is_host={int(index == leader)}", f"--local-addr=127.0.0.{index + 1}"]
        return [*FT_LAUNCHER, *flags, str(TRAIN), "--out", str(job.folder)]

    job = jobs.planned([ThisMachine()] * 2, command, 2)
    # The leader would host a store at the server's port, which is taken on this machine.
    return start(job, nvrx | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(server.port)})


def client(server: Server) -> TCPStore:
    return TCPStore(server.host, server.port, is_master=False, timeout=timedelta(seconds=60))


def test_under_run_twice_with_one_id(nvrx: dict[str, str], rallypoint: Server, jobs: Jobs) -> None:
    under_run(jobs, rallypoint, nvrx).results()
    under_run(jobs, rallypoint, nvrx).results()


def test_without_a_leader_all_wait(nvrx: dict[str, str], rallypoint_factory: Callable[..., Server], jobs: Jobs) -> None:
    rallypoint = rallypoint_factory("--explain-after", "3s")
    job = by_hand(jobs, rallypoint, nvrx, leader=None)
    store = client(rallypoint)
    poll(lambda: store.check([f"{BARRIER}:slot_1", f"{BARRIER}:slot_2"]), "both have joined", 60)
    job.assert_waits(0, 5)
    agents = [str(node.process.pid) for node in job.nodes.values()]

    def said() -> str:
        """What is said of the run at first sight."""
        (run,) = rallypoint.get_json("/api/v1/runs")["runs"]
        return (run["explanation"] or {"text": ""})["text"]

    poll(lambda: f"{BARRIER}:shutdown" in said() and all(agent in said() for agent in agents), "both, and the key of the leader", 30)
    # Who reads a key of the run belongs to it: this client goes at once.
    assert client(rallypoint).get(f"{BARRIER}:round_done_0") == b"0", "nobody closes the round"
    job.kill()
    poll(lambda: not store.check([f"{BARRIER}:round_done_0"]), "the keys of the run have gone", 30)


def test_with_one_leader_they_train(nvrx: dict[str, str], rallypoint: Server, jobs: Jobs) -> None:
    by_hand(jobs, rallypoint, nvrx, leader=1).results()


def test_where_the_keys_of_the_first_run_stay_the_second_trains_nothing(nvrx: dict[str, str], rallypoint: Server, jobs: Jobs) -> None:
    by_hand(jobs, rallypoint, nvrx, leader=0)
    store = client(rallypoint)
    store.get(f"{BARRIER}:round_done_0")  # as one more agent, whose connection is never closed
    jobs.started[0].results()
    again = by_hand(jobs, rallypoint, nvrx, leader=0)
    again.finish()
    assert not list(again.folder.glob("rank-*.json")), "both ended with 0"
