"""What the server says when torchrun's agents do not come together, each with the healthy run of its kind, in which it says nothing.

The agents are real and have an address of their own each; their workers only wait to be released.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from explained import LOG_AS_JSON, SOON, assert_silent, codes, explained, runs
from forks import ForkedPlace
from jobs import Job, Jobs
from pods import Pods
from servers import Server, poll

pytest_plugins = ["job_fixtures"]

Fork = Callable[[int], list[ForkedPlace]]
Serve = Callable[..., Server]
CONF = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
A, B, C, D = (f"127.0.0.{10 + index}" for index in range(4))
WORKERS_ON_RANK_0 = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""With it a node can join a running job of torch 2.15 (case 10)."""


def c10d(jobs: Jobs, server: Server, places: list[ForkedPlace], **options: Any) -> Job:
    options.setdefault("conf", CONF)
    return jobs.torchrun(server.endpoint, nodes=len(places), places=places, idle=True, **options)


def train_to_the_end(job: Job, ranks: int) -> None:
    for rank in range(ranks):
        job.wait_for_mark("training", rank)
    job.release()
    job.finish()


def put_expect(server: Server, run_id: str, **body: Any) -> None:
    url = f"http://127.0.0.1:{server.admin_port}/api/v1/runs/{run_id}/expect"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=10):
        pass


# --- The healthy runs


def test_a_healthy_run_of_four_nodes_is_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """They train for longer than the server's patience, and meanwhile another run with its own id uses the same store."""
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "8s", "--nodes", "4")
    job = c10d(jobs, server, fork(4))
    explained(server, "round_complete", r"127\.0\.0\.1\d", joined=4)
    trained = time.monotonic()
    train_to_the_end(c10d(jobs, server, fork(4), run_id="other"), 4)
    job.assert_waits(0, max(0.0, trained + 10 - time.monotonic()))
    train_to_the_end(job, 4)
    explained(server, "run_finished", "job round 0", joined=4)
    explained(server, "run_finished", "other round 0")
    assert_silent(server)


def test_a_healthy_elastic_run_that_takes_a_node_in_is_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "6s", "--nodes", "2:3")
    job = c10d(jobs, server, fork(3), nnodes="2:3", start=[0, 1], environment=WORKERS_ON_RANK_0)
    explained(server, "round_complete", "job round 0")
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    job.start(2)
    explained(server, "round_complete", "job round 1")
    job.wait_for_mark("training", 2)
    job.release()
    job.finish()
    assert_silent(server)


# --- 1 to 3: who does not come


def test_a_node_never_arrives_then_is_late_and_comes(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Cases 1 and 2."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    job = c10d(jobs, server, fork(3), start=[0, 2])
    explained(
        server,
        "nodes_missing",
        A,
        C,
        **{"joined": 2, "expected": 3, "from": "flag"},
    )
    put_expect(server, "job", nodes=3, names=[A, B, C])
    explained(server, "nodes_missing", B)
    assert [node["name"] for node in server.get_json("/api/v1/runs/job")["missing"]] == [B]
    job.start(1)
    explained(server, "round_complete", B)
    train_to_the_end(job, 3)
    assert_silent(server, "missing", "has come")


def test_nobody_has_said_how_many_nodes_there_should_be(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 1, and the run that is given up: it is closed for all by the first to lose patience."""
    server = rallypoint_factory(*SOON)
    job = c10d(jobs, server, fork(2), nnodes="3", conf=f"{CONF},join_timeout=6")
    explained(server, "nodes_missing", expected=None)
    explained(server, "run_closed", r"127\.0\.0\.1[01]", joined=2)
    job.failure(0)
    job.failure(1)


def test_a_node_dies_during_the_join(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 3."""
    server = rallypoint_factory(*LOG_AS_JSON, "--nodes", "3")
    job = c10d(jobs, server, fork(3), start=[0, 1])
    poll(lambda: any(run["nodes"]["joined"] == 2 for run in runs(server)), "two nodes have joined", 30)
    job.kill_node(1)
    explained(server, "lost", B, joined=1, expected=3)
    # torch takes a dead node for a live one until its heartbeats expire, and would complete the round with it.
    poll(lambda: len(server.get_json("/api/v1/runs/job")["participants"]) == 1, "the other node drops the dead one", 30)
    assert runs(server)[0]["nodes"]["gone"] == 1
    job.start(1, 2)
    train_to_the_end(job, 3)
    assert_silent(server, f"{B}: connection closed")


def test_a_round_counts_a_node_that_died_while_joining(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 3, when the others come before its heartbeats expire: they wait for it."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    job = c10d(jobs, server, fork(3), start=[0, 1], conf="is_host=0,last_call_timeout=1")
    poll(lambda: any(run["nodes"]["joined"] == 2 for run in runs(server)), "two nodes have joined", 30)
    job.kill_node(1)
    job.start(2)
    dead = rf"{B} \(node rank 1\)"
    complete = explained(server, "round_complete", C, dead, joined=3)
    assert complete["severity"] == "error"
    explained(server, "waiting", dead)


# --- 4, 13: while training


def test_a_node_is_frozen_and_killed_when_others_have_taken_it_out(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 13."""
    server = rallypoint_factory(*SOON)
    job = c10d(jobs, server, fork(3))
    for rank in range(3):
        job.wait_for_mark("training", rank)
    job.freeze_node(1)
    explained(server, "lost", rf"{B} \(node rank 1\)", "2 nodes were left")
    job.kill_node(1)
    explained(server, "lost", rf"{B} \(node rank 1\)", joined=2)


def test_a_node_dies_while_training_and_is_missed_by_name(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 4, and case 1 with a node that is known from the earlier round. Nobody has told the server how many there should be."""
    server = rallypoint_factory(*SOON)
    job = c10d(jobs, server, fork(3), options=["--max-restarts=2"])
    for rank in range(3):
        job.wait_for_mark("training", rank)
    assert_silent(server, "missing")
    job.kill_node(1)
    died = explained(server, "lost", rf"{B} \(node rank 1\)", joined=2)
    assert died["severity"] == "error"
    job.fail_workers()
    explained(server, "nodes_missing", B)


def test_a_job_in_pods_is_told_by_the_names_of_its_pods(pods: Pods, rallypoint_factory: Serve, jobs: Jobs) -> None:
    """Cases 1, 2, 4 and 13 with host names and addresses of their own."""
    server_pod = pods["server"]
    server = server_pod.call(lambda: rallypoint_factory("--listen", "[::]:29500", "--admin", "[::]:29501", *SOON, "--nodes", "2"))
    job = jobs.torchrun("server:29500", places=pods.nodes, conf=CONF, train=["--hold"], start=[0])

    def told(code: str, *names: str, **facts: Any) -> dict[str, Any]:
        return server_pod.call(lambda: explained(server, code, *names, **facts))

    told("nodes_missing", "node-0", joined=1)
    job.start(1)
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    told("workers_elsewhere", "node-0", "rank 0")
    nodes = server_pod.call(lambda: server.get_json("/api/v1/runs/job"))["participants"]
    assert [(node["name"], node["rank"], node["peer"].startswith(pods.nodes[node["rank"]].address)) for node in nodes] == [
        (pod.name, rank, True) for rank, pod in enumerate(pods.nodes)
    ]
    job.kill_node(1)
    told("lost", "node-1", "node rank 1")


def test_workers_that_use_this_server_do_not_meet_elsewhere(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """The healthy twin of case 13: the same backend, with workers that are sent here."""
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "8s", "--nodes", "2")
    jobs.torchrun(server.endpoint, places=fork(2), wrapped=True, train=["--no-ddp"]).results()
    [run] = runs(server)
    assert run["ranks"]["joined"] + run["ranks"]["gone"] == 2, ("both have published here", run["ranks"])
    assert_silent(server)
    assert "workers_elsewhere" not in codes(server)


# --- 7: nodes that disagree


def test_one_group_forms_and_others_are_left_over(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 7: three nodes are wanted, but their --nnodes says two."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    job = c10d(jobs, server, fork(3), nnodes="2", start=[0, 1])
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    explained(server, "nnodes_differ", joined=2, expected=3)
    job.start(2)
    explained(server, "stands_by", C)
    explained(server, "nnodes_differ")


def test_nodes_disagree_on_their_number(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 7: one node is told --nnodes=2, the others --nnodes=3. When the one comes last nobody completes the round."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    places = fork(3)
    c10d(jobs, server, places, nnodes="3", start=[0, 1])
    poll(lambda: any(run["nodes"]["joined"] == 2 for run in runs(server)), "two nodes have joined", 30)
    c10d(jobs, server, places, nnodes="2", start=[2])
    explained(
        server,
        "nnodes_differ",
        r"127\.0\.0\.12",
        joined=3,
        expected=3,
    )


# --- 8: a rendezvous that is closed


def test_a_new_agent_comes_to_a_run_that_is_closed(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 8: first to a run that has finished, then to one that has failed."""
    server = rallypoint_factory(
        *LOG_AS_JSON, "--test-settings", "forget-closed-after=1h", "--forget-run-after", "off", "--reset-when-idle", "off"
    )
    places = fork(2)
    failed = c10d(jobs, server, places, run_id="failed", nnodes="2", conf=f"{CONF},join_timeout=3", start=[0])
    train_to_the_end(c10d(jobs, server, places), 2)
    assert_silent(server, r"^failed round 0: closed by \S+ at 1 node and never complete")
    late = c10d(jobs, server, places, start=[1])
    explained(server, "join_refused", r"127\.0\.0\.1", "node rank [01]")
    assert "RendezvousClosedError" in late.failure(1)

    failed.failure(0)
    late = c10d(jobs, server, places, run_id="failed", start=[1])
    explained(server, "join_refused", r"127\.0\.0\.1")
    late.failure(1)


# --- 10: the deadlock of torch 2.15


def test_the_deadlock_of_a_node_that_joins_a_running_job(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Cases 10 and 11. Its healthy twin is the elastic run above, with the variable that the remedy names."""
    server = rallypoint_factory(*LOG_AS_JSON, "--nodes", "2:3")
    job = c10d(jobs, server, fork(3), nnodes="2:3", conf=f"{CONF},read_timeout=10", start=[0, 1])
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    assert_silent(server)
    job.start(2)
    deadlock = explained(
        server,
        "wait_cycle",
        rf"{C} \(node rank 2\)",
        rf"{A} \(node rank 0\)",
    )
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in deadlock["remedy"]
    waits = [wait for wait in server.waits() if wait["run_id"] == "job"]
    assert len(waits) == 3
    assert all("deadlock" in wait["reason"] for wait in waits)
    key = "/torch.rendezvous.job.1/MASTER_ADDR"
    explained(server, "gave_up", rf"{C} \(node rank 2\)", f"`{key}`")
    job.failure(2)


# --- 14: the exit barrier


def test_a_node_still_trains_while_others_have_finished(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 14."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    job = c10d(jobs, server, fork(3))
    for rank in range(3):
        job.wait_for_mark("training", rank)
    job.release(0)
    job.release(2)
    explained(server, "exit_barrier", rf"{B} \(node rank 1\)", joined=2, expected=3)
    assert [run["state"] for run in runs(server)] == ["exiting"]
    job.release()
    job.finish()
    explained(server, "run_finished", "job round 0")
