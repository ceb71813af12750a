"""The emulated pods have what the table of makers knows (crates/node/src/makers), which `doctor` and `env` read: variables, labels, host names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import operators
import pytest
from render import ROOT, render
from workload import Object, containers_of

TABLE = (ROOT / "crates/node/src/makers/table.rs").read_text()
# overlay: the maker's name in the table
MAKERS = {
    "indexed-job": "IndexedJob",
    "statefulset": "StatefulSet",
    "jobset": "JobSet",
    "kubeflow": "TrainJob",
    "kubeflow-elastic": "TrainJob",
    "leaderworkerset": "LeaderWorkerSet",
    "nixl": "LeaderWorkerSet",
    "volcano": "VolcanoJob",
    "pytorchjob": "PyTorchJob",
    "mpijob": "MpiJob",
    "rayjob": "Ray",
}
# What an overlay has besides: the conditions of the table that hold in it.
HOLD = {"pytorchjob": {"When::Master", "When::Fixed"}}


@dataclass
class Facts:
    """A row of the table."""

    maker: str
    always: set[str]
    sometimes: set[str]
    labels: set[str]
    hosts: list[str]

    def knows_variable(self, name: str) -> bool:
        return any(re.fullmatch(known, name) for known in self.always | self.sometimes)


def labels_of(block: str) -> set[str]:
    """Labels of a row, also those that it takes from a constant."""
    own = set(re.findall(r'label\(\s*"([^"]+)"', block))
    return own.union(*(labels_of(constant(name)) for name in re.findall(r"\b([A-Z_]*LABELS)\b", block)))


def constant(name: str) -> str:
    found = re.search(rf"const {name}: [^=]*= ?(.*?);\n", TABLE, re.DOTALL)
    assert found, name
    return found[1]


def facts(maker: str, holds: set[str]) -> Facts:
    (block,) = re.findall(rf"(?:Facts \{{|const JOB_SET: Facts = Facts \{{)\s*maker: Maker::{maker},(.*?\.\.\w+\s*\}})", TABLE, re.DOTALL)
    always = set(re.findall(r'\bvariable\("([^"]+)"', block))
    conditional = re.findall(r'\bwhen\((When::\w+(?:\("\w+"\))?), "([^"]+)"', block)
    always |= {name for when, name in conditional if when in holds}
    prefixes = re.search(r"prefixes: &\[(.*?)\]", block, re.DOTALL)
    begins = {re.escape(prefix) + r"\w*" for prefix in re.findall(r'"([^"]+)"', prefixes[1] if prefixes else "")}
    hosts = re.search(r"hosts: &\[(.*?)\]", block, re.DOTALL)
    return Facts(maker, {filled(name) for name in always}, begins, labels_of(block), [filled(name) for name in re.findall(r'"([^"]+)"', hosts[1] if hosts else "")])


def filled(name: str) -> str:
    """A pattern for a name with placeholders."""
    return re.sub(r"\\\{\w+\\\}", r"[\\w-]+", re.escape(name))


def conditions(overlay: str, documents: list[Object]) -> set[str]:
    plugins = {plugin for document in documents for plugin in document["spec"].get("plugins", {})} if overlay == "volcano" else set()
    return HOLD.get(overlay, set()) | {f'When::Plugin("{plugin}")' for plugin in plugins}


def names(document: object) -> set[str]:
    """The names of variables, wherever in an object they are set."""
    if isinstance(document, list):
        return set().union(*map(names, document))
    if not isinstance(document, dict):
        return set()
    own = {entry["name"] for entry in document.get("env", [])}
    return own.union(*map(names, document.values()))


@pytest.mark.parametrize("overlay", MAKERS)
def test_an_emulated_pod_has_what_the_table_says(overlay: str) -> None:
    documents = render(overlay)
    known = facts(MAKERS[overlay], conditions(overlay, documents))
    given, given_keys = names(documents), {key for document in documents for key in all_keys(document)}
    by_job = labels_of(constant("JOB_LABELS"))
    pods = [pod for workload in operators.apply(documents)[0] if workload.name != "rallypoint" for pod in workload.pods]
    assert pods
    for pod in pods:
        made = {entry["name"] for container in containers_of(pod.template) for entry in container.get("env", [])}
        assert {name for name in made - given if not known.knows_variable(name)} == set(), "the table does not know them"
        missing = {pattern for pattern in known.always if not any(re.fullmatch(pattern, name) for name in made)}
        assert missing == set(), "the table says that each pod has them"
        # A Job makes the launcher of an MPIJob.
        of_maker = known.labels | by_job if pod.workload.role == "Launcher" else known.labels
        assert set(pod.labels) - given_keys - of_maker == set(), "the table does not know these labels"
        if pod.hostname and known.hosts:
            assert any(re.fullmatch(host, pod.hostname) for host in known.hosts), pod.hostname


def all_keys(document: object) -> set[str]:
    if isinstance(document, list):
        return set().union(*map(all_keys, document))
    return set(document).union(*map(all_keys, document.values())) if isinstance(document, dict) else set()


def test_each_operator_is_compared() -> None:
    made = {kind for _, kind in operators.makers([])}
    kinds = {document["kind"] for overlay in MAKERS for document in render(overlay)}
    assert made <= kinds, "operators.py makes pods of kinds that no overlay here has"


def test_a_variable_of_no_row_would_be_found() -> None:
    row = facts("LeaderWorkerSet", set())
    assert row.knows_variable("LWS_GROUP_SIZE") and row.knows_variable("TPU_NAME") and not row.knows_variable("LWS_SIZE")
    assert "PET_NNODES" in facts("PyTorchJob", {"When::Fixed"}).always
    assert "PET_NNODES" not in facts("PyTorchJob", set()).always
    assert "jobset.sigs.k8s.io/jobset-uid" in facts("TrainJob", set()).labels
