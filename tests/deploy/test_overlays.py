"""Every overlay, base and chart: valid for Kubernetes' own schemas, and free of the mistakes that checks.py knows."""

from __future__ import annotations

import kubernetes_validate
import pytest
from checks import problems
from cluster import Cluster
from workload import Object
from cloudcoil.models.prometheus_operator import v1 as operator
from render import OVERLAYS, RENDERS, render

OLDEST, MIDDLE = "1.29", "1.33"
NEWEST = kubernetes_validate.latest_version()
OPERATOR_GROUPS = {"jobset.x-k8s.io", "trainer.kubeflow.org", "leaderworkerset.x-k8s.io", "batch.volcano.sh", "kubeflow.org", "ray.io"}
OPERATOR_KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
OF_OPERATORS = {"jobset", "kubeflow", "kubeflow-elastic", "leaderworkerset", "mpijob", "nixl", "pytorchjob", "rayjob", "volcano"}
SCENARIOS = OF_OPERATORS | {"indexed-job", "smoke-test", "statefulset", "statefulset-as-job", "statefulset-journal", "statefulset-replicas", "statefulset-tls", "driver", "ray", "platform-statefulset", "platform-job"}


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
        if document["apiVersion"] == "cert-manager.io/v1":
            assert document["kind"] in ("Issuer", "Certificate"), document
        elif document["kind"] in OPERATOR_KINDS:
            assert lost(document, typed(document)) == []
        elif document["apiVersion"].partition("/")[0] in OPERATOR_GROUPS:
            continue  # its pods are looked at below
        else:
            kubernetes_validate.validate(document, version, strict=True)
    for pod in Cluster(documents).pods:
        metadata = pod.template["metadata"] | {"name": pod.name}
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod.spec}, version, strict=True)


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


@pytest.mark.parametrize("name", ["statefulset-replicas", "helm-replicas"])
def test_of_two_pods_at_an_etcd_one_stands_by_and_the_leader_may_go(name: str) -> None:
    kinds = {d["kind"]: d for d in render(name)}
    spec = kinds["Deployment"]["spec"]
    (server,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 2
    # Only the leader is Ready: with less neither a rollout nor a drain could ever end it.
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == kinds["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 2
    assert server["startupProbe"]["httpGet"]["path"] == server["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "--journal=etcd://etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379/rallypoint" in server["args"]
    (apart,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_relay_comes_before_those_that_use_the_store() -> None:
    for name, kind in (("statefulset", "StatefulSet"), ("statefulset-journal", "StatefulSet"), ("driver", "Deployment")):
        (pods,) = [d["spec"]["template"]["spec"] for d in render(name) if d["kind"] == kind and "rallypoint-relay" in d["metadata"].get("labels", {})]
        assert [container["name"] for container in pods["initContainers"]] == ["relay", "wait"]


def test_certificates_and_tokens_are_where_server_and_relays_look_for_them() -> None:
    documents = render("statefulset-tls")
    certificates = {d["spec"]["secretName"]: d["spec"] for d in documents if d["kind"] == "Certificate"}
    issuers = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "Issuer"}
    assert all(spec["issuerRef"]["name"] in issuers for spec in certificates.values())
    assert issuers["rallypoint"]["ca"]["secretName"] in certificates
    (server,) = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "rallypoint"]
    (pods,) = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "StatefulSet"]
    relay = pods["initContainers"][0]

    def secret_of(pod: Object, container: Object, path: str) -> str:
        """The Secret that a file comes from; it must have the file."""
        folder, _, file = path.rpartition("/")
        (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == folder and mount["readOnly"]]
        (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == mount["name"]]
        assert "items" not in secret or {"key": file, "path": file} in secret["items"]
        return str(secret["secretName"])

    flags = dict(arg.removeprefix("--").split("=", 1) for arg in server["containers"][0]["args"] if "=" in arg)
    variables = {entry["name"]: entry.get("value", "") for entry in relay["env"]}
    assert flags["listen"] == "none" and "--require-token" in server["containers"][0]["args"]
    of_server = [secret_of(server, server["containers"][0], flags[flag]) for flag in ("tls-cert", "tls-key", "tls-client-ca", "token-file")]
    assert of_server == ["rallypoint-tls"] * 3 + ["rallypoint-auth"]
    named = ["TLS_CA", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY", "TOKEN_FILE"]
    of_relay = [secret_of(pods, relay, variables[f"RALLYPOINT_{name}"]) for name in named]
    assert of_relay == ["rallypoint-relay-tls"] * 3 + ["rallypoint-auth"]
    # The job's own processes see neither.
    assert not any(container.get("volumeMounts") for container in [*pods["containers"], pods["initContainers"][1]])
    assert "server auth" in certificates["rallypoint-tls"]["usages"] and "client auth" in certificates["rallypoint-relay-tls"]["usages"]
    (host,) = [arg.split("=")[1].split(":")[0] for arg in relay["args"] if arg.startswith("--server=")]
    assert host in certificates["rallypoint-tls"]["dnsNames"]
    container = server["containers"][0]
    assert {container[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {"HTTPS"}
    ports = [d["spec"]["ports"] for d in documents if d["kind"] == "Service" and d["metadata"]["name"] == "rallypoint"]
    assert [[port["name"] for port in some] for some in ports] == [["admin"]]
