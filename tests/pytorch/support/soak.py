"""Real PyTorch jobs behind relays, one after another, while the server is killed and everything else goes wrong that a job shall survive.

    scripts/soak --minutes 60

One server with a journal in a pod of its own, two nodes with a relay each. The jobs take the launch modes in turn. While one runs, faults come at
random moments: kill -9 of the server with a start at once, pauses of server and relays (SIGSTOP), partitions of 1 to 9 s (packets are dropped). A
TCPStore client of PyTorch behind node 0's relay adds 1 to a key all the time: each answer must be one more than the last, and how long the slowest
took around a fault is the pause that clients felt. At the end of some jobs a relay is killed: that ends its clients, so such a
node has only to end. `--elastic` adds a job whose agents, relays and ranks are killed as well (elastic.py).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import elastic
import torch.distributed as dist
from relayed_pods import RelayedPods
from jobs import Job, JobError, Jobs
from pods import Pods
from relayed import MODES

PATIENCE = 240
"""Seconds that a job may take with all its faults."""
RELAY_KILLED_EVERY = 8
"""Jobs."""


class Probe(threading.Thread):
    """A client behind node 0's relay that counts."""

    def __init__(self, pods: Pods) -> None:
        super().__init__(daemon=True)
        self.calls: list[tuple[float, float]] = []
        self.begun = time.monotonic()
        self.error = ""
        self.store = pods["node-0"].call(lambda: dist.TCPStore("127.0.0.1", 29500, is_master=False, wait_for_workers=False, timeout=timedelta(minutes=5)))

    def run(self) -> None:
        last = self.store.add("soak/probe", 1)
        while not self.error:
            self.begun = time.monotonic()
            try:
                value = self.store.add("soak/probe", 1)
            except Exception as error:
                self.error = f"the probe failed: {error}"
                return
            self.calls.append((self.begun, time.monotonic()))
            if value != last + 1:
                self.error = f"the probe read {value} after {last}"
            last = value
            time.sleep(0.01)

    def longest_since(self, moment: float) -> float:
        """Waits until a call that began after now has its answer; the time of the slowest since `moment`."""
        now = time.monotonic()
        while not self.error and (not self.calls or self.calls[-1][0] < now):
            if time.monotonic() > now + PATIENCE:
                self.error = f"the probe has waited for {PATIENCE} s"
            time.sleep(0.01)
        calls, self.calls = self.calls, []
        return max((end - begin for begin, end in calls if end > moment), default=float("inf"))


@dataclass
class Tally:
    """What has happened."""

    seed: int
    jobs: dict[str, int] = field(default_factory=lambda: collections.Counter())
    faults: dict[str, int] = field(default_factory=lambda: collections.Counter())
    kills: dict[str, int] = field(default_factory=lambda: collections.Counter())
    pauses: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    relay_kills: dict[str, int] = field(default_factory=lambda: collections.Counter())
    failures: list[str] = field(default_factory=list)
    minutes: float = 0.0

    def table(self) -> str:
        lines = [f"seed {self.seed}, {self.minutes:.0f} minutes, {sum(self.jobs.values())} jobs, {len(self.failures)} failures", ""]
        lines += ["| launch mode | jobs | kills of the server |", "|---|---|---|"]
        lines += [f"| {mode} | {count} | {self.kills[mode]} |" for mode, count in self.jobs.items()]
        lines += ["", "| fault | how often | clients' pause, median | worst |", "|---|---|---|---|"]
        for fault, count in self.faults.items():
            pauses = self.pauses[fault] or [float("nan")]
            lines.append(f"| {fault} | {count} | {statistics.median(pauses):.2f} s | {max(pauses):.2f} s |")
        lines += ["", *(f"nodes whose relay was killed that {outcome}: {count}" for outcome, count in self.relay_kills.items())]
        return "\n".join([*lines, *(f"FAILED: {failure}" for failure in self.failures)])


class Soak(RelayedPods):
    """The server, the relays and the faults."""

    def __init__(self, folder: Path, pods: Pods, seed: int) -> None:
        super().__init__(folder, pods)
        self.random, self.tally = random.Random(seed), Tally(seed)
        self.probe = self.start_probe()
        self.faults: dict[str, Callable[[], None]] = {
            "server killed": self.kill_server,
            "server paused": lambda: self.pause([self.server.process.pid]),
            "relay paused": lambda: self.pause([self.relays[0].process.pid]),
            "partition": self.partition,
        }

    def start_probe(self) -> Probe:
        probe = Probe(self.pods)
        probe.start()
        return probe

    def pause(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.5, 5))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def partition(self) -> None:
        server = self.pods["server"].address
        nodes = self.random.choice([self.pods.nodes, self.pods.nodes[:1]])
        for node in nodes:
            node.cut_off_from(server)
        time.sleep(self.random.uniform(1, 9))
        for node in nodes:
            node.heal(server)

    def one_fault(self, mode: str) -> None:
        fault = self.random.choices(list(self.faults), [20, 1, 1, 1])[0]
        began = time.monotonic()
        self.faults[fault]()
        self.tally.faults[fault] += 1
        self.tally.kills[mode] += fault == "server killed"
        self.tally.pauses[fault].append(self.probe.longest_since(began))
        if self.probe.error:
            raise JobError(self.probe.error)

    def one_job(self, number: int) -> None:
        mode = list(MODES)[number % len(MODES)]
        launch, endpoint, options = MODES[mode]
        loses_relay = number % RELAY_KILLED_EVERY == RELAY_KILLED_EVERY - 1
        # The workers of c10d jobs use a store of PyTorch's own in agent 0. There a group that is made anew may read its old addresses.
        ways = ["--new-group", "--done-keys", *(["--reinit"] if mode != "c10d" else [])]
        train = self.random.sample(ways, self.random.randint(0, len(ways)))
        train += ["--hold"] if loses_relay else []
        named = {"run_id": f"job-{number}"} if launch is Jobs.torchrun else {}
        folder = self.folder / f"jobs-{number}"
        folder.mkdir()
        jobs = Jobs(folder)
        try:
            job = launch(jobs, endpoint, places=self.pods.nodes, train=train, **named, **options)
            self.torment(job, mode, loses_relay)
            self.tally.jobs[mode] += 1
            jobs.kill()
            shutil.rmtree(folder)
        except Exception as error:
            self.tally.jobs[mode] += 1
            self.tally.failures.append(f"job {number} ({mode} {' '.join(train)}): {error}")
            for title, text in jobs.report():
                (folder / f"{title.replace('/', ' ')}.txt").write_text(text)
            shutil.copytree(self.folder, self.folder.with_name(f"{self.folder.name}-failed-{number}"), ignore=shutil.ignore_patterns("jobs-*[!0-9]"))
            jobs.kill()
        if self.probe.error:
            self.probe = self.start_probe()

    def torment(self, job: Job, mode: str, loses_relay: bool) -> None:
        deadline = time.monotonic() + PATIENCE

        def running() -> bool:
            if time.monotonic() > deadline:
                job.fail(f"still runs after {PATIENCE} s")
            return any(node.process.poll() is None for node in job.nodes.values())

        while running() and not (loses_relay and job.mark_seen("training", 0)):
            time.sleep(self.random.uniform(0.1, 1))
            self.one_fault(mode)
        if not loses_relay:
            hosts = [result["host"] for result in job.results()]
            if hosts != ["node-0", "node-1"]:
                job.fail(f"ran on {hosts}")
            return
        self.kill_relay(1)
        self.relays[1].await_link()
        job.release()
        # An agent of c10d on the other node would wait for a new one.
        while job.nodes[1].process.poll() is None:
            running()
            time.sleep(0.1)
        self.tally.relay_kills["failed" if job.nodes[1].process.returncode else "finished"] += 1

    def stop(self) -> None:
        self.probe.error = "the soak is over"
        super().stop()


def one_absence(mode: str, train: list[str], event: str, seconds: float) -> str:
    """A job during which the server is away for so long, and what becomes of it."""
    folder = Path(tempfile.mkdtemp(prefix="rallypoint-away-"))
    (folder / "run").mkdir()
    pods, jobs, soak = Pods(folder), Jobs(folder), None
    try:
        pods.create()
        soak = Soak(folder / "run", pods, 0)
        launch, endpoint, options = MODES[mode]
        job = launch(jobs, endpoint, places=pods.nodes, train=[*train, "--timeout", "300"], **options)
        job.wait_for_mark(event, 0)
        began = time.monotonic()
        soak.kill_server(seconds)
        pause = soak.probe.longest_since(began)
        job.release()
        job.results()
        again = sum("attempt" in node.output for node in job.nodes.values())
        outcome = f"goes on; a client's longest call {pause:.0f} s{'; ' + soak.probe.error if soak.probe.error else ''}{'; restarted' if again else ''}"
    except Exception as error:
        lines = [line for _, text in jobs.report() for line in text.splitlines() if "Error" in line]
        outcome = f"fails: {error}: {lines[-1] if lines else ''}"
    finally:
        jobs.kill()
        if soak:
            soak.stop()
        pods.delete()
    return f"| {mode} | {' '.join(train)} | {outcome} |"


def absences(seconds: float) -> None:
    """Each launch mode once while it waits in the store, and once while it trains."""
    for train, event in ((["--hold"], "training"), (["--late", "1:0"], "init")):
        with concurrent.futures.ThreadPoolExecutor(len(MODES)) as pool:
            for line in pool.map(lambda mode, train=train, event=event: one_absence(mode, train, event, seconds), MODES):
                print(line, flush=True)


def all_modes(folder: Path, minutes: float, seed: int, tally: Path | None) -> bool:
    """Jobs of all launch modes for so many minutes. Returns whether one has failed."""
    (folder / "run").mkdir()
    pods = Pods(folder)
    started = said = time.monotonic()
    soak = None
    try:
        pods.create()
        soak = Soak(folder / "run", pods, seed)
        number = 0
        while time.monotonic() < started + minutes * 60:
            soak.one_job(number)
            number += 1
            soak.tally.minutes = (time.monotonic() - started) / 60
            if tally:
                tally.write_text(json.dumps(vars(soak.tally), indent=2))
            if time.monotonic() > said + 60:
                said = time.monotonic()
                kills = soak.tally.faults["server killed"]
                print(f"soak: {soak.tally.minutes:.0f} min, {number} jobs, {kills} kills, {len(soak.tally.failures)} failures", file=sys.stderr, flush=True)
        print(soak.tally.table(), flush=True)
        return bool(soak.tally.failures)
    finally:
        if soak:
            soak.stop()
        pods.delete()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--elastic", type=float, default=0, metavar="MINUTES", help="before that, an elastic job of the plugin for so many minutes")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--tally", type=Path, help="also write the tally there, as JSON, after each job")
    parser.add_argument("--away", type=float, metavar="SECONDS", help="instead: the server is away for so long, once in each launch mode")
    args = parser.parse_args()
    if args.away:
        absences(args.away)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="rallypoint-soak-"))
    has_failed = False
    if args.elastic:
        tally = elastic.soak(folder / "elastic", args.elastic, args.seed)
        print(f"elastic job, {tally.table()}\n", flush=True)
        has_failed = tally.has_failed
    if args.minutes:
        has_failed |= all_modes(folder, args.minutes, args.seed, args.tally)
    if has_failed:
        print(f"soak: logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
