"""Runs the containers of one emulated pod as a kubelet does; `scenario.py` starts it in the pod's network.

    kubelet.py POD.json

The file has the working folder, the init containers and the main one, each with its command and environment. Init containers run one after the other and are tried again
when they fail; one with a probe is a sidecar: it stays, and the next starts when the probe passes. The pod ends with its main container. Its sidecars are
told to stop then, and its exit code is the main container's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from dying import die_with_parent

Container = dict[str, Any]


def start(container: Container) -> subprocess.Popen[bytes]:
    print(f"== container {container['name']} starts", flush=True)
    return subprocess.Popen(container["command"], env=container["environment"], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)


def is_ready(container: Container) -> bool:
    if container["probe_command"]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        return subprocess.run(container["probe_command"], env=container["environment"], check=False, **quiet).returncode == 0
    try:
        with urllib.request.urlopen(container["probe"], timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main(pod: dict[str, Any]) -> int:
    os.chdir(pod["folder"])
    sidecars: list[subprocess.Popen[bytes]] = []
    for container in pod["init"]:
        while True:
            process = start(container)
            if container["probe"] or container["probe_command"]:
                while not is_ready(container) and process.poll() is None:
                    time.sleep(0.1)
                if process.poll() is None:
                    sidecars.append(process)
                    break
            elif process.wait() == 0:
                break
            print(f"== container {container['name']} ended with {process.wait()} and is started again", flush=True)
            time.sleep(0.5)
    container = pod["main"]
    code = start(container).wait()
    print(f"== container {container['name']} ended with {code}", flush=True)
    for sidecar in sidecars:
        # `unshare` hands no signal on; what it started is the container's process 1.
        children = Path(f"/proc/{sidecar.pid}/task/{sidecar.pid}/children").read_text().split()
        for child in children:
            subprocess.run(["kill", "-TERM", child], check=False)
        sidecar.wait()
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
