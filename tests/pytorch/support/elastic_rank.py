"""A rank of a rallypoint.elastic.World that keeps a record of the steps, and prints a line of JSON for each: `elastic_rank.py STEPS NODES`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from rallypoint import elastic

STEPS, NODES = int(sys.argv[1]), sys.argv[2]
SAMPLES = 24


class Work:
    """A sum over all samples of all steps, and a record of the steps that are in it."""

    def __init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)
        self.steps: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.steps = state["total"], list(state["steps"])


def say(**facts: Any) -> None:
    print(json.dumps({"at": time.time(), "pid": os.getpid(), **facts}), flush=True)


work = Work()
with elastic.World("elastic", NODES, state={"work": work}, timeout=10, join_timeout=60) as world:
    say(slot=world._group.slot, rank=world.rank, step=world.step)
    while world.step < STEPS:
        with world.try_step():
            mine = torch.tensor(float(sum(world.step * SAMPLES + n for n in range(world.rank, SAMPLES, world.size))), dtype=torch.float64)
            for _ in range(3):  # several collectives, so that a kill meets some of them done and others not
                part = mine.clone()
                dist.all_reduce(part)
            work.total = work.total + part
            work.steps = [*work.steps, world.step]
            say(step=world.step, rank=world.rank, size=world.size, round=world.round)
            time.sleep(0.02)
say(end=True, total=work.total.item(), steps=work.steps)
