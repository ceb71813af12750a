"""Rules and dashboard: sound, of one source, and about metrics that the server has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml
from program import HOST, PACKAGE, get, server
from render import DEPLOY, ROOT, call

MONITORING = DEPLOY / "monitoring"
RULES = [rule for group in yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$instance": ".*", "$run": ".*"}


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in GRAFANA.items():
                expression = expression.replace(name, value)
            assert "$" not in expression, expression
            yield expression


def metrics_in(expression: object) -> Iterator[str]:
    """The metric names that a parsed expression selects."""
    if isinstance(expression, promql_parser.VectorSelector):
        assert expression.name, "each selects a metric by its name"
        yield expression.name
        return
    for part in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        if (inner := getattr(expression, part, None)) is not None and not isinstance(inner, str):
            yield from metrics_in(inner)
    for argument in getattr(expression, "args", None) or []:
        yield from metrics_in(argument)


def metrics_of_the_program(prefix: str = "") -> set[str]:
    """The names in the program's metrics module; it writes those of runs without their prefix, so any word may be one."""
    server = ROOT / "crates" / "server" / "src"
    files = [server / "metrics.rs", *(server / "metrics").rglob("*.rs")]
    source = "".join(path.read_text() for path in files if path.exists())
    words = {word for word in re.findall(r'"([a-z_]+)"', source) if word.startswith(prefix)}
    names = {word if word.startswith("rallypoint_") else f"rallypoint_{word}" for word in words}
    assert "rallypoint_build_info" in names
    return names


def first_step(alert: str) -> str:
    """The first command of the first step that the runbook has for an alert."""
    section = (ROOT / "docs" / "runbook.md").read_text().split(f"## {alert}\n")[1].split("\n## ")[0]
    return re.split(r"^1\. Look: ", section, flags=re.MULTILINE)[1].split("`")[1]


def test_each_alert_has_its_entry_in_the_runbook() -> None:
    entries = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert entries == [rule["alert"] for rule in RULES]
    page = f"{PACKAGE['repository']}/blob/main/docs/runbook.md"
    assert [rule["annotations"]["runbook_url"] for rule in RULES] == [f"{page}#{entry.lower()}" for entry in entries]
    assert [link["url"] for link in DASHBOARD["links"]] == [page]


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES if re.search(r"node|wait|rendezvous|run_id|RunRestarted", rule["expr"] + rule["alert"])])
def test_the_first_step_of_an_alert_about_a_job_names_its_nodes(alert: str) -> None:
    assert re.match(r"rallypoint status( --run RUN)?$", first_step(alert))


def test_promtool_accepts_the_rules() -> None:
    call("promtool", "check", "rules", MONITORING / "rules.yaml")


def test_rules_fire_when_they_should_and_only_then() -> None:
    call("promtool", "test", "rules", MONITORING / "rules_test.yaml")
    tests = yaml.safe_load((MONITORING / "rules_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in RULES}


def test_the_object_for_the_operator_is_up_to_date(tmp_path: Path) -> None:
    call(MONITORING / "update", tmp_path / "made.yaml")
    assert (tmp_path / "made.yaml").read_text() == (MONITORING / "prometheusrule.yaml").read_text()
    made = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert made["spec"] == yaml.safe_load((MONITORING / "rules.yaml").read_text())


def test_every_expression_is_about_metrics_of_the_program() -> None:
    known = metrics_of_the_program()
    used = set()
    for expression in [*(rule["expr"] for rule in RULES), *dashboard_expressions()]:
        found = set(metrics_in(promql_parser.parse(expression)))
        assert found, expression
        used |= {re.sub("_(bucket|sum|count)$", "", name) for name in found}
    used = {name for name in used if not name.startswith("process_") and name != "up"}
    assert used <= known


def test_the_dashboard_shows_every_metric() -> None:
    text = json.dumps(DASHBOARD)
    assert [name for name in metrics_of_the_program("rallypoint_") if name not in text] == []


def test_panels_have_their_own_place() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        squares = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not squares & taken, panel["title"]
        taken |= squares
        if panel["type"] != "row":
            assert panel["targets"] and all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_variables_come_from_metrics_and_narrow_each_other() -> None:
    seen: list[str] = []
    for variable in DASHBOARD["templating"]["list"][1:]:
        query = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", variable["definition"])
        assert query and query[1] in metrics_of_the_program() and variable["query"]["query"] == variable["definition"]
        narrowed_by = re.findall(r'(\w+)=~"\$\1"', query[2] or "")
        assert narrowed_by == (["instance"] if variable["name"] == "run" else seen)
        # Labels that nobody sets must not hide anything; all servers are those of the chosen namespaces and jobs.
        assert (variable.get("allValue") is None) == (variable["name"] == "instance")
        seen.append(variable["name"])
    assert seen == ["cluster", "namespace", "job", "instance", "run"]


def test_the_servers_metrics_follow_the_conventions(tmp_path: Path) -> None:
    with server(tmp_path) as (_, admin, _):
        metrics = tmp_path / "metrics"
        metrics.write_text(get(f"http://{HOST}:{admin}/metrics"))
    call("sh", "-c", 'promtool check metrics <"$0"', metrics)
