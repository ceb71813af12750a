"""The program under test: where it is, and how to run a server of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from render import ROOT, call

HOST = "127.0.0.1"
# What Cargo.toml says of all packages.
SHARED = (ROOT / "Cargo.toml").read_text().split("[workspace.package]\n")[1].split("\n\n")[0]
PACKAGE: dict[str, str] = dict(re.findall(r'^([\w-]+) = "(.+)"$', SHARED, re.MULTILINE))
VERSION = PACKAGE["version"]


def binary() -> Path:
    """The static program that goes into the image."""
    path = Path(os.environ["RALLYPOINT_STATIC_BIN"])
    assert os.access(path, os.X_OK), f"no program at RALLYPOINT_STATIC_BIN={path}; `scripts/test deploy` builds it"
    return path


def help_of(*command: str) -> str:
    return call(binary(), *command, "--help")


def commands() -> set[str]:
    return set(re.findall(r"^  ([a-z]+) ", help_of().partition("Commands:")[2], re.MULTILINE))


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Calls `condition` until it gives something true, and returns that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not seen within {seconds:g} s: {what}"
        time.sleep(0.1)
    return found


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@contextmanager
def running(command: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block; its output goes to a file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def server(folder: Path, *flags: str) -> Iterator[tuple[int, int, subprocess.Popen[bytes]]]:
    """A running `rallypoint serve` on free ports: those of store and admin, and the process."""
    ports = folder / "ports.json"
    command = ["serve", "--listen", f"{HOST}:0", "--admin", f"{HOST}:0", "--drain", "1s", "--ports-file", str(ports), *flags]
    with running([binary(), *command], folder / "serve.log") as process:
        eventually(ports.exists, "the server's ports")
        bound = json.loads(ports.read_text())
        yield bound["stores"][0], bound["admin"], process
