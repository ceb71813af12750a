"""The chart as helm sees it, beyond what every rendering is tested for."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from checks import problems
from cloudcoil.models.prometheus_operator import v1 as operator
from program import PACKAGE
from render import CHART, DEPLOY, call, render

SIDECAR = ("--set", "mode=sidecar,job.image=registry.example/train:1.0")


@pytest.mark.parametrize("settings", [(), SIDECAR], ids=["standalone", "sidecar"])
def test_lint_finds_nothing(settings: tuple[str, ...]) -> None:
    call("helm", "lint", "--strict", CHART, *settings)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("mode=both", "/mode"),
        ("mode=sidecar", "/job/image"),
        ("image.tag=latest", "/image/tag"),
        ("replicas=2", "'replicas' not allowed"),
        ("extraArgs={serve}", "/extraArgs/0"),
        ("journal.durability=never", "/journal/durability"),
        ("journal.size=5", "/journal/size"),
        ("relay.server=rallypoint", "/relay/server"),
        ("ports.store=70000", "/ports/store"),
        ("networkPolicy.clientLabels=null", "missing property 'clientLabels'"),
    ],
)
def test_values_that_make_no_sense_are_refused(setting: str, reason: str) -> None:
    with pytest.raises(AssertionError, match="meet the specifications of the schema") as refused:
        call("helm", "template", "x", CHART, "--set", setting)
    assert reason in str(refused.value)


def test_settings_arrive() -> None:
    settings = "ports.store=1234,ports.admin=1235,drainSeconds=90,extraArgs={--log-format=json},podLabels.team=llm"
    documents = list(yaml.safe_load_all(call("helm", "template", "prod", CHART, "--set", settings)))
    kinds = {document["kind"]: document for document in documents}
    assert set(kinds) == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "Pod"}
    asks = kinds["Pod"]
    assert asks["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert asks["spec"]["containers"][0]["args"][:2] == ["wait", "prod-rallypoint:1234"]
    assert asks["metadata"]["labels"].items() >= {"rallypoint-client": "true"}.items(), "the NetworkPolicy lets it in"
    template = kinds["Deployment"]["spec"]["template"]
    assert kinds["Deployment"]["metadata"]["name"] == "prod-rallypoint"
    assert template["metadata"]["labels"]["team"] == "llm"
    assert template["spec"]["terminationGracePeriodSeconds"] == 150
    arguments = template["spec"]["containers"][0]["args"]
    assert {"--drain=90s", "--listen=[::]:1234", "--admin=[::]:1235", "--log-format=json"} <= set(arguments)
    assert [port["port"] for port in kinds["Service"]["spec"]["ports"]] == [1234, 1235]
    assert [p["port"] for p in kinds["NetworkPolicy"]["spec"]["ingress"][0]["ports"]] == [1234, 1235, 29510]


def test_programs_with_nixl_find_the_store() -> None:
    kinds = {document["kind"]: document for document in render("helm-nixl")}
    (port, _) = kinds["Service"]["spec"]["ports"]
    found = kinds["ConfigMap"]
    assert found["metadata"]["name"] == "rallypoint-nixl"
    assert found["data"] == {"NIXL_TCPSTORE_ENDPOINT": f"{kinds['Service']['metadata']['name']}:{port['port']}"}
    assert "ConfigMap" not in {document["kind"] for document in render("helm-journal")}
    with pytest.raises(AssertionError, match="auth.relaysOnly must be off"):
        call("helm", "template", "x", CHART, "--set", "nixl.enabled=true,auth.relaysOnly=true,auth.existingSecret=a,tls.existingSecret=b")


EVERYWHERE = """
image: {digest: "sha256:DIGEST"}
serviceAccountName: trainer
priorityClassName: high
nodeSelector: {pool: gpu}
tolerations: [{key: nvidia.com/gpu, operator: Exists}]
affinity: {nodeAffinity: {}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
imagePullSecrets: [{name: registry}]
podLabels: {team: llm}
podAnnotations: {note: here}
extraEnv: [{name: RALLYPOINT_LOG, value: debug}]
envFrom: [{configMapRef: {name: rallypoint}}]
extraVolumes: [{name: token, secret: {secretName: token}}]
extraVolumeMounts: [{name: token, mountPath: /token}]
fullnameOverride: store
""".replace("DIGEST", "0" * 64)


@pytest.mark.parametrize("settings", [(), SIDECAR], ids=["standalone", "sidecar"])
def test_what_pods_need_arrives_in_both_modes(settings: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(EVERYWHERE)
    call("helm", "lint", "--strict", CHART, "--values", tmp_path / "values.yaml", *settings)
    text = call("helm", "template", "x", CHART, "--values", tmp_path / "values.yaml", *settings)
    documents = list(yaml.safe_load_all(text))
    for document, version in itertools.product(documents, ("1.29", kubernetes_validate.latest_version())):
        kubernetes_validate.validate(document, version, strict=True)
    assert {document["metadata"]["name"] for document in documents} <= {"store", "store-test"}
    (owner,) = [document for document in documents if document["kind"] in ("Deployment", "Job")]
    template, wanted = owner["spec"]["template"], yaml.safe_load(EVERYWHERE)
    assert template["metadata"]["labels"]["team"] == "llm" and template["metadata"]["annotations"]["note"] == "here"
    spec = template["spec"]
    for name in ("serviceAccountName", "priorityClassName", "nodeSelector", "tolerations", "affinity", "imagePullSecrets"):
        assert spec[name] == wanted[name], name
    assert spec["topologySpreadConstraints"] == wanted["topologySpreadConstraints"]
    assert spec["volumes"] == wanted["extraVolumes"]
    (container,) = [c for c in [*spec.get("initContainers", []), *spec["containers"]] if c["name"] == "rallypoint"]
    assert container["image"].endswith("/rallypoint@" + wanted["image"]["digest"])
    assert container["env"][-1] == wanted["extraEnv"][0] and container["envFrom"] == wanted["envFrom"]
    assert container["volumeMounts"] == wanted["extraVolumeMounts"]


def test_pods_of_chosen_namespaces_may_use_the_store() -> None:
    def peers(*settings: str) -> object:
        kinds = {d["kind"]: d for d in yaml.safe_load_all(call("helm", "template", "x", CHART, *settings))}
        return kinds["NetworkPolicy"]["spec"]["ingress"][0]["from"]

    pods = {"podSelector": {"matchLabels": {"rallypoint-client": "true"}}}
    assert peers() == [pods]
    namespaces = {"namespaceSelector": {"matchLabels": {"team": "ml"}}}
    assert peers("--set", "networkPolicy.clientNamespaceLabels.team=ml") == [pods, namespaces | pods]


@pytest.mark.parametrize("settings", [(), SIDECAR], ids=["standalone", "sidecar"])
def test_the_token_arrives_as_the_page_on_security_says(settings: tuple[str, ...], tmp_path: Path) -> None:
    (values,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY.parent / "docs" / "security.md").read_text(), re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)
    text = call("helm", "template", "x", CHART, "--values", tmp_path / "values.yaml", *settings)
    (owner,) = [d for d in yaml.safe_load_all(text) if d["kind"] in ("Deployment", "Job")]
    spec = owner["spec"]["template"]["spec"]
    (container,) = [c for c in [*spec.get("initContainers", []), *spec["containers"]] if c["name"] == "rallypoint"]
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    assert mount["name"] == volume["name"] and volume["secret"]["secretName"] == "rallypoint-token"
    assert {"name": "RALLYPOINT_TOKEN_FILE", "value": mount["mountPath"] + "/token"} in container["env"]


def test_a_journal_is_on_a_volume_of_its_own_and_off_by_default() -> None:
    settings = "journal.enabled=true,journal.size=5Gi,journal.storageClass=fast,journal.durability=disk,extraVolumes[0].name=x"
    kinds = {d["kind"]: d for d in yaml.safe_load_all(call("helm", "template", "prod", CHART, "--set", settings))}
    claim, spec = kinds["PersistentVolumeClaim"], kinds["Deployment"]["spec"]["template"]["spec"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi" and claim["spec"]["storageClassName"] == "fast"
    (container,), (extra, volume) = spec["containers"], spec["volumes"]
    assert extra["name"] == "x" and volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"] == "prod-rallypoint-journal"
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/data"}]
    assert {"--journal=/data", "--durability=disk"} <= set(container["args"])
    # Reading a journal takes a while, and one that ends is given the time it asks for.
    assert container["startupProbe"]["failureThreshold"] == 600 and spec["terminationGracePeriodSeconds"] == 90
    without = call("helm", "template", "prod", CHART)
    assert "journal" not in without and "PersistentVolumeClaim" not in without


def test_an_etcd_has_its_certificates_and_its_user() -> None:
    at = "replicaCount=3,etcd.endpoints={a:2379,b:2379}"
    settings = f"{at},etcd.tlsSecret=certs,etcd.user=train,etcd.passwordSecret=word"
    kinds = {d["kind"]: d for d in yaml.safe_load_all(call("helm", "template", "prod", CHART, "--namespace", "ml", "--set", settings))}
    spec = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: secrets[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts == {"/etcd-tls": "certs", "/etcd-password": "word"}
    wanted = {"--journal=etcd://a:2379,b:2379/ml/prod-rallypoint", "--etcd-ca=/etcd-tls/ca.crt", "--etcd-user=train", "--etcd-password-file=/etcd-password/password"}
    assert wanted <= set(container["args"])
    assert "PersistentVolumeClaim" not in kinds and problems(list(kinds.values())) == []
    for wrong, reason in (("replicaCount=2", "needs etcd.endpoints"), (f"{at},journal.enabled=true", "set one of them")):
        with pytest.raises(AssertionError, match=reason):
            call("helm", "template", "prod", CHART, "--set", wrong)


def relay_of(tmp_path: Path, *settings: str) -> list[object]:
    """What the named template for the pods of other charts gives."""
    chart = tmp_path / "chart"
    if not chart.exists():
        shutil.copytree(CHART, chart)
        (chart / "templates" / "pod.yaml").write_text('initContainers:\n  {{- include "rallypoint.relay" . | nindent 2 }}\n')
    made = call("helm", "template", "rallypoint", chart, "--show-only", "templates/pod.yaml", *(w for s in settings for w in ("--set", s)))
    return yaml.safe_load(made)["initContainers"] or []


def test_the_relay_for_other_charts_is_the_one_of_kustomize(tmp_path: Path) -> None:
    pods = next(d for d in render("statefulset-journal") if d["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    ours, (theirs,) = pods["initContainers"][0], relay_of(tmp_path)
    assert ours == {key: value for key, value in theirs.items() if key != "imagePullPolicy"}
    assert relay_of(tmp_path, "relay.enabled=false") == []
    (other,) = relay_of(tmp_path, "relay.server=store.other:1234")
    assert other["args"] == ["relay", "--server=store.other:1234"]


def test_tls_and_tokens_come_from_secrets(tmp_path: Path) -> None:
    settings = "tls.existingSecret=rp-tls,tls.clientCA=ca.crt,auth.existingSecret=rp-auth,auth.relaysOnly=true,serviceMonitor.enabled=true"
    kinds = {d["kind"]: d for d in yaml.safe_load_all(call("helm", "template", "rallypoint", CHART, "--set", settings))}
    spec = kinds["Deployment"]["spec"]["template"]["spec"]
    (server,) = spec["containers"]
    tls, auth = "/run/rallypoint/tls", "/run/rallypoint/auth"
    flags = {"--listen=none", f"--tls-cert={tls}/tls.crt", f"--tls-key={tls}/tls.key", f"--tls-client-ca={tls}/ca.crt"}
    assert flags | {f"--token-file={auth}/tokens", "--require-token", "--open-metrics"} <= set(server["args"])
    folders = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    secrets = {volume["secret"]["secretName"]: folders[volume["name"]] for volume in spec["volumes"]}
    assert secrets == {"rp-tls": tls, "rp-auth": auth}
    assert all(server[probe]["httpGet"]["scheme"] == "HTTPS" for probe in ("startupProbe", "readinessProbe", "livenessProbe"))
    (scrape,) = kinds["ServiceMonitor"]["spec"]["endpoints"]
    assert scrape["scheme"] == "https" and scrape["tlsConfig"]["ca"]["secret"] == {"name": "rp-tls", "key": "ca.crt"}
    ports = [kinds["Service"]["spec"]["ports"], kinds["NetworkPolicy"]["spec"]["ingress"][0]["ports"], server["ports"]]
    assert [[port.get("port", port.get("containerPort")) for port in some] for some in ports] == [[29501]] * 3
    assert "Pod" not in kinds, "helm test would wait for a port that is not there"
    secrets = "relay.tlsSecret=job-tls,relay.tokenSecret=job-token"
    kinds = {d["kind"]: d for d in yaml.safe_load_all(call("helm", "template", "rallypoint", CHART, "--set", f"{settings},{secrets}"))}
    (relay,) = relay_of(tmp_path, *secrets.split(","))
    spec = kinds["Pod"]["spec"]
    assert spec["initContainers"] == [relay] and spec["containers"][0]["args"][:2] == ["wait", "127.0.0.1:29500"]
    assert {v["name"]: v["secret"]["secretName"] for v in spec["volumes"]} == {"rallypoint-tls": "job-tls", "rallypoint-auth": "job-token"}
    assert problems(list(kinds.values())) == []
    without = call("helm", "template", "rallypoint", CHART)
    assert "tls" not in without and "token" not in without

    variables = {entry["name"]: entry.get("value") for entry in relay["env"]}
    assert variables["RALLYPOINT_TLS_CA"] == f"{tls}/ca.crt" and variables["RALLYPOINT_TOKEN_FILE"] == f"{auth}/token"
    assert variables["RALLYPOINT_TLS_CLIENT_CERT"] == f"{tls}/tls.crt"
    (tmp_path / "chart" / "templates" / "pod.yaml").write_text('volumes:\n  {{- include "rallypoint.relayVolumes" . | nindent 2 }}\n')
    chosen = ("--show-only", "templates/pod.yaml", "--set", "relay.tlsSecret=job-tls,relay.tokenSecret=job-token")
    volumes = yaml.safe_load(call("helm", "template", "rallypoint", tmp_path / "chart", *chosen))["volumes"]
    assert [(v["name"], v["secret"]["secretName"]) for v in volumes] == [
        (mount["name"], name) for mount, name in zip(relay["volumeMounts"], ("job-tls", "job-token"), strict=True)
    ]


def test_the_job_gets_its_queue_and_shared_memory() -> None:
    job_settings = ("--set", "job.sharedMemory=16Gi", "--set", r"job.labels.kueue\.x-k8s\.io/queue-name=team-a")
    documents = yaml.safe_load_all(call("helm", "template", "x", CHART, *SIDECAR, *job_settings))
    (job,) = [document for document in documents if document["kind"] == "Job"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    spec = job["spec"]["template"]["spec"]
    assert spec["volumes"] == [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    assert spec["containers"][0]["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]


@pytest.mark.parametrize("settings", [(), SIDECAR], ids=["standalone", "sidecar"])
def test_how_prometheus_scrapes_can_be_chosen(settings: tuple[str, ...], tmp_path: Path) -> None:
    relabel = {"action": "replace", "targetLabel": "cluster", "replacement": "a"}
    scrape = {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}, "relabelings": [relabel], "metricRelabelings": [relabel]}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"serviceMonitor": {"enabled": True, **scrape}}))
    documents = list(yaml.safe_load_all(call("helm", "template", "x", CHART, "--values", tmp_path / "values.yaml", *settings)))
    (monitor,) = [d for d in documents if d["kind"] in ("ServiceMonitor", "PodMonitor")]
    (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.items() >= scrape.items()
    typed = getattr(operator, monitor["kind"]).model_validate(monitor).model_dump(by_alias=True, exclude_none=True, mode="json")
    assert (typed["spec"].get("endpoints") or typed["spec"]["podMetricsEndpoints"]) == [endpoint]


def test_names_can_be_chosen_and_a_parent_can_install_nothing() -> None:
    named = yaml.safe_load_all(call("helm", "template", "prod", CHART, "--set", "nameOverride=meet"))
    assert {document["metadata"]["name"] for document in named} == {"prod-meet", "prod-meet-test"}
    nothing = ("--set", "mode=none", "--set", "serviceMonitor.enabled=true")
    assert [d for d in yaml.safe_load_all(call("helm", "template", "x", CHART, *nothing)) if d] == []


def test_the_chart_says_where_it_comes_from() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["home"] == PACKAGE["repository"] and chart["sources"] == [PACKAGE["repository"]]


def test_the_alert_finds_a_release_of_any_name() -> None:
    text = call("helm", "template", "rallypoint-for-team-a", CHART, "--set", "serviceMonitor.enabled=true")
    kinds = {document["kind"]: document for document in yaml.safe_load_all(text)}
    assert kinds["Service"]["metadata"]["labels"][kinds["ServiceMonitor"]["spec"]["jobLabel"]] == "rallypoint"


def test_notes_name_the_endpoint_that_is_there() -> None:
    assert "--rdzv-endpoint=prod-rallypoint:29500" in call("helm", "install", "prod", CHART, "--dry-run=client")
    blocks = "delete poddisruptionbudget prod-rallypoint"
    assert blocks in call("helm", "install", "prod", CHART, "--dry-run=client")
    open_to_drains = ("--set", "podDisruptionBudget.maxUnavailable=1")
    assert blocks not in call("helm", "install", "prod", CHART, "--dry-run=client", *open_to_drains)
    assert "prod-rallypoint-0.prod-rallypoint:29500" in call("helm", "install", "prod", CHART, "--dry-run=client", *SIDECAR)


def test_another_chart_can_use_the_sidecar(tmp_path: Path) -> None:
    call("helm", "package", CHART, "--destination", tmp_path / "charts")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    (tmp_path / "Chart.yaml").write_text(
        f"apiVersion: v2\nname: mine\nversion: 1.0.0\ndependencies: [{{name: rallypoint, version: {version}, repository: ''}}]\n"
    )
    (tmp_path / "values.yaml").write_text("rallypoint: {networkPolicy: {enabled: false}}\n")
    job = next(d for d in render("indexed-job") if d["kind"] == "Job")
    job["spec"]["template"]["spec"]["initContainers"][0] = "SIDECAR"
    sidecar = '{{ include "rallypoint.sidecar" .Subcharts.rallypoint | indent 6 }}'
    text = yaml.safe_dump(job).replace("      - SIDECAR", sidecar)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "job.yaml").write_text(text)
    documents = [d for d in yaml.safe_load_all(call("helm", "template", "x", tmp_path)) if d["kind"] == "Job"]
    assert problems([*documents, next(d for d in render("indexed-job") if d["kind"] == "Service")]) == []


def test_rules_and_dashboard_are_those_of_monitoring() -> None:
    kinds = {document["kind"]: document for document in render("helm-standalone")}
    assert kinds["PrometheusRule"]["spec"] == yaml.safe_load((DEPLOY / "monitoring" / "rules.yaml").read_text())
    assert kinds["ConfigMap"]["data"]["rallypoint.json"].strip() == (DEPLOY / "monitoring" / "dashboard.json").read_text().strip()
