"""What kubectl and helm make of the sources in deploy/."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "rallypoint"
# name: folder, below deploy/
OVERLAYS = {folder.name: f"kustomize/overlays/{folder.name}" for folder in (DEPLOY / "kustomize" / "overlays").iterdir()} | {"kubeflow": "kubeflow", "kubeflow-elastic": "kubeflow/elastic"}
EVERYTHING_ON = ("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true")
# name: what `render` is to make
RENDERS = {
    **{name: ("kustomize", folder) for name, folder in sorted(OVERLAYS.items())},
    "standalone": ("kustomize", "kustomize/base/standalone"),
    "monitoring": ("kustomize", "monitoring"),
    "helm-standalone": ("helm", *EVERYTHING_ON),
    "helm-journal": ("helm", "journal.enabled=true", "journal.storageClass=fast", "journal.size=5Gi", "journal.durability=disk"),
    "helm-tls": ("helm", *EVERYTHING_ON, "tls.existingSecret=rp-tls", "tls.clientCA=ca.crt", "auth.existingSecret=rp-auth", "auth.relaysOnly=true"),
    "helm-replicas": ("helm", "replicaCount=2", "etcd.endpoints={etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379}", "etcd.prefix=rallypoint"),
    "helm-nixl": ("helm", "nixl.enabled=true", "journal.enabled=true"),
    "helm-sidecar": ("helm", *EVERYTHING_ON, "mode=sidecar", "job.image=registry.example/train:1.0", "job.nodes=3"),
}


def call(*command: str | Path) -> str:
    """Runs a program and returns its stdout; its messages are in the error if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def text(name: str) -> str:
    tool, *what = RENDERS[name]
    if tool == "kustomize":
        return call("kubectl", "kustomize", DEPLOY / what[0])
    settings = [word for setting in what for word in ("--set", setting)]
    return call("helm", "template", "rallypoint", CHART, "--kube-version", "1.29.0", *settings)


def render(name: str) -> list[dict[str, Any]]:
    """A fresh copy of the objects of one of RENDERS."""
    return [document for document in yaml.safe_load_all(text(name)) if document]


if __name__ == "__main__":
    # For programs without PyYAML: the objects of a rendering, or of a file, as JSON.
    chosen = sys.argv[1]
    objects = render(chosen) if chosen in RENDERS else list(yaml.safe_load_all(Path(chosen).read_text()))
    print(json.dumps(objects))
