"""Jobs behind relays in emulated pods: the launch modes, and the relay of each node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dying import die_with_parent
from installed import PACKAGE
from jobs import Job, Jobs, clients_only
from pods import Pod
from servers import TORCH_VERSION, binary, is_ready, poll

HERE = "127.0.0.1:29500"


def plugin(index: int) -> dict[str, str]:
    return {"PYTHONPATH": str(PACKAGE), "JOB_COMPLETION_INDEX": str(index)}


MODES: dict[str, tuple[Callable[..., Job], str, dict[str, Any]]] = {
    "c10d": (Jobs.torchrun, HERE, {}),
    "static": (Jobs.torchrun, HERE, {"backend": "static", "environment": clients_only(HERE)}),
    "env": (Jobs.ranks, HERE, {"environment": clients_only(HERE)}),
    "tcp": (Jobs.ranks, HERE, {"init_method": f"tcp://{HERE}", "environment": clients_only(HERE)}),
    "plugin": (Jobs.torchrun, "127.0.0.1:29501", {"backend": "rallypoint", "conf": "", "environment": plugin}),
}
if TORCH_VERSION < (2, 7):
    del MODES["static"]  # node 0's agent hosts the store or fails, whatever the environment says


class Relay:
    """The relay in one node's pod."""

    def __init__(self, node: Pod, server: str, log: Path, *options: str, as_container: bool = False, host: str = "127.0.0.1", team: str = "") -> None:
        """`server` is an address, or a name of the hosts file if the relay is a container; `options` are more flags. Several relays of a node have each
        a `host` of loopback, and a team."""
        self.node, self.log, self.host = node, log, host
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
        argv = [str(binary()), "relay", "--server", f"{server}:29501", "--name", f"{team}{node.name}", *options]
        argv += ["--listen", f"{host}:29500", "--admin", f"{host}:29501"]
        command = node.command(argv) if as_container else node.inside(argv)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, preexec_fn=die_with_parent
            )

    def await_link(self) -> None:
        poll(lambda: self.node.call(self.is_ready), f"the relay of {self.node.name} has its link")

    def is_ready(self) -> bool:
        return is_ready(f"{self.host}:29501")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
