"""The deployments that users have (deploy/README.md), each to a trained and checked result, from the manifests of deploy/kustomize as they are.

Only the number of processes is made to fit this machine. Pods are emulated (scenario.py); torchrun, torch and gloo are real. Ray is in test_scenario_ray.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from installed import PACKAGE
from scenario import ORIGINALS as ORIGINALS_FOLDER
from scenario import IN_THE_FOLDER, TWO_OF_STATEFULSET_AS_JOB, TWO_OF_DRIVER, Scenario
from servers import binary, poll

pytest_plugins = ["job_fixtures"]

ONE_PROCESS = ("--nproc_per_node=8", "--nproc_per_node=1")


@dataclass
class Case:
    """An overlay: what of it is changed, how many ranks come of it, and what its pods must say."""

    overlay: str
    ranks: int
    changes: list[tuple[str, str]] = field(default_factory=list)
    says: str = ""
    name: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    train: str = "--no-ddp"
    """Importing what DDP needs takes a rank over a second; gradients are averaged and checked either way."""


TWO_PODS = [
    ('"replicas": 4', '"replicas": 2'),
    ('"name": "POD_NUMS", "value": "4"', '"name": "POD_NUMS", "value": "2"'),
    ("PROC_PER_NODE=auto", "PROC_PER_NODE=2"),
]
# The driver starts the processes itself, and tells each its rank.
BY_DRIVER = "RANK=$NODE_INDEX exec python train.py"
ENV_OF_DRIVER = ("torchrun --nnodes=2 --nproc_per_node=1 train.py && exec sleep infinity", f"MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True WORLD_SIZE=2 {BY_DRIVER}")
TWO_OF_KUBEFLOW = [('"numNodes": 4', '"numNodes": 2'), ('"numProcPerNode": 8', '"numProcPerNode": 1')]
FOUR_ARE_TWO = ('"name": "NNODES", "value": "4"', '"name": "NNODES", "value": "2"')
ONE_OF_COMMAND = ('"--nproc_per_node=8"', '"--nproc_per_node=1"')
RUN = "uid-of-finetune.0"
MPIRUN = (Path(__file__).parent / "support" / "mpirun.sh").read_text()
CASES = [
    Case("indexed-job", 4, [ONE_PROCESS], says="4 pods are there"),
    Case("smoke-test", 4, [("--nproc_per_node=8", "--nproc_per_node=2")], says="2 pods are there", train=""),
    Case("statefulset", 4, says="4 pods are there"),
    Case("statefulset-journal", 4, [IN_THE_FOLDER], says="linked to rallypoint:29501"),
    Case("statefulset-as-job", 2, TWO_OF_STATEFULSET_AS_JOB, says="starting in mode static"),
    Case("statefulset-as-job", 2, TWO_OF_STATEFULSET_AS_JOB, says="starting in mode plugin", name="statefulset-as-job-plugin", environment={"PYTHONPATH": str(PACKAGE)}),
    Case("driver", 2, TWO_OF_DRIVER, says="2 pods are there"),
    Case("driver", 2, [*TWO_OF_DRIVER, ENV_OF_DRIVER], says="2 pods are there", name="driver-env"),
    Case("platform-statefulset", 4, TWO_PODS, says="2 pods are there"),
    Case("platform-job", 4, says="starting in mode env"),
    Case("jobset", 4, [ONE_PROCESS], says="4 pods are there"),
    Case("kubeflow", 2, TWO_OF_KUBEFLOW, says="2 pods are there"),
    Case("leaderworkerset", 2, [ONE_OF_COMMAND, ('"replicas": 2', '"replicas": 1'), ("serve.py", "train.py")], says="starting in mode static"),
    Case("volcano", 2, [ONE_OF_COMMAND, ('"replicas": 3', '"replicas": 1')], says="starting in mode static"),
    Case("mpijob", 2, [('"replicas": 4', '"replicas": 2'), ('"32"', '"2"')], says="starting in mode env"),
    Case("pytorchjob", 2, [('"nprocPerNode": "8"', '"nprocPerNode": "1"'), ('"replicas": 3', '"replicas": 1')], says="starting in mode static"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name or case.overlay)
def test_an_overlay_trains(case: Case, scenario: Callable[..., Scenario]) -> None:
    programs = {"sleep": "#!/bin/sh\n", "nslookup": '#!/bin/sh\nexec getent hosts "$1"\n', "mpirun": MPIRUN, "sshd": MPIRUN}
    job = scenario(case.overlay, *case.changes, programs=programs, environment=case.environment, train=case.train).start()
    job.results(case.ranks)
    for index, node in job.nodes.items():
        assert case.says in node.output or (case.overlay, index) == ("mpijob", 2), "mpirun alone runs in the launcher"


def test_jobset_restarted_in_place_trains_again(scenario: Callable[..., Scenario]) -> None:
    """Pods keep their names, UIDs and addresses; only JobSet's annotation tells the attempts apart."""
    pods = scenario("jobset", ONE_PROCESS, ('"parallelism": 2', '"parallelism": 1'), ('"completions": 2', '"completions": 1'), FOUR_ARE_TWO, train="--no-ddp")
    pods.start().results(2)
    again = pods.restarted({"jobset.sigs.k8s.io/in-place-restart-attempt": "1"})
    again.results(2)
    assert "uid-of-pretrain.0.1`: all 2 pods are there" in again.nodes[0].output
    # Without the annotation the run is the one that has ended.
    assert "RendezvousClosedError" in pods.restarted({}).failure(0)


@pytest.mark.parametrize("first", ["has ended", "was killed"])
def test_leaderworkerset_restarted_in_its_pods_trains_again(first: str, scenario: Callable[..., Scenario]) -> None:
    """With restartPolicy None only containers start again: pods keep their names, UIDs and addresses, and no label counts the attempts."""
    changes = [ONE_OF_COMMAND, ('"replicas": 2', '"replicas": 1'), ("serve.py", "train.py"), ("RecreateGroupOnPodRestart", "None")]
    pods = scenario("leaderworkerset", *changes, train="--no-ddp --hold")
    job = pods.start()
    if first == "has ended":
        job.release()
        job.results(2)
    else:
        for rank in (0, 1):
            job.wait_for_mark("training", rank)
        for index in (0, 1):
            job.kill_node(index)
    again = pods.restarted({})
    again.release()
    again.results(2)


@pytest.mark.parametrize("mode", ["c10d", "static"])
def test_the_second_store_of_torchcomms_is_found_in_mode_c10d_alone(mode: str, scenario: Callable[..., Scenario]) -> None:
    """Only there MASTER_ADDR is the node of rank 0. (Done with torch, as torchcomms is not on PyPI.)"""
    changes = [ONE_OF_COMMAND, ('"replicas": 2', '"replicas": 1'), ("serve.py", "train.py")]
    patience = "30" if mode == "c10d" else "5"
    job = scenario("leaderworkerset", *changes, environment={"RALLYPOINT_MODE": mode}, program="dup_store.py", train=patience).start()
    if mode == "c10d":
        job.finish()
        assert any("rank 1 has read from rank 0" in node.output for node in job.nodes.values())
    else:
        assert re.search("timed out|refused|dup_store_port", job.failure(0) + job.failure(1))


def test_an_elastic_trainjob_trains_with_the_nodes_that_there_are(scenario: Callable[..., Scenario]) -> None:
    """Its JobSet is made smaller and larger while it trains. Nothing but `ctl expect` can end a round of fewer than four: the last call lasts for ever."""
    changes = [('"numProcPerNode": 8', '"numProcPerNode": 1'), ("join_timeout=1800", "join_timeout=1800,last_call_timeout=1700")]
    pods = scenario("kubeflow-elastic", *changes, environment={"PYTHONPATH": str(PACKAGE)}, train="--no-ddp --elastic")
    pods.server.start(0)
    poll(lambda: "serves stores on" in pods.server.nodes[0].output, "the server is up", 60)
    job = pods.training

    def expect(nodes: int) -> None:
        poll(lambda: any(run["run_id"] == RUN for run in pods.api("/api/v1/runs")["runs"]), "a node has come")
        pods.ctl("expect", RUN, str(nodes))

    def trains_with(nodes: int) -> bool:
        written = job.folder / "checkpoint.json"
        return written.exists() and json.loads(written.read_text())["world_size"] == nodes

    job.start(0, 1, 2)
    expect(3)
    poll(lambda: trains_with(3), "three nodes train", 60)
    expect(4)
    job.start(3)
    poll(lambda: trains_with(4), "the fourth has come", 60)
    job.kill_node(3)
    expect(3)
    poll(lambda: trains_with(3), "three train on", 60)
    job.release()
    job.results(3)


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
    Original("indexed-job", "FAIL selector-matches-none", "The client socket has timed out|RendezvousConnectionError", GIVE_UP),
    # Each pod finds itself behind the name, hosts a store of its own and waits there alone.
    Original("smoke-test", "FAIL endpoint", "RendezvousTimeoutError", GIVE_UP),
    Original(
        "driver", "FAIL command-endpoint", "127.0.0.1|DistStoreError|timed out", [('"--nnodes=2"', '"--nnodes=2", "--rdzv-conf=timeout=4"')]
    ),
    Original("platform-job", "FAIL unset-variable", r"myjob-0\.\.ml\.svc"),
]


def original(manifest: str) -> str:
    return str(ORIGINALS_FOLDER / f"{manifest}.yaml")


def doctor(manifest: str) -> str:
    done = subprocess.run(
        [binary(), "doctor", "--manifest", original(manifest)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_originals_fail_as_doctor_says(scenario: Callable[..., Scenario]) -> None:
    jobs = [scenario(original(one.manifest), *one.changes, train="--no-ddp --timeout 4").start() for one in ORIGINALS]
    for one, job in zip(ORIGINALS, jobs, strict=True):
        assert one.finds in doctor(one.manifest)
        for index in job.nodes:
            assert re.search(one.fails, job.failure(index)), one.manifest


def test_original_statefulset_falls_into_islands_that_all_succeed(scenario: Callable[..., Scenario]) -> None:
    """The name of the store is every pod. With a minimum of one node each pod trains by itself, and nothing fails."""
    assert "FAIL endpoint" in doctor("statefulset")
    elastic = (
        ('"name": "NNODES", "value": "2"', '"name": "NNODES", "value": "1:2"'),
        ("train-rdzv:29500 ", "train-rdzv:29500 --rdzv_conf=last_call_timeout=1 "),
    )
    job = scenario(original("statefulset"), *elastic, train="--no-ddp").start()
    job.results(1)
    assert len(job.nodes) == 2


def test_original_driver_by_environment_trains_until_the_head_moves(scenario: Callable[..., Scenario]) -> None:
    """MASTER_ADDR is the head pod's address. This works without rallypoint too, as long as the head lives: its successor has another one."""
    assert "WARN endpoint" in doctor("driver-env")
    by_driver = ('["python", "train.py"]', f'["sh", "-c", "{BY_DRIVER}"]')
    job = scenario(original("driver-env"), by_driver, train="--no-ddp").start()
    moved = scenario(original("driver-env"), by_driver, ("10.244.0.10", "10.244.0.99"), train="--no-ddp --timeout 4").start()
    job.results(2)
    for index in moved.nodes:
        assert re.search("timed out.*10.244.0.99|10.244.0.99.*timed out", moved.failure(index), re.DOTALL)


def test_original_platform_statefulset_trains(scenario: Callable[..., Scenario]) -> None:
    """torchrun's static backend and a name that means pod 0: this works without rallypoint too, as long as pod 0 lives."""
    scenario(original("platform-statefulset"), ("PROC_PER_NODE=auto", "PROC_PER_NODE=2"), train="--no-ddp").start().results(4)
