"""The part of `scripts/demo --elastic` that starts three ranks, kills one, starts another one, and prints what the others do.

elastic_demo.py PROGRAM FOLDER    PROGRAM is examples/elastic.py; FOLDER gets a log of each rank
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROGRAM, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS, KILL_AT, COME_AT, LIMIT_SECONDS = 200, 12, 32, 240.0
STEP = re.compile(r"^step (\d+): rank (\d+) of (\d+), loss (\S+)$", re.MULTILINE)


class Step(NamedTuple):
    number: int
    rank: int
    size: int
    loss: str


class Rank:
    """A process, and the steps that it has printed."""

    def __init__(self, number: int) -> None:
        self.log = FOLDER / f"rank-{number}.log"
        self.process = subprocess.Popen([sys.executable, PROGRAM, str(STEPS)], stdout=self.log.open("wb"), stderr=subprocess.STDOUT)

    def steps(self) -> list[Step]:
        return [Step(int(step), int(rank), int(size), loss) for step, rank, size, loss in STEP.findall(self.log.read_text())]


def say(text: str) -> None:
    print(f"\033[1mdemo:\033[0m {text}", flush=True)


def main() -> None:
    began, ranks = time.monotonic(), [Rank(number) for number in range(3)]
    shown, size, killed = -1, 0, None
    while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < began + LIMIT_SECONDS:
        time.sleep(0.02)
        for step in sorted({step for rank in ranks for step in rank.steps() if step.number > shown}):
            if step.number > shown and (step.size != size or step.number % 10 == 0):
                why = ""
                if killed and step.size < size:
                    why = f"; {time.monotonic() - killed:.1f} s after the kill, in the same processes"
                elif killed and step.size > size:
                    why = "; it got the state of the others"
                print(f"    {time.monotonic() - began:4.1f} s  step {step.number:3}: {step.size} ranks, loss {step.loss}{why}", flush=True)
                shown, size = step.number, step.size
        last = {rank: rank.steps()[-1] for rank in ranks if rank.steps()}
        victims = [rank for rank, step in last.items() if step.number >= KILL_AT and step.rank == 1]
        if killed is None and victims:
            victims[0].process.kill()
            killed = time.monotonic()
            say(f"kill -9 of rank 1, process {victims[0].process.pid}")
        elif len(ranks) == 3 and any(step.number >= COME_AT for step in last.values()):
            ranks.append(Rank(3))
            say("a new process starts; it imports torch, and the others go on")
    codes = [rank.process.poll() for rank in ranks if rank.process.poll() != -signal.SIGKILL]
    steps = {step for rank in ranks for step in rank.steps()}
    ends = {step.loss for step in steps if step.number == STEPS - 1}
    if codes != [0, 0, 0] or len(ends) != 1 or {step.number for step in steps} != set(range(STEPS)):
        sys.exit(f"codes {codes}, last losses {ends}:\n" + "".join(rank.log.read_text()[-2000:] for rank in ranks))
    say(f"done: {STEPS} steps, one loss on all ranks, and no survivor was started again")


if __name__ == "__main__":
    main()
