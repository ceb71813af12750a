"""Jobs that are legal and unusual (legal_jobs.py), each twice, at once one after the other, on one server, with default flags but for one.

What one of them leaves behind must not reach the next, and nothing that it still needs may be dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from forks import ForkedPlace
from jobs import Job, Jobs, ThisMachine, clients_only
from servers import Server

pytest_plugins = ["job_fixtures"]

PROGRAM = Path(__file__).with_name("support") / "legal_jobs.py"
Fork = Callable[[int], list[ForkedPlace]]


def run_twice(jobs: Jobs, server: Server, name: str, ranks: int, *, forks: Fork | None = None, **environment: str) -> None:
    places = forks(ranks) if forks else [ThisMachine()] * ranks
    variables = clients_only(server.endpoint) | environment
    for _ in range(2):
        job: Job = jobs.ranks(server.endpoint, world_size=ranks, program=PROGRAM, train=[name], environment=variables, places=places)
        job.finish()
    assert "ERROR" not in server.log_text()


@pytest.mark.parametrize("name", ["many_groups", "store_by_hand", "shared_store", "checkpoints", "store_barriers"])
def test_a_legal_job_twice(name: str, rallypoint: Server, jobs: Jobs, fork: Fork) -> None:
    run_twice(jobs, rallypoint, name, 3, forks=fork)


def test_debug_detail_twice(rallypoint: Server, jobs: Jobs) -> None:
    """With processes of their own: torch reads the level when it is imported."""
    run_twice(jobs, rallypoint, "debug_detail", 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")


def test_checkpoint_barriers_twice(rallypoint_factory: Callable[..., Server], jobs: Jobs, fork: Fork) -> None:
    """Their keys are at the root of the store, where nobody can tell them from a program's own: it takes a store for one job."""
    run_twice(jobs, rallypoint_factory("--one-job", "on"), "checkpoint_barriers", 3, forks=fork)
