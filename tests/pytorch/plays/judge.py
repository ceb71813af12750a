"""Compares what was said in a play with what is known of its processes: nothing false, nothing missing, and the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from expected import missing_words, waits_since
from record import Job, Process, Record

GRACE = 3.0
"""Seconds for which the server may not know yet what is so."""
LATE = 14.0
"""The same of a death behind a relay, for which the server waits, and of a native node, which keeps its place until it is given up."""
LOOKS_BACK = 6.0
"""A number may be as old as this."""
SEEN = 60.0
"""For how long something frozen may be told after it has thawed."""
NODE = r"[\w-]+ \([\d.]+\)"
"""As the native rendezvous names one."""
NODES = rf"((?:{NODE}(?:, rank \d+)?(?:, | and )?)+)"
ABSENT, DEAD, THERE, QUIET, OVER = "absent", "dead", "there", "quiet", "over"
MEANS = {
    **dict.fromkeys(("unreachable", "silent", "away", "taken_out"), QUIET),
    **{"never_seen": ABSENT, "closed": DEAD, "connected": THERE, "left": OVER},
}
"""What each presence says of those in the facts that are missing."""
NOTES = ("run_", "ranks_", "nodes_", "lost", "waiting", "stands_by", "gave_up", "exit_", "round_", "pods_")
"""Codes that are judged although they are only good to know."""
IN_WORDS: list[tuple[str, str]] = [
    (rf"{NODES}: the connections? closed", OVER),
    (rf"{NODES}: not heard from", QUIET),
    (r"; (?:gone|left|connection closed): (.*?)(?:;|$)", OVER),
    (r"; given up: (.*?)(?:;|$)", QUIET),
    (r"still in the round: (.*?)(?:;|$)", THERE),
    (rf"{NODES}: failed", "failed"),
    (rf"{NODES}: left", OVER),
]
"""The same for the words of the native rendezvous, which have no facts."""
ONLY_WITH = {
    "duplicate_rank": {"twin", "wrong-rank", "again", "all-again", "kill-agent", "freeze", "cut"},
    "world_sizes_differ": {"more-nodes"},
    "nnodes_differ": {"more-nodes", "never", "kill", "again", "kill-agent", "freeze", "cut", "error", "well", "kill-rank"},
    "two_jobs": set(),
    "two_backends": set(),
    "store_reset": {"reset"},
    "wait_cycle": set(),
    "link_away": {"freeze", "cut", "kill", "kill-agent", "again", "all-again", "restart"},
    "wrong_port": set(),
    "torch_versions_differ": set(),
    "unreadable_state": set(),
    "node_silent": {"freeze", "cut", "kill-agent", "reset", "restart", "kill", "again", "all-again"},
    "lost_taken_out": {"freeze", "cut", "kill-agent", "reset", "restart", "kill", "again", "all-again", "twin", "late"},
    "lost_cut_off": {"freeze", "cut", "kill", "kill-agent", "again", "all-again"},
}
"""Codes that are false without one of these faults."""
IS_OVER = ("finished", "ended", "closed", "gone")
STARTS = r"is it scheduled|are they scheduled|has it started|have they started|has its image come"
TIME = r"(\d+(?:\.\d+)?) (ms|s|min|h)(?: (\d+) (s|min))?"
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def seconds(found: tuple[str, ...] | re.Match[str]) -> float:
    whole, unit, rest, rest_unit = found.groups() if isinstance(found, re.Match) else found
    return float(whole) * UNITS[unit] + (float(rest) * UNITS[rest_unit] if rest else 0)


class Judge:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.findings: list[tuple[float, str]] = []
        self.kinds = {fault.kind for fault in record.schedule.faults} | ({"in turn"} if record.schedule.in_turn else set())
        self.told: set[str] = set()

    def find(self, at: float, what: str, key: str = "") -> None:
        if (key or what) not in self.told:
            self.told.add(key or what)
            self.findings.append((at, what))

    def job_of(self, run_id: str | None) -> Job | None:
        return next((job for job in self.record.jobs if run_id in job.run_ids), None)

    def job_of_process(self, facts: dict[str, Any]) -> Job | None:
        """A process that hosts a store at home, and that nobody has come for, is of no run yet."""
        return next((job for job in self.record.jobs for host in facts["held"]["shown"] if self.named(job, host)), None)

    def job_of_link(self, facts: dict[str, Any]) -> Job | None:
        """Links belong to pods, and to no run."""
        names = [who["name"] for who in facts["missing"]] + facts["held"]["shown"]
        return next((job for job in self.record.jobs if any(name.startswith(job.plan.run_id + "-") for name in names)), None)

    def all(self) -> None:
        held = set()
        for event in self.record.events:
            if event["holds"]:
                held.add(event["id"])
            elif event["id"] in held:
                continue  # it is over
            if event["severity"] != "info" or event["code"].startswith(NOTES):
                self.sentence(event)
        for poll in self.record.polls:
            self.numbers(poll)
            self.agreement(poll)
        self.log()
        if not self.record.schedule.faults:
            self.silence()
        for at, what in missing_words(self.record):
            self.find(at, what)

    # False words

    def sentence(self, said: dict[str, Any]) -> None:
        at, text, facts, code = said["at"], said["text"], said["facts"], said["code"]
        seen = {who["presence"]["is"] for who in facts["missing"]}
        if code == "lost":
            code += "_cut_off" if "unreachable" in seen else "_taken_out" if "taken_out" in seen else ""
        job = self.job_of(said["run_id"]) or self.job_of_link(facts) or self.job_of_process(facts)
        if not job:
            self.find(at, f"unknown run: {text}", f"run {said['run_id']}")
            return
        # A reset is one of all that use the store.
        faults = self.kinds if job is self.record.job else self.kinds & {"reset"} if job.plan.shares else set()
        if code in ONLY_WITH and not faults & ONLY_WITH[code]:
            self.find(at, f"no cause for {code}: {text}", f"cause {code}")
        claims = [(who["name"], MEANS.get(who["presence"]["is"], "")) for who in facts["missing"]]
        claims += [(name, THERE) for name in facts["candidates"]["shown"]]
        claims += [(name, THERE) for name in facts["held"]["shown"] if code not in ("gave_up", "run_closed", "join_refused")]
        # One of those that have told no rank may be it.
        may_be = code == "waiting" and bool(facts["candidates"]["shown"])
        for each, claim in claims:
            if claim and not (claim == ABSENT and may_be):
                self.claim(job, each, claim, at, said)
        for pattern, claim in IN_WORDS if job.plan.mode == "native" else []:
            for names in re.findall(pattern, text):
                for each in re.findall(NODE, names):
                    self.claim(job, each, claim, at, said)
        self.remedy(job, said)
        self.numbers_in_words(job, said)
        self.whereabouts(job, said)
        self.times(job, said)
        self.endings(job, said)

    def remedy(self, job: Job, said: dict[str, Any]) -> None:
        """Who was there once needs no advice how to start."""
        kind = "rank" if any(who["what"] in ("rank", "process") for who in said["facts"]["missing"]) else "agent"
        places = range((job.plan.nodes + ("more-nodes" in self.kinds)) * (job.plan.procs if kind == "rank" else 1))
        before = [each for each in job.of(kind) if self.came(each) < said["at"] - GRACE]
        came = {each.rank if kind == "rank" else each.node for each in before if each.alive(said["at"]) or self.is_known_dead(job, each)}
        # A rank that is free as another is claimed twice is looked for as one that never came.
        if "wrong-rank" not in self.kinds and re.search(STARTS, said["remedy"]) and came >= set(places):
            self.find(
                said["at"], f"all have started before, and the remedy is `{said['remedy']}`: {said['text']}", f"starts {said['code']}"
            )

    def is_known_dead(self, job: Job, agent: Process) -> bool:
        """Of an agent or pod that has ended while others were there: without them a gate forgets who it was."""
        others = [each for each in job.of("agent") if each is not agent]
        return agent.kind == "agent" and any(each.alive(agent.ended or 0) for each in others)

    def whereabouts(self, job: Job, said: dict[str, Any]) -> None:
        if said["code"] != "waiting":
            return
        for who in said["facts"]["missing"]:
            is_timed = who["presence"]["is"] == "closed" and who["at"] is not None and not job.plan.relay
            ended = [process.ended for process in self.named(job, who["name"]) if process.ended and process.ended < said["at"] + 0.5]
            if is_timed and ended and min(abs(end - who["at"]) for end in ended) > GRACE + 1:
                self.find(said["at"], f"off by {min(who['at'] - end for end in ended):.0f} s: {said['text']}")

    def times(self, job: Job, said: dict[str, Any]) -> None:
        """Everything has happened since the play began, and what closed, closed when it ended."""
        for found in re.finditer(TIME + " ago", said["text"]):
            if said["at"] - seconds(found) < self.record.began - GRACE:
                self.find(said["at"], f"that long ago nothing was there: {said['text']}")
        for names, *found in re.findall(rf"{NODES}: the connections? closed, and nothing came for {TIME}", said["text"]):
            ended = [each.ended for name in re.findall(NODE, names) for each in self.named(job, name) if each.ended]
            happened = said["since"] if not said["holds"] else said["at"]
            if ended and min(abs(base - end - seconds(tuple(found))) for end in ended for base in (happened, said["at"])) > GRACE:
                self.find(said["at"], f"closed at another time: {said['text']}")

    def endings(self, job: Job, said: dict[str, Any]) -> None:
        at, text = said["since"], said["text"]
        agents = [each for each in job.processes if job.is_direct(each) and each.born < at]
        if said["code"] == "run_finished" and (number := re.search(r"finished: (\d+)", text)):
            well = sum(each.code in (0, None) for each in agents)
            if well < int(number[1]):
                self.find(at, f"finished, although only {well} agents ended well: {text}")
        if said["code"] == "run_ended" and not job.is_released(at):
            there = [each for each in agents if each.alive(at + GRACE) and self.came(each) < at]
            # Whose time-out has passed has closed its connections, and may need seconds to write its traceback.
            there = [each for each in there if each.how or not each.code or at - each.born < job.plan.timeout]
            if still := [each for each in there if each.as_node is None and not each.was_frozen(0, at)]:
                self.find(at, f"it is over, although {still[0].words()}: {text}")

    def claim(self, job: Job, name: str, claim: str, at: float, said: dict[str, Any]) -> None:
        found = self.named(job, name)
        if not found:
            if claim not in (ABSENT, OVER) and not self.may_exist(job, name):
                self.find(at, f"nobody is called {name}: {said['text']}", f"{said['code']} {name}")
            return
        alive = [each for each in found if each.alive(at) and self.came(each) < at - GRACE and not each.was_frozen(at - SEEN, at)]
        # A process that ends closes its connections first; one whose time-out has passed may need seconds to write its traceback.
        gave_up = [each for each in found if each.code and not each.how and at - each.born >= job.plan.timeout]
        dead = [each for each in found if each.ended and (each.ended < at + GRACE or each in gave_up)]
        frozen = [each for each in found if each.was_frozen(at - SEEN, at)]
        known_by = LATE if job.plan.relay else GRACE
        recently = any(each.born < at and (each.ended is None or at < each.ended + known_by) for each in found)
        right = {
            ABSENT: not alive or bool(dead and max(each.ended or 0 for each in dead) > at - GRACE),
            DEAD: bool(dead),
            THERE: recently,
            # Agents of c10d send no heartbeats while they wait.
            QUIET: bool(frozen) or bool(dead) or (job.plan.mode == "c10d" and any(waits_since(job, each, at) < at - 10 for each in found)),
            OVER: bool(dead or frozen) or any(each.how for each in found),
            "failed": bool(dead) or any(rank.ended for rank in job.processes if rank.node == found[0].node),
        }[claim]
        if not right:
            self.find(at, f"{name} is not {claim} ({found[-1].words()}): {said['text']}", f"{said['code']} {name} {claim} {said['id']}")

    def may_exist(self, job: Job, name: str) -> bool:
        if job.plan.pods and job.plan.mode != "env" and re.match(r"process \d+", name):
            return True  # of an agent that `rallypoint run` has started
        return "local rank" in name or not re.match(r"(rank|node|process) \d+|[\w-]+-\d+ \(|\d+\.\d+\.\d+\.\d", name)

    def named(self, job: Job, name: str) -> list[Process]:
        """The processes that a name may mean."""
        processes = job.processes
        agents = [each for each in processes if each.kind == "agent"]
        if found := re.match(r"process (\d+)", name):
            return [each for each in processes if each.pid == int(found[1])]
        if found := re.match(r"\d+(?:\.\d+){3}", name):
            return [each for each in agents if job.address(each.node) == found[0]]
        if found := re.match(rf"(?:pod )?{job.plan.run_id}-(\d+)", name):
            return [each for each in agents if each.node == int(found[1])]
        if found := re.match(r"rank (\d+)", name):
            return [each for each in processes if each.kind == "rank" and each.rank == int(found[1])]
        if found := re.match(r"node (?:rank )?(\d+)", name):
            if job.plan.mode == "static":
                return [each for each in agents if (each.node if each.as_node is None else each.as_node) == int(found[1])]
            nodes = {each.node for each in processes if each.group_rank == int(found[1]) and each.kind == "rank"}
            return [each for each in agents if each.node in nodes]
        return []

    def came(self, process: Process) -> float:
        """When it is connected at the latest, as far as it is not slow."""
        return process.born + process.imports + 1.0

    # Numbers

    def counts(self, job: Job, at: float, kind: str) -> tuple[int, int]:
        """The fewest places that were taken within the last seconds, and the most processes that may have been there."""
        back = LATE if job.plan.relay or (job.plan.mode == "native" and kind == "agent") else LOOKS_BACK
        moments = [at + 1 - step / 5 for step in range(int(back + 1) * 5 + 1)]
        known = [each for each in job.of(kind) if not each.was_frozen(0, at)]

        def places(moment: float) -> set[tuple[int, int | None]]:
            return {(each.node, each.rank) for each in known if each.alive(moment) and self.came(each) < moment - GRACE}

        def may_have_been(process: Process) -> bool:
            first = max(process.born, process.born + process.imports - 1, at - back)
            return first < min(process.ended or at + 1, at + 1)

        high = sum(may_have_been(each) for each in job.of(kind))
        return min(len(places(moment)) for moment in moments), high

    def numbers_in_words(self, job: Job, said: dict[str, Any]) -> None:
        at, code, text, facts = (
            said["at"] if said["holds"] else min(said["at"], said["since"] + 2),
            said["code"],
            said["text"],
            said["facts"],
        )
        kind = "rank" if facts["of"] in ("rank", "process") or job.plan.is_bare else "agent"
        number = None if code in ("waiting", "waiting_at_barrier", "exit_barrier", "run_finished", "pods_idle") else facts["joined"]
        if number is None and (found := re.search(r"(\d+) of \d+ nodes? ha(?:s|ve) joined", text)):
            number = int(found[1])
        low, high = self.counts(job, at, kind)
        later = r"round ([1-9])" if job.plan.mode == "c10d" else r"round ([2-9]|\d\d)"
        is_changing = bool(self.kinds & {"well", "again", "all-again"})
        if "taken out" in text or is_changing or re.search(later, text):
            low = 0  # who has finished does not join again, and others do after a while
        if isinstance(number, int) and not (low <= number <= high) and not self.kinds & {"twin", "wrong-rank", "more-nodes"}:
            self.find(at, f"it says {number}, and there were {low} to {high}: {text}", f"number {code} {number}")

    def numbers(self, poll: dict[str, Any]) -> None:
        at = poll["at"]
        for run in poll["after"]["runs"]:
            job = self.job_of(run["run_id"])
            if not job or run["state"] in IS_OVER or job.is_released(at):
                continue
            nodes, ranks = run["nodes"], run["ranks"]
            if run["kind"] not in ("env", "gathering"):
                low, high = self.counts(job, at, "agent")
                there = sum(nodes[name] for name in ("joined", "waiting", "redundant", "earlier", "finished"))
                if there > high:
                    self.find(at, f"{there} nodes are shown, and there were {low} to {high}: {nodes}", f"nodes > {there} {high}")
                if there < low and run["state"] != "joining" and not self.kinds & {"reset", "restart", "twin", "wrong-rank"}:
                    self.find(
                        at, f"{there} nodes are shown, and there were {low} to {high}: {run['state']} {nodes}", f"nodes < {there} {low}"
                    )
            if ranks and ranks["joined"] > self.counts(job, at, "rank")[1]:
                self.find(at, f"{ranks['joined']} ranks are shown: {ranks}", f"ranks > {ranks['joined']}")
            if ranks and run["state"] == "running" and not self.kinds & {"reset", "restart", "twin", "wrong-rank", "more-nodes"}:
                low = sum(
                    each.met is not None and each.met < at - LOOKS_BACK and each.alive(at + 1)
                    for each in job.processes
                    if each.kind == "rank"
                )
                if ranks["connected"] < low:
                    self.find(
                        at,
                        f"{ranks['connected']} ranks are shown, and {low} have met and are there: {ranks}",
                        f"ranks < {ranks['connected']}",
                    )

    def agreement(self, poll: dict[str, Any]) -> None:
        at, before = poll["at"], {(run["run_id"], run["store"]): run for run in poll["before"]["runs"]}
        for run in poll["after"]["runs"]:
            earlier = before.get((run["run_id"], run["store"]))
            shown = poll["metrics"].get(run["run_id"], {})
            if not earlier or earlier["version"] != run["version"] or earlier["state"] != run["state"] or not shown:
                continue
            over = run["state"] in IS_OVER
            pairs = [("rendezvous_waiting_nodes", run["nodes"]["waiting"] + run["nodes"]["redundant"]), ("rendezvous_round", run["round"])]
            pairs += (
                [] if over else [("rendezvous_joined_nodes", run["nodes"]["joined"]), ("rendezvous_missing_nodes", run["nodes"]["missing"])]
            )
            pairs += (
                [] if over or not run["ranks"] else [("ranks_joined", run["ranks"]["joined"]), ("ranks_expected", run["ranks"]["expected"])]
            )
            for name, number in pairs:
                if name in shown and number is not None and shown[name] != number:
                    self.find(
                        at, f"metric {name} is {shown[name]:.0f}, the API says {number} ({run['state']})", f"metric {name} {run['state']}"
                    )
            main = run["explanation"]
            words = " ".join(poll["status"].split())
            # The name of the run stands above, with its round.
            text = re.sub(rf"^{re.escape(run['run_id'])}(( round {run['round']})?: | )", "", main["text"]) if main else ""
            if main and main == earlier["explanation"] and cut(text) not in words:
                self.find(at, f"status has not what the API says: {main['text']}", f"status {main['code']}")
            if main and main["severity"] != "info" and f'code="{main["code"]}"' not in " ".join(shown):
                self.find(at, f"metrics have no {main['code']}", f"metric {main['code']}")
            expected = run["nodes"]["expected"]
            counts = expected and not over and run["kind"] != "env" and run["state"] != "restarting"
            if counts and f"{run['nodes']['joined']}/{expected['min']}" not in words and expected["min"] == expected["max"]:
                self.find(
                    at,
                    f"status has not {run['nodes']['joined']}/{expected['min']} nodes ({run['state']}): {poll['status'][:200]}",
                    f"bar {run['state']}",
                )

    def log(self) -> None:
        texts = {cut(event["text"]) for event in self.record.events} | {
            cut(each["text"]) for poll in self.record.polls for run in poll["runs"] for each in run["explanations"]
        }
        for line in self.record.log:
            at = datetime.fromisoformat(line["timestamp"]).timestamp()
            if line["level"] in ("WARN", "ERROR") and "code" in line and not any(line["message"].startswith(text) for text in texts):
                self.find(at, f"only in the log: {line['message']}")

    def silence(self) -> None:
        """Without a fault there is a warning only while somebody waits for what comes late."""
        for event in self.record.events:
            at, job = event["at"], self.job_of(event["run_id"])
            if job and job.plan.do == "group" and event["code"] == "waiting" and "not there" in event["text"]:
                continue  # rank 0 makes it later
            if (
                job
                and event["severity"] != "info"
                and event["holds"]
                and not any(waits_since(job, each, at - 1) < at - 1 for each in job.processes if each.alive(at - 1))
            ):
                self.find(at, f"all is well, and it says: {event['text']}", f"silence {event['code']}")
        for job in self.record.jobs:
            for agent in job.direct:
                if agent.code != 0 and not job.plan.least:
                    self.find(agent.ended or 0, f"the play itself: {agent.words()} did not end well")


def cut(text: str) -> str:
    """As much of a sentence as does not change with time."""
    return " ".join(re.split(r"\d+(?:\.\d+)? (?:ms|s|min|h)\b", text)[0].split())


def judge(record: Record) -> tuple[str, list[str]]:
    """The verdict as a page, and the findings."""
    made = Judge(record)
    made.all()
    lines: list[tuple[float, str]] = [(at, f"-- {words}") for at, words, _ in record.notes]
    lines += [(process.born, f"     {process.words()}") for job in record.jobs for process in job.processes]
    for line in record.log:
        lines.append((datetime.fromisoformat(line["timestamp"]).timestamp(), f"{line['level']} {line.get('code', '')} {line['message']}"))
    lines += [(at, f"FINDING {what}") for at, what in made.findings]
    page = [f"seed {record.schedule.seed}: {record.schedule.words()}", "", *relative(lines, record.began)]
    return "\n".join(page) + "\n", relative(sorted(made.findings), record.began)


def relative(lines: Iterable[tuple[float, str]], began: float) -> list[str]:
    def since(found: re.Match[str]) -> str:
        return f"{float(found[0]) - began:.1f}"

    return [f"{at - began:6.1f} {re.sub(r'[0-9]{10}[.][0-9]', since, text)}" for at, text in sorted(lines)]
