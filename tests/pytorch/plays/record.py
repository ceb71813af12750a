"""What is known of a play: its processes, what became of them, and all that the server said meanwhile.

It is kept as JSON, to be judged again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pods import SUBNET
from schedule import Fault, Plan, Schedule


@dataclass
class Process:
    """An agent or a rank, from when it began."""

    job: str
    kind: str
    """`agent` or `rank`."""
    node: int
    pid: int
    born: float
    imports: float = 0
    rank: int | None = None
    group_rank: int | None = None
    as_node: int | None = None
    """The node whose place it claims, if that is another."""
    met: float | None = None
    ended: float | None = None
    code: int | None = None
    how: str = ""
    """What was done to it."""
    frozen: list[list[float]] = field(default_factory=list)

    def alive(self, at: float) -> bool:
        return self.born <= at and (self.ended is None or at < self.ended)

    def was_frozen(self, since: float, until: float) -> bool:
        return any(span[0] < until and (len(span) == 1 or span[1] > since) for span in self.frozen)

    def words(self) -> str:
        who = f"{self.job} {self.kind} " + (f"{self.rank} of node {self.node}" if self.kind == "rank" else f"{self.node}")
        end = "" if self.ended is None else f", ended ({self.how or 'by itself'}, code {self.code}) at {self.ended:.1f}"
        frozen = "".join(f", frozen {' to '.join(f'{at:.1f}' for at in span)}" for span in self.frozen)
        met = f", met {self.met:.1f}" if self.met else ""
        claims = f" as node {self.as_node}" if self.as_node is not None else ""
        return f"{who}{claims}: pid {self.pid}, born {self.born:.1f}{met}{frozen}{end}"


@dataclass
class Job:
    """One job of a play."""

    plan: Plan
    port: int
    """Of the store that its agents use."""
    offset: int
    """The addresses of its nodes begin there."""
    processes: list[Process] = field(default_factory=list)
    released: list[list[float]] = field(default_factory=list)
    """When its ranks were told that they may end, and when it was started once more."""

    def is_released(self, at: float) -> bool:
        return any(span[0] < at and (len(span) == 1 or at < span[1]) for span in self.released)

    def address(self, node: int) -> str:
        """Of jobs on hosts of their own in the network of `pods.py`, where the server has the first one."""
        return f"{SUBNET if self.plan.apart else '127.0.0'}.{self.offset + node + (10 if self.plan.apart else 0)}"

    def host(self, node: int) -> str:
        """The name of the node's host or pod."""
        return f"{self.plan.run_id}-{node}"

    @property
    def run_ids(self) -> set[str]:
        """What the server calls it. Ranks have no run's id where there are no agents, or the server has never seen them."""
        of_ranks = self.plan.mode != "c10d" or self.plan.here
        return {self.plan.run_id, *([f"store:{self.port}"] if of_ranks else [])}

    def is_direct(self, process: Process) -> bool:
        """It was started by the play, and by no agent."""
        return process.kind == "agent" or self.plan.is_bare

    @property
    def direct(self) -> list[Process]:
        return [process for process in self.processes if self.is_direct(process)]

    def of(self, kind: str) -> list[Process]:
        return [process for process in self.processes if process.kind == kind]


@dataclass
class Record:
    schedule: Schedule
    began: float = 0
    jobs: list[Job] = field(default_factory=list)
    """The one that the schedule is about, and perhaps a healthy one beside it."""
    notes: list[tuple[float, str, Fault | None]] = field(default_factory=list)
    """What was done, and when."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Explanations as they came."""
    polls: list[dict[str, Any]] = field(default_factory=list)
    """All that was shown, once a second."""
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def job(self) -> Job:
        return self.jobs[0]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Record:
        told = json.loads(path.read_text())
        drawn = told["schedule"]
        schedule = Schedule(
            drawn["seed"],
            Plan(**drawn["job"]),
            Plan(**drawn["beside"]) if drawn["beside"] else None,
            [Fault(**each) for each in drawn["faults"]],
            drawn.get("in_turn", False),
        )
        jobs = [
            Job(Plan(**job["plan"]), job["port"], job["offset"], [Process(**each) for each in job["processes"]], job["released"])
            for job in told["jobs"]
        ]
        notes = [(at, words, Fault(**fault) if fault else None) for at, words, fault in told["notes"]]
        return cls(schedule, told["began"], jobs, notes, told["events"], told["polls"], told["log"])
