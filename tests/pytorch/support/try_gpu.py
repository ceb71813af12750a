"""Real jobs on one GPU, through servers of their own: what `scripts/try-gpu` runs.

A step is a job, or two on one store, with a server beside it. Steps run at the same time, each ends after a while whatever happens, and none stops
the others. The folder of a step has the logs, what the server showed while the job trained and after it, and recordings: `requests.jsonl` of what
the server was asked, in the form of `tests/data/samples`, or `transcript.json` of a job on PyTorch's own server, in the form of
`tests/data/transcripts`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dying import die_with_parent
from installed import PACKAGE
from jobs import Job, JobError, Jobs, clients_only
from recorder import Recorder, Transcript
from servers import HOST, Server, TorchHost, TorchServer, binary, is_ready, poll

RANK = Path(__file__).with_name("gpu_rank.py")
PATIENCE = 75
"""Seconds, for a rank to come to its training."""
FORGOTTEN = 11
"""Seconds after which a run that has a rendezvous may begin anew under its id."""


@dataclass
class Seat:
    """Where the processes of a job find store and API: at the server, a relay or a recorder."""

    store: str
    admin: str = ""


class Step:
    """A folder with a server, what stands before it, and jobs. It ends them all."""

    def __init__(self, name: str, folder: Path, backend: str, torch_host: TorchHost) -> None:
        self.name, self.folder, self.backend, self.torch_host = name, folder, backend, torch_host
        folder.mkdir(parents=True)
        self.jobs = Jobs(folder)
        self.lives = 0
        self.server: Server | None = None
        self.relay: subprocess.Popen[bytes] | None = None
        self.observed: dict[str, Any] = {}

    def serve(self, *arguments: str) -> Seat:
        """Starts a server; the next one has the ports and the journal of the last."""
        self.lives += 1
        folder = self.folder / f"server-{self.lives}"
        folder.mkdir()
        if self.server:
            self.server.stop()
            arguments = (f"--listen={HOST}:{self.server.port}", f"--admin={HOST}:{self.server.admin_port}", *arguments)
        self.server = Server.start(folder, "--explain-after=5s", *arguments)
        return Seat(self.server.endpoint, f"{HOST}:{self.server.admin_port}")

    def through_relay(self, seat: Seat) -> Seat:
        ports_file, log = self.folder / "relay-ports.json", self.folder / "relay.log"
        argv = [str(binary()), "relay", f"--server={seat.admin}", "--name=node-0", f"--listen={HOST}:0", f"--admin={HOST}:0"]
        with log.open("wb") as output:
            self.relay = subprocess.Popen(
                [*argv, f"--ports-file={ports_file}"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_parent
            )
        poll(ports_file.exists, "the ports of the relay")
        ports = json.loads(ports_file.read_text())
        at = Seat(f"{HOST}:{ports['stores'][0]}", f"{HOST}:{ports['admin']}")
        poll(lambda: is_ready(at.admin), "the relay has its link")
        return at

    def watched(self) -> dict[str, str]:
        """Everything on that looks after an NCCL job. Flight recorders leave their dumps in the folder."""
        on = dict.fromkeys(["ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT", "PROPAGATE_ERROR", "DESYNC_DEBUG"], "1")
        on |= {"HEARTBEAT_TIMEOUT_SEC": "60", "COORD_CHECK_MILSEC": "500", "TRACE_BUFFER_SIZE": "500"}
        on |= {"DEBUG_INFO_TEMP_FILE": str(self.folder / "flight-recorder-"), "WAIT_TIMEOUT_DUMP_MILSEC": "3000"}
        recorder = {"TORCH_FR_BUFFER_SIZE": "500", "TORCH_FR_DUMP_TEMP_FILE": str(self.folder / "flight-recorder-")}
        nccl = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "lo"}
        return {f"TORCH_NCCL_{name}": value for name, value in on.items()} | recorder | nccl

    def start(self, mode: str, seat: Seat, *what: str, ranks: int = 1, backend: str = "", **more: str) -> Job:
        return MODES[mode](self, seat, ranks, [*(what or ("train",)), f"--backend={backend or self.backend}"], self.watched() | more)

    def look(self, when: str) -> None:
        """Writes down what the server shows now."""
        assert self.server
        status = [str(binary()), "status", f"--admin={HOST}:{self.server.admin_port}"]
        said = subprocess.run(status, capture_output=True, text=True, timeout=20)
        (self.folder / f"{when}.status.txt").write_text(said.stdout + said.stderr)
        (self.folder / f"{when}.metrics.txt").write_text(self.server.metrics())
        runs = self.server.get_json("/api/v1/runs")
        runs["each"] = [self.server.get_json(f"/api/v1/runs/{run['run_id']}") for run in runs["runs"]]
        (self.folder / f"{when}.runs.json").write_text(json.dumps(runs, indent=1))

    def train(self, job: Job, when: str) -> None:
        """Looks while the job trains, and waits for its end."""
        job.wait_for_mark("training", 0)
        time.sleep(1.5)
        self.look(when)
        job.finish()
        self.observed[when] = [json.loads(path.read_text()) for path in sorted(job.folder.glob("rank-*.json"))]

    def end(self) -> None:
        if self.server and self.server.process.poll() is None:
            time.sleep(1)
            self.look("end")
        self.jobs.kill()
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        if self.server:
            self.server.stop()


def torchrun(step: Step, endpoint: str, ranks: int, what: list[str], environment: dict[str, str], **options: Any) -> Job:
    return step.jobs.torchrun(endpoint, nodes=1, procs=ranks, program=RANK, train=what, environment=environment, **options)


def plain(step: Step, endpoint: str, ranks: int, what: list[str], environment: dict[str, str], **options: Any) -> Job:
    environment = clients_only(endpoint) | environment
    return step.jobs.ranks(endpoint, world_size=ranks, program=RANK, train=what, environment=environment, **options)


MODES: dict[str, Callable[[Step, Seat, int, list[str], dict[str, str]], Job]] = {
    "c10d": lambda step, seat, *job: torchrun(step, seat.store, *job),
    "c10d-wrapper": lambda step, seat, *job: torchrun(step, seat.store, *job, wrapped=True),
    "static": lambda step, seat, ranks, what, environment: torchrun(
        step, seat.store, ranks, what, clients_only(seat.store) | environment, backend="static"
    ),
    "env": lambda step, seat, *job: plain(step, seat.store, *job),
    "tcp": lambda step, seat, *job: plain(step, seat.store, *job, init_method=f"tcp://{seat.store}"),
    "plugin": lambda step, seat, ranks, what, environment: torchrun(
        step, seat.admin, ranks, what, environment | {"PYTHONPATH": str(PACKAGE)}, backend="rallypoint", conf=""
    ),
}


def twice(step: Step, mode: str, with_relay: bool) -> None:
    """A job, and then the same once more on the same store."""

    def both(seat: Seat) -> None:
        step.train(step.start(mode, seat), "first")
        time.sleep(FORGOTTEN if mode.startswith(("c10d", "plugin")) else 1)
        step.train(step.start(mode, seat, "train", "--eager"), "second")

    seat = step.serve()
    if with_relay:
        both(step.through_relay(seat))
    elif mode == "plugin":
        both(seat)
    else:
        with Recorder(step.server.port, step.folder / "requests.jsonl") as recorder:
            both(Seat(f"{HOST}:{recorder.port}"))


def saved(step: Step, with_relay: bool, **environment: str) -> None:
    """Asynchronous checkpoints, twice on one store."""
    seat = step.serve()
    with Recorder(step.server.port, step.folder / "requests.jsonl") as recorder:
        seat = step.through_relay(seat) if with_relay else Seat(f"{HOST}:{recorder.port}")
        for when in ("first", "second"):
            step.train(step.start("env", seat, "save", **environment), when)


def killed(step: Step, mode: str) -> None:
    """kill -9 of the server while a job behind a relay trains, three times; then the job makes new groups."""
    journal = f"--journal={step.folder / 'journal'}"
    seat = step.through_relay(step.serve(journal))
    job = step.start(mode, seat, "train", "--hold")
    job.wait_for_mark("training", 0)
    for _ in range(3):
        step.server.process.kill()
        step.server.process.wait()
        time.sleep(1.5)
        step.serve(journal)
        time.sleep(1.5)
    step.look("restarted")
    job.release()
    job.finish()


def lost(step: Step) -> None:
    """The server dies for good under a job without a relay. The job trains on, until it needs the store again."""
    job = step.start("env", step.serve(), "train", "--hold")
    job.wait_for_mark("training", 0)
    step.server.process.kill()
    step.server.process.wait()
    time.sleep(8)
    step.observed["after 8 s"] = job.nodes[0].state()
    job.release()
    step.observed["in the end"] = job.failure(0).splitlines()[-3:]


def stuck(step: Step) -> None:
    """A watchdog fires. The next job on the store does not take its report for its own."""
    seat = step.serve()
    with Recorder(step.server.port, step.folder / "requests.jsonl") as recorder:
        seat = Seat(f"{HOST}:{recorder.port}")
        job = step.start("env", seat, "stuck", "--timeout=6")
        step.observed["watchdog"] = job.failure(0).splitlines()[-3:]
        step.look("failed")
        step.train(step.start("env", seat), "second")


def two_ranks(step: Step, mode: str, with_relay: bool) -> None:
    """Two ranks with their tensors on one GPU, which meet over gloo."""
    seat = step.serve()
    with Recorder(step.server.port, step.folder / "requests.jsonl") as recorder:
        seat = step.through_relay(seat) if with_relay else Seat(f"{HOST}:{recorder.port}")
        step.train(step.start(mode, seat, ranks=2, backend="gloo"), "first")


def refused(step: Step) -> None:
    """NCCL takes no two ranks on one GPU. What it says to the store before it finds that out is recorded."""
    step.serve()
    with Recorder(step.server.port, step.folder / "requests.jsonl") as recorder:
        job = step.start("env", Seat(f"{HOST}:{recorder.port}"), ranks=2)
        time.sleep(1)
        step.observed["said"] = [line for line in job.failure(0).splitlines() if "NCCL" in line or "GPU" in line][-3:]


def recorded(
    step: Step, mode: str, *what: str, ranks: int = 1, backend: str = "", fails: bool = False, **environment: str
) -> None:
    """The job on PyTorch's own server: what our server has to say, too."""
    server = TorchServer(step.torch_host)
    try:
        release = torch.__version__.split("+")[0]
        with Transcript(server.port, step.folder / "transcript.json", release, step.name) as recorder:
            seat = Seat(f"{HOST}:{recorder.port}")
            job = step.start(mode, seat, *(what or ("train", "--seconds=2")), ranks=ranks, backend=backend, **environment)
            if fails:
                job.failure(0)
            else:
                job.finish()
            ends = ("open", "c_eof")
            poll(lambda: len({sum(chunk[0] == end for chunk in recorder.chunks) for end in ends}) == 1, "all clients have gone")
    finally:
        server.stop()


def steps(backend: str) -> dict[str, Callable[[Step], None]]:
    """The longest first."""
    ways = [("", False), ("-relay", True)]
    found: dict[str, Callable[[Step], None]] = {
        f"{mode}{way}": lambda step, mode=mode, relay=relay: twice(step, mode, relay) for mode in MODES for way, relay in ways
    }
    found |= {f"killed-{mode}": lambda step, mode=mode: killed(step, mode) for mode in ("env", "static", "plugin")}
    found["lost"] = lost
    prefixed = {"DCP_USE_PREFIX_STORE": "1"}
    found |= {f"async-save{way}": lambda step, relay=relay: saved(step, relay, **prefixed) for way, relay in ways}
    found["async-save-own-store"] = lambda step: saved(step, False)
    found |= {f"two-ranks{way}": lambda step, relay=relay: two_ranks(step, "env", relay) for way, relay in ways}
    found["two-ranks-static"] = lambda step: two_ranks(step, "static", False)
    found |= {f"recorded-{mode}": lambda step, mode=mode: recorded(step, mode) for mode in ("c10d-wrapper", "static", "env")}
    found["recorded-two-ranks"] = lambda step: recorded(step, "env", ranks=2, backend="gloo")
    found["recorded-async-save"] = lambda step: recorded(step, "env", "save", **prefixed)
    if backend == "nccl":
        found |= {"watchdog": stuck, "nccl-two-ranks": refused}
        found["recorded-watchdog"] = lambda step: recorded(step, "env", "stuck", "--timeout=6", fails=True)
        found["recorded-nccl-two-ranks"] = lambda step: recorded(step, "env", ranks=2, fails=True)
    return found


def facts() -> dict[str, Any]:
    is_there = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if is_there else None,
        "gpu": torch.cuda.get_device_name(0) if is_there else None,
        "rallypoint": subprocess.run([str(binary()), "--version"], capture_output=True, text=True).stdout.strip(),
        "python": sys.version.split()[0],
    }


def run(name: str, what: Callable[[Step], None], folder: Path, backend: str, torch_host: TorchHost) -> dict[str, Any]:
    """One step, and what came of it."""
    started, why = time.monotonic(), ""
    step = Step(name, folder / name, backend, torch_host)
    try:
        what(step)
    except (AssertionError, JobError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        why = f"{type(error).__name__}: {error}"
        (step.folder / "failed.txt").write_text("\n".join([why, *("\n".join(section) for section in step.jobs.report())]))
    try:
        step.end()
    except (OSError, subprocess.SubprocessError) as error:
        why = why or f"at its end: {error}"
    return {"step": name, "ok": not why, "why": why, "seconds": round(time.monotonic() - started, 1), **step.observed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4), help="steps at the same time")
    parser.add_argument("steps", nargs="*", help="parts of the names of the steps to run; all, if none is given")
    arguments = parser.parse_args()
    chosen = {name: step for name, step in steps(arguments.backend).items() if not arguments.steps or any(part in name for part in arguments.steps)}
    found = facts()
    if arguments.backend == "nccl" and not found["gpu"]:
        parser.error("PyTorch sees no GPU here; --backend gloo runs what does not need one")
    arguments.out.mkdir(parents=True)
    print(json.dumps(found), flush=True)
    (arguments.out / "facts.json").write_text(json.dumps(found))
    torch_host, failed = TorchHost(), 0
    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool, (arguments.out / "steps.jsonl").open("w") as results:
            begun = [pool.submit(run, name, step, arguments.out, arguments.backend, torch_host) for name, step in chosen.items()]
            for done in concurrent.futures.as_completed(begun):
                result = done.result()
                failed += not result["ok"]
                print(json.dumps(result), file=results, flush=True)
                print(f"{'ok' if result['ok'] else 'FAILED':6} {result['step']:24} {result['seconds']:5.1f} s  {result['why']}", flush=True)
    finally:
        torch_host.stop()
    print(f"{len(chosen)} steps, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
