"""What goes wrong around a job in a cluster, what rallypoint says about it, and that the job trains all the same, or why it is refused.

Manifests are those of deploy/kustomize with two pods of one process; the pods are emulated (scenario.py), torchrun, torch and gloo are real.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jobs import Job
from scenario import Scenario
from servers import poll

pytest_plugins = ["job_fixtures"]

SOON = ('"serve", "--drain=30s"', '"serve", "--drain=30s", "--explain-after=2s"')
"""What is waited for is said after 2 s instead of 30 s."""
TWO_OF_S3 = [('"replicas": 4', '"replicas": 2'), ('"name": "NNODES", "value": "4"', '"name": "NNODES", "value": "2"'), SOON]
TWO_OF_S3_JOB = [('"parallelism": 4', '"parallelism": 2'), ('"name": "NNODES", "value": "4"', '"name": "NNODES", "value": "2"')]
TWO_OF_S4 = [("--nodes=4", "--nodes=2"), ("--nnodes=4 --nproc_per_node=8", "--nnodes=2 --nproc_per_node=1"), SOON]
S2 = [("--nproc_per_node=8", "--nproc_per_node=1"), ('"--drain=10m"', '"--drain=10m", "--explain-after=2s"')]
HOLD = "--hold --timeout 60"


def says(job: Job, index: int, text: str, seconds: float = 30) -> None:
    """Waits until a pod has said something."""
    poll(lambda: text in job.nodes[index].output, f"pod {index} of {job.folder.name} says {text!r}", seconds)


def wait_until_all_train(job: Job) -> None:
    for rank in range(2):
        job.wait_for_mark("training", rank)


def test_names_that_come_late(scenario: Callable[..., Scenario]) -> None:
    """For 8 s no name exists, then all do: the pods wait, and say what for."""
    pods = scenario("s3", *TWO_OF_S3)
    pods.names.say(**dict.fromkeys(pods.names.names, []))
    job = pods.start()
    for index in (0, 1):
        says(job, index, "cannot resolve `rallypoint`")
    time.sleep(6)
    pods.publish()
    job.results(2)
    assert all("is started again" not in node.output for node in job.nodes.values())


def test_name_with_every_pod_behind_it(scenario: Callable[..., Scenario]) -> None:
    """A store in pod 0 alone, but the name of all pods as its endpoint: `run` warns, finds the store, and the job trains on one store."""
    job = scenario("s3-job", *TWO_OF_S3_JOB, ("train-llm-0.train-rdzv:29500", "train-rdzv:29500")).start()
    job.results(2)
    assert "warning: `train-rdzv` has 2 addresses" in job.nodes[0].output


def test_name_with_a_store_in_every_pod_is_refused(scenario: Callable[..., Scenario]) -> None:
    """The island case: a store answers on each address, so `run` refuses before anything trains, with the reason."""
    endpoint = ("train-llm-0.train-rdzv:29500", "train-rdzv:29500")
    job = scenario("s3-job", *TWO_OF_S3_JOB, endpoint, ('"--only-on-index=0", ', "")).start()
    # The pod that comes first may be let pass to the gate, and is refused nowhere; the one that comes second sees both stores.
    refused = poll(lambda: [n for n in job.nodes.values() if n.process.poll() is not None], "a pod is refused", 40)
    assert "and a store answers on 2 of them" in refused[0].output
    assert "train-0.train" in refused[0].output
    assert not list(job.folder.glob("rank-*.json"))


def test_rank_0_late(scenario: Callable[..., Scenario]) -> None:
    """Pod 0, and with it nobody, comes 8 s late: the server names the pod that is missing, and says when it has come."""
    pods = scenario("s3", *TWO_OF_S3)
    pods.server.start(0)
    job = pods.training
    job.start(1)
    says(job, 1, "1 of 2 pods are there; missing: train-llm-0 (node rank 0)")  # said when it has lasted 8 s
    job.start(0)
    job.results(2)
    assert "2 pods are there" in job.nodes[1].output


def test_rank_0_late_behind_a_sidecar(scenario: Callable[..., Scenario]) -> None:
    """The store itself comes late, as it is in pod 0: the others wait for it, and say which step fails."""
    pods = scenario("s2", *S2)
    job = pods.training
    pods.names.say(**{"colossalai-training-0.training-master-service": []})
    job.start(1)
    says(job, 1, "cannot resolve `colossalai-training-0.training-master-service`")
    pods.publish()
    says(job, 1, "refused")
    job.start(0)
    job.results(2)


def test_loss_and_delay(scenario: Callable[..., Scenario]) -> None:
    """A tenth of all packets is lost everywhere, so that exchanges meet retransmissions of 0.2 s and more, and the way to the store takes 50 ms each way."""
    pods = scenario("s3", *TWO_OF_S3)
    for place in pods.pods.values():
        place.lose(0.1)
    server = next(place for name, place in pods.pods.items() if name.startswith("rallypoint"))
    proxy = [sys.executable, "-IS", str(Path(__file__).with_name("delay_proxy.py")), "29600", "127.0.0.1", "29500", "0.05"]
    server.firewall("-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "29500", "-j", "REDIRECT", "--to-ports", "29600")
    with subprocess.Popen(server.inside(proxy)) as slow:
        try:
            pods.start().results(2)
        finally:
            slow.kill()
    said = pods.server.nodes[0].output
    assert "2 nodes are expected (the pods' announcements)" in said
    assert "revision-1 round 0 finished: 2 nodes" in said
    assert " ERROR " not in said


def test_partition_that_heals(scenario: Callable[..., Scenario]) -> None:
    """Pod 1 is cut off from the server twice: before it has joined, which the server explains, and for 6 s while it trains, which nobody notices."""
    pods = scenario("s3", *TWO_OF_S3, train=HOLD)
    server = next(pod.address for pod in pods.cluster.pods if pod.workload.name == "rallypoint")
    cut = pods["train-llm-1"]
    cut.cut_off_from(server)
    job = pods.start()
    says(job, 0, "1 of 2 pods are there; missing: train-llm-1 (node rank 1)")
    says(job, 1, "no answer within")
    cut.heal(server)
    wait_until_all_train(job)
    cut.cut_off_from(server)
    time.sleep(6)
    cut.heal(server)
    job.release()
    job.results(2)
    assert "died or failed" not in pods.server.nodes[0].output


def test_pod_killed_and_replaced(scenario: Callable[..., Scenario]) -> None:
    """A pod of a Deployment is killed while it trains. The server says so; its replacement passes the gate at once, and training starts again."""
    pods = scenario("s4", ('"replicas": 4', '"replicas": 3'), *TWO_OF_S4, train=HOLD, programs={"sleep": "#!/bin/sh\n"})
    pods.server.start(0)
    job = pods.training
    job.start(0, 1)
    wait_until_all_train(job)
    job.kill_node(1)
    says(pods.server, 0, "died or failed: the connection closed while training")
    job.start(2)
    job.release()
    job.results(2)
    assert "pods are there" in job.nodes[2].output
    (run,) = pods.api("/api/v1/runs")["runs"]
    assert run["round"] == 1


def test_server_restarted(scenario: Callable[..., Scenario]) -> None:
    """A server that is restarted while pods wait at the gate learns of them again. One that is restarted under a c10d job ends it: torchrun's agents
    cannot do without their store, and say so."""
    pods = scenario("s3", *TWO_OF_S3, train=HOLD)
    pods.server.start(0)
    job = pods.training
    job.start(0)
    says(job, 0, "1 of 2 pods are there")
    pods.server.kill_node(0)
    says(job, 0, "rallypoint:29501")
    pods.server.start(0)
    job.start(1)
    wait_until_all_train(job)
    pods.server.kill_node(0)
    pods.server.start(0)
    for index in (0, 1):
        assert "RendezvousConnectionError" in job.failure(index)
