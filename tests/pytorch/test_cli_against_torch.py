"""The client commands of the binary against PyTorch's own servers, libuv and legacy: what they store, torch clients read, and the reverse."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from servers import CLIENT_TIMEOUT, HOST, binary

BACKENDS = pytest.mark.parametrize("backend", ["libuv", "legacy"])
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def start_torch_server(backend: str) -> dist.TCPStore:
    """A server inside this process; its master end is a client as well. The socket is ours for the reason given in benches/torch_server.py."""
    options: dict[str, Any] = {"timeout": CLIENT_TIMEOUT, "wait_for_workers": False, "use_libuv": backend == "libuv"}
    listener = socket.create_server((HOST, 0))
    try:
        return dist.TCPStore(HOST, listener.getsockname()[1], is_master=True, master_listen_fd=os.dup(listener.fileno()), **options)
    except NotImplementedError:
        # libuv before 2.5 takes no socket (and looks up no names either).
        return dist.TCPStore(HOST, 0, is_master=True, **options)
    finally:
        listener.close()


@pytest.fixture
def torch_store(backend: str) -> Iterator[dist.TCPStore]:
    yield start_torch_server(backend)


@pytest.fixture
def run(torch_store: dist.TCPStore) -> Run:
    """Runs a command of the binary against the server: `run("store", "get", "key")`. Gives its exit code, stdout and stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    endpoint = f"{HOST}:{torch_store.port}"
    environment |= {"RALLYPOINT_STORE": endpoint, "RALLYPOINT_ENDPOINT": endpoint}

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([binary(), *arguments], input=stdin, capture_output=True, env=environment, timeout=60)

    return run


def gives(ran: subprocess.CompletedProcess[bytes], stdout: bytes = b"") -> None:
    assert (ran.returncode, ran.stdout) == (0, stdout), ran.stderr.decode()


@BACKENDS
def test_wait_ends(run: Run, torch_store: dist.TCPStore) -> None:
    ran = run("wait", "--timeout", "20s", "--json")
    assert ran.returncode == 0, ran.stderr.decode()
    answer = json.loads(ran.stdout)
    assert (answer["ready"], answer["address"]) == (True, f"{HOST}:{torch_store.port}")
    assert torch_store.num_keys() == 0


@BACKENDS
def test_both_read_what_the_other_stored(run: Run, torch_store: dist.TCPStore) -> None:
    value = bytes(range(256)) * 4096
    gives(run("store", "set", "from-us", "-", stdin=value))
    assert torch_store.get("from-us") == value
    torch_store.set("from-torch", value)
    gives(run("store", "get", "from-torch"), value)
    gives(run("store", "add", "counter", "5"), b"5\n")
    assert torch_store.add("counter", 1) == 6
    gives(run("store", "num-keys"), b"3\n")
    gives(run("store", "delete", "from-us"), b"1\n")
    gives(run("store", "wait", "from-torch", "counter"))


@BACKENDS
@pytest.mark.requires("check")
def test_what_is_missing_is_an_exit_code(run: Run, torch_store: dist.TCPStore) -> None:
    torch_store.set("there", "")
    gives(run("store", "check", "there"), b"true\n")
    ran = run("store", "check", "there", "missing")
    assert (ran.returncode, ran.stdout) == (1, b"false\n")
    for arguments in [("get", "missing"), ("get", "missing", "--no-wait"), ("wait", "there", "missing")]:
        ran = run("store", *arguments, "--timeout", "200ms")
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert b"missing: `missing`" in ran.stderr


@BACKENDS
@pytest.mark.requires("append")
def test_append(run: Run, torch_store: dist.TCPStore) -> None:
    torch_store.set("key", "one")
    gives(run("store", "append", "key", "+two"))
    assert torch_store.get("key") == b"one+two"


@BACKENDS
@pytest.mark.requires("list_keys")
def test_keys(run: Run, torch_store: dist.TCPStore) -> None:
    for key in ("b", "a", "dir/c"):
        torch_store.set(key, "")
    gives(run("store", "keys"), b"a\nb\ndir/c\n")
    gives(run("store", "keys", "--raw"), b"/a\n/b\n/dir/c\n")


@BACKENDS
@pytest.mark.requires("queue_push")
def test_queues_where_the_server_has_them(run: Run, torch_store: dist.TCPStore, backend: str) -> None:
    if backend == "legacy":
        ran = run("store", "queue-push", "queue", "one")
        assert ran.returncode == 1
        assert b"only in the libuv server" in ran.stderr
        return
    torch_store.queue_push("queue", "one")
    gives(run("store", "queue-push", "queue", "two"))
    gives(run("store", "queue-len", "queue"), b"2\n")
    gives(run("store", "queue-pop", "queue"), b"one")
    assert torch_store.queue_pop("queue") == b"two"
    ran = run("store", "queue-pop", "queue", "--timeout", "200ms")
    assert (ran.returncode, ran.stdout) == (1, b"")


@BACKENDS
def test_a_wait_that_timed_out_leaves_nothing_behind(run: Run, torch_store: dist.TCPStore) -> None:
    assert run("store", "wait", "late", "--timeout", "200ms").returncode == 1
    torch_store.set("late", "1")
    torch_store.wait(["late"], timedelta(seconds=5))
    gives(run("store", "get", "late"), b"1")
