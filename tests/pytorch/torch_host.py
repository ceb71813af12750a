"""Runs PyTorch's own TCPStore servers, one per line `start` on stdin; answers with the port. `stop PORT` ends one.

Ends with its stdin, so that it never outlives the test run.
"""

from __future__ import annotations

import socket
import sys
from datetime import timedelta

import torch.distributed as dist


def start() -> tuple[int, dist.TCPStore]:
    """A libuv server on a free port. It gets an IPv4 socket from us, for with its own it looks up every peer's name."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        timeout=timedelta(seconds=20),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )
    return port, store


def main() -> None:
    stores: dict[int, dist.TCPStore] = {}
    for line in sys.stdin:
        match line.split():
            case ["start"]:
                port, stores[port] = start()
                print(port, flush=True)
            case ["stop", port]:
                del stores[int(port)]
                print("stopped", flush=True)
            case other:
                raise SystemExit(f"torch_host.py: cannot {other}")


if __name__ == "__main__":
    main()
