"""The debug server of torch 2.11 and later: the run's document says where its page is, for `status` and our page to link to."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

from jobs import Jobs, clients_only
from servers import REPOSITORY, Server, binary, poll

pytest_plugins = ["job_fixtures"]

PROGRAM = Path(__file__).with_name("support") / "with_debug_server.py"


def packages() -> dict[str, str]:
    """What the page of rank 0 needs besides torch."""
    command = [REPOSITORY / "scripts" / "python-env", "debug-server", "--no-deps", "tabulate==0.10.0"]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (found,) = Path(made).glob("lib/python*/site-packages")
    return {"PYTHONPATH": str(found)}


def test_the_page_of_a_runs_debug_server_is_told(rallypoint_factory: Callable[..., Server], jobs: Jobs) -> None:
    server = rallypoint_factory("--forget-run-after", "1s", "--reset-when-idle", "off")
    job = jobs.ranks(server.endpoint, program=PROGRAM, environment=clients_only(server.endpoint) | packages())
    run = f"store:{server.port}"

    def told() -> str | None:
        listed = [run["run_id"] for run in server.get_json("/api/v1/runs")["runs"]]
        return server.get_json(f"/api/v1/runs/{run}")["debug_server"] if run in listed else None

    address = poll(told, "rank 0 has told its host", 60)
    # The frontend is a process of its own, which needs its time to come.
    poll(lambda: answers(address), "the page of the debug server", 60)
    status = [binary(), "status", "--run", run, f"http://{server.host}:{server.admin_port}"]
    said = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    assert f"http://{address}" in said, said
    (job.folder / "end").touch()
    job.finish()
    poll(lambda: told() is None, "nothing listens there any more", 30)
    # The next job's page must not ask the ranks of this one.
    store = server.client()
    poll(lambda: not store.check(["debug_server/rank0"]), "its keys have gone", 30)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=5) as page:
            return b"PyTorch Distributed" in page.read()
    except OSError:
        return False
