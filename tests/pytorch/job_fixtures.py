"""Fixtures of the tests that launch whole jobs. A test module asks for them with `pytest_plugins = ["job_fixtures"]`.

    jobs        starts torchrun jobs and plain ranks (jobs.py); the end of every node's output is in the report of a failure
    fork        call it for a place of its own for each of so many nodes, whose processes start in no time (forks.py)
    pods        the emulated pods `server`, `node-0` and `node-1` (pods.py)
    serve_in    starts a rallypoint server in one of them, on the default ports
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from forks import ForkedPlace, ForkServer
from jobs import Jobs
from pods import Pod, Pods
from servers import Server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the end of every node's output to the report of a failure."""
    report = yield
    made = getattr(item, "funcargs", {}).get("jobs")
    if report.failed and report.when == "call" and isinstance(made, Jobs):
        report.sections += made.report()
    return report


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Starts jobs; whatever still runs of them at the end of the test is killed."""
    made = Jobs(tmp_path)
    yield made
    made.kill()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process that all forked nodes come from."""
    server = ForkServer()
    yield server
    server.stop()


@pytest.fixture
def fork(fork_server: ForkServer) -> Callable[[int], list[ForkedPlace]]:
    """Places for so many nodes, whose processes are forked with torch imported."""
    return lambda count: [ForkedPlace(fork_server, index) for index in range(count)]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """The emulated pods. Where namespaces are not permitted the test fails, unless it is told to skip."""
    if "netns" in os.environ.get("RALLYPOINT_TEST_SKIP", "").split(","):
        pytest.skip("needs network namespaces, and RALLYPOINT_TEST_SKIP contains netns")
    made = Pods(tmp_path)
    try:
        made.create()
    except OSError as error:
        made.delete()
        pytest.fail(f"{error}; this test needs Linux, root and iproute2, or RALLYPOINT_TEST_SKIP=netns to be skipped", pytrace=False)
    yield made
    made.delete()


@pytest.fixture
def serve_in(rallypoint_factory: Callable[..., Server]) -> Callable[[Pod], Server]:
    """Starts a server in a pod, on the default ports of `rallypoint serve`. It ends with the test."""
    return lambda pod: pod.call(lambda: rallypoint_factory("--listen", "[::]:29500", "--admin", "[::]:29501"))
