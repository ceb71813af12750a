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
    explained(server, "round_complete", r"job round 0 complete: 4 nodes in TIME; last: 127\.0\.0\.1\d \(\+TIME\)", nodes=4)
    trained = time.monotonic()
    train_to_the_end(c10d(jobs, server, fork(4), run_id="other"), 4)
    job.assert_waits(0, max(0.0, trained + 10 - time.monotonic()))
    train_to_the_end(job, 4)
    explained(server, "run_finished", r"job round 0 finished: 4 nodes after TIME", nodes=4)
    explained(server, "run_finished", r"other round 0 finished: 4 nodes after TIME")
    assert_silent(server)


def test_a_healthy_elastic_run_that_takes_a_node_in_is_silent(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "6s", "--nodes", "2:3")
    job = c10d(jobs, server, fork(3), nnodes="2:3", start=[0, 1], environment=WORKERS_ON_RANK_0)
    explained(server, "round_complete", r"job round 0 complete: 2 nodes in .*")
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    job.start(2)
    explained(server, "round_complete", r"job round 1 complete: 3 nodes in .*")
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
        rf"job round 0: 2 of 3 nodes have joined; 1 has been missing for TIME; there are ({A} and {C}|{C} and {A}) \(3 by serve --nodes\)",
        **{"joined": 2, "expected": 3, "from": "flag"},
    )
    put_expect(server, "job", nodes=3, names=[A, B, C])
    explained(server, "nodes_missing", rf"job round 0: 2 of 3 nodes have joined; {B} has been missing for TIME \(3 by PUT …/expect\)")
    assert [node["name"] for node in server.get_json("/api/v1/runs/job")["missing"]] == [B]
    job.start(1)
    explained(server, "node_came_late", rf"job round 0: {B} has come after TIME: 3 of 3 nodes have joined", node=B, joined=3)
    explained(server, "round_complete", rf"job round 0 complete: 3 nodes in TIME; last: {B} \(\+TIME\)", last=B)
    train_to_the_end(job, 3)
    assert_silent(server, "missing", "has come after")


def test_nobody_has_said_how_many_nodes_there_should_be(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 1, and the run that is given up: it is closed for all by the first to lose patience."""
    server = rallypoint_factory(*SOON)
    job = c10d(jobs, server, fork(2), nnodes="3", conf=f"{CONF},join_timeout=6")
    explained(
        server, "nodes_missing", r"job round 0: 2 nodes have joined \(.*\), and the first has waited TIME for more; nobody has said how many there should be", expected=None
    )
    explained(server, "closed_incomplete", r"job round 0: closed by \S+ at 2 nodes and never complete; there were 127\.0\.0\.1. and 127\.0\.0\.1.", joined=2)
    job.failure(0)
    job.failure(1)


def test_a_node_dies_during_the_join(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 3."""
    server = rallypoint_factory(*LOG_AS_JSON, "--nodes", "3")
    job = c10d(jobs, server, fork(3), start=[0, 1])
    poll(lambda: any(run["nodes"]["joined"] == 2 for run in runs(server)), "two nodes have joined", 30)
    job.kill_node(1)
    explained(server, "lost", rf"job round 0: {B}: connection closed, while joining; 1 of 3 nodes left", left=1, expected=3)
    # torch takes a dead node for a live one until its heartbeats expire, and would complete the round with it.
    poll(lambda: runs(server)[0]["nodes"]["gone"] == 0, "the other node drops the dead one", 30)
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
    complete = explained(
        server, "round_complete", rf"job round 0 complete: 3 nodes in TIME; last: {C} \(\+TIME\); it counts {dead}, whose connection had closed", nodes=3
    )
    assert complete["severity"] == "error"
    explained(
        server,
        "waiting",
        rf"job round 0: for TIME waiting for {dead}: connection closed TIME ago; 2 processes wait for the role",
    )


# --- 4, 13: while training


def test_a_node_is_frozen_and_killed_when_others_have_taken_it_out(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 13."""
    server = rallypoint_factory(*SOON)
    job = c10d(jobs, server, fork(3))
    for rank in range(3):
        job.wait_for_mark("training", rank)
    job.freeze_node(1)
    explained(server, "node_removed", rf"job round 0: {B} \(node rank 1\) has sent no heartbeat for TIME, though its connection is open: .* took it out of the round; 2 nodes left", left=2)
    job.kill_node(1)
    explained(server, "lost", rf"job round 0: {B} \(node rank 1\): connection closed, after the round was complete; 2 of 3 nodes left", left=2)


def test_a_node_dies_while_training_and_is_missed_by_name(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 4, and case 1 with a node that is known from the earlier round. Nobody has told the server how many there should be."""
    server = rallypoint_factory(*SOON)
    job = c10d(jobs, server, fork(3), options=["--max-restarts=2"])
    for rank in range(3):
        job.wait_for_mark("training", rank)
    assert_silent(server, "missing")
    job.kill_node(1)
    died = explained(server, "lost", rf"job round 0: {B} \(node rank 1\): connection closed, after the round was complete; 2 of 3 nodes left", left=2)
    assert died["severity"] == "error"
    job.fail_workers()
    explained(server, "nodes_missing", rf"job round 1: 2 of 3 nodes have joined, and the first has waited TIME; gone: {B} \(3 by an earlier round\)")


def test_a_job_in_pods_is_told_by_the_names_of_its_pods(pods: Pods, rallypoint_factory: Serve, jobs: Jobs) -> None:
    """Cases 1, 2, 4 and 13 with host names and addresses of their own."""
    server_pod = pods["server"]
    server = server_pod.call(lambda: rallypoint_factory("--listen", "[::]:29500", "--admin", "[::]:29501", *SOON, "--nodes", "2"))
    job = jobs.torchrun("server:29500", places=pods.nodes, conf=CONF, train=["--hold"], start=[0])

    def told(code: str, sentence: str, **facts: Any) -> dict[str, Any]:
        return server_pod.call(lambda: explained(server, code, sentence, **facts))

    told("nodes_missing", r"job round 0: 1 of 2 nodes has joined; 1 has been missing for TIME; there is node-0 \(2 by serve --nodes\)", joined=1)
    job.start(1)
    told("node_came_late", r"job round 0: node-1 has come after TIME: 2 of 2 nodes have joined")
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    told("workers_elsewhere", r"job round 0: the workers meet at node-0:\d+, a store that rank 0 hosts itself; their ranks cannot be seen here")
    nodes = server_pod.call(lambda: server.get_json("/api/v1/runs/job"))["participants"]
    assert [(node["name"], node["rank"], node["peer"].startswith(pods.nodes[node["rank"]].address)) for node in nodes] == [
        (pod.name, rank, True) for rank, pod in enumerate(pods.nodes)
    ]
    job.kill_node(1)
    told("lost", r"job round 0: node-1 \(node rank 1\): connection closed, (after the round was complete|(after|before) all ranks had published their addresses); 1 of 2 nodes left")


def test_workers_that_use_this_server_do_not_meet_elsewhere(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """The healthy twin of case 13: the same backend, with workers that are sent here."""
    server = rallypoint_factory(*LOG_AS_JSON, "--explain-after", "8s", "--nodes", "2")
    jobs.torchrun(server.endpoint, places=fork(2), wrapped=True, train=["--no-ddp"]).results()
    explained(server, "ranks_complete", r"job round 0: both ranks have published their addresses in TIME; last: rank \d on .*", ranks=2)
    assert_silent(server)
    assert "workers_elsewhere" not in codes(server)


# --- 7: nodes that disagree


def test_one_group_forms_and_others_are_left_over(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 7: three nodes are wanted, but their --nnodes says two."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    job = c10d(jobs, server, fork(3), nnodes="2", start=[0, 1])
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    explained(
        server, "fewer_than_expected", r"job round 0: the round is complete with 2 nodes, but 3 are expected by serve --nodes", formed=2, expected=3
    )
    job.start(2)
    explained(
        server, "left_over", rf"job round 0: {C} has waited TIME beside a complete round of 2 nodes, which is the maximum", group=2, redundant=True
    )
    explained(
        server, "fewer_than_expected", r"job round 0: the round is complete with 2 nodes, but 3 are expected by serve --nodes(; left over: 127\.0\.0\.12)?"
    )


def test_nodes_disagree_on_their_number(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 7: one node is told --nnodes=2, the others --nnodes=3. When the one comes last nobody completes the round."""
    server = rallypoint_factory(*SOON, "--nodes", "3")
    places = fork(3)
    c10d(jobs, server, places, nnodes="3", start=[0, 1])
    poll(lambda: any(run["nodes"]["joined"] == 2 for run in runs(server)), "two nodes have joined", 30)
    c10d(jobs, server, places, nnodes="2", start=[2])
    explained(
        server,
        "round_not_complete",
        r"job round 0: 3 nodes have joined and the round is not complete after TIME, although 3 by serve --nodes are enough: 127\.0\.0\.12 came as number 3, and asks for another number",
        joined=3,
        expected=3,
    )


# --- 8: a rendezvous that is closed


def test_a_new_agent_comes_to_a_run_that_is_closed(rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    """Case 8: first to a run that has finished, then to one that has failed."""
    server = rallypoint_factory(*LOG_AS_JSON, "--test-settings", "forget-closed-after=1h", "--forget-run-after", "off", "--reset-when-idle", "off")
    places = fork(2)
    failed = c10d(jobs, server, places, run_id="failed", nnodes="2", conf=f"{CONF},join_timeout=3", start=[0])
    train_to_the_end(c10d(jobs, server, places), 2)
    assert_silent(server, r"^failed round 0: closed by \S+ at 1 node and never complete")
    late = c10d(jobs, server, places, start=[1])
    explained(server, "run_is_closed", r"job round 0: (process \d+|a process) at 127\.0\.0\.1 cannot join: the run finished and was closed by \S+ \(node rank [01]\) TIME ago", finished=True)
    assert "RendezvousClosedError" in late.failure(1)

    failed.failure(0)
    late = c10d(jobs, server, places, run_id="failed", start=[1])
    explained(server, "run_is_closed", r"failed round 0: (process \d+|a process) at 127\.0\.0\.1 cannot join: the run was closed by \S+ TIME ago", finished=False)
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
        "elastic_deadlock",
        rf"job round 1: deadlock for TIME: {C} \(node rank 2\) joined a running job and waits for MASTER_ADDR, "
        rf"which {A} \(node rank 0\) does not publish again while it waits for the newcomer's role",
    )
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in deadlock["remedy"]
    waits = [wait for wait in server.waits() if wait["run_id"] == "job"]
    assert len(waits) == 3
    assert all("deadlock" in wait["reason"] for wait in waits)
    key = "/torch.rendezvous.job.1/MASTER_ADDR"
    explained(server, "gave_up", rf"job round \d: {C} \(node rank 2\) gave up on `{key}` after 1\d s; ({A} \(node rank 0\)|node rank 0) should have written it", key=key)
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
    explained(
        server,
        "exit_barrier",
        rf"job round 0: 2 of 3 nodes have finished and waited TIME at the exit barrier; connected, not finished: {B} \(node rank 1\)",
        arrived=2,
        nodes=3,
    )
    assert [run["state"] for run in runs(server)] == ["exiting"]
    job.release()
    job.finish()
    explained(server, "run_finished", r"job round 0 finished: 3 nodes after TIME")
