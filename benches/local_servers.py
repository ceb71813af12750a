"""Servers of this program for the benches, each with a load by `rallypoint bench`, and a table of what was measured."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("RALLYPOINT_BIN", ROOT / "target" / "dist" / "rallypoint"))


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    store: str
    admin: str

    def bench(self, scenario: str, *options: str) -> dict[str, Any]:
        """A report of `rallypoint bench`, with its sections by name."""
        watched = [] if "--pid" in options else ["--pid", str(self.process.pid)]
        command = [BINARY, "bench", scenario, self.store, "--admin", self.admin, "--json", "--patience", "5m", *watched, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        report: dict[str, Any] = json.loads(done.stdout)
        return report | {section["name"]: section for section in report["sections"]}

    def metric(self, name: str) -> float:
        """The sum over all labels."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics") as answer:
            return sum(map(float, re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", answer.read().decode(), re.M)))


def wait_for(ports: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    while not ports.exists():
        if process.poll() is not None:
            raise SystemExit(f"{BINARY} ended with {process.returncode}")
        time.sleep(0.001)
    found: dict[str, Any] = json.loads(ports.read_text())
    return found


@contextmanager
def server(*options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        ports = Path(folder) / "ports.json"
        command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ports-file", str(ports), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            bound = wait_for(ports, process)
            yield Server(process, f"127.0.0.1:{bound['stores'][0]}", f"127.0.0.1:{bound['admin']}")
        finally:
            process.kill()
            process.wait()


@contextmanager
def relays(to: Server, count: int) -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """So many relays, each with its store port."""
    started = []
    try:
        for number in range(count):
            command = [BINARY, "relay", "--server", to.admin, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--name", f"node-{number}"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert process.stdout
            store = re.search(r" to (127\S+) \(store\)", process.stdout.readline())
            started.append((process, store[1] if store else "none"))
        while to.metric('rallypoint_links{state="connected"}') < count:
            time.sleep(0.02)
        yield started
    finally:
        for process, _ in started:
            process.kill()
            process.wait()


def through(between: list[tuple[subprocess.Popen[str], str]]) -> list[str]:
    """The options of `rallypoint bench` for these relays."""
    return ["--relay", ",".join(store for _, store in between), "--relay-pid", ",".join(str(process.pid) for process, _ in between)]


Figures = dict[str, list[float]]


def cpu(report: dict[str, Any], section: str, of: str = "server") -> float:
    """Microseconds of the server's or the relays' CPU time a unit."""
    return float(report[section][of]["cpu_us_per_unit"])


def table(found: Figures) -> str:
    rows = (f"| {name} | {statistics.median(values):.3g} | {min(values):.3g} to {max(values):.3g} |" for name, values in found.items())
    return "\n".join(["| | median | least to most |", "|---|---|---|", *rows])
