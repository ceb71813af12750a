"""Two servers at one etcd: jobs behind relays live on when the one that leads is killed, in every launch mode."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dying import die_with_parent
from jobs import Jobs, clients_only
from pods import SUBNET, Pod, Pods
from relayed import HERE, MODES, Relay
from servers import Server, await_text, binary

pytest_plugins = ["job_fixtures"]

TAKEOVER = 30.0
"""Seconds. It takes 6, and more on a busy machine."""


def start(pod: Pod, log: Path, *argv: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    with log.open("wb") as output:
        return subprocess.Popen(
            pod.inside(list(argv)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, preexec_fn=die_with_parent
        )


@pytest.fixture
def journal(pods: Pods, tmp_path: Path) -> Iterator[str]:
    """Three members of a real etcd in a pod of their own; what `--journal` is then."""
    pod = pods.add("etcd", f"{SUBNET}.50", pods.hosts_file)
    urls = [(f"http://{pod.address}:{2379 + 10 * n}", f"http://{pod.address}:{2380 + 10 * n}") for n in range(3)]
    cluster = ",".join(f"m{n}={peer}" for n, (_, peer) in enumerate(urls))
    members = []
    for n, (client, peer) in enumerate(urls):
        own = ["--name", f"m{n}", "--data-dir", str(tmp_path / f"etcd-{n}"), "--initial-cluster", cluster, "--unsafe-no-fsync"]
        own += ["--listen-client-urls", client, "--advertise-client-urls", client]
        own += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        members.append(start(pod, tmp_path / f"etcd-{n}.log", "etcd", *own))
    yield "etcd://" + ",".join(client.removeprefix("http://") for client, _ in urls) + "/jobs"
    for member in members:
        member.kill()
        member.wait()


def test_every_launch_mode_outlives_the_death_of_who_leads(
    journal: str, serve_in: Callable[..., Server], pods: Pods, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of each mode at the same time. Each has relays and a store of its own, as their tokens are for different runs."""
    standby = pods.add("standby", f"{SUBNET}.40", pods.hosts_file)
    # As a headless Service: the name is both servers, and a relay tries one after the other.
    pods.hosts_file.write_text(f"{pods.hosts_file.read_text()}{standby.address} server\n")
    monkeypatch.setenv("RESOLV_MULTI", "on")
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{mode} member {mode}-*\n" for mode in MODES))
    flags = ("--journal", journal, "--token-file", str(tokens), "--require-token")
    leader = serve_in(pods["server"], *flags)
    ports = ("--listen", "[::]:29500", "--admin", "[::]:29501")
    other = start(standby, tmp_path / "standby.log", str(binary()), "serve", *ports, *flags)
    relays, started = [], []
    try:
        for n, mode in enumerate(MODES, 2):
            host, token = f"127.0.0.{n}", tmp_path / f"token-{mode}"
            token.write_text(mode)
            for node in pods.nodes:
                log = tmp_path / f"relay-{mode}-{node.name}.log"
                relays.append(Relay(node, "server", log, "--token-file", str(token), as_container=True, host=host, team=f"{mode}-"))
        for relay in relays:
            relay.await_link()
        for n, (mode, (launch, endpoint, options)) in enumerate(MODES.items(), 2):
            endpoint = endpoint.replace("127.0.0.1", f"127.0.0.{n}")
            own = {name: value.replace(HERE, endpoint) for name, value in options.items() if name == "init_method"}
            if options.get("environment") == clients_only(HERE):
                own["environment"] = clients_only(endpoint)
            if launch is Jobs.torchrun:
                own["run_id"] = f"{mode}-1"
            started.append(launch(jobs, endpoint, places=pods.nodes, train=["--late", "1:0", "--no-ddp"], **options | own))
        for job in started:
            job.wait_for_mark("init", 0)
        # Each rank 0 waits in the store for its rank 1, which is held.
        leader.process.kill()
        leader.process.wait()
        await_text(tmp_path / "standby.log", "restarted in", TAKEOVER)
        for job in started:
            job.release()
        for job in started:
            assert [result["host"] for result in job.results()] == ["node-0", "node-1"]
        for relay in relays:
            await_text(relay.log, "is back after")
    finally:
        for relay in relays:
            relay.kill()
        other.kill()
        other.wait()
