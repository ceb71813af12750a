"""A rank of a rallypoint.elastic.World that keeps a record of the steps, and prints a line of JSON for each:

    elastic_rank.py STEPS NODES UNTIL

It does so many steps at least. All ranks end at the step in which one of them sees the file UNTIL.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rallypoint import elastic

STEPS, NODES, UNTIL = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
SAMPLES = 24


class Work:
    """A sum over all samples of all steps, and a record of the steps that are in it."""

    def __init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)
        self.steps: list[int] = []
        self.is_over = False

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "steps": self.steps, "is_over": self.is_over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.steps, self.is_over = state["total"], list(state["steps"]), state["is_over"]


def say(**facts: Any) -> None:
    # In one write: a line is whole, or it is not there.
    os.write(1, (json.dumps({"at": time.time(), "pid": os.getpid(), **facts}) + "\n").encode())


work = Work()
with elastic.World("elastic", NODES, state={"work": work}, timeout=10, join_timeout=60) as world:
    say(
        slot=world._group.slot,
        rank=world.rank,
        step=world.step,
        store=os.environ["RALLYPOINT_ENDPOINT"],
        admin=os.environ["RALLYPOINT_ADMIN"],
    )
    while not work.is_over:
        with world.try_step():
            samples = range(world.step * SAMPLES + world.rank, (world.step + 1) * SAMPLES, world.size)
            mine = torch.tensor([sum(samples), world.step + 1 >= STEPS and UNTIL.exists()], dtype=torch.float64)
            for _ in range(3):  # several collectives, so that a kill meets some of them done and others not
                part = mine.clone()
                dist.all_reduce(part)
            work.total = work.total + part[0]
            work.steps = [*work.steps, world.step]
            work.is_over = bool(part[1])
            say(step=world.step, rank=world.rank, size=world.size, round=world.round)
            time.sleep(0.02)
say(end=True, total=work.total.item(), steps=work.steps)
