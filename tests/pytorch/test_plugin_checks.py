"""`rallypoint.check_env()` and `diagnose()`: what they make of the program's answers, and of a program that is missing or too old."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import installed
import pytest
import rallypoint
from rallypoint import ProgramError
from rallypoint._binary import find_binary
from servers import Server

pytest_plugins = ["plugin_fixtures"]

Program = Callable[..., None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program in the place of rallypoint that prints this and ends so."""

    def make(output: str = "", errors: str = "", code: int = 0) -> None:
        (tmp_path / "output").write_text(output)
        (tmp_path / "errors").write_text(errors)
        path = tmp_path / "rallypoint"
        path.write_text(f"#!/bin/sh\necho \"$*\" >{tmp_path}/arguments\ncat {tmp_path}/output\ncat {tmp_path}/errors >&2\nexit {code}\n")
        path.chmod(0o755)
        monkeypatch.setenv("RALLYPOINT_BIN", str(path))

    return make


def has_command(name: str) -> bool:
    return subprocess.run([find_binary(), name, "--help"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that came with the package."""
    monkeypatch.delenv("RALLYPOINT_BIN", raising=False)
    bundled = installed.PACKAGE / "bin" / "rallypoint"
    if bundled.exists():
        assert find_binary() == str(bundled)


def test_the_programs_own_doctor(meeting: Server, bundled: None) -> None:
    if not has_command("doctor"):
        with pytest.raises(ProgramError, match="no command `doctor`"):
            rallypoint.diagnose(meeting.endpoint)
        return
    report = rallypoint.diagnose(meeting.endpoint, environment={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port)})
    assert {check.verdict for check in report.checks} <= {"PASS", "WARN", "FAIL"} and len(report.checks) > 3
    unreachable = rallypoint.diagnose("127.0.0.1:1", environment={})
    assert not unreachable.ok and unreachable.failures[0].recommendation


def test_the_programs_own_environment_check(bundled: None) -> None:
    if not has_command("env"):
        with pytest.raises(ProgramError, match="no command `env`"):
            rallypoint.check_env()
        return
    good = rallypoint.check_env({"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"})
    assert good.ok and good.variables["PET_NODE_RANK"] == "1"
    bad = rallypoint.check_env({"RANK": "5", "WORLD_SIZE": "2"})
    assert not bad.ok and "RANK" in bad.failures[0].evidence


def test_a_report_of_diagnose(program: Program, tmp_path: Path) -> None:
    checks = [
        {"id": "name-resolves", "verdict": "PASS", "evidence": "one address", "remedy": None},
        {"id": "clock", "verdict": "WARN", "evidence": "2 s off", "remedy": "run ntpd"},
        {"id": "reachable", "verdict": "FAIL", "evidence": "refused", "remedy": "start the server"},
    ]
    program(json.dumps({"verdict": "FAIL", "checks": checks}), code=1)
    report = rallypoint.diagnose("host:29500", command=["torchrun", "--nnodes=2"])
    assert (tmp_path / "arguments").read_text().split() == ["doctor", "--json", "host:29500", "--", "torchrun", "--nnodes=2"]
    assert not report.ok
    assert [check.name for check in report.failures] == ["reachable"]
    assert report.recommendations == ("start the server", "run ntpd")
    assert "FAIL reachable: refused\n     -> start the server" in str(report)
    assert json.loads(report.as_json())["checks"][2]["verdict"] == "FAIL"


def test_a_contradiction_of_the_environment(program: Program) -> None:
    program(errors="rallypoint: node rank 5 (from RANK) does not fit 2 nodes\n", code=2)
    report = rallypoint.check_env()
    assert [check.verdict for check in report.checks] == ["FAIL"]
    assert report.checks[0].evidence == "node rank 5 (from RANK) does not fit 2 nodes"


@pytest.mark.parametrize(
    ("output", "errors", "code", "message"),
    [
        ("", "error: unrecognized subcommand 'doctor'\n", 2, "no command `doctor`: install a newer one"),
        ("not json", "", 0, "printed no JSON"),
        ("", "rallypoint: bad endpoint\n", 2, "printed no JSON: bad endpoint"),
        ("{}", "", 0, "no list of checks"),
        ('{"checks": [{"id": "x"}]}', "", 0, "same version"),
        ('{"checks": [{"id": "x", "verdict": "MAYBE", "evidence": ""}]}', "", 0, "MAYBE"),
        ("", "killed\n", 9, "ended with 9: killed"),
    ],
)
def test_a_program_that_does_not_do_it(output: str, errors: str, code: int, message: str, program: Program) -> None:
    program(output, errors, code)
    with pytest.raises(ProgramError, match=message):
        rallypoint.diagnose()


def test_a_missing_program_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RALLYPOINT_BIN", "/no/such/program")
    with pytest.raises(ProgramError, match="RALLYPOINT_BIN=/no/such/program is no program"):
        rallypoint.diagnose()
