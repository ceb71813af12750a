"""`rallypoint run` in front of real torchrun and plain python, to a trained and checked result.

The nodes are told their rank and where the server is; what torch needs besides is what `run` sets.
"""

from __future__ import annotations

import sys

import pytest
from jobs import Jobs, UnderRun
from servers import Server

pytest_plugins = ["job_fixtures"]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def places(server: Server, *flags: str) -> list[UnderRun]:
    return [UnderRun(server, rank, 2, *flags) for rank in range(2)]


def test_static_trains_on_a_store_of_its_own(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.launched([*TORCHRUN, "--nproc-per-node=2"], places(rallypoint, "--mode=static"), procs=2)
    results = job.results()
    (own,) = [store for store in rallypoint.get_json("/api/v1/stores")["stores"] if store["run_id"] == "job"]
    assert {result["store"] for result in results} == {f"127.0.0.1:{own['port']}"}
    assert "2 pods are there" in job.nodes[0].output


@pytest.mark.parametrize("flags", [[], ["--rdzv_conf=timeout=1800,read_timeout=120"]], ids=["bare", "timeout"])
def test_c10d_trains_with_timers_that_count(flags: list[str], rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.launched([*TORCHRUN, "--rdzv-backend=c10d", *flags], places(rallypoint))
    job.results()
    meant = "join_timeout=1800 is what was meant" if flags else "join_timeout=1800, as long as --gather-timeout"
    assert meant in job.nodes[0].output


def test_plain_python_trains_on_a_store_of_its_own(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.launched([sys.executable], places(rallypoint))
    results = job.results()
    (own,) = [store for store in rallypoint.get_json("/api/v1/stores")["stores"] if store["run_id"] == "job"]
    assert {result["store"] for result in results} == {f"127.0.0.1:{own['port']}"}
    assert "starting in mode env" in job.nodes[1].output


def test_a_flag_that_names_the_store_keeps_the_run_there(rallypoint: Server, jobs: Jobs) -> None:
    host, _, port = rallypoint.endpoint.rpartition(":")
    flags = [f"--master-addr={host}", f"--master-port={port}"]
    job = jobs.launched([*TORCHRUN, *flags], places(rallypoint, "--mode=static"))
    assert {result["store"] for result in job.results()} == {rallypoint.endpoint}
    assert "keeps the run on the main store" in job.nodes[0].output
