"""Where the processes of a play run: all on this host's loopback, or each node on a host of its own, an emulated pod, and the server, too."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol

from pods import SUBNET, Pod, Pods
from record import Job
from schedule import Plan, Schedule
from servers import HOST

# Keeps a host alive. Unlike a container (pods.py) it has the machine's process ids, by which processes are judged.
LIVES = 'mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && hostname "$3" && echo lives && exec sleep infinity'


class Hosts(Protocol):
    server: str
    """The address of the server, as nodes see it."""
    listens: str
    """Where the server listens."""

    def environment(self) -> dict[str, str]:
        """Of processes there."""

    def within(self, job: Job, node: int) -> int | None:
        """A process whose namespaces are those of a node's host, where it has some."""

    def cut(self, job: Job, node: int) -> None:
        """Drops all packets of this node, in silence."""

    def heal(self, job: Job, node: int) -> None:
        """Ends that."""


class Loopback:
    """Of nodes on loopback only the names differ."""

    server = listens = HOST

    def environment(self) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": "lo"}

    def within(self, job: Job, node: int) -> int | None:
        return None

    def cut(self, job: Job, node: int) -> None:
        raise AssertionError("nodes on loopback cannot be cut off")

    heal = cut


class Apart:
    """Hosts with names and addresses of their own. Process ids are those of this machine."""

    server, listens = f"{SUBNET}.10", "0.0.0.0"

    def __init__(self, folder: Path, schedule: Schedule) -> None:
        self.pods = Pods(folder)
        self.alive: dict[str, subprocess.Popen[str]] = {}
        try:
            self.create([plan for plan in (schedule.job, schedule.beside) if plan])
        except BaseException:
            self.delete()
            raise

    def create(self, plans: list[Plan]) -> None:
        jobs = [Job(plan, 0, 10 * number) for number, plan in enumerate(plans, 1)]
        nodes = {job.host(node): job.address(node) for job in jobs for node in range(job.plan.nodes)}
        self.pods.connect({"server": self.server, **nodes})
        for name in nodes:
            argv = ["unshare", "--uts", "--mount", "sh", "-c", LIVES, "sh", str(self.pods.hosts_file), str(self.pods.resolv_file), name]
            self.alive[name] = subprocess.Popen(self.pods[name].inside(argv), stdout=subprocess.PIPE, text=True)
        for name, process in self.alive.items():
            if not process.stdout or process.stdout.readline() != "lives\n":
                raise OSError(f"the host {name} of a play could not be made")

    def environment(self) -> dict[str, str]:
        return {}

    def within(self, job: Job, node: int) -> int | None:
        return self.alive[job.host(node)].pid

    def cut(self, job: Job, node: int) -> None:
        self.packets(self.pods[job.host(node)], "-I")

    def heal(self, job: Job, node: int) -> None:
        self.packets(self.pods[job.host(node)], "-D")

    def packets(self, pod: Pod, action: str) -> None:
        pod.firewall(action, "INPUT", "-i", "eth0", "-j", "DROP")
        pod.firewall(action, "OUTPUT", "-o", "eth0", "-j", "DROP")

    def delete(self) -> None:
        for process in self.alive.values():
            process.kill()
            process.wait()
        self.pods.delete()
