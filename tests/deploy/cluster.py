"""A model of what Kubernetes makes of manifests: which pods there are, what their containers get, what names resolve to.

Only as much as the manifests of deploy/ use. Nothing here judges; that is in checks.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Object = dict[str, Any]
VARIABLE = re.compile(r"\$\((\w+)\)")

# Stands for every program that a start script calls: it writes down how it was called. `join` answers with a head's address.
RECORDER = """#!/bin/sh
exec @PYTHON@ -IS -c '
import json, os, sys
with open(os.environ["RECORD_TO"], "a") as record:
    record.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}) + "\\n")
if sys.argv[1:3] == ["rallypoint", "join"]:
    print("10.244.0.10:6379")
' "$(basename "$0")" "$@"
"""
PROGRAMS = ("torchrun", "python", "ray", "rallypoint", "sleep")


@dataclass(frozen=True)
class Call:
    """How a container's command ends up calling a program."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(hash=False)

    def option(self, *names: str) -> str | None:
        """The value of a torchrun flag, from `--a-b=V`, `--a_b V` or PET_A_B."""
        for name in names:
            spellings = {"--" + name, "--" + name.replace("_", "-")}
            for position, argument in enumerate(self.argv):
                flag, equals, text = argument.partition("=")
                if flag in spellings:
                    return text if equals else self.argv[position + 1]
            if variable := self.environment.get("PET_" + name.upper()):
                return variable
        return None


@dataclass
class Pod:
    """One pod of a workload."""

    workload: Workload
    index: int
    address: str

    @property
    def spec(self) -> Object:
        return self.workload.template["spec"]

    @property
    def name(self) -> str:
        name = self.workload.name
        return {
            # The end of a Job's pod name is random, and as likely all digits.
            "Job": f"{name}-{self.index}-48213" if self.workload.indexed else f"{name}-48213",
            "StatefulSet": f"{name}-{self.index}",
            "Deployment": f"{name}-7c5ddbdf54-{self.index}x2lq",
        }[self.workload.kind]

    @property
    def hostname(self) -> str | None:
        """The host name that DNS knows below the subdomain; pods of a Deployment have none."""
        if self.workload.kind == "Deployment" or not self.workload.indexed:
            return None
        return f"{self.workload.name}-{self.index}"

    @property
    def subdomain(self) -> str | None:
        return self.spec.get("subdomain") or self.workload.document["spec"].get("serviceName")

    @property
    def labels(self) -> dict[str, str]:
        own = dict(self.workload.template["metadata"]["labels"])
        if self.workload.kind == "Job":
            own |= {"batch.kubernetes.io/job-name": self.workload.name, "batch.kubernetes.io/controller-uid": "uid-of-job"}
            if self.workload.indexed:
                own["batch.kubernetes.io/job-completion-index"] = str(self.index)
        elif self.workload.kind == "StatefulSet":
            own |= {"apps.kubernetes.io/pod-index": str(self.index), "controller-revision-hash": "revision-1"}
        else:
            own["pod-template-hash"] = "7c5ddbdf54"
        return own

    def field(self, path: str) -> str:
        """What the downward API gives for a field; an empty text for a label that is not there, as Kubernetes does."""
        if label := re.fullmatch(r"metadata\.labels\['([^']+)'\]", path):
            return self.labels.get(label[1], "")
        return {
            "metadata.name": self.name,
            "metadata.namespace": "ml",
            "metadata.uid": f"uid-of-{self.name}",
            "status.podIP": self.address,
        }[path]

    def environment(self, container: Object) -> dict[str, str]:
        variables = {"JOB_COMPLETION_INDEX": str(self.index)} if self.workload.kind == "Job" and self.workload.indexed else {}
        for entry in container.get("env", []):
            if "value" in entry:
                variables[entry["name"]] = expand(entry["value"], variables)
            else:
                variables[entry["name"]] = self.field(entry["valueFrom"]["fieldRef"]["fieldPath"])
        return variables

    def command(self, container: Object) -> list[str]:
        """Command and arguments as the container starts with them."""
        variables = self.environment(container)
        words = container.get("command") or (["rallypoint"] if is_rallypoint(container) else [])
        return [expand(word, variables) for word in [*words, *container.get("args", [])]]

    def calls(self, container: Object) -> list[Call]:
        """Runs the container's command with recorders in the place of all programs."""
        command, environment = self.command(container), self.environment(container)
        if command[0] not in ("sh", "bash"):
            return [Call(tuple(command), environment)]
        with tempfile.TemporaryDirectory() as folder:
            for program in PROGRAMS:
                script = Path(folder, program)
                script.write_text(RECORDER.replace("@PYTHON@", sys.executable))
                script.chmod(0o755)
            record = Path(folder, "record")
            base = {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD_TO": str(record), "HOSTNAME": self.hostname or self.name}
            subprocess.run(command, env=base | environment, check=True, timeout=60, stdin=subprocess.DEVNULL)
            lines = [json.loads(line) for line in record.read_text().splitlines()]
        return [Call(tuple(line["argv"]), line["env"]) for line in lines]


@dataclass
class Workload:
    """A Job, StatefulSet or Deployment."""

    document: Object

    @property
    def kind(self) -> str:
        return self.document["kind"]

    @property
    def name(self) -> str:
        return self.document["metadata"]["name"]

    @property
    def template(self) -> Object:
        return self.document["spec"]["template"]

    @property
    def indexed(self) -> bool:
        return self.kind == "StatefulSet" or self.document["spec"].get("completionMode") == "Indexed"

    @property
    def count(self) -> int:
        spec = self.document["spec"]
        return spec.get("parallelism" if self.kind == "Job" else "replicas", 1)

    @property
    def containers(self) -> list[Object]:
        spec = self.template["spec"]
        return spec.get("initContainers", []) + spec["containers"]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def expand(text: str, variables: dict[str, str]) -> str:
    """$(NAME), as Kubernetes does it: what is not defined stays as it is."""
    return VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)


def is_rallypoint(container: Object) -> bool:
    """Whether the container's image is rallypoint's own."""
    return re.search(r"(^|/)rallypoint(:|$)", container["image"]) is not None


def serves(container: Object) -> bool:
    return is_rallypoint(container) and container.get("args", [None])[0] == "serve"


def relays(container: Object) -> bool:
    return is_rallypoint(container) and container.get("args", [])[:1] == ["relay"]


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


class Cluster:
    """The objects of one rendered overlay or chart, and the pods that follow from them."""

    def __init__(self, documents: list[Object]) -> None:
        self.documents = documents
        self.workloads = [Workload(d) for d in documents if d["kind"] in ("Job", "StatefulSet", "Deployment")]
        numbers = iter(range(10, 250))
        self.pods = [Pod(w, index, f"10.244.0.{next(numbers)}") for w in self.workloads for index in range(w.count)]

    def of_kind(self, kind: str) -> Iterator[Object]:
        return (d for d in self.documents if d["kind"] == kind)

    def pods_of(self, workload: Workload) -> list[Pod]:
        return [pod for pod in self.pods if pod.workload is workload]

    def service(self, name: str | None) -> Object | None:
        return next((s for s in self.of_kind("Service") if s["metadata"]["name"] == name), None)

    def selected(self, service: Object) -> list[Pod]:
        return [pod for pod in self.pods if matches(service["spec"].get("selector", {}), pod.labels)]

    def resolve(self, host: str) -> tuple[list[Pod], Object | None]:
        """The pods that a name leads to, and the ClusterIP Service in between if there is one."""
        first, _, rest = host.partition(".")
        if not rest:
            service = self.service(first)
            if service is None:
                return [], None
            return self.selected(service), None if service["spec"].get("clusterIP") == "None" else service
        service = self.service(rest)
        if service is None or service["spec"].get("clusterIP") != "None":
            return [], None
        return [pod for pod in self.selected(service) if pod.hostname == first and pod.subdomain == rest], None
