"""A table of faults of real ranks and agents: what is said of each in log, API and `status`, and what must not be said.

The pure table is `src/core/insight/tests/faults.rs`; here the traffic is PyTorch's own. The healthy runs of each kind are in
`test_explanations_of_ranks.py` and `test_explanations_of_rendezvous.py`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from explained import SOON, explained, log_lines
from forks import ForkedPlace
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
            self.server.endpoint, places=self.places, environment=environment, train=["--no-ddp", *train], world_size=len(self.places), start=start
        )

    def static(self, start: list[int]) -> Job:
        """Agents of the static rendezvous with workers that do nothing."""
        environment = clients_only(self.server.endpoint)
        return self.jobs.torchrun(
            self.server.endpoint, backend="static", places=self.places, environment=environment, idle=True, nodes=len(self.places), start=start
        )

    def published(self, ranks: int) -> None:
        """Waits until so many ranks have published their addresses."""
        poll(lambda: any((run["ranks"] or {}).get("joined") == ranks for run in self.server.get_json("/api/v1/runs")["runs"]), f"{ranks} ranks", 30)


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


def a_client_leaves_without_a_word(stage: Stage) -> None:
    stage.env([0])
    stage.published(1)
    client = f"dist.TCPStore('127.0.0.1', {stage.server.port}, is_master=False, world_size=1)"
    subprocess.run([sys.executable, "-c", f"import torch.distributed as dist; {client}"], timeout=60, check=True)


def static_nodes_never_come(stage: Stage) -> None:
    stage.static([0, 2])


def a_static_node_dies(stage: Stage) -> None:
    job = stage.static([0, 1])
    explained(stage.server, "round_complete", r"job complete: .*")
    job.kill_node(1)


def an_agent_is_frozen(stage: Stage) -> None:
    job = stage.jobs.torchrun(stage.server.endpoint, places=stage.places, environment=clients_only(stage.server.endpoint), idle=True)
    explained(stage.server, "round_complete", r"job round 0 complete: .*")
    # Until the ranks are handed out, agents wait for each other on the connection of their heartbeats.
    poll(lambda: all(node["base_rank"] is not None for node in stage.server.get_json("/api/v1/runs/job")["participants"]), "the ranks are handed out", 30)
    job.freeze_node(1)


def a_key_is_misspelt(stage: Stage) -> None:
    stage.env([0, 1, 2], "--own-keys", "slip")


def a_rank_does_not_reach_a_barrier(stage: Stage) -> None:
    stage.env([0, 1, 2], "--own-keys", "barrier")


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
    explained(stage.server, "round_complete", r"job round 0 complete: .*")
    stage.jobs.torchrun(stage.server.endpoint, places=stage.places, nodes=3, nnodes="3", start=[2], **agents)


@dataclass
class Fault:
    """One line of the table."""

    play: Callable[[Stage], None]
    places: int
    code: str
    says: str
    """A pattern of the whole sentence."""
    remedy: str
    never: str
    """A pattern that no line of the log may have."""


WITHOUT_EVIDENCE = {"run_ended"}
"""It follows from the traffic of the run as a whole."""
NEVER_DROPPED = r"from rank 0: it has not come|EADDRINUSE|deadlock"
FAULTS = [
    Fault(two_never_come, 4, "waiting_for_rank", r".*rank 1: it has not come; 2 of 4 ranks have published.*missing: rank 1 and rank 2", "has it started", "EADDRINUSE"),
    Fault(one_dies_before_all_have_come, 4, "rank_lost", r".*rank 1 .* ended before all ranks had come; 2 of 4 are still there", "log of that process", "none of 4|0 of 4"),
    Fault(all_are_killed, 2, "run_ended", r".*ended: the connections of all 2 processes closed after TIME", "cannot be seen here", "finished"),
    Fault(a_paired_rank_is_replaced, 3, "rank_zero_slow", r".*rank 0 .*it had published it, and it was dropped: .* a process of rank 1, and another took.*", "restart all", NEVER_DROPPED),
    Fault(
        a_client_leaves_without_a_word,
        2,
        "waiting_for_rank",
        r".*rank 1: it has not come; .*without publishing an address: process \d+ at 127\.0\.0\.1 \(after TIME\)",
        "process that ended",
        "deadlock",
    ),
    Fault(
        static_nodes_never_come,
        4,
        "nodes_missing",
        r"job: 2 of 4 nodes have joined; node 1 and node 3 have been missing for TIME \(4 by rank 0's role exchange\)",
        "missing node",
        "deadlock|node 0 .*missing",
    ),
    Fault(
        an_agent_is_frozen,
        2,
        "node_removed",
        r"job round 0: \S+ \(node rank [01]\) has sent no heartbeat for TIME, though its connection is open: \S+ \(node rank [01]\) took it out of the round; 1 node left",
        "frozen",
        "died or failed",
    ),
    Fault(
        a_newcomer_asks_for_more_nodes,
        3,
        "nnodes_differ",
        r"job round 0: \S+ came to a complete round of 2 nodes and asks for more, while \S+ \(node rank [01]\) asks for no more: their --nnodes differ; .*",
        "same --nnodes",
        "died or failed|is it scheduled",
    ),
    Fault(
        a_rank_of_a_store_of_its_own_is_slow,
        0,
        "waiting_for_rank",
        r"store:\d+: 2 processes have waited TIME for the address of rank 1: it has not come; 2 of 3 ranks have published, 2 processes have connected",
        "has it started",
        "deadlock|nobody has come",
    ),
    Fault(
        a_key_is_misspelt,
        3,
        "waiting_for_key",
        r".*: rank 1 on \S+ and rank 2 on \S+ have waited TIME for `/default_pg/0//data_redy`, which nobody has written; `/default_pg/0//data_ready` exists",
        "may be a slip",
        "deadlock|; ended",
    ),
    Fault(
        a_rank_does_not_reach_a_barrier,
        3,
        "waiting_at_barrier",
        r".*: rank 1 on \S+ and rank 2 on \S+ have waited TIME at the barrier `/default_pg/0//checkpoint`; not there: rank 0 on \S+",
        "gone another way",
        "deadlock|; ended|nobody has written",
    ),
    Fault(a_static_node_dies, 2, "node_died", r"job: node 1 at 127\.0\.0\.1 died or failed: the connection closed after the round was complete; 1 node left", "static", "heartbeats|while training"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.play.__name__ for fault in FAULTS])
def test_fault(fault: Fault, rallypoint_factory: Serve, jobs: Jobs, fork: Fork) -> None:
    server = rallypoint_factory(*SOON)
    stage = Stage(server, jobs, fork(fault.places) if fault.places else [])
    try:
        fault.play(stage)
        told = explained(server, fault.code, fault.says)
    finally:
        stage.end()
    assert told.get("evidence") or fault.code in WITHOUT_EVIDENCE, told
    assert fault.remedy in told["remedy"]
    assert [line["message"] for line in log_lines(server) if re.search(fault.never, line["message"])] == []
    run = [f"--run={told['run_id']}"] if told["run_id"] else []
    shown = subprocess.run([binary(), "status", f"127.0.0.1:{server.admin_port}", *run], capture_output=True, text=True, timeout=20, check=True)
    # Its lines are wrapped, and the times in them go on.
    words = " ".join(shown.stdout.split())
    before, _, after = re.sub(r"\d+(\.\d)? (s|ms|min)( \d+ s)?", "TIME", told["text"]).partition("TIME")
    assert before in words and after.rpartition("TIME")[2] in words, shown.stdout
