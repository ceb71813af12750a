"""A model of pods: what their containers get, and what Kubernetes itself makes of Jobs, StatefulSets and Deployments.

Only as much as the manifests of deploy/ use. operators.py has the pods of operators.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Object = dict[str, Any]
NAMESPACE = "ml"
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
PROGRAMS = ("torchrun", "python", "ray", "rallypoint", "sleep", "mpirun", "nslookup")


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


@dataclass(eq=False)
class Pod:
    """One pod of a workload, as its maker makes it."""

    workload: Workload
    index: int
    """Its number among the pods that train together."""
    name: str
    hostname: str | None
    """The host name that DNS knows below the subdomain; pods of a Deployment have none."""
    template: Object
    address: str = ""

    @property
    def spec(self) -> Object:
        return self.template["spec"]

    @property
    def containers(self) -> list[Object]:
        return containers_of(self.template)

    @property
    def subdomain(self) -> str | None:
        return self.spec.get("subdomain") or self.workload.document["spec"].get("serviceName")

    @property
    def labels(self) -> dict[str, str]:
        return self.template["metadata"]["labels"]

    def field(self, path: str) -> str:
        """What the downward API gives for a field; an empty text for a label or an annotation that is not there, as Kubernetes does."""
        if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
            return self.template["metadata"].get(found[1], {}).get(found[2], "")
        return {
            "metadata.name": self.name,
            "metadata.namespace": NAMESPACE,
            "metadata.uid": f"uid-of-{self.name}",
            "status.podIP": self.address,
        }[path]

    def environment(self, container: Object) -> dict[str, str]:
        variables: dict[str, str] = {}
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
        if Path(command[0]).name not in ("sh", "bash"):
            return [Call(tuple(command), environment)]
        with tempfile.TemporaryDirectory() as folder:
            for program in PROGRAMS:
                script = Path(folder, program)
                script.write_text(RECORDER.replace("@PYTHON@", sys.executable))
                script.chmod(0o755)
            record = Path(folder, "record")
            record.touch()
            base = {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD_TO": str(record), "HOSTNAME": self.hostname or self.name}
            subprocess.run(command, env=base | environment, check=True, timeout=60, stdin=subprocess.DEVNULL)
            lines = [json.loads(line) for line in record.read_text().splitlines()]
        return [Call(tuple(line["argv"]), line["env"]) for line in lines]


@dataclass(eq=False)
class Workload:
    """Pods with one template: a Job, StatefulSet or Deployment, or one role of an operator's object (operators.py)."""

    document: Object
    template: Object
    count: int
    """How many pods train together; those of other roles count too."""
    kind: str
    role: str = ""
    pods: list[Pod] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.document["metadata"]["name"]

    @property
    def indexed(self) -> bool:
        return self.kind == "StatefulSet" or self.document["spec"].get("completionMode") == "Indexed"

    @property
    def containers(self) -> list[Object]:
        return containers_of(self.template)

    def add(self, name: str, hostname: str | None, template: Object) -> None:
        """Gives it one more pod."""
        self.pods.append(Pod(self, len(self.pods), name, hostname, template))

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.role}".rstrip()


def built_in(document: Object) -> Workload:
    """The pods that Kubernetes itself makes of a Job, StatefulSet or Deployment."""
    kind, name, spec, template = document["kind"], document["metadata"]["name"], document["spec"], document["spec"]["template"]
    workload = Workload(document, template, spec.get("parallelism" if kind == "Job" else "replicas", 1), kind)
    for index in range(workload.count):
        if kind == "Job":
            labels = {"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/controller-uid": "uid-of-job"}
            if workload.indexed:
                labels["batch.kubernetes.io/job-completion-index"] = str(index)
                own = with_metadata(template, labels, {"batch.kubernetes.io/job-completion-index": str(index)})
                for container in containers_of(own):
                    # Kubernetes puts it last, but no entry before it may use it: `variables` of checks.py see to that.
                    container["env"] = [{"name": "JOB_COMPLETION_INDEX", "value": str(index)}, *container.get("env", [])]
                # The end of a Job's pod name is random, and as likely all digits.
                workload.add(f"{name}-{index}-48213", f"{name}-{index}", own)
            else:
                workload.add(f"{name}-48213", None, with_metadata(template, labels))
        elif kind == "StatefulSet":
            labels = {"apps.kubernetes.io/pod-index": str(index), "controller-revision-hash": "revision-1"}
            workload.add(f"{name}-{index}", f"{name}-{index}", with_metadata(template, labels))
        else:
            workload.add(f"{name}-7c5ddbdf54-{index}x2lq", None, with_metadata(template, {"pod-template-hash": "7c5ddbdf54"}))
    return workload


def with_metadata(template: Object, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Object:
    """A copy of a pod template with more labels and annotations."""
    own = copy.deepcopy(template)
    metadata = own.setdefault("metadata", {})
    metadata["labels"] = metadata.get("labels", {}) | labels
    metadata["annotations"] = metadata.get("annotations", {}) | (annotations or {})
    return own


def containers_of(template: Object) -> list[Object]:
    """Init containers first."""
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


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
