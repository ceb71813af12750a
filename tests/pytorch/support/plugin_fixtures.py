"""Fixtures of the tests of the Python package. A test module asks for them with `pytest_plugins = ["plugin_fixtures"]`.

    meeting         a server with store ports of its own
    meetings        starts such servers; the same ports again with `again=SERVER`, for a server that restarts
    plugin_jobs     starts torchrun jobs with --rdzv-backend=rallypoint
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from forks import ForkedPlace
from installed import PACKAGE, admin_endpoint
from job_fixtures import fork, fork_server, jobs, pytest_runtest_makereport  # noqa: F401
from jobs import Job, Jobs
from servers import HOST, Server

STORE_PORTS = 40
"""How many each server may use."""
QUICK = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=3"
"""`--rdzv-conf` of tests that lose nodes: seconds instead of half minutes."""


def free_port_range() -> str:
    """A range of ports below the kernel's own, whose first and last one are free."""
    while True:
        first = random.randrange(12000, 28000, STORE_PORTS)
        last = first + STORE_PORTS - 1
        try:
            for port in (first, last):
                with socket.socket() as probe:
                    probe.bind((HOST, port))
        except OSError:
            continue
        return f"{first}-{last}"


@pytest.fixture
def meetings(rallypoint_factory: Callable[..., Server]) -> Callable[..., Server]:
    """Starts servers: `meetings("--join-timeout", "5s")`, `meetings(again=server)`."""

    def start(*arguments: str, again: Server | None = None) -> Server:
        if again:
            here = ("--listen", f"{HOST}:{again.port}", "--admin", f"{HOST}:{again.admin_port}")
            return rallypoint_factory("--store-ports", free_port_range(), *here, *arguments)
        return rallypoint_factory("--store-ports", free_port_range(), *arguments)

    return start


@pytest.fixture
def meeting(meetings: Callable[..., Server]) -> Server:
    """A server with default flags."""
    return meetings()


@pytest.fixture
def plugin_jobs(jobs: Jobs, fork: Callable[[int], list[ForkedPlace]]) -> Callable[..., Job]:  # noqa: F811
    """Starts torchrun jobs that meet on a server by the plugin: `plugin_jobs(meeting, nodes=4)`.

    Their agents and workers are forked, which saves each an import of torch, unless `forked` is false.
    """

    def start(
        server: Server,
        *,
        environment: Callable[[int], dict[str, str]] = lambda _: {},
        train: Sequence[str] = (),
        ddp: bool = False,
        forked: bool = True,
        **options: Any,
    ) -> Job:
        options.setdefault("conf", QUICK)
        if forked:
            options["places"] = fork(options.get("nodes", 2))
        # Importing what DDP needs takes over a second in each worker; the gradients are averaged and checked either way.
        options["train"] = train if ddp else [*train, "--no-ddp"]

        def variables(index: int) -> dict[str, str]:
            return {"PYTHONPATH": str(PACKAGE)} | environment(index)

        return jobs.torchrun(admin_endpoint(server), backend="rallypoint", environment=variables, **options)

    return start
