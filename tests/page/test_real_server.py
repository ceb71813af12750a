"""The page, the events and `rallypoint status` of a real server whose store sees a job come."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from browser import Page
from documents import REPOSITORY

sys.path.append(str(REPOSITORY / "tests" / "pytorch" / "support"))
from wire import ADD, PING, SET, WAIT, WireClient, blob, keys_request  # noqa: E402


def worker(store_port: int, pid: int) -> WireClient:
    """A worker of `env://` connects as PyTorch's does."""
    client = WireClient("127.0.0.1", store_port)
    client.send(bytes([PING]) + struct.pack("<I", pid))
    client.receive(4)
    client.send(bytes([ADD]) + blob(b"init/") + struct.pack("<q", 1))
    client.receive(8)
    return client


def publish(client: WireClient, rank: int, world_size: int) -> None:
    """The worker's gloo address, which has room for each rank."""
    host = f"host{rank}".encode()
    address = blob(host) + blob(bytes(136)) + bytes(8 * world_size)
    client.send(bytes([SET]) + blob(b"/default_pg/0//cpu//0/%d" % rank) + blob(address))
    client.fence()


def test_a_job_of_ranks_fills_the_page(server, binary: Path, open_page: Callable[[str], Page]) -> None:
    page = open_page(server.url)
    page.until_says("#empty", "No runs")
    with ExitStack() as connected:
        workers = [connected.enter_context(worker(server.store_port, 4000 + n)) for n in range(3)]
        for rank in (0, 1):
            publish(workers[rank], rank, 3)
        page.until_says("#ranks-legend", "2 joined")
        page.until_says("#sentence", "Waiting for 1 of 3 ranks")
        assert f"store:{server.store_port}" in page.text("#run-name")

        # Rank 0 waits for rank 2's address.
        workers[0].send(keys_request(WAIT, b"/default_pg/0//cpu//0/2"))
        page.until_says("#waits-rows", "/default_pg/0//cpu//0/2")
        shown = subprocess.run([binary, "status", server.url], capture_output=True, text=True, timeout=20, check=True).stdout
        assert f"store:{server.store_port}" in shown and "2/3 ranks" in shown

        publish(workers[2], 2, 3)
        page.until_says("#ranks-legend", "3 joined")
        page.until("nobody waits", lambda: not page.shown("#waits"))
        page.focus("#ranks-grid")
        page.press("\ue010")  # End
        page.until_says("#ranks-detail", "rank 2 · has published its address · host2")
    page.until_says("#ranks-legend", "3 disconnected")
    page.until_says("#link", "live")
