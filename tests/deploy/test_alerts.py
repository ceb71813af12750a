"""A real Prometheus scrapes a real server, and alerts fire. The rules are those of deploy/, without their waiting times."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import HOST, binary, eventually, get, running, server
from render import DEPLOY, call
from test_monitoring import first_step


class Monitored:
    """A server and the Prometheus that watches it."""

    def __init__(self, stack: ExitStack, folder: Path, *flags: str) -> None:
        self.port, self.admin, self.process = stack.enter_context(server(folder, *flags))
        rules = yaml.safe_load((DEPLOY / "monitoring" / "rules.yaml").read_text())
        for rule in rules["groups"][0]["rules"]:
            rule.pop("for", None)
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        target = {"targets": [f"{HOST}:{self.admin}"], "labels": {"namespace": "ml"}}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "rallypoint", "static_configs": [target]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        call("promtool", "check", "config", folder / "prometheus.yml")
        with socket.create_server((HOST, 0)) as free:
            self.address = f"{HOST}:{free.getsockname()[1]}"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        stack.enter_context(running([*command, f"--web.listen-address={self.address}"], folder / "prometheus.log"))
        # Twice, so that an increase after this is one that Prometheus can see.
        eventually(lambda: self.value("count_over_time(rallypoint_build_info[1m])") >= 2, "two scrapes")

    def ask(self, path: str) -> Any:
        try:
            return json.loads(get(f"http://{self.address}/api/v1/{path}"))["data"]
        except OSError:
            return {}

    def value(self, query: str) -> float:
        answer = self.ask("query?" + urllib.parse.urlencode({"query": query}))
        return float(answer["result"][0]["value"][1]) if answer and answer["result"] else 0.0

    def firing(self) -> set[str]:
        answer = self.ask("alerts")
        return {alert["labels"]["alertname"] for alert in answer.get("alerts", []) if alert["state"] == "firing"}


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[Callable[..., Monitored]]:
    with ExitStack() as stack:
        yield lambda *flags: Monitored(stack, tmp_path, *flags)


def test_refused_connections_and_a_dead_server_are_told(monitored: Callable[..., Monitored]) -> None:
    watched = monitored("--max-connections", "1")
    # Where the machine is slow a scrape may be late, and the server be taken for dead for a moment.
    assert watched.firing() <= {"RallypointDown"}, "nothing has happened yet"
    with socket.create_connection((HOST, watched.port), 60), socket.create_connection((HOST, watched.port), 60) as refused:
        assert refused.recv(1) == b"", "the second connection is closed"
    eventually(lambda: watched.firing() == {"RallypointRefusesConnections"}, "the alert of refused connections")
    watched.process.kill()
    eventually(lambda: "RallypointDown" in watched.firing(), "the alert of the dead server")


def test_a_missing_node_is_told_until_it_comes(monitored: Callable[..., Monitored], tmp_path: Path) -> None:
    watched = monitored()

    def node(index: int) -> subprocess.Popen[bytes]:
        """The announcement of a node, as its init container makes it."""
        environment = {
            "JOB_COMPLETION_INDEX": str(index),
            "POD_NAME": f"train-{index}",
            "POD_UID": f"uid-{index}",
            "PET_RDZV_ID": "train",
            "RALLYPOINT_ADMIN": f"{HOST}:{watched.admin}",
        }
        command = [str(binary()), "wait", f"{HOST}:{watched.port}", "--nodes=2", "--timeout=2m"]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    first = node(0)
    try:
        eventually(lambda: "RallypointNodeMissing" in watched.firing(), "the alert of the missing node")
        # Who follows its link knows the pod after the first step.
        _, *step = first_step("RallypointNodeMissing").replace("RUN", "train").split()
        said = call(binary(), *step, "--admin", f"http://{HOST}:{watched.admin}")
        assert re.search(r"missing: .*train-1", said), said
        second = node(1)
        assert (first.wait(60), second.wait(60)) == (0, 0)
        eventually(lambda: "RallypointNodeMissing" not in watched.firing(), "the end of the alert")
    finally:
        first.kill()
        first.wait()


def test_prometheus_scrapes_openmetrics(monitored: Callable[..., Monitored]) -> None:
    """Its parser of OpenMetrics is strict. In OpenMetrics the family of a counter has no `_total`; in the older text it has."""
    watched = monitored()
    assert watched.value("up") == 1
    assert watched.ask("metadata?metric=rallypoint_requests")["rallypoint_requests"][0]["type"] == "counter"
    assert watched.ask("metadata?metric=rallypoint_requests_total") == {}
