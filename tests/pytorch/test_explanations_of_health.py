"""Healthy jobs of all launch modes, side by side for over a minute: what is said of each, which is little, and that nothing else is.

Each has a server of its own. Their ranks come in an odd order, meet, and hold for a minute longer than `--explain-after`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dying import die_with_parent
from explained import LEVELS, LOG_AS_JSON, explanations, log_lines, runs
from forks import STAND_IN, ForkedPlace
from installed import PACKAGE, admin_endpoint
from jobs import TRAIN, Job, Jobs, UnderRun, clients_only
from servers import HOST, Server, binary, is_ready, poll

pytest_plugins = ["plugin_fixtures"]

Fork = Callable[[int], list[ForkedPlace]]
Serve = Callable[..., Server]
EXPLAIN_AFTER, MINUTE = 8, 60
HOLD = ["--hold", "--no-ddp"]
AS_CLIENTS = {"TORCHELASTIC_RESTART_COUNT": "0"}
AGENTS = ["round_complete", "run_finished"]
RANKS = ["round_complete", "run_ended"]
MOST_LINES = 9
"""In the log of a server at info, from its start to the end of its job. The first two are its own."""


class Relay:
    """A relay on loopback."""

    def __init__(self, server: Server, name: str, folder: Path) -> None:
        ports = folder / f"{name}.json"
        argv = [binary(), "relay", "--server", admin_endpoint(server), "--name", name, "--listen", f"{HOST}:0", "--admin", f"{HOST}:0", "--ports-file", ports]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        poll(ports.exists, "the relay listens", 20)
        bound = json.loads(ports.read_text())
        self.port = bound["stores"][0]
        poll(lambda: is_ready(f"{HOST}:{bound['admin']}"), "the relay has its link", 20)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Twin:
    """A healthy job, its servers, one after the other, and what is said of it: each code once."""

    job: Job
    servers: list[Server]
    ranks: int
    codes: list[str]
    restart: Callable[[], Server] | None = None

    def said(self) -> list[str]:
        """All codes in the logs. Whether the first one's coming gets a line depends on how soon the last one comes."""
        coded = [line["code"] for server in self.servers for line in log_lines(server) if "code" in line]
        return sorted(code for code in coded if code != "run_started")

    def alarms(self) -> list[str]:
        """What is above info in the logs, or in the API of the server that runs."""
        logged = [line["message"] for server in self.servers for line in log_lines(server) if line["level"] not in ("INFO", "DEBUG")]
        return logged + [one["text"] for one in explanations(self.servers[-1]) if LEVELS[one["severity"]] != "INFO"]

    def status(self) -> str:
        return subprocess.run([binary(), "status", admin_endpoint(self.servers[-1])], capture_output=True, text=True, timeout=20, check=True).stdout


@dataclass
class Play:
    """Starts the twins."""

    serve: Serve
    jobs: Jobs
    fork: Fork
    folder: Path
    relays: list[Relay] = field(default_factory=list)

    def server(self, *arguments: str, again: Server | None = None) -> Server:
        return self.serve(*LOG_AS_JSON, f"--explain-after={EXPLAIN_AFTER}s", *arguments, again=again)

    def agents(self, codes: list[str], *, ranks: int = 2, server: Server | None = None, **options: object) -> Twin:
        server = server or self.server()
        endpoint = str(options.pop("endpoint", server.endpoint))
        job = self.jobs.torchrun(endpoint, places=self.fork(2), procs=ranks // 2, train=HOLD, start=[1], **options)  # type: ignore[arg-type]
        job.start(0)
        return Twin(job, [server], ranks, codes)

    def c10d(self) -> Twin:
        return self.agents([*AGENTS, "workers_elsewhere"])

    def c10d_with_workers_here(self) -> Twin:
        return self.agents(AGENTS, ranks=4, wrapped=True)

    def static(self) -> Twin:
        server = self.server()
        return self.agents(AGENTS, ranks=4, server=server, backend="static", environment=clients_only(server.endpoint))

    def plugin(self) -> Twin:
        server = self.server()
        native = {"backend": "rallypoint", "conf": "", "environment": {"PYTHONPATH": str(PACKAGE)}}
        return self.agents(AGENTS, ranks=4, server=server, endpoint=admin_endpoint(server), **native)

    def plain(self, server: Server, endpoint: str = "", **options: str) -> Twin:
        """Ranks without agents, of which that with rank 0 comes last."""
        endpoint = endpoint or server.endpoint
        environment = clients_only(endpoint) | AS_CLIENTS
        job = self.jobs.ranks(endpoint, places=self.fork(3), world_size=3, environment=environment, train=HOLD, start=[2, 1], **options)  # type: ignore[arg-type]
        job.start(0)
        return Twin(job, [server], 3, RANKS)

    def env(self) -> Twin:
        return self.plain(self.server())

    def tcp(self) -> Twin:
        server = self.server()
        return self.plain(server, init_method=f"tcp://{server.endpoint}")

    def rallypoint_run(self) -> Twin:
        server = self.server()
        places = [UnderRun(server, rank, 2) for rank in range(2)]
        for place, forked in zip(places, self.fork(2), strict=True):
            place.environment |= forked.environment
        job = self.jobs.planned(places, lambda _: [sys.executable, *STAND_IN, str(TRAIN), "--out", str(job.folder), *HOLD], 2)
        job.start(1, 0)
        return Twin(job, [server], 2, RANKS)

    def relayed_and_restarted(self) -> Twin:
        """Behind a relay, on a server that is killed meanwhile."""
        journal = ("--journal", str(self.folder / "journal"))
        server = self.server(*journal)
        self.relays.append(Relay(server, "node-0", self.folder))
        twin = self.plain(server, f"{HOST}:{self.relays[0].port}")

        def restart() -> Server:
            server.stop()
            return self.server(*journal, again=server)

        twin.restart = restart
        return twin


MODES: list[Callable[[Play], Twin]] = [
    Play.c10d,
    Play.c10d_with_workers_here,
    Play.static,
    Play.plugin,
    Play.env,
    Play.tcp,
    Play.rallypoint_run,
    Play.relayed_and_restarted,
]


@pytest.fixture
def play(meetings: Serve, jobs: Jobs, fork: Fork, tmp_path: Path) -> Iterator[Play]:
    made = Play(meetings, jobs, fork, tmp_path)
    yield made
    for relay in made.relays:
        relay.stop()


@pytest.mark.timeout(300)
def test_healthy_twins_of_all_launch_modes_are_silent_for_a_minute(play: Play) -> None:
    twins = {mode.__name__: mode(play) for mode in MODES}
    for twin in twins.values():
        for rank in range(twin.ranks):
            twin.job.wait_for_mark("training", rank)
    trained = time.monotonic()
    for twin in twins.values():
        if twin.restart:
            twin.servers.append(twin.restart())
    time.sleep(max(0.0, trained + EXPLAIN_AFTER + MINUTE - time.monotonic()))
    shown = {name: (twin.alarms(), [run["state"] for run in runs(twin.servers[-1])]) for name, twin in twins.items()}
    assert shown == dict.fromkeys(twins, ([], ["running"]))
    assert [twin.status() for twin in twins.values() if any(word in twin.status() for word in ("warning", "error", "missing", "gone", "joining"))] == []

    for twin in twins.values():
        twin.job.release()
    for name, twin in twins.items():
        twin.job.results()
        poll(lambda twin=twin: {"run_ended", "run_finished"} & set(twin.said()), f"the end of {name} is told", 20)  # type: ignore[misc]
    assert {name: twin.said() for name, twin in twins.items()} == {name: sorted(twin.codes) for name, twin in twins.items()}
    assert {name: twin.alarms() for name, twin in twins.items()} == {name: [] for name in twins}
    for name, twin in twins.items():
        assert "rallypoint_run_explanations{" not in twin.servers[-1].metrics(), name
        assert not any(mark in twin.status() for mark in ("warning", "error", "xx", "gone")), twin.status()
        lines = [line["message"] for server in twin.servers for line in log_lines(server)]
        assert len(lines) <= MOST_LINES * len(twin.servers), "\n".join(lines)
