"""A server with a journal in a pod of its own, a relay in each node's pod, and how they are killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from pods import Pods
from relayed import Relay
from servers import Server


class RelayedPods:
    """The server and the relays."""

    def __init__(self, folder: Path, pods: Pods) -> None:
        self.folder, self.pods = folder, pods
        self.starts = 0
        self.server = self.start_server()
        self.relays = [self.start_relay(index) for index in range(len(pods.nodes))]
        for relay in self.relays:
            relay.await_link()

    def start_server(self) -> Server:
        self.starts += 1
        folder = self.folder / f"server-{self.starts % 4}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        arguments = ("--listen", "[::]:29500", "--admin", "[::]:29501", "--journal", str(self.folder / "journal"))
        return self.pods["server"].call(lambda: Server.start(folder, *arguments))

    def start_relay(self, index: int) -> Relay:
        return Relay(self.pods.nodes[index], self.pods["server"].address, self.folder / f"relay-{index}.log")

    def kill_server(self, away: float = 0.0) -> None:
        self.server.stop()
        time.sleep(away)
        self.server = self.start_server()

    def kill_relay(self, index: int) -> None:
        self.relays[index].kill()
        self.relays[index] = self.start_relay(index)

    def stop(self) -> None:
        self.server.stop()
        for relay in self.relays:
            relay.kill()
