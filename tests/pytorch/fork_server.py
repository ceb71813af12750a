"""Forks itself for every process that a test wants, with torch imported already: milliseconds where a fresh Python takes seconds.

One JSON line a request on stdin, one line a reply on stdout: `{"start": [...], "environment": {...}, "log": PATH}` runs a script, or `-m` and a
module, and gives its process id; `{"poll": PID}` gives its exit code, or `null` while it runs. Agents ask for their workers at the socket that
is named (forked_worker.py): a connection for each worker, which is answered when it ends, and which takes it along when it closes.
Everything ends with this process, and this process with its stdin. The fork is safe because nothing here has started a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend
import torch.distributed.elastic.rendezvous.dynamic_rendezvous
import torch.distributed.run  # noqa: F401
from dying import die_with_parent


def poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def serve(workers: socket.socket) -> dict[str, Any]:
    """Answers requests. Returns in a forked child only, with its request."""
    while True:
        ready, _, _ = select.select([sys.stdin, workers], [], [])
        if workers in ready and (wanted := attend(workers)):
            return wanted
        # One line at a time: more than one is never on the way.
        if sys.stdin in ready and (wanted := answer(sys.stdin.readline())):
            return wanted


def answer(line: str) -> dict[str, Any] | None:
    """Answers one line from stdin."""
    if not line:
        os._exit(0)
    request: dict[str, Any] = json.loads(line)
    if "poll" in request:
        print(json.dumps(poll(request["poll"])), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        os.setsid()
        request["output"] = [os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)] * 2
        return request
    return None


def attend(workers: socket.socket) -> dict[str, Any] | None:
    """Takes a worker's connection, and forks twice: a process that attends to it, and the worker."""
    connection, _ = workers.accept()
    with connection:
        text, output, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if os.fork() == 0:
            die_with_parent()
            if (worker := os.fork()) == 0:
                return json.loads(text) | {"output": output}
            ended = os.pidfd_open(worker)
            select.select([connection, ended], [], [])
            os.kill(worker, signal.SIGKILL)  # does nothing if it has ended
            _, status = os.waitpid(worker, 0)
            with contextlib.suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        for opened in output:
            os.close(opened)
    return None


def become(request: dict[str, Any]) -> None:
    """Makes this child what it was forked for."""
    die_with_parent()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, output in enumerate(request["output"], 1):
        os.dup2(output, number)
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


def main() -> None:
    with socket.socket(socket.AF_UNIX) as workers:
        workers.bind(sys.argv[1])
        workers.listen()
        become(serve(workers))


if __name__ == "__main__":
    main()
