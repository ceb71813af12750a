"""Forks itself for every process that a test wants, with torch imported already: milliseconds where a fresh Python takes seconds.

    fork_server.py SOCKET

One JSON line a request on stdin, one line a reply on stdout: `{"start": [...], "environment": {...}, "log": PATH}` runs a script, or `-m` and a
module, and gives its process id; `{"poll": PID}` gives its exit code, or `null` while it runs. At SOCKET, processes in containers ask for forks in their
place (forked_python.py). Everything ends with this process, and this process with its stdin. The fork is safe because nothing here has started a thread.
"""

from __future__ import annotations

import ctypes
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
from jobs import die_with_parent

STANDARD_FILES = 3
MOST_FILES = 16

Request = dict[str, Any]


def poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def serve(containers: socket.socket) -> Request:
    """Answers requests. Returns in a forked child only, with its request."""
    keepers: list[int] = []
    while True:
        ready, _, _ = select.select([sys.stdin, containers], [], [])
        if containers in ready:
            keepers = [pid for pid in keepers if poll(pid) is None]
            peer, _ = containers.accept()
            if (pid := os.fork()) == 0:
                containers.close()
                return in_container(peer)
            keepers.append(pid)
            peer.close()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            request = json.loads(line)
            if "poll" in request:
                print(json.dumps(poll(request["poll"])), flush=True)
            elif pid := os.fork():
                print(pid, flush=True)
            else:
                containers.close()
                return with_log(request)


def with_log(request: Request) -> Request:
    """A process of its own, with its output in a file."""
    os.setsid()
    die_with_parent()
    with open(os.devnull, "rb") as nothing, open(request["log"], "wb") as log:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)
    return request


def in_container(peer: socket.socket) -> Request:
    """A process in the place of one in a container. Returns in its fork; this one keeps that."""
    die_with_parent()
    head, files, _, _ = socket.recv_fds(peer, 1 << 20, MOST_FILES)
    length = int.from_bytes(head[:4], "big")
    while len(head) < 4 + length:
        head += peer.recv(1 << 20)
    request: Request = json.loads(head[4:])
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in files[STANDARD_FILES:]:
        if libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter a namespace of the container")
        os.close(namespace)
    if child := os.fork():
        keep(child, peer)
    peer.close()
    os.setsid()
    die_with_parent()
    for number, file in enumerate(files[:STANDARD_FILES]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    return request


def keep(child: int, peer: socket.socket) -> None:
    """Hands signals on to the child, kills it when nobody wants it any more, and tells how it ended."""
    ended = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([ended, peer], [], [])
        if ended in ready:
            break
        for number in peer.recv(16) or [signal.SIGKILL]:
            signal.pidfd_send_signal(ended, number)
    _, status = os.waitpid(child, 0)
    try:
        peer.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def become(request: Request) -> None:
    """Makes this child what it was forked for."""
    os.environ.clear()
    os.environ.update(request["environment"])
    arguments = request["start"]
    while arguments[0] == "-u":
        arguments = arguments[1:]
    match arguments:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *arguments]:
            sys.argv = [script, *arguments]
            sys.path[0] = str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as containers:
        containers.bind(sys.argv[1])
        containers.listen(64)
        request = serve(containers)
    become(request)
