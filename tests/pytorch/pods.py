"""Emulated pods: a server pod and two nodes, each in a Linux network namespace with an address and a host name of its own.

A sidecar in node 0's pod is a process in node 0's namespace, so that port conflicts are those of a real pod. Addresses and names exist only
inside the namespaces. Nothing touches the network of the machine, and only the namespaces made here are deleted.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NAMES = ("server", "node-0", "node-1")
SUBNET = "10.244.78"
# What runs in a container: its own host name and /etc/hosts, then the program.
CONTAINER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class Pod:
    """One network namespace, and how to run something in it."""

    environment: dict[str, str] = {}
    agent_options: list[str] = []

    def __init__(self, name: str, namespace: str, address: str, hosts_file: Path) -> None:
        self.name, self.namespace, self.address, self.hosts_file = name, namespace, address, hosts_file

    def command(self, argv: list[str]) -> list[str]:
        """`argv` as a container of this pod. Its processes all die with it, like a container's."""
        container = ["unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAINER, "sh"]
        return ["ip", "netns", "exec", self.namespace, *container, str(self.hosts_file), self.name, *argv]

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
    """The pods of one test, on one switch."""

    def __init__(self, folder: Path) -> None:
        self.prefix = f"rallypoint-test-{os.getpid()}"
        self.hosts_file = folder / "hosts"
        self.namespaces: list[str] = []
        self.pods: dict[str, Pod] = {}

    def __getitem__(self, name: str) -> Pod:
        return self.pods[name]

    @property
    def nodes(self) -> list[Pod]:
        return [self["node-0"], self["node-1"]]

    def create(self) -> None:
        """Makes the namespaces; an OSError where this machine does not permit that."""
        switch = self._namespace("switch")
        ip("-n", switch, "link", "add", "cni0", "type", "bridge")
        ip("-n", switch, "link", "set", "cni0", "up")
        for number, name in enumerate(NAMES, 1):
            pod = Pod(name, self._namespace(name), f"{SUBNET}.{10 * number}", self.hosts_file)
            ip("-n", switch, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", pod.namespace)
            ip("-n", switch, "link", "set", f"v{number}", "master", "cni0", "up")
            ip("-n", pod.namespace, "address", "add", f"{pod.address}/24", "dev", "eth0")
            ip("-n", pod.namespace, "link", "set", "eth0", "up")
            self.pods[name] = pod
        lines = ["127.0.0.1 localhost", *(f"{pod.address} {pod.name}" for pod in self.pods.values())]
        self.hosts_file.write_text("\n".join(lines) + "\n")

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
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"`ip {' '.join(arguments)}`: {done.stderr.strip()}")
