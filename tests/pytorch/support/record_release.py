"""Runs jobs of each launch mode with this interpreter's torch on a rallypoint server, and writes down what they ask the store for.

    record_release.py FOLDER

One file a job, in the form of `tests/data/samples`, and `surface.jsonl` with torchrun's flags and TCPStore's methods. `scripts/new-release` calls it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from jobs import Job, Jobs, clients_only
from recorder import Recorder
from servers import HOST, Server

LEGAL = Path(__file__).with_name("legal_jobs.py")


def static(jobs: Jobs, endpoint: str) -> Job:
    return jobs.torchrun(endpoint, backend="static", environment=clients_only(endpoint), train=["--new-group"])


def restarted(jobs: Jobs, endpoint: str) -> Job:
    return jobs.torchrun(endpoint, options=["--max-restarts=1"], train=["--crash", "1:0"], environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def env(**environment: str) -> Callable[[Jobs, str], Job]:
    return lambda jobs, endpoint: jobs.ranks(endpoint, environment=clients_only(endpoint) | environment, train=["--new-group", "--reinit"])


def legal(name: str, **environment: str) -> Callable[[Jobs, str], Job]:
    return lambda jobs, endpoint: jobs.ranks(endpoint, program=LEGAL, environment=clients_only(endpoint) | environment, train=[name])


JOBS: dict[str, Callable[[Jobs, str], Job]] = {
    "c10d": lambda jobs, endpoint: jobs.torchrun(endpoint, train=["--new-group"]),
    "c10d-wrapper": lambda jobs, endpoint: jobs.torchrun(endpoint, wrapped=True),
    "c10d-restart": restarted,
    "static": static,
    "env": env(),
    "env-init-barrier": env(TORCH_DIST_INIT_BARRIER="1"),
    "env-lazy-gloo": env(TORCH_GLOO_LAZY_INIT="1"),
    "debug-detail": legal("debug_detail", TORCH_DISTRIBUTED_DEBUG="DETAIL"),
    "checkpoints": legal("checkpoints"),
}


def surface() -> list[dict[str, str]]:
    """What a release can be told, and what its store can do."""
    from torch.distributed.run import get_args_parser

    flags = {option.lstrip("-").replace("_", "-") for action in get_args_parser()._actions for option in action.option_strings}
    methods = {name for name in dir(dist.TCPStore) if not name.startswith("_")}
    return [{"ev": "flag", "name": name} for name in sorted(flags)] + [{"ev": "method", "name": name} for name in sorted(methods)]


def main() -> int:
    folder = Path(sys.argv[1])
    (folder / "surface.jsonl").write_text("".join(json.dumps(row) + "\n" for row in surface()))
    failed = False
    for name, start in JOBS.items():
        print(f"new-release: {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            server, jobs = Server.start(Path(temporary)), Jobs(Path(temporary))
            try:
                with Recorder(server.port, folder / f"{name}.jsonl") as recorder:
                    start(jobs, f"{HOST}:{recorder.port}").finish()
            except AssertionError as error:
                failed = True
                print(f"new-release: {name} failed: {error}", *("\n".join(section) for section in jobs.report()), sep="\n", file=sys.stderr)
            finally:
                jobs.kill()
                server.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
