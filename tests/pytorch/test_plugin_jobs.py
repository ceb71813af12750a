"""Real torchrun jobs that meet by `--rdzv-backend=rallypoint`, to a trained and checked result, through whatever befalls their nodes.

That a fresh node cannot join a running job of torch's own backend is in test_plugin_contract.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from jobs import Job
from servers import Server, poll

pytest_plugins = ["plugin_fixtures"]

Start = Callable[..., Job]
SLOW = "last_call_timeout=1,keep_alive_interval=60"
"""`--rdzv-conf` with which a lost node would not be noticed within a test."""


def run_state(server: Server) -> str:
    return str(server.get_json("/api/v1/runs/job")["state"])


def await_training(job: Job, world_size: int) -> None:
    for rank in range(world_size):
        job.wait_for_mark("training", rank)


def test_fixed_job(meeting: Server, plugin_jobs: Start) -> None:
    """Started as users start it. When all is well the run has finished."""
    job = plugin_jobs(meeting, nodes=2, procs=2, ddp=True, train=["--new-group"], forked=False)
    stores = {result["store"] for result in job.results()}
    assert len(stores) == 1, "all workers have the address of one store"
    assert stores != {meeting.endpoint} and stores.pop().startswith("127.0.0.1:"), "which is the round's own, on the server"
    log = meeting.log_text()
    assert "round 1 complete: 2 nodes" in log
    poll(lambda: run_state(meeting) == "finished", "both agents told that they succeeded", 20)


def test_node_ranks_follow_what_each_node_is_told(meeting: Server, plugin_jobs: Start) -> None:
    job = plugin_jobs(
        meeting,
        nodes=3,
        conf=lambda index: "node_rank=1" if index == 0 else "",
        environment=lambda index: [{}, {"PET_NODE_RANK": "2"}, {"JOB_COMPLETION_INDEX": "0"}][index],
    )
    job.results()
    assert [job.node_of_rank(rank) for rank in range(3)] == [2, 0, 1]


def test_a_killed_node_is_replaced(meeting: Server, plugin_jobs: Start) -> None:
    """The survivor stops its workers, waits for another node, and the job starts anew; no restart is spent."""
    job = plugin_jobs(meeting, train=["--hold"])
    await_training(job, 2)
    job.forget_marks()
    job.kill_node(1)
    meeting.await_log("round 1 is over: ", 60)
    job.start(1)
    await_training(job, 2)
    job.release()
    assert [result["attempt"] for result in job.results()] == [0, 0]


def test_fresh_nodes_join_a_running_job(meeting: Server, plugin_jobs: Start) -> None:
    """After the last call, two times. With torch 2.15's own backend this is a deadlock."""
    job = plugin_jobs(meeting, nodes=3, nnodes="1:3", start=[0], train=["--hold"])
    await_training(job, 1)
    for world_size, late in ((2, 1), (3, 2)):
        job.forget_marks()
        job.start(late)
        await_training(job, world_size)
    assert job.node_of_rank(0) == 0, "nodes keep their ranks"
    job.release()
    job.results()


def test_the_job_goes_on_when_the_node_of_rank_0_is_lost(meeting: Server, plugin_jobs: Start) -> None:
    job = plugin_jobs(meeting, nnodes="1:2", train=["--hold"])
    await_training(job, 2)
    first = job.node_of_rank(0)
    job.forget_marks()
    job.kill_node(first)
    await_training(job, 1)
    assert job.node_of_rank(0) == 1 - first
    job.release()
    job.results(world_size=1)


def test_a_node_that_is_told_to_stop_leaves_at_once(meeting: Server, plugin_jobs: Start) -> None:
    """SIGTERM is how a pod is evicted: the others need not wait for its keep-alive."""
    job = plugin_jobs(meeting, nnodes="1:2", conf=SLOW, train=["--hold"])
    await_training(job, 2)
    gone = job.node_of_rank(1)
    job.forget_marks()
    node = job.nodes.pop(gone)
    os.kill(node.process.pid, signal.SIGTERM)
    await_training(job, 1)
    job.release()
    job.results(world_size=1)
    meeting.await_log("left (its ")


def test_a_crashed_worker_is_restarted(meeting: Server, plugin_jobs: Start) -> None:
    job = plugin_jobs(meeting, options=["--max-restarts=1"], train=["--crash", "1:0"])
    # The other node may hear of the new round before its own worker fails: then it joins it without counting a restart.
    assert job.results()[1]["attempt"] == 1
    meeting.await_log("round 2 complete")


def test_a_job_without_restarts_left_ends_everywhere(meeting: Server, plugin_jobs: Start) -> None:
    job = plugin_jobs(meeting, train=["--kill", "1:0"])
    for index in (0, 1):
        job.failure(index)
    poll(lambda: run_state(meeting) == "closed", "the agents told that they failed", 20)
    meeting.await_log("ChildFailedError")


def test_two_jobs_at_once(meeting: Server, plugin_jobs: Start) -> None:
    jobs = [plugin_jobs(meeting, run_id=run_id) for run_id in ("one", "two")]
    stores = [{result["store"] for result in job.results()} for job in jobs]
    assert len(stores[0] | stores[1]) == 2


def test_the_same_run_id_again(meeting: Server, plugin_jobs: Start) -> None:
    first = plugin_jobs(meeting, idle=True)
    first.release()
    first.finish()
    ended = time.monotonic()
    early = plugin_jobs(meeting, nodes=1, nnodes="2")
    assert "RendezvousClosedError" in early.failure(0), "too early it is told from a straggler of the first"
    time.sleep(max(0.0, ended + 10 - time.monotonic()))
    plugin_jobs(meeting).results()
    meeting.await_log("round 2 complete")


def test_the_server_is_restarted_while_nodes_wait(meeting: Server, meetings: Callable[..., Server], plugin_jobs: Start) -> None:
    job = plugin_jobs(meeting, start=[0])
    meeting.await_log("gathers", 60)
    meeting.stop()
    job.assert_waits(0, 1)
    meetings(again=meeting)
    job.start(1)
    job.results()


def test_the_server_is_restarted_during_training(meeting: Server, meetings: Callable[..., Server], plugin_jobs: Start) -> None:
    """The new server takes the round over, and the job ends well; its workers' connections to the store are only needed to form groups."""
    job = plugin_jobs(meeting, train=["--hold"])
    await_training(job, 2)
    meeting.stop()
    server = meetings(again=meeting)
    server.await_log("goes on after a restart", 60)
    job.release()
    job.results()
    server.await_log("job finished")


def test_a_mistyped_key_ends_torchrun_with_the_right_one(meeting: Server, plugin_jobs: Start) -> None:
    job = plugin_jobs(meeting, nodes=1, conf="join_timout=60")
    assert "did you mean 'join_timeout'?" in job.failure(0)
