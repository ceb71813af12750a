"""Plays a schedule with real processes, and records what the server says meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from forks import ForkServer
from hosts import Hosts
from processes import JobProcesses
from record import Record
from schedule import AT_START, Fault, Schedule
from servers import HOST, Server, binary

EXPLAIN_AFTER = 3.0
PATIENCE = 40.0
"""Seconds after which a fault is played although not all have met."""
CUT_OFF = 34.0
"""The same after a node was cut off: its connections are given up after 20 s."""
AFTER = {"c10d": 28.0, "native": 22.0, "static": 13.0, "env": 13.0}
"""Seconds for which it is looked on after the last fault."""
QUIET = 14.0
"""The same, of plays without a fault."""
METRIC = re.compile(r"^rallypoint_(\w+)\{(.*)\} (\S+)$", re.M)


class Runner:
    def __init__(self, folder: Path, schedule: Schedule, forks: ForkServer, hosts: Hosts, ports: str) -> None:
        self.folder, self.schedule, self.hosts = folder, schedule, hosts
        folder.mkdir(parents=True, exist_ok=True)
        journal = any(fault.kind == "restart" for fault in schedule.faults)
        self.arguments = ["--log-format", "json", f"--explain-after={EXPLAIN_AFTER:g}s", "--store-ports", ports]
        self.arguments += ["--journal", str(folder / "journal")] if journal else []
        self.servers: list[Server] = []
        server = self.serve([0, 0], 0)
        self.job = JobProcesses(folder / "job", schedule.job, forks, hosts, server, server.ports[0], 10)
        self.jobs = [self.job]
        if beside := schedule.beside:
            self.jobs.append(JobProcesses(folder / "beside", beside, forks, hosts, server, server.ports[not beside.shares], 20))
        self.record = Record(schedule, time.time(), [job.job for job in self.jobs])
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.is_over = False
        self.listener = threading.Thread(target=self.listen, daemon=True)

    def serve(self, stores: list[int], admin: int) -> Server:
        folder, listens = self.folder / f"server-{len(self.servers)}", self.hosts.listens
        folder.mkdir()
        where = [word for port in stores for word in ("--listen", f"{listens}:{port}")]
        self.servers.append(Server.start(folder, *where, "--admin", f"{listens}:{admin}", *self.arguments))
        return self.server

    @property
    def server(self) -> Server:
        return self.servers[-1]

    def listen(self) -> None:
        """Explanations as they come, with their facts."""
        url = f"http://{HOST}:{self.server.admin_port}/api/v1/events"
        while not self.is_over:
            with suppress(OSError), urllib.request.urlopen(url, timeout=60) as answer:
                kind = ""
                for line in answer:
                    text = line.decode().strip()
                    if text.startswith("event:"):
                        kind = text[6:].strip()
                    elif text.startswith("data:") and kind == "explanation":
                        self.record.events.append({"at": time.time(), **json.loads(text[5:])})
            time.sleep(0.1)

    def note(self, words: str, fault: Fault | None = None) -> None:
        self.record.notes.append((time.time(), words, fault))

    def do_at(self, at: float, do: Callable[..., object], *arguments: object) -> None:
        self.later.append((at, partial(do, *arguments)))

    def do_in(self, seconds: float, do: Callable[..., object], *arguments: object) -> None:
        self.do_at(time.time() + seconds, do, *arguments)

    def ask(self) -> None:
        """One look at everything that is shown."""
        with suppress(OSError, urllib.error.URLError):
            before = self.server.get_json("/api/v1/runs")
            metrics: dict[str, dict[str, float]] = {}
            for name, labels, value in METRIC.findall(self.server.metrics()):
                if run := re.search(r'run_id="([^"]*)"', labels):
                    metrics.setdefault(run[1], {})[f"{name}{{{labels}}}" if name == "run_explanations" else name] = float(value)
            status = subprocess.run(
                [binary(), "status", f"{HOST}:{self.server.admin_port}"], capture_output=True, text=True, timeout=20, check=False
            ).stdout
            after = self.server.get_json("/api/v1/runs")
            documents = []
            for run in after["runs"]:
                which = {name: run[name] for name in ("store", "kind") if run[name]}
                with suppress(urllib.error.HTTPError):
                    documents.append(
                        self.server.get_json(f"/api/v1/runs/{urllib.parse.quote(run['run_id'])}?{urllib.parse.urlencode(which)}")
                    )
            self.record.polls.append(
                {"at": time.time(), "before": before, "after": after, "runs": documents, "metrics": metrics, "status": status}
            )

    def step(self, seconds: float = 0) -> None:
        """Lets so much time pass: does what is due, sees what has become of all, and looks once a second."""
        until = time.time() + seconds
        while True:
            now = time.time()
            for due in [each for each in self.later if each[0] <= now]:
                self.later.remove(due)
                due[1]()
            for job in self.jobs:
                job.look()
            if not self.record.polls or now > self.record.polls[-1]["at"] + 1:
                self.ask()
            if time.time() >= until:
                return
            time.sleep(0.1)

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.time() + seconds
        while not condition() and time.time() < deadline:
            self.step(0.1)
        return condition()

    def start(self) -> None:
        """Plans all starts, and with them the faults that are faults of a start."""
        at_start = {fault.node: fault for fault in self.schedule.faults if fault.kind in AT_START}
        for job in self.jobs:
            for node, at in enumerate(job.plan.starts[: job.plan.nodes]):
                fault = at_start.get(node) if job is self.job else None
                self.do_at(self.record.began + at, self.start_node, job, node, fault)
        if self.schedule.job.mode == "c10d" and self.schedule.job.told:
            argv = ["ctl", "expect", "job", self.schedule.job.nnodes, f"--admin=http://{HOST}:{self.server.admin_port}"]
            subprocess.run([binary(), *argv], check=True, capture_output=True, timeout=20)

    def start_node(self, job: JobProcesses, node: int, fault: Fault | None) -> None:
        if fault and fault.kind == "never":
            self.note(f"node {node} does not start", fault)
        elif fault and fault.kind == "late":
            self.note(f"node {node} does not start yet", fault)
            self.do_in(10 + fault.delay, self.start_as, "starts late", node)
        elif fault and fault.kind == "more-nodes":
            job.start(node, more=1)
            self.note(f"node {node} starts for {job.plan.nodes + 1} nodes", fault)
        elif fault and fault.kind == "wrong-rank":
            other = (node + 1) % job.plan.nodes
            job.start(node, as_node=other)
            self.note(f"node {node} starts as node {other}", fault)
        else:
            job.start(node)

    def start_as(self, words: str, node: int) -> None:
        self.note(f"node {node} {words}")
        self.job.start(node)

    def befall(self, fault: Fault) -> None:
        """Plays one fault now."""
        job, node = self.job, fault.node
        agents, ranks = [*job.agents(node)], job.ranks(node)
        self.note(fault.words(), fault)
        if fault.kind in ("kill", "again"):
            job.kill_node(node)
        elif fault.kind == "kill-agent":
            job.kill(agents, alone=True)
        elif fault.kind == "kill-rank":
            job.kill(ranks[:1])
        elif fault.kind == "freeze":
            frozen = job.freeze(node)
            if fault.thaw:
                self.do_in(fault.thaw, self.note, f"node {node} thaws")
                self.do_in(fault.thaw, job.thaw, frozen)
        elif fault.kind == "cut":
            cut = job.cut(node)
            if fault.thaw:
                self.do_in(fault.thaw, self.note, f"node {node} is not cut off any more")
                self.do_in(fault.thaw, job.heal, node, cut)
        elif fault.kind == "error":
            job.order(ranks[:1], 3)
        elif fault.kind == "well":
            job.order(ranks, 0)
        elif fault.kind == "twin":
            job.start(node, as_node=node)
        elif fault.kind == "reset":
            stores = [
                run["store"] for run in self.server.get_json("/api/v1/runs")["runs"] if run["run_id"] in job.job.run_ids and run["store"]
            ]
            argv = ["ctl", "reset", "--yes", f"--store={(stores or [job.port])[0]}", f"--admin=http://{HOST}:{self.server.admin_port}"]
            subprocess.run([binary(), *argv], timeout=20, check=False, capture_output=True)
        elif fault.kind == "restart":
            self.server.stop()
            self.serve(self.servers[0].ports, self.servers[0].admin_port)
        elif fault.kind == "all-again":
            for other in range(self.schedule.job.nodes):
                self.do_in(other * fault.delay / 10, job.kill_node, other)
                self.do_in(4 + other * 7 % 4, job.start, other)
        if fault.kind == "again":
            self.do_in(1 + fault.delay / 2, self.start_as, "starts again", node)

    def play(self) -> None:
        self.listener.start()
        self.start()
        waiting = [fault for fault in self.schedule.faults if fault.kind not in AT_START]
        for fault in [fault for fault in waiting if fault.moment == "coming"]:
            at = self.record.began + self.schedule.job.starts[fault.node] + fault.delay
            self.do_at(at, self.befall, fault)
        later = [fault for fault in waiting if fault.moment != "coming"]
        hopeless = any(fault.kind != "late" and fault not in later for fault in self.schedule.faults)
        met = self.until(self.job.all_have_met, 12 if hopeless else PATIENCE)
        self.note("all have met" if met else "not all have met")
        for fault in later:
            self.do_in(fault.delay, self.befall, fault)
        self.until(lambda: not self.later, 60)
        is_cut = any(fault.kind == "cut" for fault in self.schedule.faults)
        self.step(CUT_OFF if is_cut else AFTER[self.schedule.job.mode] if self.schedule.faults else QUIET)
        self.note("released")
        for job in self.jobs:
            job.release()
        healthy = self.jobs if not self.schedule.faults else self.jobs[1:]
        self.until(lambda: not any(True for job in healthy for _ in job.agents()), 45)
        self.step(13 if self.schedule.in_turn else 7)
        if self.schedule.in_turn:
            self.note("once more")
            self.job.once_more()
            for node in range(self.schedule.job.nodes):
                self.do_in(node, self.job.start, node)
            self.step(self.schedule.job.nodes)
            self.until(self.job.all_have_met, PATIENCE)
            self.step(QUIET / 2)
            self.job.release()
            self.until(lambda: not any(True for _ in self.job.agents()), 45)
            self.step(4)

    def stop(self) -> None:
        self.is_over = True
        for job in self.jobs:
            job.end()
        for server in self.servers:
            server.stop()
        self.record.log = [json.loads(line) for server in self.servers for line in server.log_text().splitlines() if line.startswith("{")]
        self.record.save(self.folder / "record.json")
