"""The chart as helm sees it, beyond what every rendering is tested for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from checks import problems
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
    assert set(kinds) == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    template = kinds["Deployment"]["spec"]["template"]
    assert kinds["Deployment"]["metadata"]["name"] == "prod-rallypoint"
    assert template["metadata"]["labels"]["team"] == "llm"
    assert template["spec"]["terminationGracePeriodSeconds"] == 150
    arguments = template["spec"]["containers"][0]["args"]
    assert {"--drain=90s", "--listen=[::]:1234", "--admin=[::]:1235", "--log-format=json"} <= set(arguments)
    assert [port["port"] for port in kinds["Service"]["spec"]["ports"]] == [1234, 1235]
    assert [p["port"] for p in kinds["NetworkPolicy"]["spec"]["ingress"][0]["ports"]] == [1234, 1235, 29510]


def test_the_alert_finds_a_release_of_any_name() -> None:
    text = call("helm", "template", "rallypoint-for-team-a", CHART, "--set", "serviceMonitor.enabled=true")
    kinds = {document["kind"]: document for document in yaml.safe_load_all(text)}
    assert kinds["Service"]["metadata"]["labels"][kinds["ServiceMonitor"]["spec"]["jobLabel"]] == "rallypoint"


def test_notes_name_the_endpoint_that_is_there() -> None:
    assert "--rdzv-endpoint=prod-rallypoint:29500" in call("helm", "install", "prod", CHART, "--dry-run=client")
    assert "prod-rallypoint-0.prod-rallypoint:29500" in call("helm", "install", "prod", CHART, "--dry-run=client", *SIDECAR)


def test_another_chart_can_use_the_sidecar(tmp_path: Path) -> None:
    call("helm", "package", CHART, "--destination", tmp_path / "charts")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    (tmp_path / "Chart.yaml").write_text(
        f"apiVersion: v2\nname: mine\nversion: 1.0.0\ndependencies: [{{name: rallypoint, version: {version}, repository: ''}}]\n"
    )
    (tmp_path / "values.yaml").write_text("rallypoint: {networkPolicy: {enabled: false}}\n")
    job = next(d for d in render("s1") if d["kind"] == "Job")
    job["spec"]["template"]["spec"]["initContainers"][0] = "SIDECAR"
    sidecar = '{{ include "rallypoint.sidecar" .Subcharts.rallypoint | indent 6 }}'
    text = yaml.safe_dump(job).replace("      - SIDECAR", sidecar)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "job.yaml").write_text(text)
    documents = [d for d in yaml.safe_load_all(call("helm", "template", "x", tmp_path)) if d["kind"] == "Job"]
    assert problems([*documents, next(d for d in render("s1") if d["kind"] == "Service")]) == []


def test_rules_and_dashboard_are_those_of_monitoring() -> None:
    kinds = {document["kind"]: document for document in render("helm-standalone")}
    assert kinds["PrometheusRule"]["spec"] == yaml.safe_load((DEPLOY / "monitoring" / "rules.yaml").read_text())
    assert kinds["ConfigMap"]["data"]["rallypoint.json"].strip() == (DEPLOY / "monitoring" / "dashboard.json").read_text().strip()
