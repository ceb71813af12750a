"""What has to be said of the faults of a play, and by when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from record import Job, Process, Record
from schedule import Fault

WAITED = 3 + 5 + 1.5
"""Who has waited for so long has to be told why: `--explain-after` and 5 s, and what this machine needs."""
FACT = 5 + 1.5
BEGINS = ("run_started", "round_complete")
GONE = r"died|ended|closed|left|gone|not heard|gave up|failed|missing|was refused|taken out|last heartbeat|in the place of|frozen|away"
WORDS = {
    "never": r"never seen|missing|not published|more nodes? (is|are) needed|have? joined|has joined|was dropped",
    "twin": r"processes|turned away|in the attempt before|for others before|refused|cannot join|stands? by|waits?|waited|beside"
    r"|next round|again",
    "wrong-rank": r"processes|refused|for others before|waited|waits|missing|never seen",
    "more-nodes": r"disagree|differ|counts on|another number|asks? for|asked for|parameters|are expected|more nodes?|missing|nodes? ha(ve|s) joined",
    "freeze": GONE,
    "cut": GONE + r"|cut off|did not answer",
}
IN_TIME = {"c10d": 20 + FACT, "native": 12 + FACT}
"""For how long a node may be frozen until it is named."""
GIVEN_UP = 20 + FACT + 3
"""The same of one that is cut off where nothing else shows it: its connections are given up."""


def names_of(job: Job, node: int) -> str:
    """A pattern of all names of a node and its ranks."""
    plan = job.plan
    ranks = {each.rank for each in job.processes if each.kind == "rank" and each.node == node}
    names = [rf"rank {rank}\b" for rank in ranks] + [rf"process {each.pid}\b" for each in job.processes if each.node == node]
    if plan.mode == "env" and not ranks:
        names.append(rf"rank {node}\b")
    if plan.mode == "static":
        names += [rf"node {node}\b", rf"node rank {node}\b"]
    if plan.mode in ("c10d", "native") or plan.pods:
        names += [rf"{re.escape(job.address(node))}(?!\d)", rf"\b{job.host(node)}\b"]
    return "|".join(names)


def said_of(record: Record, job: Job, since: float, until: float) -> list[dict[str, Any]]:
    # Links belong to no run.
    run_ids = {None, *job.run_ids}
    events = [each for each in record.events if since - 1 <= each["at"] <= until and each["run_id"] in run_ids]
    return events + [
        each
        for poll in record.polls
        if since <= poll["at"] <= until
        for run in poll["runs"]
        if run["run_id"] in job.run_ids
        for each in run["explanations"]
        if each["holds"]
    ]


def missing_words(record: Record) -> Iterator[tuple[float, str]]:
    for at, _, fault in record.notes:
        if fault and fault.kind in WORDS | {"kill": "", "kill-agent": "", "kill-rank": "", "error": "", "again": ""}:
            yield from of_fault(record, record.job, at, fault)
    for job in record.jobs:
        yield from of_waits(record, job)


def of_fault(record: Record, job: Job, at: float, fault: Fault) -> Iterator[tuple[float, str]]:
    plan = job.plan
    over = job.released[0][0] if job.released else at
    if restarted(record) < at and not plan.relay and plan.mode != "native":
        return  # torch does not connect again
    if plan.mode == "c10d" and any(each["code"] == "run_closed" and each["at"] < at for each in record.events):
        return  # the agents of a closed run end one by one
    culprits = [each for each in job.processes if each.node == fault.node]
    if fault.kind in ("kill", "kill-agent", "kill-rank", "error", "again"):
        dead = [each for each in culprits if each.ended and at - 0.5 < each.ended < at + 3 and each.how]
        if plan.pods and not plan.relay and plan.mode != "native":
            # Once the gate is open, nothing is heard of a pod until its processes connect.
            dead = [each for each in dead if each.kind == "rank"]
        if not dead:
            return
        if plan.is_bare or (fault.kind == "kill-agent" and plan.mode != "native"):
            until = at + WAITED + (0 if plan.is_bare else 3)
        else:
            until = at + FACT + 4
        if fault.kind in ("kill-rank", "error", "kill-agent") and not seen_here(job) and plan.restarts:
            return
        if has_begun_without(job, fault.node, at) or has_twin(job, fault.node, at):
            return
        if not any(connected(each, at) for each in dead) or not others(job, fault.node, at + 1):
            return
        words = GONE
    elif fault.kind in ("freeze", "cut"):
        end = at + (fault.thaw or 1e9)
        until = at + IN_TIME.get(plan.mode, GIVEN_UP if fault.kind == "cut" else 1e9)
        if (
            until > min(end, over)
            or not any(each.alive(at) and connected(each, at) for each in culprits)
            or (fault.kind == "freeze" and any(each.ended and at < each.ended < until for each in culprits))
        ):
            return
        words = WORDS[fault.kind]
    else:
        if plan.nccl and plan.is_bare:
            return  # who comes for an NCCL id tells no rank, and waits for no other
        came = [each.born + each.imports for each in job.direct]
        until, words = max([at, *came]) + WAITED + 3, WORDS[fault.kind]
        taken = any(each.as_node == fault.node or (fault.kind == "never" and each.node == fault.node) for each in job.direct)
        # Only node 0 knows how many there are to be, and tells it when all have come if it hosts a store; who has come shows
        # that there are all with lower ranks.
        tells = [*range(fault.node, 99), *([] if plan.apart else [0])]
        uncounted = plan.mode == "static" and not plan.pods and not any(each.node in tells for each in job.direct)
        if not others(job, fault.node, until):
            return  # nobody is there to wait
        if (fault.kind in ("never", "late") and (plan.least or taken or uncounted)) or (fault.kind == "wrong-rank" and plan.mode == "c10d"):
            return
    if until > over:
        return
    if fault.kind == "twin" and any(each.ended and each.ended < until for each in culprits if each.born < at and job.is_direct(each)):
        return
    is_complete = any(each["code"] == "round_complete" and each["run_id"] in job.run_ids for each in record.events)
    if fault.kind == "more-nodes" and (is_complete or any(each.met for each in job.processes)):
        return  # it does no harm
    if fault.kind in ("more-nodes", "twin") and not any(
        waits_since(job, each, until) < until - WAITED for each in job.processes if each.alive(until)
    ):
        return
    said = said_of(record, job, at, until)
    if fault.kind == "more-nodes" and plan.mode == "c10d" and not plan.told:
        return  # nobody but that node knows how many it asks for
    unknown = fault.kind == "more-nodes" or (fault.kind == "never" and plan.mode in ("c10d", "native"))
    names = "" if unknown else names_of(job, fault.node)
    if fault.kind in ("twin", "wrong-rank") and plan.mode in ("static", "env"):
        place = next((each.as_node for each in job.direct if each.node == fault.node and each.as_node is not None), fault.node)
        names += "".join(rf"|rank {each}\b|node {each}\b" for each in (place, fault.node))
    if not any(re.search(words, each["text"]) and re.search(names, each["text"]) for each in said):
        yield until, f"nothing said within {until - at:.0f} s of: {fault.words()} (looked for /{names}/)"


def restarted(record: Record) -> float:
    """When the server was restarted, far in the future if it was not."""
    return min((at for at, _, fault in record.notes if fault and fault.kind == "restart"), default=1e12)


def has_begun_without(job: Job, node: int, at: float) -> bool:
    """The round has begun, and this node is not in it."""
    ranks = [each for each in job.of("rank") if each.alive(at)]
    return not job.plan.is_bare and bool(ranks) and not any(each.node == node for each in ranks)


def has_twin(job: Job, node: int, at: float) -> bool:
    """Another has its rank, and is there."""
    return any(each.as_node == node and each.node != node and each.alive(at) for each in job.direct)


def seen_here(job: Job) -> bool:
    return job.plan.mode in ("env", "static", "native") or job.plan.here


def connected(process: Process, at: float) -> bool:
    return process.born + process.imports + 1.5 < at


def others(job: Job, node: int, at: float) -> list[Process]:
    return [each for each in job.processes if each.node != node and each.alive(at) and connected(each, at)]


def of_waits(record: Record, job: Job) -> Iterator[tuple[float, str]]:
    """Whoever waits for others before a job has met, whatever the cause, has to find a warning."""
    again = restarted(record)
    before: list[Process] = []
    for poll in record.polls:
        at = poll["at"]
        # Who does not come back without a relay has no line.
        is_new = again < at < again + WAITED
        if job.is_released(at) or is_new or (at > again and not job.plan.relay):
            continue
        shown = [each for run in poll["runs"] if run["run_id"] in job.run_ids for each in run["explanations"]]
        # Of a host that nobody has come for it is not known what it is.
        pids = {f"process {each.pid} " for each in job.direct}
        of_none = [each for each in record.events if each["run_id"] is None and at - 2 * WAITED < each["at"] <= at]
        shown += [each for each in of_none if any(pid in each["text"] for pid in pids)]
        is_told = any(each["severity"] != "info" or each["code"] in ("stands_by", "pods_idle") for each in shown)
        begun = max((it["at"] for it in record.events if it["code"] in BEGINS and it["at"] < at), default=0.0)
        waiting = [each for each in job.processes if not is_told and waits_in_vain(job, each, begun, at)]
        # The round may have changed just now.
        if still := [each for each in waiting if each in before]:
            said = "; ".join(each["text"] for each in shown) or "nothing"
            yield at, f"{still[0].words()} waits, and no warning holds; there is: {said}"
            return
        before = waiting


def waits_in_vain(job: Job, process: Process, begun: float, at: float) -> bool:
    """It has waited so long, at least since a round began, that somebody must be told why. What came just now has ended the wait."""

    def waits(moment: float) -> bool:
        return process.alive(moment) and max(begun, waits_since(job, process, moment)) < at - WAITED

    # Once rank 0 has published the NCCL id, the others wait for each other, and not here.
    has_id = any(each.rank == 0 and connected(each, at) for each in job.of("rank"))
    if process.kind == "rank" and job.plan.nccl and job.plan.is_bare and has_id:
        return False
    # Who froze once it had published is met in vain, and not here.
    has_published = any(each.frozen and each.born + each.imports < each.frozen[0][0] for each in job.of("rank"))
    if process.kind == "rank" and has_published:
        return False
    twins = [each for each in job.direct if each.as_node == process.node]
    is_told_once = job.plan.relay and bool(twins)  # relay_refused
    return not is_told_once and waits(at) and waits(at + 1.5) and not process.was_frozen(at - 30, at)


def waits_since(job: Job, process: Process, at: float) -> float:
    """Since when it waits at the latest to meet the others, where that can be seen; in the future, if it does not."""
    if process.kind == "rank":
        is_over = not seen_here(job) or process.met and process.met < at
        return at if is_over else process.born + process.imports + 1.5
    if not job.is_direct(process):
        return at
    ranks = [each for each in job.processes if each.kind == "rank" and each.node == process.node and each.born > process.born]
    if any(each.alive(at) or each.how.endswith("with 0") for each in ranks):
        return at
    return max([process.born + 1.5, *((each.ended or at) + 1.5 for each in ranks if each.born < at)])
