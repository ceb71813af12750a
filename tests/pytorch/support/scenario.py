"""Runs manifests as a cluster would: emulated pods with their containers in order, a name server, ClusterIP Services.

What the objects mean is decided by tests/deploy/cluster.py. Images are not pulled: a container finds `rallypoint`, `torchrun` and `python` on its PATH, and
the user's training program (train.py, behind user_program.py) where its command line expects it. Python processes are forks of one that has torch imported
already (forks.py), which enter their container's namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from forks import ForkServer
from jobs import TRAIN, InNetwork, Job, Jobs
from nameserver import DOMAIN, NameServer
from pods import Pod, Pods
from servers import REPOSITORY, binary

sys.path.append(str(REPOSITORY / "tests" / "deploy"))
from cluster import Cluster  # noqa: E402
from workload import Object  # noqa: E402
from workload import Pod as PodOfManifest  # noqa: E402

HERE = Path(__file__).parent
ORIGINALS = REPOSITORY / "tests" / "data" / "scenarios"
SUBNET = "10.244.0"
"""The one of the addresses that the model gives to pods."""

# Two pods of one process instead of four: less for this machine to do.
TWO_OF_STATEFULSET = [('"replicas": 4', '"replicas": 2'), ('"name": "NNODES", "value": "4"', '"name": "NNODES", "value": "2"')]
TWO_OF_STATEFULSET_AS_JOB = [('"parallelism": 4', '"parallelism": 2'), TWO_OF_STATEFULSET[1]]
IN_THE_FOLDER = ('"--journal=/data"', '"--journal=journal"')
"""Emulated pods have no volumes; containers start in the scenario's folder, which stays."""
TWO_OF_DRIVER = [TWO_OF_STATEFULSET[0], ("--nodes=4", "--nodes=2"), ("--nnodes=4 --nproc_per_node=8", "--nnodes=2 --nproc_per_node=1")]


def manifest(name: str, *changes: tuple[str, str]) -> list[Object]:
    """The objects of an overlay of deploy/kustomize, or of a file; in their text each first string is replaced by the second, which must occur."""
    tools = Path(subprocess.run([REPOSITORY / "scripts" / "deploy-tools"], capture_output=True, text=True, check=True).stdout.strip())
    environment = os.environ | {"PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    command = [tools / "venv" / "bin" / "python", REPOSITORY / "tests" / "deploy" / "render.py", name]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    for old, new in changes:
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    return json.loads(text)


class Scenario:
    """The pods of some objects. Nothing runs before `start`."""

    def __init__(
        self,
        folder: Path,
        pods: Pods,
        jobs: Jobs,
        objects: list[Object],
        forks: ForkServer,
        *,
        programs: dict[str, str] | None = None,
        program: str = "user_program.py",
        environment: dict[str, str] | None = None,
        train: str = "",
    ) -> None:
        self.folder, self.train, self.environment = folder, train, environment or {}
        self.folder.mkdir()
        self.cluster = Cluster(objects)
        self.programs = self._programs(forks.programs() | (programs or {}))
        # torchrun starts its workers with PYTHON_EXEC.
        self.forks = forks.environment | {"PYTHON_EXEC": str(self.programs / "python")}
        self._training_programs(program)
        self.names = NameServer(self.folder, pods.switch(SUBNET))
        self.virtual = {
            s["metadata"]["name"]: f"10.96.0.{number}" for number, s in enumerate(self.cluster.of_kind("Service"), 10) if not headless(s)
        }
        self.pods: dict[str, Pod] = {}
        for pod in self.cluster.pods:
            self.pods[pod.name] = pods.add(pod.hostname or pod.name, pod.address, self._hosts_file(pod), self.names.resolv_file)
            self._route_services(self.pods[pod.name])
        self.publish()
        names = dict.fromkeys(workload.name for workload in self.cluster.workloads)
        self._jobs = jobs
        self.jobs = {name: self._job(jobs, [pod for pod in self.cluster.pods if pod.workload.name == name]) for name in names}

    def __getitem__(self, name: str) -> Pod:
        return self.pods[name]

    @property
    def training(self) -> Job:
        """The pods that train."""
        (job,) = (job for name, job in self.jobs.items() if name != "rallypoint")
        return job

    @property
    def server(self) -> Job:
        """The Deployment of the server, for a store that is a pod of its own."""
        return self.jobs["rallypoint"]

    def apply(self) -> None:
        """Starts all pods at once, as `kubectl apply` does."""
        for job in self.jobs.values():
            job.start(*range(len(job.places)))

    def start(self) -> Job:
        """Starts all pods at once; gives those that train."""
        self.apply()
        return self.training

    def restarted(self, annotations: dict[str, str]) -> Job:
        """Starts the containers of the pods that train once more, in the same pods, which have more annotations now."""
        pods = [pod for pod in self.cluster.pods if pod.workload.name != "rallypoint"]
        for pod in pods:
            pod.template["metadata"]["annotations"] |= annotations
        job = self._job(self._jobs, pods)
        job.start(*range(len(pods)))
        return job

    def publish(self) -> None:
        """Gives all names to the name server, as the cluster would when all pods have their address."""
        names: dict[str, list[str]] = {name: [address] for name, address in self.virtual.items()}
        for service in filter(headless, self.cluster.of_kind("Service")):
            name, selected = service["metadata"]["name"], self.cluster.selected(service)
            names[name] = [pod.address for pod in selected]
            names |= {f"{pod.hostname}.{name}": [pod.address] for pod in selected if pod.hostname and pod.subdomain == name}
        self.names.say(**names)

    def ctl(self, *words: str) -> None:
        """An operator's command, as `kubectl exec deploy/rallypoint -- rallypoint ctl …`."""
        place = next(self.pods[p.name] for p in self.cluster.pods if p.workload.name == "rallypoint")
        subprocess.run(place.command([str(binary()), "ctl", *words]), check=True, timeout=60)

    def api(self, path: str, pod: str = "") -> Any:
        """GET of an admin route of the server in this pod; without a name, the one that has a pod of its own."""
        place = self.pods[pod] if pod else next(self.pods[p.name] for p in self.cluster.pods if p.workload.name == "rallypoint")

        def get() -> Any:
            with urllib.request.urlopen(f"http://{place.address}:29501{path}", timeout=10) as answer:
                return json.load(answer)

        return place.call(get)

    def stop(self) -> None:
        self.names.stop()

    def _programs(self, extra: dict[str, str]) -> Path:
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "rallypoint").symlink_to(binary().resolve())
        for name, script in extra.items():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        return folder

    def _training_programs(self, program: str) -> None:
        for name in ("train.py", "scripts/diffusion/train.py"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / program, self.folder / name)

    def _hosts_file(self, pod: PodOfManifest) -> Path:
        """What the kubelet writes; only a pod with a subdomain knows its whole name."""
        own = pod.hostname or pod.name
        whole = f"{own}.{pod.subdomain}.{DOMAIN} {own}" if pod.subdomain else own
        file = self.folder / f"hosts-{pod.name}"
        file.write_text(f"127.0.0.1 localhost\n{pod.address} {whole}\n")
        return file

    def _route_services(self, place: Pod) -> None:
        """What kube-proxy does for ClusterIP Services. Each has at most one pod behind it here."""
        for name, address in self.virtual.items():
            service = self.cluster.service(name)
            assert service
            for pod in self.cluster.selected(service)[:1]:
                for port in service["spec"]["ports"]:
                    rule = ["-A", "OUTPUT", "-d", address, "-p", "tcp", "--dport", str(port["port"]), "-j", "DNAT"]
                    place.firewall("-t", "nat", *rule, "--to-destination", f"{pod.address}:{port['port']}")

    def _job(self, jobs: Jobs, pods: list[PodOfManifest]) -> Job:
        def command(index: int) -> list[str]:
            return [sys.executable, "-ES", str(HERE / "kubelet.py"), str(self._pod_file(pods[index], job.folder))]

        job = jobs.planned([InNetwork(self.pods[pod.name]) for pod in pods], command, len(pods))
        return job

    def _pod_file(self, pod: PodOfManifest, out: Path) -> Path:
        spec = pod.spec
        containers = [self._container(pod, container, out) for container in [*spec.get("initContainers", []), *spec["containers"]]]
        file = self.folder / f"{pod.name}.json"
        file.write_text(json.dumps({"folder": str(self.folder), "init": containers[:-1], "main": containers[-1]}))
        return file

    def _container(self, pod: PodOfManifest, container: Object, out: Path) -> dict[str, Any]:
        asked = container.get("startupProbe", {}) if container.get("restartPolicy") == "Always" else {}
        probe = asked.get("httpGet")
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        base = {
            "PATH": f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "HOSTNAME": pod.hostname or pod.name,
            "OMP_NUM_THREADS": "1",
            "NODE_INDEX": str(pod.index),
            "TRAIN": str(TRAIN),
            "TRAIN_OUT": str(out),
            "TRAIN_OPTIONS": self.train,
        }
        return {
            "name": container["name"],
            "command": self.pods[pod.name].container(self._known(pod.command(container))),
            "environment": base | self.forks | self.environment | self._service_links(pod) | pod.environment(container),
            "probe": f"http://{pod.address}:{ports.get(probe['port'], probe['port'])}{probe['path']}" if probe else "",
            "probe_command": self.pods[pod.name].container(asked["exec"]["command"]) if "exec" in asked else [],
        }

    def _known(self, command: list[str]) -> list[str]:
        """The command with the scenario's own program, where an operator names a program by its whole path."""
        own = self.programs / Path(command[0]).name
        return [str(own), *command[1:]] if own.exists() else command

    def _service_links(self, pod: PodOfManifest) -> dict[str, str]:
        """The variables that Kubernetes makes of ClusterIP Services, unless a pod declines."""
        links: dict[str, str] = {}
        if pod.spec.get("enableServiceLinks", True):
            for name, address in self.virtual.items():
                service = self.cluster.service(name)
                assert service
                prefix, port = name.upper().replace("-", "_"), service["spec"]["ports"][0]["port"]
                links |= {
                    f"{prefix}_SERVICE_HOST": address,
                    f"{prefix}_SERVICE_PORT": str(port),
                    f"{prefix}_PORT": f"tcp://{address}:{port}",
                }
        return links


def headless(service: Object) -> bool:
    return service["spec"].get("clusterIP") == "None"
