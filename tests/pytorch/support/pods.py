"""Emulated pods, each in a Linux network namespace with an address and a host name of its own, on one switch.

By default a server pod and two nodes that know each other from a hosts file; `scenario.py` adds the pods of a manifest, which ask a name server.
A sidecar in node 0's pod is a process in node 0's namespace, so that port conflicts are those of a real pod. Addresses and names exist only
inside the namespaces. Nothing touches the network of the machine, and only the namespaces made here are deleted.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
SUBNET = "10.244.78"
# What runs in a container: its own host name, /dev/shm, /etc/hosts and perhaps /etc/resolv.conf, then the program.
CONTAINER = 'mount -t tmpfs none /dev/shm && mount --bind "$1" /etc/hosts && { [ -z "$2" ] || mount --bind "$2" /etc/resolv.conf; } && hostname "$3" && shift 3 && exec "$@"'


class Pod:
    """One network namespace, and how to run something in it."""

    environment: dict[str, str] = {}
    agent_options: list[str] = []

    def __init__(self, name: str, namespace: str, address: str, hosts_file: Path, resolv_file: Path | None = None) -> None:
        self.name, self.namespace, self.address, self.hosts_file, self.resolv_file = name, namespace, address, hosts_file, resolv_file

    def container(self, argv: list[str]) -> list[str]:
        """`argv` as a container, for a caller that is in this pod's network. Its processes all die with it, like a container's."""
        container = ["unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAINER, "sh"]
        return [*container, str(self.hosts_file), str(self.resolv_file or ""), self.name, *argv]

    def inside(self, argv: list[str]) -> list[str]:
        """`argv` in this pod's network, and nothing else of its own."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    def command(self, argv: list[str]) -> list[str]:
        """`argv` as a container of this pod."""
        return self.inside(self.container(argv))

    def firewall(self, *rule: str) -> None:
        """One call of iptables in this pod."""
        run("ip", "netns", "exec", self.namespace, "iptables", "-w", *rule)

    def cut_off_from(self, address: str) -> None:
        """Drops everything between this pod and an address in silence, as a partition does."""
        self._partition("-I", address)

    def heal(self, address: str) -> None:
        """Ends what `cut_off_from` began."""
        self._partition("-D", address)

    def _partition(self, action: str, address: str) -> None:
        self.firewall(action, "INPUT", "-s", address, "-j", "DROP")
        self.firewall(action, "OUTPUT", "-d", address, "-j", "DROP")

    def lose(self, share: float) -> None:
        """From now on this share of the packets that come to this pod is lost."""
        self.firewall("-I", "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")

    def call(self, function: Callable[[], T]) -> T:
        """Calls `function` in a thread inside this pod's network: it can start a server there, or talk to one."""
        outcome: list[T] = []
        problem: list[BaseException] = []

        def inside() -> None:
            clone_newnet = 0x40000000
            libc = ctypes.CDLL(None, use_errno=True)
            try:
                with open(f"/run/netns/{self.namespace}", "rb") as namespace:
                    if libc.setns(namespace.fileno(), clone_newnet) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {self.namespace}")
                outcome.append(function())
            except BaseException as error:
                problem.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if problem:
            raise problem[0]
        return outcome[0]


class Pods:
    """Some pods on one switch. A test may have several of them, which know nothing of each other."""

    numbers = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.prefix = f"rallypoint-test-{os.getpid()}-{next(self.numbers)}"
        self.hosts_file = folder / "hosts"
        self.resolv_file = folder / "resolv.conf"
        self.namespaces: list[str] = []
        self.pods: dict[str, Pod] = {}

    def __getitem__(self, name: str) -> Pod:
        return self.pods[name]

    @property
    def nodes(self) -> list[Pod]:
        return [pod for name, pod in self.pods.items() if name.startswith("node-")]

    def create(self, nodes: int = 2) -> None:
        """Makes the server pod and the nodes; an OSError where this machine does not permit that."""
        names = ["server", *(f"node-{index}" for index in range(nodes))]
        self.connect({name: f"{SUBNET}.{10 * number}" for number, name in enumerate(names, 1)})

    def connect(self, addresses: dict[str, str]) -> None:
        """Makes pods with these names and addresses in SUBNET, which know each other from the hosts file."""
        self.switch(SUBNET)
        for name, address in addresses.items():
            self.add(name, address, self.hosts_file, self.resolv_file)
        lines = ["127.0.0.1 localhost", *(f"{pod.address} {pod.name}" for pod in self.pods.values())]
        self.hosts_file.write_text("\n".join(lines) + "\n")
        # Clients of PyTorch look up names of addresses. Nothing listens there, so they know at once that there is none.
        self.resolv_file.write_text("nameserver 127.0.0.1\n")

    def switch(self, subnet: str) -> Pod:
        """Makes the switch: a place of its own with the address SUBNET.1, where a name server can run."""
        namespace = self._namespace("switch")
        ip("-n", namespace, "link", "add", "cni0", "type", "bridge")
        ip("-n", namespace, "address", "add", f"{subnet}.1/24", "dev", "cni0")
        ip("-n", namespace, "link", "set", "cni0", "up")
        return Pod("switch", namespace, f"{subnet}.1", self.hosts_file)

    def add(self, name: str, address: str, hosts_file: Path, resolv_file: Path | None = None) -> Pod:
        """Makes a pod that is connected to the switch."""
        number, switch = len(self.namespaces), self.namespaces[0]
        pod = Pod(name, self._namespace(f"{number}"), address, hosts_file, resolv_file)
        ip("-n", switch, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", pod.namespace)
        ip("-n", switch, "link", "set", f"v{number}", "master", "cni0", "up")
        ip("-n", pod.namespace, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", pod.namespace, "link", "set", "eth0", "up")
        ip("-n", pod.namespace, "route", "add", "default", "via", address.rpartition(".")[0] + ".1")
        self.pods[name] = pod
        return pod

    def delete(self) -> None:
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], check=False)

    def _namespace(self, name: str) -> str:
        namespace = f"{self.prefix}-{name}"
        ip("netns", "add", namespace)
        self.namespaces.append(namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        return namespace


def ip(*arguments: str) -> None:
    run("ip", *arguments)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"`{' '.join(command)}`: {done.stderr.strip()}")
