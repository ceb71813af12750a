"""What the server says when worker ranks do not come together on its store, each with the healthy run of its kind, in which it says nothing.

The ranks are real processes of `train.py` (gloo), and real agents of torchrun's static rendezvous. NCCL cannot run here: its keys come from
torch's store client.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from explained import LOG_AS_JSON, SOON, assert_silent, codes, complaints, explained, log_lines, runs
from forks import ForkedPlace
from jobs import Job, Jobs, clients_only
from servers import Server, poll

pytest_plugins = ["job_fixtures"]

Fork = Callable[[int], list[ForkedPlace]]
Serve = Callable[..., Server]
WHO = r"rank {} (?:on|at) \S+"
"""Addresses of gloo before 2.4 tell no host: the rank is `at` its address then."""


def env(jobs: Jobs, server: Server, places: list[ForkedPlace], *, train: Iterable[str] = (), **options: Any) -> Job:
    """Ranks without agents, one for each place."""
    options = {"world_size": len(places)} | options
    attempt = {"TORCHELASTIC_RESTART_COUNT": "0"}  # torch before 2.6 reads it where ranks are only clients
    return jobs.ranks(
        server.endpoint, places=places, environment=clients_only(server.endpoint) | attempt, train=["--no-ddp", *train], **options
    )


def static(jobs: Jobs, server: Server, places: list[ForkedPlace], **options: Any) -> Job:
    """Agents of the static rendezvous with workers that do nothing."""
    options = {"nodes": len(places)} | options
    return jobs.torchrun(server.endpoint, backend="static", places=places, environment=clients_only(server.endpoint), idle=True, **options)


# --- The healthy runs


def test_healthy_ranks_are_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "4s")
    run = f"store:{server.port}"
    job = env(jobs, server, fork(4), train=["--hold", "--new-group"])
    explained(server, "round_complete", WHO.format("[0-3]"), of="rank", joined=4)
    job.assert_waits(0, 6)
    job.release()
    job.results()
    explained(server, "run_ended", expected=4)
    assert_silent(server)


def test_healthy_ranks_that_meet_twice_are_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "4s")
    env(jobs, server, fork(2), train=["--reinit"]).results()
    explained(server, "run_ended")
    assert_silent(server)


def test_healthy_static_agents_with_their_workers_are_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "8s", "--nodes", "2")
    job = jobs.torchrun(
        server.endpoint, backend="static", procs=2, places=fork(2), environment=clients_only(server.endpoint), train=["--no-ddp"]
    )
    job.results()
    explained(server, "run_finished", joined=2)
    [run] = runs(server)
    assert run["ranks"]["joined"] + run["ranks"]["gone"] == 4, ("all ranks have published", run["ranks"])
    assert_silent(server)


# --- 5 and 11: a rank is slow, or never comes


def test_rank_0_is_slow(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 5; and beside it, on a server of its own, a job that waits for another rank."""
    server, other = rallypoint_factory(*SOON), rallypoint_factory(*SOON)
    run = f"store:{server.port}"
    job = env(jobs, server, fork(3), train=["--late", "0:0"])
    beside = env(jobs, other, fork(4), train=["--late", "2:0"])
    explained(server, "waiting", "rank 0")
    reason = "the address must come from rank 0: never seen"
    waits = {("rank 1", "rank 0", reason), ("rank 2", "rank 0", reason)}

    def told() -> set[tuple[str, str, str]]:
        found = server.get_json(f"/api/v1/runs/{run}")["waits"]
        return {(wait["who"].split(" on ")[0], wait["writer"], wait["reason"]) for wait in found}

    # The first to wait is explained before the second has come.
    poll(lambda: told() == waits, "both wait for rank 0", 20)
    explained(other, "waiting", "rank 2", joined=3, expected=4)
    for late in (job, beside):
        late.release()
        late.results()
    explained(server, "round_complete", WHO.format(0))
    assert_silent(server, "waiting for rank 0")
    assert_silent(other, "waiting for rank 2")


@pytest.mark.parametrize("key", ["default_pg/0//cuda//0", "default_pg/0//cuda//0/nccl_storekey_0", "0//cuda//0/nccl_storekey_0"])
def test_rank_0_is_slow_to_publish_its_nccl_id(key: str, rallypoint_factory: Serve) -> None:
    """Case 5 with NCCL. No GPU here: torch's store client counts itself, waits for and sets the keys as ProcessGroupNCCL does, and
    ProcessGroupNCCL2 of torch 2.15, also with `init_process_group(store=…)`."""
    server = rallypoint_factory(*SOON)
    run = f"store:{server.port}"
    clients = server.clients(3, world_size=3)
    waiters = [threading.Thread(target=client.get, args=[key]) for client in clients[1:]]
    for waiter in waiters:
        waiter.start()
    explained(server, "waiting", "rank 0")
    clients[0].set(key, b"\7" * 128)
    for waiter in waiters:
        waiter.join(20)
    poll(lambda: [run["state"] for run in runs(server)] == ["running"], "the run goes on", 20)


def test_an_nccl_id_in_time_is_silent(rallypoint_factory: Serve) -> None:
    server = rallypoint_factory(*SOON)
    clients = server.clients(3, world_size=3)
    clients[0].set("default_pg/0//cuda//0", b"\7" * 128)
    assert [len(client.get("default_pg/0//cuda//0")) for client in clients[1:]] == [128, 128]
    poll(lambda: [run["state"] for run in runs(server)] == ["running"], "the run goes on", 20)
    clients.clear()
    poll(lambda: [run["state"] for run in runs(server)] == ["ended"], "the run is over", 20)
    assert_silent(server)


def test_clients_give_up_on_rank_0(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 11: gloo waits as long as the process group's time-out, then cancels."""
    server = rallypoint_factory(*LOG_AS_JSON)
    key = "/default_pg/0//cpu//0/0"
    job = env(jobs, server, fork(3), start=[1, 2], train=["--timeout", "3"])
    both = rf"({WHO.format(1)} and {WHO.format(2)}|{WHO.format(2)} and {WHO.format(1)})"
    explained(server, "gave_up", both, f"`{key}`", "rank 0")
    assert "wait timeout" in job.failure(1)


# --- 6 and 7: ranks and sizes that contradict each other


def test_two_processes_claim_one_rank(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 6."""
    server = rallypoint_factory(*LOG_AS_JSON)
    places = fork(3)
    env(jobs, server, places, start=[0, 1]).wait_for_mark("init", 1)
    poll(lambda: any(run["ranks"]["joined"] == 2 for run in runs(server)), "two ranks have published their addresses", 20)
    env(jobs, server, places, start=[1])
    explained(server, "duplicate_rank", "rank 1", rf"{WHO.format(1)} \(pid \d+\) and {WHO.format(1)} \(pid \d+\)")


def test_two_nodes_claim_one_node_rank(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 6."""
    server = rallypoint_factory(*LOG_AS_JSON)
    places = fork(2)
    for _ in range(2):
        static(jobs, server, places, start=[1])
    explained(server, "duplicate_rank", "node rank 1", r"127\.0\.0\.1")


def test_ranks_disagree_on_the_world_size(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 7."""
    server = rallypoint_factory(*LOG_AS_JSON)
    places = fork(3)
    env(jobs, server, places, world_size=2, start=[0])
    env(jobs, server, places, world_size=3, start=[1])
    told = explained(server, "world_sizes_differ", "rank [01]")
    sizes = re.findall(r"rank (\d)(?: is prepared)? for (\d)", told["text"])
    assert {int(rank): int(size) for rank, size in sizes} == {0: 2, 1: 3}, told["text"]


def test_a_static_node_that_nobody_counts_on(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 7: its --nnodes is 3, that of the others 2."""
    server = rallypoint_factory(*LOG_AS_JSON)
    places = fork(3)
    job = static(jobs, server, places, nodes=2, nnodes="2", start=[0, 1])
    static(jobs, server, places, start=[2])
    explained(server, "join_refused", r"node 2 at 127\.0\.0\.1", "node rank 2", "rank 0")
    job.release()


# --- 9: what is left of processes that are gone


def test_an_address_of_an_earlier_run_is_not_there_to_be_read(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """The new rank 0 waits for the new rank 1."""
    server = rallypoint_factory(*LOG_AS_JSON)
    places = fork(2)
    env(jobs, server, places).results()
    second = env(jobs, server, places, start=[0])
    poll(lambda: any("/default_pg/0//cpu//0/1" in str(wait) for wait in server.waits()), "rank 0 waits for rank 1", 20)
    second.start(1)
    second.results()
    assert_silent(server)


# --- 12: clients that are not torch's


def test_foreign_clients(rallypoint_factory: Serve) -> None:
    """Case 12."""
    server = rallypoint_factory(*LOG_AS_JSON)
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(f"http://{server.endpoint}/metrics", timeout=5)
    tls = ssl.create_default_context()
    with pytest.raises(OSError), socket.create_connection((server.host, server.port), 5) as plain:
        tls.wrap_socket(plain, server_hostname="localhost")
    for protocol in ("HTTP", "TLS"):
        told = explained(server, "wrong_port", r"127\.0\.0\.1", str(server.port), protocol)
        assert told["run_id"] is None
    assert runs(server) == []


def test_a_probe_of_the_port_is_silent_and_a_plain_wait_is_a_note(rallypoint_factory: Serve) -> None:
    """The healthy twin of 11 and 12. Who gives up on a key of its own knows best why."""
    server = rallypoint_factory(*SOON)
    with socket.create_connection((server.host, server.port), 5):
        pass
    with pytest.raises(TimeoutError):
        poll(lambda: complaints(server), "a word about it", 2)
    client = server.client(timeout=timedelta(seconds=8))
    client.set("checkpoint", "epoch-3")
    with pytest.raises(dist.DistStoreError):
        client.get("my-checkpoint")
    assert codes(server) <= {"waiting_for_key"}
    assert [line for line in log_lines(server) if line["level"] != "INFO"] == []


# --- 15: two jobs on one store


def test_two_jobs_of_plain_ranks_use_one_store(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 15."""
    server = rallypoint_factory(*LOG_AS_JSON)
    first = env(jobs, server, fork(2), train=["--hold"])
    for rank in (0, 1):
        first.wait_for_mark("training", rank)
    assert_silent(server)
    env(jobs, server, fork(2), train=["--timeout", "2"])
    told = explained(server, "two_jobs", r"rank \d by process \d+ on \S+ and process \d+ on \S+")
    assert told["severity"] == "error"


def test_two_static_runs_use_one_store(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 15, before their workers have met."""
    server = rallypoint_factory(*LOG_AS_JSON)
    for run_id in ("a", "b"):
        static(jobs, server, fork(2), run_id=run_id)
    explained(server, "two_jobs", "run a", "run b")


def test_two_jobs_each_on_its_own_store_are_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*LOG_AS_JSON, "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0")
    both = [
        jobs.ranks(f"127.0.0.1:{port}", places=fork(2), environment=clients_only(f"127.0.0.1:{port}"), train=["--no-ddp"])
        for port in server.ports
    ]
    for job in both:
        job.results()
    assert_silent(server)
