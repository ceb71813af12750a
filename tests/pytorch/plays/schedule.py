"""What one seed plays: a job, perhaps a healthy one beside it, and up to two faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MODES = ["env", "static", "c10d", "native"]
FAULTS = {
    "never": "never starts",
    "late": "starts very late",
    "kill": "is killed with its ranks",
    "kill-agent": "loses its agent only",
    "kill-rank": "loses one rank",
    "freeze": "freezes",
    "cut": "is cut off from all others",
    "error": "has a rank that ends with an error",
    "well": "ends well early",
    "twin": "has a twin",
    "more-nodes": "is started for one node more",
    "wrong-rank": "is started with the rank of another",
    "again": "is killed and started again alone",
    "all-again": "all nodes are killed and started again",
    "reset": "the store is reset",
    "restart": "the server is restarted with its journal",
}
AT_START = {"never", "late", "more-nodes", "wrong-rank"}
OF_ALL = {"all-again", "reset", "restart"}
MOMENTS = ["coming", "met", "training"]


@dataclass
class Fault:
    kind: str
    node: int
    moment: str
    """Of MOMENTS: the delay counts from the node's start, or from when all have met."""
    delay: float
    thaw: float | None = None

    def words(self) -> str:
        who = "" if self.kind in OF_ALL else f"node {self.node} "
        when = "" if self.kind in AT_START else f" ({self.moment} + {self.delay:.1f} s)"
        return f"{who}{FAULTS[self.kind]}{when}" + (f", for {self.thaw:.0f} s" if self.thaw else "")


@dataclass
class Plan:
    """One job."""

    run_id: str
    mode: str
    nodes: int
    procs: int
    do: str
    starts: list[float]
    """When each node starts, in seconds."""
    imports: list[float]
    """What each node's ranks do before they meet."""
    restarts: int = 0
    least: int = 0
    """`--nnodes LEAST:NODES`, or a fixed number if it is 0."""
    here: bool = True
    """c10d: the workers meet in the server, too."""
    told: bool = True
    """c10d: an operator has said how many nodes to expect."""
    timeout: float = 300
    ranked: bool = False
    """native: each node asks for a rank."""
    pods: bool = False
    """`rallypoint run` starts each node."""
    relay: bool = False
    """It is a relay as well."""
    apart: bool = False
    """Each node is on a host of its own, and so is the server."""
    nccl: bool = False
    """Its ranks meet as those of NCCL do, and tell no rank."""
    shares: bool = False
    """It uses the store of the job that it is beside, of which it has no keys."""

    @property
    def is_bare(self) -> bool:
        """Its ranks have nothing above them."""
        return self.mode == "env" and not self.pods

    @property
    def nnodes(self) -> str:
        return f"{self.least}:{self.nodes}" if self.least else str(self.nodes)

    def words(self) -> str:
        parts = [f"{self.mode} {self.run_id}", f"{self.nnodes} nodes of {self.procs}", f"ranks {self.do}", f"max-restarts {self.restarts}"]
        parts += ["pods" if self.pods else "", "with relays" if self.relay else "", "on hosts of their own" if self.apart else ""]
        parts += [
            "" if self.here else "workers elsewhere",
            "" if self.told else "number not told",
            "on the same store" if self.shares else "",
            "NCCL" if self.nccl else "",
            "node ranks" if self.ranked else "",
            f"time-out {self.timeout:.0f} s" if self.timeout < 300 else "",
        ]
        parts += ["starts " + " ".join(f"{at:.1f}" for at in self.starts), "imports " + " ".join(f"{at:.1f}" for at in self.imports)]
        return ", ".join(filter(None, parts))


@dataclass
class Schedule:
    seed: int
    job: Plan
    beside: Plan | None = None
    faults: list[Fault] = field(default_factory=list)
    in_turn: bool = False
    """Without a fault: when the job has finished, the same job is started once more."""

    def words(self) -> str:
        beside = f"\n  beside: {self.beside.words()}" if self.beside else ""
        return (
            f"{self.job.words()}{beside}\n  "
            + ("; ".join(fault.words() for fault in self.faults) or "no fault")
            + (", twice in turn" if self.in_turn else "")
        )


def plan(dice: random.Random, run_id: str, mode: str) -> Plan:
    nodes = dice.randint(2, 4)
    procs = 1 if mode == "env" else dice.choice([1, 1, 2])
    if nodes == 4:
        procs = 1
    do = dice.choice(["idle", "idle", "collectives", "collectives", "key", "poll", "barrier", "group"])
    starts = [dice.uniform(0, dice.choice([1, 6])) for _ in range(nodes)]
    imports = [dice.choice([0, 0, dice.uniform(0, 5)]) for _ in range(nodes)]
    made = Plan(run_id, mode, nodes, procs, do, starts, imports)
    if mode != "env":
        made.restarts = dice.choice([0, 0, 1, 3])
    if mode in ("c10d", "native") and nodes > 2 and dice.random() < 0.3:
        made.least = nodes - 1
        if dice.random() < 0.5:
            made.starts[-1] = dice.uniform(8, 15)
    if mode == "c10d":
        made.here, made.told = dice.random() < 0.6, dice.random() < 0.6
    made.timeout = dice.choice([300, 300, 300, 12])
    return made


def draw(seed: int, apart: bool | None = None) -> Schedule:
    """`apart` says whether each node has a host of its own; without it that is drawn, too."""
    dice = random.Random(seed)
    mode = dice.choice(MODES)
    schedule = Schedule(seed, plan(dice, "job", mode))
    count = dice.choice([0, 1, 2, 2])
    if dice.random() < 0.25:
        other = dice.choice([each for each in MODES if each != mode])
        beside = schedule.beside = plan(dice, "other", other)
        beside.nodes, beside.procs, beside.least, beside.timeout = 2, 1, 0, 300
        beside.starts, beside.imports, beside.do = beside.starts[:2], beside.imports[:2], dice.choice(["idle", "collectives"])
    kinds = [kind for kind in FAULTS if kind != "cut" and not (mode == "env" and kind in ("kill-agent", "kill-rank"))]
    nodes = list(range(schedule.job.nodes))
    dice.shuffle(nodes)
    for node in nodes[:count]:
        fault = Fault(dice.choice(kinds), node, dice.choice(MOMENTS), 0)
        fault.delay = (
            dice.uniform(0.2, 4) if fault.moment == "coming" else dice.uniform(0, 0.7) if fault.moment == "met" else dice.uniform(3, 9)
        )
        if fault.kind == "freeze" and dice.random() < 0.4:
            fault.thaw = dice.uniform(5, 25)
        if fault.kind in OF_ALL and any(other.kind in OF_ALL for other in schedule.faults):
            fault.kind = "kill"
        schedule.faults.append(fault)
        schedule.job.ranked |= fault.kind == "wrong-rank" and mode == "native"
    if not count and schedule.job.timeout < 300 and schedule.job.do in ("key", "barrier"):
        schedule.job.timeout = 300
    for each in filter(None, (schedule.job, schedule.beside)):
        each.pods = dice.random() < 0.3
        each.relay = each.pods and dice.random() < 0.6
        each.here = each.here and not each.pods
    schedule.in_turn = not count and mode != "native" and not schedule.job.pods and not schedule.job.least and dice.random() < 0.4
    drawn = dice.random() < 0.4
    is_apart = drawn if apart is None else apart
    jobs = [each for each in (schedule.job, schedule.beside) if each]
    for each in jobs:
        each.apart = is_apart
    if {each.mode for each in jobs} == {"c10d", "env"} and is_apart and not any(each.pods for each in jobs):
        # Ranks know each other by their keys only, so those of c10d meet elsewhere.
        for each in jobs:
            each.here, each.shares = False, each is not schedule.job
    for fault in schedule.faults:
        if fault.kind == "freeze" and dice.random() < 0.5 and schedule.job.apart:
            fault.kind = "cut"
    schedule.job.nccl = dice.random() < 0.2
    if schedule.job.nccl and schedule.job.do in ("collectives", "group"):
        schedule.job.do = "idle"
    return schedule
