"""A table of faults of real ranks and agents: what is said of each, how soon, in log, API, metrics and `status`, and what must not be said.

The pure table is `crates/insight/src/tests/faults`; here the traffic is PyTorch's own. The healthy runs of each kind are in
`test_explanations_of_ranks.py` and `test_explanations_of_rendezvous.py`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from explained import SOON, explained, log_lines
from forks import ForkedPlace
from installed import PACKAGE, admin_endpoint
from jobs import Job, Jobs, clients_only
from servers import Server, binary, poll

pytest_plugins = ["job_fixtures"]

Fork = Callable[[int], list[ForkedPlace]]
Serve = Callable[..., Server]


@dataclass
class Stage:
    """Where a fault is played."""

    server: Server
    jobs: Jobs
    places: list[ForkedPlace]
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def later(self, program: subprocess.Popen[bytes]) -> None:
        """A program in a session of its own, which is ended with the test."""
        self.programs.append(program)

    def end(self) -> None:
        for program in self.programs:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()

    def env(self, start: list[int], *train: str) -> Job:
        """Ranks without agents, one for each place."""
        environment = clients_only(self.server.endpoint) | {"TORCHELASTIC_RESTART_COUNT": "0"}
        return self.jobs.ranks(
            self.server.endpoint,
            places=self.places,
            environment=environment,
            train=["--no-ddp", *train],
            world_size=len(self.places),
            start=start,
        )

    def static(self, start: list[int], run_id: str = "job") -> Job:
        """Agents of the static rendezvous with workers that do nothing."""
        environment = clients_only(self.server.endpoint)
        nodes = len(self.places)
        return self.jobs.torchrun(
            self.server.endpoint,
            backend="static",
            places=self.places,
            environment=environment,
            idle=True,
            nodes=nodes,
            start=start,
            run_id=run_id,
        )

    def reset(self) -> None:
        """An operator empties the store."""
        admin = f"--admin=http://127.0.0.1:{self.server.admin_port}"
        subprocess.run([binary(), "ctl", "reset", "--yes", f"--store={self.server.port}", admin], timeout=20, check=True)

    def published(self, ranks: int) -> None:
        """Waits until so many ranks have published their addresses."""
        poll(
            lambda: any((run["ranks"] or {}).get("joined") == ranks for run in self.server.get_json("/api/v1/runs")["runs"]),
            f"{ranks} ranks",
            30,
        )


def two_never_come(stage: Stage) -> None:
    stage.env([0, 3])


def one_dies_before_all_have_come(stage: Stage) -> None:
    job = stage.env([0, 1, 2])
    stage.published(3)
    job.kill_node(1)


def all_are_killed(stage: Stage) -> None:
    job = stage.env([0, 1], "--hold")
    stage.published(2)
    poll(lambda: any(run["state"] == "running" for run in stage.server.get_json("/api/v1/runs")["runs"]), "the ranks run", 30)
    job.kill_node(0)
    job.kill_node(1)


def a_paired_rank_is_replaced(stage: Stage) -> None:
    job = stage.env([0, 1])
    stage.published(2)
    poll(lambda: len(stage.server.waits()) == 2, "both wait for rank 2", 30)
    job.kill_node(1)
    job.start(1)


def a_store_is_reset_while_ranks_come(stage: Stage) -> None:
    stage.env([0, 1])
    stage.published(2)
    stage.reset()


def a_client_leaves_without_a_word(stage: Stage) -> None:
    stage.env([0])
    stage.published(1)
    client = f"dist.TCPStore('127.0.0.1', {stage.server.port}, is_master=False, world_size=1)"
    subprocess.run([sys.executable, "-c", f"import torch.distributed as dist; {client}"], timeout=60, check=True)


def static_nodes_never_come(stage: Stage) -> None:
    stage.static([0, 2])


def a_static_node_dies(stage: Stage) -> None:
    job = stage.static([0, 1])
    explained(stage.server, "round_complete", "job")
    job.kill_node(1)


def an_agent_is_frozen(stage: Stage) -> None:
    job = stage.jobs.torchrun(stage.server.endpoint, places=stage.places, environment=clients_only(stage.server.endpoint), idle=True)
    explained(stage.server, "round_complete", "job round 0")
    # Until the ranks are handed out, agents wait for each other on the connection of their heartbeats.
    poll(
        lambda: all(node["base_rank"] is not None for node in stage.server.get_json("/api/v1/runs/job")["participants"]),
        "the ranks are handed out",
        30,
    )
    job.freeze_node(1)


def a_key_is_misspelt(stage: Stage) -> None:
    stage.env([0, 1, 2], "--own-keys", "slip")


def a_rank_does_not_reach_a_barrier(stage: Stage) -> None:
    stage.env([0, 1, 2], "--own-keys", "barrier")


def a_program_polls_a_key(stage: Stage) -> None:
    stage.env([0, 1], "--own-keys", "poll")


def a_rank_ends_soon_after_it_has_published(stage: Stage) -> None:
    job = stage.env([0, 1, 2], "--hold")
    # After that the others do not notice: they hold.
    for rank in range(3):
        job.wait_for_mark("training", rank)
    job.kill_node(1)


def a_rank_is_started_again_alone(stage: Stage) -> None:
    job = stage.env([0, 1, 2], "--hold")
    for rank in range(3):
        job.wait_for_mark("training", rank)
    job.kill_node(1)
    job.start(1)


def static_jobs_follow_each_other(stage: Stage) -> None:
    """No fault: the id of a static run is `none` unless it is given one, so that each job seems to be the last one."""
    for _ in range(2):
        job = stage.static([0, 1], run_id="none")
        for rank in (0, 1):
            job.wait_for_mark("training", rank)
        job.release()
        job.finish()


def nodes_use_two_backends(stage: Stage) -> None:
    agents: dict[str, Any] = {"idle": True, "places": stage.places, "nodes": 2}
    stage.jobs.torchrun(stage.server.endpoint, start=[0], environment=clients_only(stage.server.endpoint), **agents)
    native = {"PYTHONPATH": str(PACKAGE)}
    stage.jobs.torchrun(admin_endpoint(stage.server), start=[1], backend="rallypoint", conf="join_timeout=60", environment=native, **agents)


def a_static_node_comes_to_a_c10d_run(stage: Stage) -> None:
    agents: dict[str, Any] = {"idle": True, "places": stage.places, "nodes": 3, "environment": clients_only(stage.server.endpoint)}
    stage.jobs.torchrun(stage.server.endpoint, start=[0, 1], **agents)
    poll(lambda: any(run["nodes"]["joined"] == 2 for run in stage.server.get_json("/api/v1/runs")["runs"]), "two have joined", 30)
    stage.jobs.torchrun(stage.server.endpoint, start=[2], backend="static", **agents)


def the_store_is_reset_while_agents_train(stage: Stage) -> None:
    job = stage.jobs.torchrun(stage.server.endpoint, places=stage.places, environment=clients_only(stage.server.endpoint), idle=True)
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    stage.reset()


def a_native_node_is_frozen(stage: Stage) -> None:
    native = {"PYTHONPATH": str(PACKAGE)}
    conf = "keep_alive_interval=2,keep_alive_max_attempt=6"
    job = stage.jobs.torchrun(
        admin_endpoint(stage.server), places=stage.places, backend="rallypoint", conf=conf, environment=native, idle=True
    )
    explained(stage.server, "round_complete", "job round 1")
    job.freeze_node(1)


def two_native_nodes_die(stage: Stage) -> None:
    native = {"PYTHONPATH": str(PACKAGE)}
    conf = "keep_alive_interval=1,keep_alive_max_attempt=3"
    job = stage.jobs.torchrun(
        admin_endpoint(stage.server), places=stage.places, nodes=3, backend="rallypoint", conf=conf, environment=native, idle=True
    )
    for rank in range(3):
        job.wait_for_mark("training", rank)
    job.kill_node(0)
    job.kill_node(2)
    explained(stage.server, "lost", "rank [0-2]")


OWN_STORE = """
import os, sys
from datetime import timedelta
import torch.distributed as dist
rank = 0 if os.fork() else 2
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=15))
"""
"""A process group of a store that the program has made itself: it has no prefix of its own, and nobody is counted."""


def a_rank_of_a_store_of_its_own_is_slow(stage: Stage) -> None:
    program = [sys.executable, "-c", OWN_STORE, str(stage.server.port)]
    stage.later(subprocess.Popen(program, stderr=subprocess.DEVNULL, start_new_session=True))


def a_newcomer_asks_for_more_nodes(stage: Stage) -> None:
    agents: dict[str, Any] = {"idle": True, "conf": "is_host=0,last_call_timeout=1", "environment": clients_only(stage.server.endpoint)}
    stage.jobs.torchrun(stage.server.endpoint, places=stage.places, nodes=3, nnodes="2", start=[0, 1], **agents)
    explained(stage.server, "round_complete", "job round 0")
    stage.jobs.torchrun(stage.server.endpoint, places=stage.places, nodes=3, nnodes="3", start=[2], **agents)


@dataclass
class Fault:
    """One line of the table."""

    play: Callable[[Stage], None]
    places: int
    code: str
    names: tuple[str, ...]
    """Patterns of those that are named."""
    never: str
    """A pattern that no line of the log may have."""
    shows: str = ""
    """What else the metrics show of the run, without the prefix: `ranks_joined 2`."""
    within: float = 5.0
    """Seconds from when it could be known, beyond what a wait has to last."""


EXPLAIN_AFTER = 2.0
"""What `SOON` sets."""
FEW = 5
"""Lines of one kind in the log: what lasts is said again with growing pauses."""


WITHOUT_EVIDENCE = {"run_ended", "run_finished"}
"""They follow from the traffic of the run as a whole."""
NEVER_DROPPED = r"for rank 0: never seen|EADDRINUSE|deadlock"
FAULTS = [
    Fault(two_never_come, 4, "waiting", ("rank 1", "rank 2"), "EADDRINUSE", shows="ranks_joined 2"),
    Fault(one_dies_before_all_have_come, 4, "lost", (r"rank 1 on \S+",), "none of 4|0 of 4", shows="ranks_joined 2"),
    Fault(all_are_killed, 2, "run_ended", (), "finished", shows="ranks_joined 0"),
    Fault(a_paired_rank_is_replaced, 3, "waiting", ("rank 0", "rank 1"), NEVER_DROPPED, shows="ranks_expected 3"),
    Fault(
        a_store_is_reset_while_ranks_come,
        3,
        "store_reset",
        (r"rank 0 on \S+", r"rank 1 on \S+"),
        "0 of 3|none of 3|rank 0.*has not come",
        shows="ranks_expected 3",
    ),
    Fault(
        a_client_leaves_without_a_word,
        2,
        "waiting",
        ("rank 1", r"127\.0\.0\.1"),
        "deadlock",
        shows="ranks_joined 1",
    ),
    Fault(
        static_nodes_never_come,
        4,
        "nodes_missing",
        ("node 1", "node 3", "rank 0"),
        "deadlock|node 0 .*missing",
        shows="rendezvous_missing_nodes 2",
    ),
    Fault(
        an_agent_is_frozen,
        2,
        "lost",
        ("node rank [01]",),
        "connection closed",
        shows="rendezvous_joined_nodes 1",
    ),
    Fault(
        a_native_node_is_frozen,
        2,
        "node_silent",
        ("rank [01]",),
        "deadlock|closed",
        shows="rendezvous_joined_nodes 2",
    ),
    Fault(
        two_native_nodes_die,
        3,
        "nodes_missing",
        (r"127\.0\.0\.10", "rank [0-2]", r"127\.0\.0\.12"),
        "deadlock|is it scheduled|: joined again",
        shows="rendezvous_missing_nodes 2",
    ),
    Fault(
        a_newcomer_asks_for_more_nodes,
        3,
        "nnodes_differ",
        ("node rank [01]",),
        "connection closed|is it scheduled",
    ),
    Fault(
        a_rank_of_a_store_of_its_own_is_slow,
        0,
        "waiting",
        ("rank 1",),
        "deadlock|nobody has come",
        shows="ranks_joined 2",
    ),
    Fault(
        a_key_is_misspelt,
        3,
        "waiting_for_key",
        (r"rank 1 on \S+", r"rank 2 on \S+", "`/default_pg/0//data_redy`", "`/default_pg/0//data_ready`", r"rank 0 on \S+"),
        "deadlock|; gone",
        shows="ranks_joined 3",
    ),
    Fault(
        a_rank_does_not_reach_a_barrier,
        3,
        "waiting_at_barrier",
        (r"rank 1 on \S+", r"rank 2 on \S+", "`/default_pg/0//checkpoint`", r"rank 0 on \S+"),
        "deadlock|; gone|does not exist",
        shows="ranks_joined 3",
    ),
    Fault(a_static_node_dies, 2, "lost", (r"node 1 at 127\.0\.0\.1",), "heartbeats|while training", shows="rendezvous_missing_nodes 1"),
    Fault(
        a_program_polls_a_key,
        2,
        "waiting_for_key",
        (r"rank 1 on \S+", "`/default_pg/0//next_shard`", r"rank 0 on \S+"),
        "gave up|must come from|deadlock",
        shows="ranks_joined 2",
    ),
    Fault(
        a_rank_ends_soon_after_it_has_published,
        3,
        "ranks_ended",
        (r"rank 1 on \S+",),
        "have met|finished",
        shows="ranks_joined 2",
    ),
    Fault(
        a_rank_is_started_again_alone,
        3,
        "waiting",
        (r"rank 0 on \S+", r"rank 2 on \S+"),
        "never seen|finished",
    ),
    Fault(
        static_jobs_follow_each_other,
        2,
        "run_finished",
        (),
        "started again|connection closed|and none had finished",
        shows="rendezvous_joined_nodes 0",
    ),
    Fault(
        nodes_use_two_backends,
        2,
        "two_backends",
        (),
        "deadlock|connection closed",
    ),
    Fault(
        a_static_node_comes_to_a_c10d_run,
        3,
        "two_backends",
        (r"node 2 at 127\.0\.0\.1",),
        "no heartbeat|connection closed|have joined",
        shows="rendezvous_joined_nodes 2",
    ),
    Fault(
        the_store_is_reset_while_agents_train,
        2,
        "store_reset",
        (),
        "deadlock|connection closed|have joined",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.play.__name__ for fault in FAULTS])
def test_fault(fault: Fault, rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*SOON)
    stage = Stage(server, jobs, fork(fault.places) if fault.places else [])
    try:
        fault.play(stage)
        played = time.time()
        told = explained(server, fault.code, *fault.names)
        metrics = server.metrics()
        run = [f"--run={told['run_id']}"] if told["run_id"] else []
        status = [binary(), "status", f"127.0.0.1:{server.admin_port}", *run]
        shown = subprocess.run(status, capture_output=True, text=True, timeout=20, check=True)
    finally:
        stage.end()
    assert told.get("evidence") or fault.code in WITHOUT_EVIDENCE, told
    of_code = [line for line in log_lines(server) if line.get("code") == fault.code]
    said = next(line for line in of_code if all(re.search(name, line["message"]) for name in fault.names))
    # Processes may start late: the fault begins with what the server saw of it.
    waited = datetime.fromisoformat(said["timestamp"]).timestamp() - max(played, told["since"])
    assert waited <= EXPLAIN_AFTER + fault.within
    assert len(of_code) <= FEW
    assert [line["message"] for line in log_lines(server) if re.search(fault.never, line["message"])] == []
    assert_in_metrics(metrics, fault, told)
    # Its lines are wrapped, and the times in them go on.
    words = " ".join(shown.stdout.split())
    before, _, after = re.sub(r"\d+(\.\d)? (s|ms|min)( \d+ s)?", "TIME", told["text"]).partition("TIME")
    # It may stand below another run that it is about, too.
    starts = before in words or before.partition(": ")[2] in words
    assert starts and after.rpartition("TIME")[2] in words, shown.stdout


def assert_in_metrics(metrics: str, fault: Fault, told: dict[str, Any]) -> None:
    """Warnings and errors are there by their code, and the numbers are right. Two runs of one id have their ports behind it."""
    run = rf'run_id="{re.escape(told["run_id"])}(@\d+)?"'
    severity = told["severity"]
    counted = re.search(rf'^rallypoint_run_explanations{{code="{fault.code}",{run},severity="{severity}"}} [1-9]', metrics, re.M)
    assert bool(counted) == (severity != "info"), metrics
    if fault.shows:
        name, value = fault.shows.split()
        assert re.search(rf"^rallypoint_{name}{{{run}}} {value}$", metrics, re.M), metrics
