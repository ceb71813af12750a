"""PyTorch's own TCPStore servers as processes of their own, for comparison: by benches/compare and by the tests.

    torch_server.py        reads commands from stdin, one a line, and ends with it:
                           version              answers "2.15.0"
                           start libuv|legacy   answers "PORT PID"
                           stop PID             answers "stopped"

torch is imported once; each server is a fork of that process, so that it starts at once and with fresh memory.

The server is given an IPv4 listening socket. It looks up the name of every peer it accepts. On a socket of its own it listens
on [::], and look-ups of ::ffff:127.0.0.1 go to the name server, which a test with many connections would then measure.
/etc/hosts answers for 127.0.0.1.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def serve(backend: str, report: int) -> None:
    """Runs one server in this process, for ever."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port = listener.getsockname()[1]
    # Keeps a reference: the server ends with the object.
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        timeout=timedelta(seconds=20),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=backend == "libuv",
    )
    os.write(report, f"{store.port}\n".encode())
    while True:
        signal.pause()


def start(backend: str) -> str:
    reading, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            # The commands are the parent's, and so is the end of this process if the parent is gone.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            serve(backend, report)
        finally:
            os._exit(1)
    os.close(report)
    with os.fdopen(reading) as answer:
        port = answer.readline().strip()
    if not port:
        raise SystemExit(f"torch_server.py: the {backend} server did not start")
    return f"{port} {pid}"


def main() -> None:
    running: set[int] = set()
    try:
        for line in sys.stdin:
            match line.split():
                case ["version"]:
                    print(torch.__version__.split("+")[0], flush=True)
                case ["start", ("libuv" | "legacy") as backend]:
                    answer = start(backend)
                    running.add(int(answer.split()[1]))
                    print(answer, flush=True)
                case ["stop", pid] if int(pid) in running:
                    running.discard(int(pid))
                    os.kill(int(pid), signal.SIGKILL)
                    os.waitpid(int(pid), 0)
                    print("stopped", flush=True)
                case other:
                    raise SystemExit(f"torch_server.py: cannot {other}")
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
