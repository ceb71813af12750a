"""`rallypoint run` in front of real torchrun and plain python, to a trained and checked result.

The nodes are told their rank and where the server is; what torch needs besides is what `run` sets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from jobs import Jobs, UnderRun
from pods import Pods
from servers import Server, binary

pytest_plugins = ["job_fixtures"]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def places(server: Server, *flags: str) -> list[UnderRun]:
    return [UnderRun(server, rank, 2, *flags) for rank in range(2)]


def test_static_trains_on_a_store_of_its_own(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.launched([*TORCHRUN, "--nproc-per-node=2"], places(rallypoint, "--mode=static"), procs=2)
    results = job.results()
    (own,) = [store for store in rallypoint.get_json("/api/v1/stores")["stores"] if store["run_id"] == "job"]
    assert {result["store"] for result in results} == {f"127.0.0.1:{own['port']}"}
    assert "2 pods are there" in job.nodes[0].output


@pytest.mark.parametrize("flags", [[], ["--rdzv_conf=timeout=1800,read_timeout=120"]], ids=["bare", "timeout"])
def test_c10d_trains_with_timers_that_count(flags: list[str], rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.launched([*TORCHRUN, "--rdzv-backend=c10d", *flags], places(rallypoint))
    job.results()
    meant = "join_timeout=1800 is what was meant" if flags else "join_timeout=1800, as long as --gather-timeout"
    assert meant in job.nodes[0].output


def test_plain_python_trains_on_a_store_of_its_own(rallypoint: Server, jobs: Jobs) -> None:
    job = jobs.launched([sys.executable], places(rallypoint))
    results = job.results()
    (own,) = [store for store in rallypoint.get_json("/api/v1/stores")["stores"] if store["run_id"] == "job"]
    assert {result["store"] for result in results} == {f"127.0.0.1:{own['port']}"}
    assert "starting in mode env" in job.nodes[1].output


def test_a_flag_that_names_the_store_keeps_the_run_there(rallypoint: Server, jobs: Jobs) -> None:
    host, _, port = rallypoint.endpoint.rpartition(":")
    flags = [f"--master-addr={host}", f"--master-port={port}"]
    job = jobs.launched([*TORCHRUN, *flags], places(rallypoint, "--mode=static"))
    assert {result["store"] for result in job.results()} == {rallypoint.endpoint}
    assert "keeps the run on the main store" in job.nodes[0].output


class OnHost:
    """`rallypoint run -- echo started` on a host that is called as every other one."""

    def __init__(self, pods: Pods, rank: int, nodes: int, *flags: str) -> None:
        endpoint = f"--endpoint={pods['server'].address}:29500"
        run = [str(binary()), "run", endpoint, f"--nodes={nodes}", f"--node-rank={rank}", "--run-id=job", *flags]
        host = ["unshare", "--uts", "sh", "-c", 'hostname ubuntu && exec "$@"', "sh", *run, "--", "echo", "started"]
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        inside = pods.nodes[rank].inside(host)
        self.process = subprocess.Popen(inside, stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}, **output)

    def ended(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=60)
        return self.process.returncode, said


def test_hosts_of_one_name_have_relays_of_names_of_their_own(serve_in: Callable[..., Server], networks: Callable[[], Pods]) -> None:
    pods = networks()
    pods.create(nodes=3)
    serve_in(pods["server"])
    hosts = [OnHost(pods, rank, 3, "--relay=on") for rank in range(3)]
    for rank, (code, said) in enumerate(host.ended() for host in hosts):
        assert (code, said.splitlines()[-1]) == (0, "started"), said
        assert f"linked to {pods['server'].address}:29501 as ubuntu:29500@{pods.nodes[rank].address}#{rank}" in said


def test_a_run_whose_store_is_out_of_reach_is_not_started(serve_in: Callable[..., Server], pods: Pods) -> None:
    serve_in(pods["server"])
    drop = ["INPUT", "-p", "tcp", "--dport", "29510:29599", "-j", "DROP"]
    pods["server"].firewall("-I", *drop)
    code, said = OnHost(pods, 0, 1, "--relay=off", "--timeout=5s").ended()
    store = re.escape(pods["server"].address) + r":295\d\d"
    assert code == 1 and re.search(rf"not started: the run's own store {store} does not answer", said), said
    assert "open the ports of serve --store-ports (29510-29599) from here" in said
    doctor = [str(binary()), "doctor", f"{pods['server'].address}:29500", "--step-timeout=1s"]
    assert "WARN run-store-ports: " in subprocess.run(pods.nodes[0].inside(doctor), stdout=subprocess.PIPE, text=True).stdout
    code, said = OnHost(pods, 0, 1).ended()
    assert code == 0, f"a relay needs the admin port alone: {said}"
    pods["server"].firewall("-D", *drop)
    assert "PASS run-store-ports: " in subprocess.run(pods.nodes[0].inside(doctor), stdout=subprocess.PIPE, text=True).stdout
    code, said = OnHost(pods, 0, 1, "--relay=off").ended()
    assert code == 0, said


def test_a_server_whose_admin_port_is_out_of_reach_has_only_the_time_for_the_server(serve_in: Callable[..., Server], pods: Pods) -> None:
    serve_in(pods["server"])
    pods["server"].firewall("-I", "INPUT", "-p", "tcp", "--dport", "29501", "-j", "DROP")
    code, said = OnHost(pods, 0, 1, "--timeout=3s").ended()
    assert code == 1 and "announcing needs the server's admin port" in said and " min " not in said, said
