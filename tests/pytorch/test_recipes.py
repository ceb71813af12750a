"""Recipes of docs/recipes.md with the real packages: two nodes of one process each, from the same command lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Job, Jobs, ThisMachine, UnderRun
from servers import REPOSITORY, Server, binary, poll

pytest_plugins = ["job_fixtures"]

HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]


@pytest.fixture(scope="module")
def recipes() -> dict[str, str]:
    """The variable with which a program finds the frameworks, which are installed at the first time."""
    command = [REPOSITORY / "scripts" / "python-env", "recipes", "--no-deps", "--requirement", HERE / "recipes.txt"]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (packages,) = Path(made).glob("lib/python*/site-packages")
    return {"PYTHONPATH": str(packages)}


def assert_trained(job: Job) -> None:
    job.finish()
    for rank in (0, 1):
        assert any(f"rank {rank} of 2 has trained" in node.output for node in job.nodes.values())


def start(job: Job, environment: dict[str, str], *nodes: int) -> Job:
    own = job.environment
    job.environment = lambda index: own(index) | environment | {"NODE_RANK": str(index)}
    job.start(*(nodes or (0, 1)))
    return job


@pytest.mark.timeout(300)  # the frameworks may have to be downloaded
@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_under_torchrun(name: str, recipes: dict[str, str], rallypoint: Server, jobs: Jobs) -> None:
    places = [UnderRun(rallypoint, rank, 2) for rank in range(2)]
    assert_trained(start(jobs.planned(places, lambda _: [*TORCHRUN, str(HERE / "support" / f"with_{name}.py")], 2), recipes))


@pytest.mark.timeout(300)
def test_lightning_without_torchrun(recipes: dict[str, str], rallypoint: Server, jobs: Jobs) -> None:
    places = [UnderRun(rallypoint, rank, 2, "--nproc-per-node=1") for rank in range(2)]
    assert_trained(start(jobs.planned(places, lambda _: [sys.executable, str(HERE / "support" / "with_lightning.py")], 2), recipes))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("relay", ["auto", "off"])
def test_accelerate_launch_under_run(relay: str, recipes: dict[str, str], rallypoint: Server, jobs: Jobs) -> None:
    """`run` tells it who its node is. Without a relay it finds the port of the server on this host taken."""
    flags = ["--nproc-per-node=1", "--gather=off", f"--relay={relay}"]
    places = [UnderRun(rallypoint, rank, 2, *flags) for rank in range(2)]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    job = jobs.planned(places, lambda _: [*launch, str(HERE / "support" / "with_accelerate.py")], 2)
    if relay == "auto":
        assert_trained(start(job, recipes))
    else:
        start(job, recipes, 0)
        assert "another process is utilizing it" in job.failure(0)


@pytest.mark.timeout(300)
def test_accelerate_launch_goes_through_a_relay_on_another_loopback_address(
    recipes: dict[str, str], rallypoint: Server, jobs: Jobs, tmp_path: Path
) -> None:
    """On machine rank 0 accelerate refuses a port on which localhost answers, as a sidecar's does. It does not look at 127.0.0.2."""

    def launch(address: str, port: int) -> Job:
        command = ["--multi_gpu", "--num_machines=2", "--num_processes=2", f"--main_process_ip={address}", f"--main_process_port={port}"]
        command += ["--rdzv_backend=c10d", "--rdzv_conf=is_host=0"]
        program = [sys.executable, "-m", "accelerate.commands.launch", *command]
        script = str(HERE / "support" / "with_accelerate.py")
        return jobs.planned([ThisMachine()] * 2, lambda index: [*program, f"--machine_rank={index}", script], 2)

    refused = launch(rallypoint.host, rallypoint.port)
    start(refused, recipes, 0)
    assert "another process is utilizing it" in refused.failure(0)

    ports = tmp_path / "ports"
    flags = [f"--server={rallypoint.host}:{rallypoint.admin_port}", "--listen=127.0.0.2:0", "--admin=127.0.0.2:0", f"--ports-file={ports}"]
    relay = subprocess.Popen([binary(), "relay", *flags], env={"PATH": os.environ["PATH"]})
    try:
        poll(ports.exists, "the relay listens", 30)
        (port,) = json.loads(ports.read_text())["stores"]
        assert_trained(start(launch("127.0.0.2", port), recipes))
    finally:
        relay.terminate()
        relay.wait()
