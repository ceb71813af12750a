"""Forks itself for every process that a test wants, with torch imported already: milliseconds where a fresh Python takes seconds.

    fork_server.py SOCKET

One JSON line a request on stdin, one line a reply on stdout: `{"start": [...], "environment": {...}, "log": PATH, "within": PID}` runs a script, or `-m` and a
module, with the namespaces of the process WITHIN where it has one, and gives its process id; `{"poll": PID}` gives its exit code, or `null` while it runs. Other processes ask for forks in their own place at the socket
(forked_python.py): a connection for each, which hands signals on, is answered when the fork ends, and takes it along when it closes.
Everything ends with this process, and this process with its stdin. The fork is safe because nothing here has started a thread.
"""

from __future__ import annotations

import contextlib
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
from dying import die_with_parent
from forked_python import NAMESPACES, STANDARD_FILES

Request = dict[str, Any]


def poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def serve(places: socket.socket) -> Request:
    """Answers requests. Returns in a forked child only, with its request."""
    keepers: list[int] = []
    while True:
        ready, _, _ = select.select([sys.stdin, places], [], [])
        if places in ready:
            connection, _ = places.accept()
            with connection:
                if (keeper := os.fork()) == 0:
                    return in_place(connection)
            keepers = [*(pid for pid in keepers if poll(pid) is None), keeper]
        # One line at a time: more than one is never on the way.
        if sys.stdin in ready and (wanted := answer(sys.stdin.readline())):
            return wanted


def answer(line: str) -> Request | None:
    """Answers one line from stdin."""
    if not line:
        os._exit(0)
    request: Request = json.loads(line)
    if "poll" in request:
        print(json.dumps(poll(request["poll"])), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        if within := request.get("within"):
            enter([os.open(f"/proc/{within}/ns/{name}", os.O_RDONLY) for name in NAMESPACES])
        return request | {"files": [os.open(os.devnull, os.O_RDONLY), log, log]}
    return None


def in_place(connection: socket.socket) -> Request:
    """Forks in the place of the process that asks. Returns in the fork; this process keeps it."""
    die_with_parent()
    text, files, _, _ = socket.recv_fds(connection, 1 << 20, len(STANDARD_FILES) + len(NAMESPACES))
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    enter(files[len(STANDARD_FILES) :])
    if child := os.fork():
        keep(child, connection)
    request: Request = json.loads(text)
    return request | {"files": files[: len(STANDARD_FILES)]}


def enter(namespaces: list[int]) -> None:
    """Enters namespaces where they are not this process's own. That of processes holds for its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in NAMESPACES}
    for name, namespace in zip(NAMESPACES, namespaces, strict=True):
        if os.fstat(namespace).st_ino != own[name] and libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the {name} namespace of a container")
        os.close(namespace)


def keep(child: int, connection: socket.socket) -> None:
    """Hands signals on to the child, kills it when nobody wants it any more, and tells how it ended."""
    ended = os.pidfd_open(child)
    while ended not in (ready := select.select([ended, connection], [], [])[0]):
        numbers = connection.recv(16) if connection in ready else b""
        for number in numbers or [signal.SIGKILL]:
            signal.pidfd_send_signal(ended, number)
        if not numbers:
            break
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: Request) -> None:
    """Makes this child what it was forked for."""
    os.setsid()
    die_with_parent()
    for number, file in zip(STANDARD_FILES, request["files"], strict=True):
        os.dup2(file, number)
    for file in set(request["files"]) - set(STANDARD_FILES):
        os.close(file)
    os.chdir(request.get("folder", "."))
    os.environ.clear()
    os.environ.update(request["environment"])
    arguments = [*request["start"]]
    if arguments[0] == "-u":
        del arguments[0]
    match arguments:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *arguments]:
            sys.argv = [script, *arguments]
            sys.path[0] = str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")


def main() -> None:
    with socket.socket(socket.AF_UNIX) as places:
        places.bind(sys.argv[1])
        places.listen(64)
        request = serve(places)
    become(request)


if __name__ == "__main__":
    main()
