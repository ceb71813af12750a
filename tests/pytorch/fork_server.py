"""Forks itself for every process that a test wants, with torch imported already: milliseconds where a fresh Python takes seconds.

One JSON line a request on stdin, one line a reply on stdout: `{"start": [...], "environment": {...}, "log": PATH}` runs a script, or `-m` and a
module, and gives its process id; `{"poll": PID}` gives its exit code, or `null` while it runs. Everything ends with this process, and this
process with its stdin. The fork is safe because nothing here has started a thread.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend
import torch.distributed.elastic.rendezvous.dynamic_rendezvous
import torch.distributed.run  # noqa: F401
from jobs import die_with_parent


def poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def serve() -> dict[str, Any]:
    """Answers requests. Returns in a forked child only, with its request."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            print(json.dumps(poll(request["poll"])), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            return request
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Makes this child what it was forked for."""
    os.setsid()
    die_with_parent()
    with open(os.devnull, "rb") as nothing, open(request["log"], "wb") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    match request["start"]:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *arguments]:
            sys.argv = [script, *arguments]
            sys.path[0] = str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    become(serve())
