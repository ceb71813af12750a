"""Fixtures of the tests that launch whole jobs. A test module asks for them with `pytest_plugins = ["job_fixtures"]`.

    jobs        starts torchrun jobs and plain ranks (jobs.py); the end of every node's output is in the report of a failure
    fork        call it for a place of its own for each of so many nodes, whose processes start in no time (forks.py)
    pods        the emulated pods `server`, `node-0` and `node-1` (pods.py)
    serve_in    starts a rallypoint server in one of them, on the default ports
    scenario    the emulated pods of an overlay or of a user's manifest (scenario.py)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forks import ForkedPlace, ForkServer
from jobs import Jobs
from package import package
from pods import Pod, Pods
from scenario import Scenario, manifest
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


@contextmanager
def permitted() -> Iterator[None]:
    """Where namespaces are not permitted the test fails, unless it is told to skip."""
    try:
        yield
    except OSError as error:
        needs = "Linux, root, iproute2, iptables and dnsmasq"
        pytest.fail(f"{error}; this test needs {needs}, or RALLYPOINT_TEST_SKIP=netns to be skipped", pytrace=False)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process that all forked nodes come from."""
    server = ForkServer(package())
    yield server
    server.stop()


@pytest.fixture
def fork(fork_server: ForkServer) -> Callable[[int], list[ForkedPlace]]:
    """Places for so many nodes, whose processes are forked with torch imported."""
    return lambda count: [ForkedPlace(fork_server, index) for index in range(count)]


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Callable[[], Pods]]:
    """Makes places for pods, each with a switch of its own. They end with the test."""
    if "netns" in os.environ.get("RALLYPOINT_TEST_SKIP", "").split(","):
        pytest.skip("needs network namespaces, and RALLYPOINT_TEST_SKIP contains netns")
    made: list[Pods] = []

    def make() -> Pods:
        made.append(Pods(tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.delete()


@pytest.fixture
def pods(networks: Callable[[], Pods]) -> Pods:
    """The emulated pods `server`, `node-0` and `node-1`."""
    network = networks()
    with permitted():
        network.create()
    return network


@pytest.fixture
def scenario(tmp_path: Path, networks: Callable[[], Pods], jobs: Jobs, fork_server: ForkServer) -> Iterator[Callable[..., Scenario]]:
    """Makes the pods of a manifest, which `changes` adapt to this machine; several of them can run at the same time, and all end with the test. What else can
    be chosen: options of train.py (`train`), programs and variables that containers find besides, another training program."""
    made: list[Scenario] = []

    def make(name: str, *changes: tuple[str, str], **options: Any) -> Scenario:
        objects = manifest(name, *changes)
        with permitted():
            made.append(Scenario(tmp_path / f"scenario-{len(made)}", networks(), jobs, objects, fork_server, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def serve_in(rallypoint_factory: Callable[..., Server]) -> Callable[..., Server]:
    """Starts a server in a pod, on the default ports of `rallypoint serve` and with more arguments. It ends with the test."""
    ports = ("--listen", "[::]:29500", "--admin", "[::]:29501")
    return lambda pod, *arguments: pod.call(lambda: rallypoint_factory(*ports, *arguments))
