"""What goes wrong around a job in a cluster, what rallypoint says about it, and that the job trains all the same, or why it is refused.

Manifests are those of deploy/kustomize with two pods of one process; the pods are emulated (scenario.py), torchrun, torch and gloo are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from installed import PACKAGE
from jobs import Job
from pods import Pod
from scenario import IN_THE_FOLDER, TWO_OF_STATEFULSET, TWO_OF_STATEFULSET_AS_JOB, TWO_OF_DRIVER, Scenario
from servers import Server, binary, poll

pytest_plugins = ["job_fixtures"]

SOON = ('"serve", "--drain=30s"', '"serve", "--drain=30s", "--explain-after=2s"')
"""What is waited for is said after 2 s instead of 30 s."""
SMOKE_TEST = [("--nproc_per_node=8", "--nproc_per_node=1"), ('"--drain=10m"', '"--drain=10m", "--explain-after=2s"')]
STATEFULSET, DRIVER = [*TWO_OF_STATEFULSET, SOON], [*TWO_OF_DRIVER, SOON]
TRAIN = "--no-ddp"  # importing what DDP needs takes a rank over a second
HOLD = f"{TRAIN} --hold --timeout 60"
FIRST_OF_SMOKE_TEST = "colossalai-training-0.training-master-service"


def says(job: Job, index: int, text: str, seconds: float = 60) -> None:
    """Waits until a pod has said something."""
    poll(lambda: text in job.nodes[index].output, f"pod {index} of {job.folder.name} says {text!r}", seconds)


def wait_until_all_train(job: Job) -> None:
    for rank in range(2):
        job.wait_for_mark("training", rank)


def findings(pod: Pod, *arguments: str) -> dict[str, str]:
    """What `doctor` in a pod finds: for each check the verdict and the evidence."""
    command = pod.command([str(binary()), "doctor", "--json", *arguments])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "POD_IP": pod.address})
    return {check["id"]: f"{check['verdict']} {check['evidence']}" for check in json.loads(done.stdout)["checks"]}


def asks_name_server() -> bool:
    """Whether a process of this thread's network has a socket for port 53."""
    return ":0035 " in Path("/proc/thread-self/net/udp").read_text()


def test_doctor_in_a_pod_tells_of_slow_names_and_of_a_name_of_every_pod(scenario: Callable[..., Scenario], serve_in: Callable[[Pod], Server]) -> None:
    pods = scenario("statefulset-as-job", *TWO_OF_STATEFULSET_AS_JOB)
    first, second = (pods[pod.name] for pod in pods.cluster.pods)
    serve_in(first)
    name = "train-llm-0.train-rdzv:29500"
    found = findings(second, name)
    for check in ("one-address", "store-answers"):
        assert found[check].startswith("PASS"), found
    assert "reverse-dns" in found, "the name server was asked"
    with pods.names.silent():
        found = findings(second, f"{first.address}:29500", "--step-timeout=2s")
    assert found["reverse-dns"].startswith("WARN the name of an address takes"), found
    with ThreadPoolExecutor() as elsewhere:
        with pods.names.silent():
            late = elsewhere.submit(findings, second, name, "--step-timeout=60s")
            poll(lambda: second.call(asks_name_server), "doctor asks the name server", 60)
            time.sleep(1.2)
        assert late.result()["name-resolves"].startswith("WARN the name server took"), late.result()
    assert f"{second.address} is this host: a headless Service over all pods" in findings(second, "train-rdzv:29500")["one-address"]


def test_name_with_every_pod_behind_it(scenario: Callable[..., Scenario]) -> None:
    """A store in pod 0 alone, but the name of all pods as its endpoint: `run` warns, finds the store, and the job trains on one store."""
    job = scenario("statefulset-as-job", *TWO_OF_STATEFULSET_AS_JOB, ("train-llm-0.train-rdzv:29500", "train-rdzv:29500"), train=TRAIN).start()
    job.results(2)
    assert "warning: `train-rdzv` has 2 addresses" in job.nodes[0].output


def test_name_with_a_store_in_every_pod_is_refused(scenario: Callable[..., Scenario]) -> None:
    """The island case: a store answers on each address, so a pod is refused before anything trains, with the reason. Its Job fails with it. (The pod that
    came first saw one store only; it is refused if the other stays: tests/cli/launch.rs.)"""
    endpoint = ("train-llm-0.train-rdzv:29500", "train-rdzv:29500")
    job = scenario("statefulset-as-job", *TWO_OF_STATEFULSET_AS_JOB, endpoint, ('"--only-on-index=0", ', "")).start()
    refused = poll(lambda: [n for n in job.nodes.values() if n.process.poll() is not None], "a pod is refused", 60)
    assert "and a store answers on 2 of them" in refused[0].output
    assert "name one pod (`train-0.train`)" in refused[0].output
    assert not list(job.folder.glob("rank-*.json"))


def names_late(pods: Scenario) -> None:
    """The name server says nothing, and then for the rest of 20 s that there is no such name: the pods wait, and say what for."""
    late = time.monotonic() + 20
    pods.names.say(**dict.fromkeys(pods.names.names, []))
    with pods.names.silent():
        job = pods.start()
        for index in (0, 1):
            says(job, index, "cannot resolve `rallypoint`")
    for index in (0, 1):
        says(job, index, "Name or service not known")
    time.sleep(max(0, late - time.monotonic()))
    pods.publish()
    job.results(2)
    assert all("is started again" not in node.output for node in job.nodes.values())


def pod_0_late(pods: Scenario) -> None:
    """Pod 0, and with it nobody, comes 20 s late: the server names the pod that is missing, and says when it has come."""
    late = time.monotonic() + 20
    pods.server.start(0)
    job = pods.training
    job.start(1)
    says(job, 1, "1 of 2 pods are there; missing: train-llm-0 (node rank 0)")
    time.sleep(max(0, late - time.monotonic()))
    job.start(0)
    job.results(2)
    assert "2 pods are there" in job.nodes[1].output


def store_late(pods: Scenario) -> None:
    """The store itself comes late, as it is in pod 0: the others wait for it, and say which step fails."""
    job = pods.training
    pods.names.say(**{FIRST_OF_SMOKE_TEST: []})
    job.start(1)
    says(job, 1, f"cannot resolve `{FIRST_OF_SMOKE_TEST}`")
    pods.publish()
    says(job, 1, "refused")
    job.start(0)
    job.results(2)


def loss_and_delay(pods: Scenario) -> None:
    """A tenth of all packets is lost everywhere, so that exchanges meet retransmissions of 0.2 s and more, and the way to the store takes 50 ms each way."""
    for place in pods.pods.values():
        place.lose(0.1)
    server = next(place for name, place in pods.pods.items() if name.startswith("rallypoint"))
    proxy = [sys.executable, "-IS", str(Path(__file__).with_name("support") / "delay_proxy.py"), "29600", "127.0.0.1", "29501", "0.05"]
    server.firewall("-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "29501", "-j", "REDIRECT", "--to-ports", "29600")
    with subprocess.Popen(server.inside(proxy)) as slow:
        try:
            pods.start().results(2)
        finally:
            slow.kill()
    said = pods.server.nodes[0].output
    assert "2 nodes are expected (the pods' announcements)" in said
    assert "revision-1 round 0 finished: 2 nodes" in said
    assert " ERROR " not in said


def partition_that_heals(pods: Scenario) -> None:
    """Pod 1 is cut off from the server twice: before it has joined, which the server explains, and for 6 s while it trains, which nobody notices."""
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
    assert "connection closed" not in pods.server.nodes[0].output


def pod_killed_and_replaced(pods: Scenario) -> None:
    """A pod of a Deployment is killed while it trains. The server says so when its relay stays away; its replacement passes the gate at once, and
    training starts again."""
    pods.server.start(0)
    job = pods.training
    job.start(0, 1)
    wait_until_all_train(job)
    job.kill_node(1)
    says(pods.server, 0, "its host or link did not answer")
    job.start(2)
    job.release()
    job.results(2)
    assert "pods are there" in job.nodes[2].output
    (run,) = pods.api("/api/v1/runs")["runs"]
    assert run["round"] >= 1


def pod_of_a_plugin_job_killed_and_replaced(pods: Scenario) -> None:
    """With the Python package in the image `run` chooses the plugin. A pod of the Indexed Job is lost while it trains; the survivor waits for its
    replacement, which takes its rank, and training starts anew. No restart is spent."""
    job = pods.start()
    wait_until_all_train(job)
    assert all("starting in mode plugin" in node.output for node in job.nodes.values())
    job.forget_marks()
    job.kill_node(1)
    says(job, 0, ", rank 1: the connection closed")  # the store and its log are in pod 0
    job.start(1)
    wait_until_all_train(job)
    job.release()
    assert [result["attempt"] for result in job.results(2)] == [0, 0]
    assert "round 2 complete: 2 nodes" in job.nodes[0].output


def server_restarted(pods: Scenario) -> None:
    """A server that is restarted while pods wait at the gate learns of them again. One that is restarted under a c10d job ends it: torchrun's agents
    cannot do without their store, and say so."""
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


def server_with_a_journal_killed(pods: Scenario) -> None:
    """Under a job behind relays: it waits, and goes on."""
    job = pods.start()
    wait_until_all_train(job)
    pods.server.kill_node(0)
    for index in (0, 1):
        says(job, index, "the server rallypoint:29501 has been away")
    pods.server.start(0)
    for index in (0, 1):
        says(job, index, "the server rallypoint:29501 is back")
    job.release()
    assert [result["attempt"] for result in job.results(2)] == [0, 0]


@dataclass
class Story:
    """What befalls the pods of an overlay."""

    tell: Callable[[Scenario], None]
    overlay: str
    changes: list[tuple[str, str]]
    options: dict[str, Any]


KEEP_ALIVE = ("is_host=0,", "is_host=0,keep_alive_interval=3,")
OF_PLUGIN = ('"--nproc_per_node=$(NPROC_PER_NODE)"', '"--nproc_per_node=$(NPROC_PER_NODE)", "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=3"')
ON_THE_WAY = [
    Story(names_late, "statefulset", STATEFULSET, {"train": TRAIN}),
    Story(pod_0_late, "statefulset", STATEFULSET, {"train": TRAIN}),
    Story(store_late, "smoke-test", SMOKE_TEST, {"train": TRAIN}),
    Story(loss_and_delay, "statefulset", STATEFULSET, {"train": TRAIN}),
    Story(partition_that_heals, "statefulset", STATEFULSET, {"train": HOLD}),
]
LOST = [
    Story(pod_killed_and_replaced, "driver", [('"replicas": 4', '"replicas": 3'), *DRIVER[1:], KEEP_ALIVE], {"train": HOLD, "programs": {"sleep": "#!/bin/sh\n"}}),
    Story(pod_of_a_plugin_job_killed_and_replaced, "statefulset-as-job", [*TWO_OF_STATEFULSET_AS_JOB, OF_PLUGIN], {"train": HOLD, "environment": {"PYTHONPATH": str(PACKAGE)}}),
    Story(server_restarted, "statefulset", STATEFULSET, {"train": HOLD}),
    Story(server_with_a_journal_killed, "statefulset-journal", [*STATEFULSET, IN_THE_FOLDER], {"train": HOLD}),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stories", [ON_THE_WAY, LOST], ids=["on-the-way", "lost"])
def test_what_befalls_jobs(stories: list[Story], scenario: Callable[..., Scenario]) -> None:
    """All at the same time, each on a switch of its own: they mostly wait."""
    with ThreadPoolExecutor(len(stories)) as threads:
        told = [threads.submit(story.tell, scenario(story.overlay, *story.changes, **story.options)) for story in stories]
    for one in told:
        one.result()
