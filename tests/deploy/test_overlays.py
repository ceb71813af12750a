"""Every overlay, base and chart: valid for Kubernetes' own schemas, and free of the mistakes that checks.py knows."""

from __future__ import annotations

import kubernetes_validate
import pytest
from checks import problems
from cluster import Object
from cloudcoil.models.prometheus_operator import v1 as operator
from render import OVERLAYS, RENDERS, render

OLDEST, MIDDLE = "1.29", "1.33"
NEWEST = kubernetes_validate.latest_version()
OPERATOR_KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
SCENARIOS = {"indexed-job", "smoke-test", "statefulset", "statefulset-as-job", "statefulset-journal", "driver", "ray", "platform-statefulset", "platform-job"}


def typed(document: Object) -> Object:
    """The object as the Prometheus operator's types understand it."""
    return getattr(operator, document["kind"]).model_validate(document).model_dump(by_alias=True, exclude_none=True, mode="json")


def lost(given: object, kept: object, path: str = "") -> list[str]:
    """What a typed model did not take over."""
    if isinstance(given, dict) and isinstance(kept, dict):
        gone = [f"{path}.{key}" for key in given.keys() - kept.keys()]
        return gone + [p for key in given.keys() & kept.keys() for p in lost(given[key], kept[key], f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [p for number, (g, k) in enumerate(zip(given, kept, strict=True)) for p in lost(g, k, f"{path}[{number}]")]
    return [] if given == kept else [path]


def test_every_scenario_has_an_overlay() -> None:
    assert set(OVERLAYS) == SCENARIOS


@pytest.mark.parametrize("version", [OLDEST, MIDDLE, NEWEST])
@pytest.mark.parametrize("name", RENDERS)
def test_objects_are_valid(name: str, version: str) -> None:
    documents = render(name)
    assert documents
    for document in documents:
        if document["kind"] in OPERATOR_KINDS:
            assert lost(document, typed(document)) == []
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_validator_refuses_what_is_wrong() -> None:
    job = next(document for document in render("indexed-job") if document["kind"] == "Job")
    job["spec"]["template"]["spec"]["subDomain"] = "typo"
    with pytest.raises(kubernetes_validate.ValidationError, match="subDomain"):
        kubernetes_validate.validate(job, OLDEST, strict=True)
    monitor = next(document for document in render("monitoring") if document["kind"] == "ServiceMonitor")
    monitor["spec"]["endpoint"] = []
    assert lost(monitor, typed(monitor)) == [".spec.endpoint"]


@pytest.mark.parametrize("name", RENDERS)
def test_no_known_mistake(name: str) -> None:
    assert problems(render(name)) == []


@pytest.mark.parametrize("name", ["indexed-job", "smoke-test", "statefulset-as-job", "platform-statefulset", "platform-job", "helm-sidecar"])
def test_sidecar_overlays_have_one_store(name: str) -> None:
    templates = [d["spec"]["template"]["spec"] for d in render(name) if d["kind"] in ("Job", "StatefulSet")]
    assert [c["name"] for t in templates for c in t["initContainers"][:1]] == ["rallypoint"]


def test_the_base_says_all_the_sidecar_says_in_the_chart() -> None:
    """Chart and kustomize are two texts of one thing."""

    def container(name: str) -> dict[str, object]:
        job = next(d for d in render(name) if d["kind"] == "Job")
        found = job["spec"]["template"]["spec"]["initContainers"][0]
        return {k: v for k, v in found.items() if k not in ("args", "imagePullPolicy")}

    assert container("indexed-job") == container("helm-sidecar")


def test_the_chart_says_all_the_standalone_base_says() -> None:
    base = {d["kind"]: d for d in render("standalone")}
    chart = {d["kind"]: d for d in render("helm-standalone")}
    keys = ("image", "resources", "ports", "startupProbe", "readinessProbe", "livenessProbe")
    ours, theirs = (d["Deployment"]["spec"]["template"]["spec"]["containers"][0] for d in (base, chart))
    assert {key: ours[key] for key in keys} == {key: theirs[key] for key in keys}
    assert base["Service"]["spec"]["ports"] == chart["Service"]["spec"]["ports"]
    assert base["NetworkPolicy"]["spec"]["ingress"] == chart["NetworkPolicy"]["spec"]["ingress"]
    assert base["PodDisruptionBudget"]["spec"]["maxUnavailable"] == chart["PodDisruptionBudget"]["spec"]["maxUnavailable"]


def test_the_journal_of_the_base_is_that_of_the_chart() -> None:
    def parts(name: str) -> list[object]:
        kinds = {d["kind"]: d for d in render(name)}
        pod, claim = kinds["Deployment"]["spec"]["template"]["spec"], kinds["PersistentVolumeClaim"]
        (server,) = pod["containers"]
        security = {key: pod["securityContext"][key] for key in ("fsGroup", "fsGroupChangePolicy")}
        return [claim["metadata"]["name"], claim["spec"]["accessModes"], pod["volumes"], security, server["volumeMounts"], server["startupProbe"]]

    assert parts("statefulset-journal") == parts("helm-journal")


def test_the_relay_comes_before_those_that_use_the_store() -> None:
    for name, kind in (("statefulset", "StatefulSet"), ("statefulset-journal", "StatefulSet"), ("driver", "Deployment")):
        (pods,) = [d["spec"]["template"]["spec"] for d in render(name) if d["kind"] == kind and "rallypoint-relay" in d["metadata"].get("labels", {})]
        assert [container["name"] for container in pods["initContainers"]] == ["relay", "wait"]
