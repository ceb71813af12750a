"""Processes that are forked from one that has imported torch and the Python package (fork_server.py): those in containers, and the nodes at places on
loopback, each with an address of its own, with their workers where those are `train.py`.

They come up within a few tenths of a second of each other, so that a test can have short patience and still tell late from slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from servers import poll

HERE = Path(__file__).parent
STAND_IN = [str(HERE / "forked_python.py")]
"""What comes between Python and the script that runs in a fork."""


class ForkServer:
    """The process that is forked."""

    def __init__(self, package: Path) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.socket = Path(self.folder.name) / "places"
        self.environment = {"FORK_SERVER": str(self.socket)}
        # torchrun looks for its plugins when it is imported.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(package)}
        command = [sys.executable, str(HERE / "fork_server.py"), str(self.socket)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        poll(self.socket.exists, "the fork server has imported torch", 120)

    def programs(self) -> dict[str, str]:
        """Scripts for containers that are forked instead of started, by their names."""
        start = f"#!{sys.executable} -S\nimport sys\nsys.path.insert(0, {str(HERE)!r})\nfrom forked_python import main\n"
        return {
            "python": f"{start}sys.exit(main(sys.argv[1:]))\n",
            "torchrun": f"{start}sys.exit(main(['-m', 'torch.distributed.run', *sys.argv[1:]]))\n",
        }

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"fork_server.py ended ({self.process.wait()}); its traceback is on stderr")
        return json.loads(answer)

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()


class ForkedProcess:
    """As much of `subprocess.Popen` as jobs need."""

    def __init__(
        self, server: ForkServer, argv: list[str], environment: dict[str, str], log: Path, within: int | None = None
    ) -> None:
        """`within`: a process whose namespaces it is to have."""
        self.server = server
        self.pid: int = server.ask(start=argv, environment=environment, log=str(log), within=within)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.02)
        return code


class ForkedPlace:
    """A node on loopback. Its agent calls itself 127.0.0.10 for node 0, 127.0.0.11 for node 1, and so on."""

    def __init__(self, server: ForkServer, index: int) -> None:
        self.server = server
        self.environment = {"GLOO_SOCKET_IFNAME": "lo"} | server.environment
        self.name = f"127.0.0.{10 + index}"
        self.agent_options = [f"--local-addr={self.name}"]

    def worker(self) -> list[str]:
        """What comes between Python and the script of a worker of this node."""
        return STAND_IN

    def start(self, argv: list[str], environment: dict[str, str], log: Path) -> ForkedProcess:
        return ForkedProcess(self.server, argv[1:], environment, log)
