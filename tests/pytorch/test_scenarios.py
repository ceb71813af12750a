"""The deployments that users have (deploy/README.md), each to a trained and checked result, from the manifests of deploy/kustomize as they are.

Only the number of processes is made to fit this machine. Pods are emulated (scenario.py); torchrun, torch and gloo are real.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from scenario import Scenario

pytest_plugins = ["job_fixtures"]

ONE_PROCESS = ("--nproc_per_node=8", "--nproc_per_node=1")


@dataclass
class Case:
    """An overlay: what of it is changed, how many ranks come of it, and what its pods must say."""

    overlay: str
    ranks: int
    changes: list[tuple[str, str]] = field(default_factory=list)
    says: str = ""


TWO_PODS = [('"replicas": 4', '"replicas": 2'), ('"name": "POD_NUMS", "value": "4"', '"name": "POD_NUMS", "value": "2"'), ("PROC_PER_NODE=auto", "PROC_PER_NODE=2")]
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
