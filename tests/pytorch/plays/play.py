"""Random plays of real PyTorch jobs, judged by what is known of their processes (scripts/play)."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from queue import Empty, Queue

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

from forks import ForkServer  # noqa: E402
from hosts import Apart, Hosts, Loopback  # noqa: E402
from judge import judge  # noqa: E402
from package import package  # noqa: E402
from record import Record  # noqa: E402
from runner import Runner  # noqa: E402
from schedule import Schedule, draw  # noqa: E402


def played(schedule: Schedule, folder: Path, forks: ForkServer, ports: str) -> Record:
    """Plays it. What was recorded stays in the folder."""

    def play(hosts: Hosts) -> Record:
        runner = Runner(folder, schedule, forks, hosts, ports)
        try:
            runner.play()
        finally:
            runner.stop()
        return runner.record

    folder.mkdir(parents=True)
    if not schedule.job.apart:
        return play(Loopback())
    hosts = Apart(folder, schedule)
    try:
        # The server runs where this thread does, and so does who looks at it.
        return hosts.pods["server"].call(lambda: play(hosts))
    finally:
        hosts.delete()


def judged(record: Record, folder: Path) -> list[str]:
    verdict, findings = judge(record)
    (folder / "verdict.txt").write_text(verdict)
    return findings


def seeds_of(text: str) -> list[int]:
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or int(first) + 1)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/play", description=__doc__)
    parser.add_argument("--seeds", default="0..20", help="FIRST..END, without END, or one (default 0..20)")
    parser.add_argument("--jobs", type=int, default=2, help="so many plays at a time (default 2)")
    parser.add_argument("--out", type=Path, help="where the records go (default: a new folder)")
    parser.add_argument("--again", type=Path, metavar="DIR", help="only judge again what is recorded there")
    parser.add_argument("--apart", choices=["drawn", "always", "never"], default="drawn", help="give each node a host of its own, which needs root (default drawn)")
    args = parser.parse_args()
    if args.again:
        found = {
            folder.name: judged(Record.load(folder / "record.json"), folder)
            for folder in sorted(args.again.glob("seed-*"), key=lambda folder: int(folder.name[5:]))
            if (folder / "record.json").exists()
        }
        print(
            "\n".join(
                f"{name}: {len(findings)} findings" + "".join(f"\n    {finding}" for finding in findings)
                for name, findings in found.items()
            )
        )
        return int(any(found.values()))
    out = args.out or Path(tempfile.mkdtemp(prefix="rallypoint-play-"))
    queue: Queue[int] = Queue()
    for seed in seeds_of(args.seeds):
        queue.put(seed)
    results: dict[int, list[str]] = {}
    total, began = queue.qsize(), time.monotonic()
    apart = None if args.apart == "drawn" else args.apart == "always"

    def work(ports: str) -> None:
        forks = ForkServer(package())
        while True:
            try:
                seed = queue.get_nowait()
            except Empty:
                break
            try:
                folder = out / f"seed-{seed}"
                findings = judged(played(draw(seed, apart), folder, forks, ports), folder)
            except Exception:
                findings = [f"the play itself failed: {traceback.format_exc()}"]
            results[seed] = findings
            said = "".join(f"\n    {finding}" for finding in findings)
            print(
                f"play: seed {seed}: {len(findings)} findings ({len(results)} of {total}, {time.monotonic() - began:.0f} s){said}",
                flush=True,
            )
        forks.stop()

    first = random.randrange(12000, 27000)
    workers = [threading.Thread(target=work, args=(f"{first + 60 * number}-{first + 60 * number + 39}",)) for number in range(args.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wrong = [seed for seed, findings in sorted(results.items()) if findings]
    print(f"play: {total - len(wrong)} of {total} plays without a finding; with: {' '.join(map(str, wrong)) or 'none'}; records in {out}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
