"""The cluster's name server: dnsmasq on the switch of emulated pods, with the names that the test gives it and no others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pods import Pod

NAMESPACE = "ml"
DOMAIN = f"{NAMESPACE}.svc.cluster.local"


class NameServer:
    """Answers for the names below `cluster.local`. A name that it does not have does not exist, as in a cluster."""

    def __init__(self, folder: Path, switch: Pod) -> None:
        self.address = switch.address
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

    def say(self, **names: list[str]) -> None:
        """Gives names addresses, in the place of those that they had; with an empty list a name does not exist."""
        self.names |= names
        lines = [f"{address} {name}.{DOMAIN}\n" for name, addresses in self.names.items() for address in addresses]
        self.hosts.write_text("".join(lines))
        os.kill(self.process.pid, signal.SIGHUP)

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
