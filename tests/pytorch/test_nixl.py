"""NIXL's metadata store with the real package, without a GPU: `NIXL_TCPSTORE_ENDPOINT` names the server (docs/recipes.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from scenario import IN_THE_FOLDER, Scenario
from servers import REPOSITORY, Server, poll
from torch.distributed import TCPStore

pytest_plugins = ["job_fixtures"]

NIXL = "nixl-cu12==1.5.1"
AGENT = Path(__file__).parent / "support" / "with_nixl.py"
pytestmark = pytest.mark.timeout(300)  # the package may have to be downloaded


class Agent:
    """An agent of NIXL in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("> "):
                return line.removeprefix("> ").strip()
        raise AssertionError("the agent has ended")

    def ask(self, *words: str) -> str:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return self._answer()

    def finds(self, other: str, seconds: float = 20) -> bool:
        """Whether the metadata of another agent arrives in that time. What it had found before is forgotten."""
        self.ask("forget", other)
        return self.ask("fetch", other, str(seconds)) == "found"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Agents = Callable[[Server, str], Agent]


@pytest.fixture(scope="module")
def packages() -> Path:
    command = [REPOSITORY / "scripts" / "python-env", "nixl", "--no-deps", NIXL]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (packages,) = Path(made).glob("lib/python*/site-packages")
    return packages


@pytest.fixture
def agents(packages: Path) -> Iterator[Agents]:
    """Starts agents. All of them end with the test."""
    with ExitStack() as ends:

        def start(server: Server, name: str) -> Agent:
            own = {"PYTHONPATH": str(packages), "NIXL_TCPSTORE_ENDPOINT": f"{server.host}:{server.port}"}
            pipe = subprocess.PIPE
            command = [sys.executable, str(AGENT), name]
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | own)
            ends.callback(process.wait)
            ends.callback(process.kill)
            return Agent(process)

        yield start


def test_agents_find_each_other_late_and_not_what_was_taken_back(rallypoint: Server, agents: Agents) -> None:
    first, second = agents(rallypoint, "first"), agents(rallypoint, "second")
    assert not second.finds("first", 0.5), "not published yet"
    first.ask("publish")
    second.ask("publish")
    assert second.finds("first") and first.finds("second")
    assert agents(rallypoint, "late").finds("first")
    first.ask("invalidate")
    assert not agents(rallypoint, "later").finds("first", 2)


@pytest.mark.parametrize("after", ["1s", "off"])
def test_a_dead_agent_is_forgotten_and_a_silent_one_is_not(
    after: str, rallypoint_factory: Callable[..., Server], agents: Agents
) -> None:
    server = rallypoint_factory("--forget-run-after", after)
    dead, silent = agents(server, "dead"), agents(server, "silent")
    dead.ask("publish")
    silent.ask("publish")
    looker = agents(server, "looker")
    assert looker.finds("dead") and looker.finds("silent")
    dead.kill()
    # A fetch that ends without a result has looked for its whole time: 3 s are enough for the rule.
    assert not looker.finds("nobody", 3)
    store = TCPStore(server.host, server.port, is_master=False)
    assert store.check(["nixl/agents/metadata/dead/NULL_AGENT"]) == (after == "off")
    assert looker.finds("silent")


def test_a_silent_agent_is_found_after_a_restart_with_a_journal(
    rallypoint_factory: Callable[..., Server], agents: Agents, tmp_path: Path
) -> None:
    flags = ("--journal", str(tmp_path / "journal"), "--forget-run-after", "1s")
    server = rallypoint_factory(*flags)
    silent = agents(server, "silent")
    silent.ask("publish")
    assert agents(server, "looker").finds("silent")
    server.process.kill()
    server.process.wait()
    again = rallypoint_factory(*flags, "--listen", f"{server.host}:{server.port}")
    looker = agents(again, "looker after the restart")
    assert not looker.finds("nobody", 3) and looker.finds("silent")


def test_the_agents_of_the_overlay_find_each_other(packages: Path, scenario: Callable[..., Scenario]) -> None:
    """A LeaderWorkerSet with an agent in each pod, and a store with a journal."""
    changes = [IN_THE_FOLDER, ("serve.py", "train.py"), ('"replicas": 4', '"replicas": 2')]
    python = {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}
    paths = {"PYTHONPATH": str(packages)}
    names = ("serve-0", "serve-1")
    job = scenario("nixl", *changes, programs=python, environment=paths, program="nixl_program.py", train=" ".join(names)).start()
    for index, name in enumerate(names):
        found = f"{name} has found {names[1 - index]}"
        poll(lambda index=index, found=found: found in job.nodes[index].output, found, 60)
    job.release()
    job.finish()
