"""One elastic job of the plugin, two to four nodes behind relays, while something is killed every five seconds.

What is killed is drawn at random: the server (which starts again at once, with its journal), the relay of a node (so does it), a node's agent with its
ranks, or one rank. A node whose agent has ended, for whatever reason, starts anew a second later, as Kubernetes starts a container again. The job writes
a checkpoint after each step. When the time is over nothing is killed any more: the job must come to a round of all four nodes, end well on all of them,
and with the result of one process that made as many steps. All Python processes are forks of one that has imported torch.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from relayed_pods import RelayedPods
from forks import STAND_IN, ForkServer
from jobs import TRAIN, Job, JobError, Jobs
from pods import Pods
from relayed import PACKAGE

NODES = 4
EVERY = 5.0
"""Seconds between two kills."""
COMES_BACK = 1.0
"""Seconds until a node whose agent has ended starts again."""
CALM = 120.0
"""Seconds that the job may take to come to a round of all nodes when nothing is killed any more, and again to end."""
STUCK = 180.0
"""Seconds without a step after which the job has failed."""
CONF = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=3,read_timeout=10"


@dataclass
class Tally:
    """What has happened."""

    seed: int
    kills: dict[str, int] = field(default_factory=lambda: collections.Counter())
    ended: dict[str, int] = field(default_factory=lambda: collections.Counter())
    """Agents that ended and were not killed, by the last line of what they said."""
    rounds: int = 0
    steps: int = 0
    longest: float = 0.0
    """Seconds between two steps."""
    end: str = ""
    has_failed: bool = False
    minutes: float = 0.0

    def table(self) -> str:
        lines = [f"seed {self.seed}, {self.minutes:.1f} minutes: {self.end}", "", "| killed | how often |", "|---|---|"]
        lines += [f"| {kind} | {count} |" for kind, count in sorted(self.kills.items())]
        lines += ["", f"{self.rounds} rounds, {self.steps} steps, the longest time without one {self.longest:.0f} s"]
        return "\n".join([*lines, *(f"agents that ended themselves, {count}: {why}" for why, count in self.ended.items())])


class Elastic(RelayedPods):
    """The job, and what befalls it."""

    def __init__(self, folder: Path, pods: Pods, seed: int) -> None:
        super().__init__(folder, pods)
        # Ranks that take seconds to import torch would be killed before their first step on a slow machine.
        self.forks = ForkServer(PACKAGE)
        self.random, self.tally = random.Random(seed), Tally(seed)
        self.jobs = Jobs(folder)
        self.job: Job = self.jobs.torchrun(
            "127.0.0.1:29501",
            backend="rallypoint",
            nodes=NODES,
            nnodes=f"2:{NODES}",
            run_id="elastic",
            conf=CONF,
            options=["--max-restarts=1000", "--monitor-interval=0.2"],
            train=["--elastic", "--no-ddp"],
            environment={"PYTHONPATH": str(PACKAGE)} | self.forks.environment,
            stand_in=STAND_IN,
            places=pods.nodes,
        )
        self.last_step = time.monotonic()
        self.back_at: dict[int, float] = {}
        self.kinds: dict[str, Callable[[], bool]] = {
            "server": self.server_dies,
            "relay": self.relay_dies,
            "agent": self.agent_dies,
            "rank": self.rank_dies,
        }

    def server_dies(self) -> bool:
        self.kill_server()
        return True

    def relay_dies(self) -> bool:
        self.kill_relay(self.random.randrange(NODES))
        return True

    def agent_dies(self) -> bool:
        """With its ranks: they are one container."""
        if running := self.running():
            index = self.random.choice(running)
            self.job.nodes[index].kill()
            self.back_at[index] = time.monotonic() + COMES_BACK
        return bool(running)

    def rank_dies(self) -> bool:
        if ranks := ranks_of(self.job):
            os.kill(self.random.choice(ranks), signal.SIGKILL)
        return bool(ranks)

    def running(self) -> list[int]:
        return [index for index, node in self.job.nodes.items() if node.process.poll() is None]

    def look(self) -> int:
        """Starts nodes again, and notes how far the job is. Returns the number of ranks that made the last step."""
        now = time.monotonic()
        for index, node in self.job.nodes.items():
            if node.process.poll() is not None and index not in self.back_at:
                self.tally.ended[why_it_ended(node.output)] += 1
                self.back_at[index] = now + COMES_BACK
        for index in [index for index, at in self.back_at.items() if at <= now]:
            del self.back_at[index]
            self.job.start(index)
        step, world_size = self.checkpoint()
        if step != self.tally.steps:
            self.tally.longest = max(self.tally.longest, now - self.last_step)
            self.tally.steps, self.last_step = step, now
        elif now > self.last_step + STUCK:
            self.job.fail(f"no step for {STUCK:g} s")
        return world_size if now < self.last_step + 1 else 0

    def checkpoint(self) -> tuple[int, int]:
        try:
            written = json.loads((self.job.folder / "checkpoint.json").read_text())
        except FileNotFoundError:
            return 0, 0
        return int(written["state"][0]), int(written["world_size"])

    def torment(self, minutes: float) -> None:
        """Kills for so long, and then lets the job end."""
        began = time.monotonic()
        next_kill = began
        while time.monotonic() < began + minutes * 60:
            self.look()
            # The first kill comes when the job trains.
            if time.monotonic() > next_kill and self.tally.steps:
                next_kill = time.monotonic() + EVERY * self.random.uniform(0.5, 1.5)
                kind = self.random.choice(list(self.kinds))
                self.tally.kills[kind] += self.kinds[kind]()
            time.sleep(0.05)
            self.tally.minutes = (time.monotonic() - began) / 60
        self.await_all_nodes()
        # An agent whose relay was killed would not arrive at PyTorch's exit barrier, and the others wait there for five minutes. In a new round all agents
        # have a new connection to its store.
        self.tally.kills["rank"] += self.rank_dies()
        time.sleep(EVERY)
        self.await_all_nodes()
        run = self.pods["server"].call(lambda: self.server.get_json("/api/v1/runs/elastic"))
        self.tally.rounds = int(run["round"])
        self.job.release()
        # Each rank compares its result with that of one process.
        result = self.job.results()[0]
        self.tally.steps = result["steps"]
        self.tally.end = f"ended well on {NODES} nodes with the loss {result['loss']:.3g} of an undisturbed run"

    def await_all_nodes(self) -> None:
        began = time.monotonic()
        while self.look() != NODES:
            if time.monotonic() > began + CALM:
                self.job.fail(f"no round of {NODES} nodes within {CALM:g} s after the last kill")
            time.sleep(0.05)

    def stop(self) -> None:
        self.jobs.kill()
        self.forks.stop()
        super().stop()


def ranks_of(job: Job) -> list[int]:
    """The processes that stand for the ranks of a job. Their forks die with them."""
    ranks = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [bytes(Path(STAND_IN[0])), bytes(TRAIN)] and bytes(job.folder) in words:
                ranks.append(int(process.name))
    return ranks


def why_it_ended(output: str) -> str:
    """The last line that names an error."""
    errors = [line for line in output.splitlines() if "Error" in line]
    return errors[-1].strip()[:200] if errors else "no error is named"


def soak(folder: Path, minutes: float, seed: int) -> Tally:
    """One job for so many minutes. Its logs stay in the folder."""
    folder.mkdir()
    pods, elastic = Pods(folder), None
    try:
        pods.create(NODES)
        elastic = Elastic(folder, pods, seed)
        elastic.torment(minutes)
    except JobError as error:
        assert elastic
        elastic.tally.end, elastic.tally.has_failed = f"FAILED: {error}", True
    finally:
        if elastic:
            elastic.stop()
        pods.delete()
    return elastic.tally
