"""The deployments that users have (deploy/README.md), each to a trained and checked result, from the manifests of deploy/kustomize as they are.

Only the number of processes is made to fit this machine. Pods are emulated (scenario.py); torchrun, torch and gloo are real.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scenario import ORIGINALS as ORIGINALS_FOLDER
from scenario import Scenario
from servers import binary

pytest_plugins = ["job_fixtures"]

ONE_PROCESS = ("--nproc_per_node=8", "--nproc_per_node=1")


@dataclass
class Case:
    """An overlay: what of it is changed, how many ranks come of it, and what its pods must say."""

    overlay: str
    ranks: int
    changes: list[tuple[str, str]] = field(default_factory=list)
    says: str = ""


TWO_PODS = [
    ('"replicas": 4', '"replicas": 2'),
    ('"name": "POD_NUMS", "value": "4"', '"name": "POD_NUMS", "value": "2"'),
    ("PROC_PER_NODE=auto", "PROC_PER_NODE=2"),
]
CASES = [
    Case("s1", 4, [ONE_PROCESS], says="4 pods are there"),
    Case("s2", 4, [("--nproc_per_node=8", "--nproc_per_node=2")], says="2 pods are there"),
    Case("s3", 4, says="4 pods are there"),
    Case("s3-job", 4, says="starting in mode static"),
    Case("s4", 4, [ONE_PROCESS], says="4 pods are there"),
    Case("s6", 4, TWO_PODS, says="2 pods are there"),
    Case("s6-job", 4, says="starting in mode env"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.overlay)
def test_an_overlay_trains(case: Case, scenario: Callable[..., Scenario]) -> None:
    job = scenario(case.overlay, *case.changes, programs={"sleep": "#!/bin/sh\n"}).start()
    job.results(case.ranks)
    for node in job.nodes.values():
        assert case.says in node.output


@dataclass
class Original:
    """What people write today: what `doctor --manifest` says of it, and how it fails when it is run all the same."""

    manifest: str
    finds: str
    fails: str
    changes: list[tuple[str, str]] = field(default_factory=list)


# Time-outs are shortened: what follows takes up to an hour otherwise.
GIVE_UP = [ONE_PROCESS, ("timeout=1800,read_timeout=120", "timeout=1800,join_timeout=4,read_timeout=4")]
ORIGINALS = [
    Original("s1", "FAIL selector-matches-none", "The client socket has timed out|RendezvousConnectionError", GIVE_UP),
    # Each pod finds itself behind the name, hosts a store of its own and waits there alone.
    Original("s2", "FAIL endpoint-selects-all", "RendezvousTimeoutError", GIVE_UP),
    Original(
        "s4", "FAIL command-endpoint", "127.0.0.1|DistStoreError|timed out", [('"--nnodes=2"', '"--nnodes=2", "--rdzv-conf=timeout=4"')]
    ),
    Original("s6-job", "FAIL unset-variable", r"myjob-0\.\.ml\.svc"),
]


def doctor(manifest: str) -> str:
    done = subprocess.run(
        [binary(), "doctor", "--manifest", ORIGINALS_FOLDER / f"{manifest}.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda original: original.manifest)
def test_an_original_fails_as_doctor_says(original: Original, scenario: Callable[..., Scenario]) -> None:
    assert original.finds in doctor(original.manifest)
    job = scenario(str(ORIGINALS_FOLDER / f"{original.manifest}.yaml"), *original.changes, train="--timeout 8").start()
    for index in job.nodes:
        assert re.search(original.fails, job.failure(index))


def test_original_s3_falls_into_islands_that_all_succeed(scenario: Callable[..., Scenario]) -> None:
    """The name of the store is every pod. With a minimum of one node each pod trains by itself, and nothing fails."""
    assert "FAIL endpoint-selects-all" in doctor("s3")
    elastic = (
        ('"name": "NNODES", "value": "2"', '"name": "NNODES", "value": "1:2"'),
        ("train-rdzv:29500 ", "train-rdzv:29500 --rdzv_conf=last_call_timeout=1 "),
    )
    job = scenario(str(ORIGINALS_FOLDER / "s3.yaml"), *elastic).start()
    job.results(1)
    assert len(job.nodes) == 2


def test_original_s6_trains(scenario: Callable[..., Scenario]) -> None:
    """torchrun's static backend and a name that means pod 0: this works without rallypoint too, as long as pod 0 lives."""
    scenario(str(ORIGINALS_FOLDER / "s6.yaml"), ("PROC_PER_NODE=auto", "PROC_PER_NODE=2")).start().results(4)
