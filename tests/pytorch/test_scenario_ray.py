"""The overlay of a Ray cluster in emulated pods, with real Ray."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenario import Scenario
from servers import REPOSITORY, poll

pytest_plugins = ["job_fixtures"]

VERSION = "2.50.0"
"""The one that the overlay names."""
IMAGE = f"registry.example/ray-rallypoint:{VERSION}"
FEWER = [
    ('"replicas": 4', '"replicas": 2'),
    ('"name": "RALLYPOINT_NODES", "value": "5"', '"name": "RALLYPOINT_NODES", "value": "3"'),
    ("--nodes=5", "--nodes=3"),
]
"""A node of Ray is a dozen processes, so two workers instead of four."""
SMALL = {
    "RAY_TMPDIR": "/dev/shm",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
}
"""Each pod has a /dev/shm of its own, as in a cluster. Nothing is started before it is needed."""


@pytest.fixture
def ray() -> Path:
    """The programs of an environment with Ray, made at the first time. Where there is no wheel of it the test fails, unless it is told to skip."""
    if "ray" in os.environ.get("RALLYPOINT_TEST_SKIP", "").split(","):
        pytest.skip("needs Ray's wheel, and RALLYPOINT_TEST_SKIP contains ray")
    made = subprocess.run([REPOSITORY / "scripts" / "python-env", "ray", f"ray[default]=={VERSION}"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip()) / "bin"


@pytest.mark.timeout(600)  # it may have to be downloaded
def test_overlay_ray_brings_the_nodes_of_a_ray_cluster_together(ray: Path, scenario: Callable[..., Scenario]) -> None:
    """The workers find the head, the driver's job begins when all nodes are in, and a task runs on each."""
    programs = {name: f'#!/bin/sh\nexec {ray}/{name} "$@"\n' for name in ("ray", "python")}
    pods = scenario("ray", (IMAGE, IMAGE), *FEWER, programs=programs, environment=SMALL, program="ray_program.py")
    pods.apply()
    driver = pods.jobs["ray-driver"]
    assert driver.nodes[0].process.wait(300) == 0
    nodes = [pod.address for pod in pods.cluster.pods if pod.workload.name in ("ray-head", "ray-worker")]
    assert f"tasks ran on {' '.join(nodes)}" in driver.nodes[0].output
    for name in ("ray-head", "ray-worker"):
        for node in pods.jobs[name].nodes.values():
            assert node.process.poll() is None, "it serves until it is deleted"


@pytest.mark.timeout(600)
def test_overlay_rayjob_brings_its_actors_together(ray: Path, scenario: Callable[..., Scenario]) -> None:
    """KubeRay's pods, as its source makes them: all are there before Ray starts, and the actors meet in a store that none of them hosts."""
    programs = {name: f'#!/bin/sh\nexec {ray}/{name} "$@"\n' for name in ("ray", "python")}
    environment = SMALL | {"TORCH_PACKAGES": str(Path(torch.__file__).parents[1])}
    pods = scenario("rayjob", programs=programs, environment=environment, program="ray_actors.py")
    pods.apply()
    cluster = pods.jobs["train"]
    poll(lambda: all("container ray starts" in node.output for node in cluster.nodes.values()), "Ray starts in all pods", 300)
    assert all("all 3 pods are there" in node.output for node in cluster.nodes.values())
    # KubeRay submits from a pod of its own; here a container of the head's pod does.
    head = pods["train-x7k2p-head"]
    submit = head.command([str(ray / "ray"), "job", "submit", "--address", f"http://{head.address}:8265", "--", "python", "train.py"])

    def submitted() -> str | None:
        done = subprocess.run(submit, env=os.environ | SMALL, capture_output=True, text=True, timeout=300, check=False)
        return None if "Failed to connect" in done.stderr else done.stdout + done.stderr

    assert "sums [3.0, 3.0]" in poll(submitted, "Ray takes the job", 300)
