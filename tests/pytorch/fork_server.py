"""Forks itself for every process that a test wants, with torch imported already: milliseconds where a fresh Python takes seconds.

One JSON line a request on stdin, one line a reply on stdout: `{"start": [...], "environment": {...}, "log": PATH}` runs a script, or `-m` and a
module, and gives its process id; `{"poll": PID}` gives its exit code, or `null` while it runs. Workers ask on the Unix socket that the only
argument names (fork_worker.py). Everything ends with this process, and this process with its stdin. The fork is safe because nothing here has
started a thread.
"""

from __future__ import annotations

import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend
import torch.distributed.elastic.rendezvous.dynamic_rendezvous
import torch.distributed.run  # noqa: F401
from parent import die_with_parent

WORKERS_LOOKED_AT = 0.02
"""How often workers are asked whether they have ended, in seconds."""


class Child(Exception):
    """Here is the forked child, with its request."""


def exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def fork(request: dict[str, Any], output: tuple[int, int] | None = None) -> int:
    if pid := os.fork():
        return pid
    raise Child(request, output)


class Workers:
    """Workers by the connection of the process that stands for each."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.running: dict[socket.socket, int] = {}

    def accept(self) -> socket.socket:
        asks, _ = self.listener.accept()
        text, output, _, _ = socket.recv_fds(asks, 1 << 16, 2)
        while not text.endswith(b"\n"):
            text += asks.recv(1 << 16)
        self.running[asks] = 0
        self.running[asks] = pid = fork(json.loads(text), (output[0], output[1]))
        for descriptor in output:
            os.close(descriptor)
        asks.sendall(b"%d\n" % pid)
        return asks

    def close(self) -> None:
        """In a child: none of this is its own. Who still had a descriptor's number could close what gets it next."""
        for one in (self.listener, *self.running):
            one.close()

    def drop(self, asks: socket.socket) -> None:
        """Who stood for the worker was killed, so it is as well."""
        pid = self.running.pop(asks)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def ended(self) -> list[socket.socket]:
        codes = [(asks, code) for asks, pid in self.running.items() if (code := exit_code(pid)) is not None]
        for asks, code in codes:
            del self.running[asks]
            try:
                asks.sendall(b"%d\n" % code)
            except OSError:
                pass  # it was killed at the same time
        return [asks for asks, _ in codes]


def serve(workers: Workers) -> None:
    """Answers requests until stdin ends."""
    with selectors.DefaultSelector() as ready:
        answer_all(workers, ready)


def answer_all(workers: Workers, ready: selectors.BaseSelector) -> None:
    ready.register(0, selectors.EVENT_READ)
    ready.register(workers.listener, selectors.EVENT_READ)
    partial = b""
    while True:
        for key, _ in ready.select(WORKERS_LOOKED_AT if workers.running else None):
            if key.fileobj == 0:
                partial += (read := os.read(0, 1 << 16))
                if not read:
                    return
                *lines, partial = partial.split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    answer = exit_code(request["poll"]) if "poll" in request else fork(request)
                    print(json.dumps(answer), flush=True)
            elif key.fileobj is workers.listener:
                ready.register(workers.accept(), selectors.EVENT_READ)
            else:
                asks = key.fileobj
                assert isinstance(asks, socket.socket)
                ready.unregister(asks)
                workers.drop(asks)
                asks.close()
        for asks in workers.ended():
            ready.unregister(asks)
            asks.close()


def become(request: dict[str, Any], output: tuple[int, int] | None) -> None:
    """Makes this child what it was forked for."""
    os.setsid()
    die_with_parent()
    stdin = os.open(os.devnull, os.O_RDONLY)
    if output is None:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        output = (log, os.dup(log))
    for number, descriptor in enumerate((stdin, *output)):
        os.dup2(descriptor, number)
        os.close(descriptor)
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
    torch.testing.assert_close(torch.zeros(1), torch.zeros(1))  # imports what train.py's needs
    workers = Workers(sys.argv[1])
    try:
        serve(workers)
    except Child as child:
        forked = child.args
    else:
        os._exit(0)
    workers.close()
    become(*forked)
