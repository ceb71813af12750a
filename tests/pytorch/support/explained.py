"""What a test expects the server to say about a job, and what it must not say while all is well.

What is said has to be in the API and in the log. Servers that are asked here must run with `--log-format json`.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
from collections.abc import Iterator
from typing import Any

from servers import Server, poll

LOG_AS_JSON = ("--log-format", "json")
SOON = LOG_AS_JSON + ("--explain-after", "2s")
"""For servers that say what is waited for when it has lasted two seconds."""
WITHIN = 30.0
"""Seconds for an explanation to appear. It only bounds a failure; a loaded machine needs half a minute at times."""
ORDINARY = {"run_started", "round_complete", "round_complete", "run_finished", "run_ended", "workers_elsewhere"}
"""All that is said about a healthy run."""
LEVELS = {"info": "INFO", "warning": "WARN", "error": "ERROR"}


def log_lines(server: Server) -> list[dict[str, Any]]:
    """The whole lines that the server has logged so far."""
    whole = server.log_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def runs(server: Server) -> list[dict[str, Any]]:
    """The runs in few words."""
    return server.get_json("/api/v1/runs")["runs"]


def explanations(server: Server) -> Iterator[dict[str, Any]]:
    """Everything that the API says at the moment, about all runs and about none."""
    listed = server.get_json("/api/v1/runs")
    yield from listed["explanations"]
    for run in listed["runs"]:
        try:
            which = {name: run[name] for name in ("store", "kind") if run[name]}
            yield from server.get_json(f"/api/v1/runs/{run['run_id']}?{urllib.parse.urlencode(which)}")["explanations"]
        except urllib.error.HTTPError as gone:
            assert gone.code == 404


def explained(server: Server, code: str, *names: str, seconds: float = WITHIN, **facts: Any) -> dict[str, Any]:
    """Returns the explanation once it is in the API, and its line in the log.

    `names` are patterns of those that are named, or of the run with its round; `facts` are some of its fields. Words are free.
    """

    def names_all(text: str) -> bool:
        return all(re.search(rf"{name}(?!\w)", text) for name in names)

    def said(explanation: dict[str, Any]) -> bool:
        return explanation["code"] == code and names_all(explanation["text"]) and facts.items() <= explanation["facts"].items()

    def logged(explanation: dict[str, Any]) -> bool:
        level, run = LEVELS[explanation["severity"]], explanation["run_id"]
        return any(
            (line["level"], line.get("run.id")) == (level, run)
            and names_all(line["message"])
            and line["message"].endswith(explanation["remedy"])
            for line in log_lines(server)
            if line.get("code") == code
        )

    try:
        return poll(
            lambda: next((one for one in explanations(server) if said(one) and logged(one)), None), f"{code}: {names} {facts}", seconds
        )
    except TimeoutError as error:
        found = [(one["code"], one["text"], one["facts"]) for one in explanations(server)]
        raise AssertionError("\n  ".join([str(error), "the API says:", *map(str, found)])) from None


def complaints(server: Server) -> list[str]:
    """Whatever was said, at any time, that is not the ordinary course of a run."""
    in_log = [
        line["message"]
        for line in log_lines(server)
        if line["level"] in ("WARN", "ERROR") or line.get("code", "run_started") not in ORDINARY
    ]
    in_api = [one["text"] for one in explanations(server) if one["severity"] != "info" or one["code"] not in ORDINARY]
    return in_log + in_api


def assert_silent(server: Server, *but: str) -> None:
    """The server has seen nothing wrong; `but` are patterns of what may have been said all the same."""
    assert [text for text in complaints(server) if not any(re.search(pattern, text) for pattern in but)] == []


def codes(server: Server) -> set[str]:
    """The codes of everything that was logged."""
    return {line["code"] for line in log_lines(server) if "code" in line}
