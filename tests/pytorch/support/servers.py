"""The servers that the tests talk to: the real rallypoint binary, and PyTorch's own TCPStore server for comparison.

Neither class knows pytest. The fixtures that start and stop them are in conftest.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

REPOSITORY = Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"
TORCH_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
CLIENT_TIMEOUT = timedelta(seconds=20)
"""A client's time-out unless a test gives one. It bounds a hanging test: a blocked torch call cannot be interrupted."""


def binary() -> Path:
    """The rallypoint binary under test; an error that tells how to get one if it is not there."""
    given = os.environ.get("RALLYPOINT_BIN")
    path = Path(given) if given else REPOSITORY / "target" / "release" / "rallypoint"
    if not os.access(path, os.X_OK):
        hint = (
            "RALLYPOINT_BIN names it"
            if given
            else "build it with `cargo build --release`, or name one in RALLYPOINT_BIN"
        )
        raise FileNotFoundError(f"no rallypoint binary at {path}: {hint}")
    return path


def poll(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    """Calls `condition` until it gives something true, and returns that; fails naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen within {seconds:g} s: {what}")
        time.sleep(0.01)


def await_text(path: Path, text: str, seconds: float = 10.0) -> None:
    """Waits until a log holds `text`: a thread of its own writes it, often after the reply to the request that it tells of."""
    poll(lambda: text in path.read_text(errors="replace"), f"{text!r} in {path.name}", seconds)


def is_ready(admin: str) -> bool:
    """Whether a server or a relay with this admin address answers that it is ready."""
    try:
        with urllib.request.urlopen(f"http://{admin}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


class StoreServer:
    """What the tests need of a server, whichever it is: where it is, and clients of it."""

    kind: str
    host: str = HOST
    port: int

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    def client(self, timeout: timedelta = CLIENT_TIMEOUT, **options: Any) -> dist.TCPStore:
        """A new torch client (its own connection)."""
        options.setdefault("wait_for_workers", False)
        return dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout, **options)

    def clients(self, count: int, **options: Any) -> list[dist.TCPStore]:
        return [self.client(**options) for _ in range(count)]

    def await_parked(self, count: int) -> None:
        """Returns when `count` connections are parked in a wait (see the subclasses for how sure that is)."""
        raise NotImplementedError


@dataclass
class Server(StoreServer):
    """A running `rallypoint serve`."""

    process: subprocess.Popen[bytes]
    ports: list[int]
    admin_port: int
    log_path: Path
    kind: str = "rallypoint"

    @classmethod
    def start(cls, folder: Path, *arguments: str) -> Server:
        """Starts the binary, on free loopback ports unless `arguments` say where, and waits until they are bound."""
        ports_file, log_path = folder / "ports.json", folder / "serve.log"
        command = [str(binary()), "serve", "--ports-file", str(ports_file)]
        for flag in ("--listen", "--admin"):
            if not any(argument == flag or argument.startswith(flag + "=") for argument in arguments):
                command += [flag, f"{HOST}:0"]
        command += arguments
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

        def bound() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"`{' '.join(command)}` ended with {process.returncode}:\n{log_path.read_text()}")
            return ports_file.exists()

        try:
            poll(bound, f"{ports_file} of `{' '.join(command)}`", 60)
            ports = json.loads(ports_file.read_text())
            return cls(process, ports["stores"], ports["admin"], log_path)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{error}\n{log_path.read_text()}") from None
            raise

    @property
    def port(self) -> int:  # type: ignore[override]
        """The port of the first (default) store."""
        return self.ports[0]

    def log_text(self) -> str:
        """Everything that the server has logged so far."""
        return self.log_path.read_text(errors="replace")

    def await_log(self, text: str, seconds: float = 10.0) -> None:
        """Waits until the server has logged `text`."""
        await_text(self.log_path, text, seconds)

    def get_json(self, path: str) -> Any:
        """GET of an admin route, decoded."""
        with urllib.request.urlopen(f"http://{HOST}:{self.admin_port}{path}", timeout=10) as answer:
            return json.load(answer)

    def metrics(self) -> str:
        """What Prometheus would read."""
        with urllib.request.urlopen(f"http://{HOST}:{self.admin_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def waits(self) -> list[dict[str, Any]]:
        """What the server says about who waits, one entry per parked connection."""
        answer = self.get_json("/api/v1/waits")
        return answer["waits"] if isinstance(answer, dict) else answer

    def await_parked(self, count: int) -> None:
        """Exact: asks the server until it lists `count` parked connections."""
        poll(lambda: len(self.waits()) == count, f"{count} parked connections")

    def stop(self) -> None:
        """Kills the server, if it still runs, and reaps it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class TorchHost:
    """A child process that PyTorch's own servers are forks of; one for a whole session, as importing torch takes seconds."""

    def __init__(self) -> None:
        script = REPOSITORY / "benches" / "torch_server.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.turn = threading.Lock()

    def ask(self, line: str) -> str:
        assert self.process.stdin and self.process.stdout
        with self.turn:
            print(line, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"torch_server.py ended ({self.process.wait()}); its traceback is on stderr")
        return answer.strip()

    def stop(self) -> None:
        """It ends with its stdin, and the servers with it."""
        self.process.communicate()


class TorchServer(StoreServer):
    """One TCPStore server of PyTorch (libuv backend), started by a TorchHost."""

    kind = "torch"

    def __init__(self, torch_host: TorchHost) -> None:
        self.torch_host = torch_host
        port, self.pid = torch_host.ask("start libuv").split()
        self.port = int(port)

    def await_parked(self, count: int) -> None:
        """A guess, as this server cannot be asked: time enough for its clients. Too short would only weaken a test."""
        time.sleep(0.2)

    def stop(self) -> None:
        self.torch_host.ask(f"stop {self.pid}")
