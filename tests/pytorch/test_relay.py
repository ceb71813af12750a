"""Jobs behind relays: the network between a node and the server breaks, or the server dies, and the job does not notice.

Each node's pod has a relay, and the job's endpoint is the node's own loopback. A break: the server's pod refuses every packet for a while, which
ends all connections that say something. A death: kill -9 at moments without a pattern, and a start with the same journal.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
from jobs import Jobs, clients_only
from pods import Pods
from relayed import HERE, MODES, Relay
from servers import CLIENT_TIMEOUT, Server, await_text, binary, poll

pytest_plugins = ["job_fixtures"]

DEATHS_IN_INIT = 3
BREAK = 3.0
"""Seconds. Shorter than what a c10d agent allows its peers (15 s), and longer than any retry of TCP's own."""


@pytest.fixture
def server(serve_in: Callable[..., Server], pods: Pods, tmp_path: Path) -> Server:
    """A server with a journal, in its pod."""
    return serve_in(pods["server"], "--journal", str(tmp_path / "journal"))


@pytest.fixture
def relays(server: Server, pods: Pods, tmp_path: Path) -> Iterator[list[Path]]:
    """A relay in each node's pod; their logs."""
    del server
    started = [Relay(node, pods["server"].address, tmp_path / f"relay-{node.name}.log") for node in pods.nodes]
    for relay in started:
        relay.await_link()
    yield [relay.log for relay in started]
    for relay in started:
        relay.kill()


@contextmanager
def broken(pods: Pods) -> Iterator[None]:
    """Every packet between the nodes and the server ends its connection."""
    server = pods["server"].address
    refused = ["OUTPUT", "-d", server, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]
    for node in pods.nodes:
        node.firewall("-I", *refused)
    yield
    for node in pods.nodes:
        node.firewall("-D", *refused)


@pytest.mark.parametrize("mode", MODES)
def test_a_break_of_the_network_is_not_noticed(mode: str, relays: list[Path], pods: Pods, jobs: Jobs) -> None:
    launch, endpoint, options = MODES[mode]
    job = launch(jobs, endpoint, places=pods.nodes, train=["--late", "1:0"], **options)
    # Rank 0 waits in the store for rank 1, which is held.
    job.wait_for_mark("init", 0)
    with broken(pods):
        time.sleep(BREAK)
    job.release()
    assert [result["host"] for result in job.results()] == ["node-0", "node-1"]
    for log in relays:
        await_text(log, "is back after")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("relays")
def test_a_server_that_dies_again_and_again_is_not_noticed(
    mode: str, server: Server, serve_in: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path
) -> None:
    alarms: list[str] = []

    def die_and_live() -> None:
        nonlocal server
        server.process.kill()
        server.process.wait()
        alarms.extend(line for line in server.log_text().splitlines() if " WARN " in line or " ERROR " in line)
        server = serve_in(pods["server"], "--journal", str(tmp_path / "journal"))

    launch, endpoint, options = MODES[mode]
    moments = random.Random(mode)
    job = launch(jobs, endpoint, places=pods.nodes, train=["--late", "1:0"], **options)
    deaths = 0
    while not job.mark_seen("init", 0) or deaths < DEATHS_IN_INIT:
        if any(node.process.poll() is not None for node in job.nodes.values()):
            break  # one has failed, as `results` will say
        time.sleep(moments.uniform(0.1, 1))
        die_and_live()
        deaths += 1
    job.release()
    while any(node.process.poll() is None for node in job.nodes.values()):
        time.sleep(moments.uniform(0.1, 1))
        die_and_live()
        deaths += 1
    assert [result["host"] for result in job.results()] == ["node-0", "node-1"], f"after {deaths} deaths"
    assert not alarms, "nobody but the server has died"


def test_a_server_that_moves_is_found_by_its_name(serve_in: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path) -> None:
    """Its pod is lost and comes again with another address, as after a node drain: the volume and the name are the same."""
    journal = ("--journal", str(tmp_path / "journal"))
    server = serve_in(pods["server"], *journal)
    pods.add("server-again", pods["server"].address.replace(".10", ".40"), pods.hosts_file)
    relays = [Relay(node, "server", tmp_path / f"relay-{node.name}.log", as_container=True) for node in pods.nodes]
    try:
        for relay in relays:
            relay.await_link()
        job = jobs.ranks(HERE, places=pods.nodes, train=["--late", "1:0", "--no-ddp"], environment=clients_only(HERE))
        job.wait_for_mark("init", 0)
        server.stop()
        serve_in(pods["server-again"], *journal)
        hosts = pods.hosts_file.read_text()
        pods.hosts_file.write_text(hosts.replace(f"{pods['server'].address} server", f"{pods['server-again'].address} server"))
        job.release()
        assert [result["host"] for result in job.results()] == ["node-0", "node-1"]
    finally:
        for relay in relays:
            relay.kill()


class Certificates:
    """A folder with an authority, and what it has signed: NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._openssl("req", "-x509", *self._new_key("ca"), "-subj", "/CN=ca", "-days", "2", "-out", "ca.crt")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def _new_key(self, name: str) -> list[str]:
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]

    def issue(self, name: str, address: str = "127.0.0.1") -> None:
        """A new key and a new certificate, in place of those that were there."""
        (self.folder / "names").write_text(f"subjectAltName=IP:{address}")
        self._openssl("req", *self._new_key(name), "-subj", f"/CN={name}", "-out", "request")
        signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-extfile", "names", "-out", f"{name}.crt"]
        self._openssl("x509", "-req", "-in", "request", *signed)

    def __call__(self, name: str) -> str:
        return str(self.folder / name)


def test_an_encrypted_job_outlives_the_change_of_certificates_and_tokens(
    rallypoint_factory: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path
) -> None:
    """The server has no store port, and takes only relays with a certificate and a token. All of these are replaced while the job runs."""
    files, address = Certificates(tmp_path / "tls"), pods["server"].address
    files.issue("server", address)
    files.issue("relay")
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text("first member\n")
    token.write_text("first\n")
    flags = ["--tls-cert", files("server.crt"), "--tls-key", files("server.key"), "--tls-client-ca", files("ca.crt")]
    flags += ["--token-file", str(tokens), "--require-token", "--test-settings", "reload-every=200ms", "--listen", "none", "--admin", "[::]:29501"]
    server = pods["server"].call(lambda: rallypoint_factory(*flags))
    shown = ["--tls-ca", files("ca.crt"), "--tls-client-cert", files("relay.crt"), "--tls-client-key", files("relay.key")]
    shown += ["--token-file", str(token)]
    relays = [Relay(node, address, tmp_path / f"relay-{node.name}.log", *shown) for node in pods.nodes]
    try:
        for relay in relays:
            relay.await_link()
        job = jobs.torchrun(HERE, places=pods.nodes, train=["--late", "1:0"])
        job.wait_for_mark("init", 0)
        files.issue("server", address)
        files.issue("relay")
        server.await_log("get the new certificate")
        token.write_text("second\n")
        # The old token is gone: each link ends, and comes again with what is new.
        tokens.write_text("second member\n")
        for relay in relays:
            await_text(relay.log, "is back after")
        job.release()
        assert [result["host"] for result in job.results()] == ["node-0", "node-1"]
    finally:
        for relay in relays:
            relay.kill()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.fail(f"{mounted.stderr.strip()}; this test needs root to mount a small disk", pytrace=False)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_survived_and_so_is_the_death_of_the_server_after_it(
    serve_in: Callable[..., Server], pods: Pods, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        journal = ("--journal", str(disk / "journal"))
        server = serve_in(pods["server"], *journal)
        node = pods["node-0"]
        relay = Relay(node, pods["server"].address, tmp_path / "relay.log")
        try:
            relay.await_link()
            client = node.call(lambda: dist.TCPStore("127.0.0.1", 29500, is_master=False, wait_for_workers=False, timeout=CLIENT_TIMEOUT))
            client.set("before", "1")
            # A buffer would fail once more when it is closed.
            with (disk / "junk").open("wb", buffering=0) as junk, contextlib.suppress(OSError):
                while junk.write(bytes(1 << 16)):
                    pass
            # A segment of the journal may still have room of its own.
            for number in range(200):
                client.set(f"while-full-{number}", "x" * 1000)
            assert client.add("counter", 1) == 1, "clients go on"
            server.await_log("cannot write to the journal")
            (disk / "junk").unlink()
            dump = [str(binary()), "journal", "dump", str(disk / "journal")]
            poll(lambda: b"all was written again" in subprocess.run(dump, capture_output=True).stdout, "the journal is whole again", 30)
            assert client.add("counter", 1) == 2
            server.stop()
            serve_in(pods["server"], *journal)
            assert client.add("counter", 1) == 3, "the same client goes on, and each request was applied once"
            assert client.get("while-full-199") == b"x" * 1000
        finally:
            relay.kill()


def test_without_a_relay_the_death_of_the_server_ends_the_job(
    server: Server, serve_in: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs.torchrun("server:29500", places=pods.nodes, train=["--late", "1:0"])
    job.wait_for_mark("init", 0)
    server.process.kill()
    server.process.wait()
    serve_in(pods["server"], "--journal", str(tmp_path / "journal"))
    job.release()
    assert "Connection" in job.failure(0) + job.failure(1)


@pytest.mark.usefixtures("server")
def test_without_a_relay_the_same_break_ends_the_job(pods: Pods, jobs: Jobs) -> None:
    job = jobs.torchrun("server:29500", places=pods.nodes, train=["--late", "1:0"])
    job.wait_for_mark("init", 0)
    with broken(pods):
        time.sleep(BREAK + 5)  # an agent speaks every 5 s
    job.release()
    assert "Connection" in job.failure(0) + job.failure(1)
