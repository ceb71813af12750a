"""Documents of the runs API, of any size, made from the examples in tests/data/insight."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "tests" / "data" / "insight"
NOW = 1700000100.0

Document = dict[str, Any]
ONLY_IN_THE_WHOLE = ("now", "participants", "missing", "rank_grid", "waits", "explanations", "timeline", "workers_store", "debug_server")


def example(name: str) -> Document:
    return json.loads((EXAMPLES / f"{name}.json").read_text())


def summary(run: Document) -> Document:
    """What the list and the event `run` have of a run."""
    return {name: value for name, value in run.items() if name not in ONLY_IN_THE_WHOLE}


def run_of(
    nodes: int, joined: int, *, run_id: str = "train-llm", local: int = 0, ranks_joined: int = 0, gone: tuple[int, ...] = ()
) -> Document:
    """A run of which `joined` of `nodes` have come; with `local` workers on each node, a rank grid."""
    run = copy.deepcopy(example("run_4_nodes_one_missing"))
    complete = joined == nodes
    run.update(run_id=run_id, state="running" if complete else "joining", version=joined + 1, explanation=None, explanations=[])
    there = joined - len(gone)
    run["nodes"].update(joined=there, gone=len(gone), missing=nodes - there, expected={"min": nodes, "max": nodes, "source": "flag"})
    first = run["started_at"]
    template = run["participants"][0]
    run["participants"] = [
        {
            **template,
            "node_id": f"{run_id}-{i}_12_0",
            "name": f"{run_id}-{i}",
            "peer": f"10.{i >> 14 & 255}.{i >> 7 & 127}.{i & 127}:41000",
            "rank": i if complete else None,
            "state": "gone" if i in gone else "joined",
            "joined_at": first + arrival(i, nodes),
            "after_seconds": arrival(i, nodes),
            "gone_at": NOW - 4 if i in gone else None,
            "base_rank": i * local if complete and local else None,
            "local_world_size": local or None,
        }
        for i in range(joined)
    ]
    run["missing"] = [
        {"name": f"{run_id}-{i}", "rank": i if complete else None, "presence": "closed", "last_seen": NOW - 4} for i in gone
    ]
    run["timeline"] = [
        {
            "at": first + arrival(i, nodes),
            "run_id": run_id,
            "code": "node_joined",
            "text": f"{run_id}-{i} joined round 0 ({i + 1} of {nodes} nodes)",
        }
        for i in range(max(0, joined - 20), joined)
    ]
    if local:
        size = nodes * local
        lost = {rank for node in gone for rank in range(node * local, (node + 1) * local)}
        states = "".join("." if i >= ranks_joined else "x" if i in lost else "j" for i in range(size))
        run["ranks"] = {"joined": states.count("j"), "gone": states.count("x"), "expected": size, "connected": ranks_joined}
        run["rank_grid"] = {"world_size": size, "states": states, "ranks": []}
    return run


def arrival(i: int, nodes: int) -> float:
    """Seconds after the first: most come soon, a few much later."""
    share = i / max(1, nodes - 1)
    return round(31.0 * share**3 + 2.0 * share, 3)


def missing_nodes(run: Document, *names: str) -> Document:
    """The run with these nodes named as missing, and said to be."""
    joined, expected = len(run["participants"]), run["nodes"]["expected"]["min"]
    run["missing"] += [
        {"name": name, "rank": joined + i, "presence": "announced", "last_seen": NOW - 80} for i, name in enumerate(names)
    ]
    said = explanation(
        7,
        run["run_id"],
        "nodes_missing",
        f"{run['run_id']} round 0: {joined} of {expected} nodes have joined, the first 41 s ago; announced itself: {', '.join(names)}",
        "look at the missing node's pod: is it scheduled, has its image come, does it reach this server?",
    )
    run.update(explanation=said, explanations=[said])
    return run


def explanation(number: int, run_id: str | None, code: str, text: str, remedy: str, severity: str = "warning") -> Document:
    return {
        "id": number,
        "run_id": run_id,
        "store": 29500,
        "code": code,
        "severity": severity,
        "since": NOW - 40,
        "holds": True,
        "certainty": "seen",
        "text": text,
        "remedy": remedy,
        "facts": {},
    }
