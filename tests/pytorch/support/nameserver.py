"""The cluster's name server: dnsmasq on the switch of emulated pods, with the names that the test gives it and no others.

Whoever asks after `say` returned gets the new names: a name server that has not started yet, or still has the names of before, looks to a
program like a wrong name.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pods import Pod
from servers import poll

NAMESPACE = "ml"
DOMAIN = f"{NAMESPACE}.svc.cluster.local"


class NameServer:
    """Answers for the names below `cluster.local`. A name that it does not have does not exist, as in a cluster."""

    def __init__(self, folder: Path, switch: Pod) -> None:
        self.address, self.switch = switch.address, switch
        self.said = 0
        self.names: dict[str, list[str]] = {}
        self.hosts = folder / "names"
        self.hosts.touch()
        self.resolv_file = folder / "resolv.conf"
        search = f"{DOMAIN} svc.cluster.local cluster.local"
        self.resolv_file.write_text(f"search {search}\nnameserver {self.address}\noptions ndots:5 timeout:1 attempts:5\n")
        command = ["dnsmasq", "-k", "-C", "/dev/null", "--no-resolv", "--no-hosts", "--bind-interfaces", f"--listen-address={self.address}"]
        command += [
            f"--addn-hosts={self.hosts}",
            "--local=/cluster.local/",
            "--domain-needed",
            "--local-ttl=1",
            "--user=root",
            "--pid-file=",
        ]
        with (folder / "dnsmasq.log").open("wb") as log:
            self.process = subprocess.Popen(switch.inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # Before it is up, SIGHUP would end it.
        poll(lambda: self._answers("any") is not None, "the name server answers", 60)

    def say(self, **names: list[str]) -> None:
        """Gives names addresses, in the place of those that they had; with an empty list a name does not exist."""
        self.names |= names
        self.said += 1
        lines = [f"{address} {name}.{DOMAIN}\n" for name, addresses in self.names.items() for address in addresses]
        self.hosts.write_text("".join([*lines, f"127.0.0.1 said-{self.said}.{DOMAIN}\n"]))
        os.kill(self.process.pid, signal.SIGHUP)
        poll(lambda: self._answers(f"said-{self.said}"), "the name server has the new names", 60)

    def _answers(self, name: str) -> int | None:
        """How many addresses the name server gives for a name; None if it gives no answer."""
        return self.switch.call(lambda: ask(self.address, f"{name}.{DOMAIN}"))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Gives no answer for as long as the block lasts, and then all that are still wanted."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def ask(server: str, name: str) -> int | None:
    """Asks for the IPv4 addresses of a name (RFC 1035); gives how many there are, None without an answer within a second."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = struct.pack(">6H", 1, 0, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        try:
            client.connect((server, 53))
            client.send(question)
            return int(struct.unpack(">4H", client.recv(512)[:8])[3])
        except OSError:
            return None
