"""`check_env()` and `diagnose()`: the checks of the `rallypoint` program, for use from Python.

report = rallypoint.diagnose("rallypoint:29500")
print(report)              # PASS, WARN and FAIL lines with what to do
if not report.ok: ...      # report.checks, report.as_json()
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ._binary import find_binary
from ._text import plain
from .errors import RallypointError

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
SAME_VERSION = "program and package must be of the same version"
TIMEOUT = 120.0
"""Seconds that the program may take."""


class ProgramError(RallypointError):
    """The `rallypoint` program is missing, is too old, or did not do what it should."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    """The name of the check. It stays the same between versions."""
    verdict: str
    """PASS, WARN or FAIL."""
    evidence: str
    """What was seen."""
    recommendation: str = ""
    """What to do. Empty if there is nothing to do."""

    def __str__(self) -> str:
        line = plain(f"{self.verdict} {self.name}: {self.evidence}")
        return f"{line}\n     -> {plain(self.recommendation)}" if self.recommendation else line


@dataclass(frozen=True)
class Report:
    """All checks, in the order in which they were made."""

    checks: tuple[Check, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Only from `check_env`: the variables to start the job with, made from those of the platform."""

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict == FAIL)

    @property
    def recommendations(self) -> tuple[str, ...]:
        """What to do, each only once. What the failed checks recommend comes first."""
        ordered = sorted(self.checks, key=lambda check: (FAIL, WARN, PASS).index(check.verdict))
        return tuple(dict.fromkeys(check.recommendation for check in ordered if check.recommendation))

    def as_json(self) -> str:
        """The report as a JSON document."""
        document = {"ok": self.ok, "checks": [asdict(check) for check in self.checks], "variables": dict(self.variables)}
        return json.dumps(document, indent=2)

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


def check_env(environment: Mapping[str, str] | None = None) -> Report:
    """Says what the environment tells about this process' place in its job, and whether its variables contradict each other.

    A FAIL means a contradiction, or a value that cannot be read. The recommendation names the variable. The report's `variables` are
    those to start torchrun or an env:// job with.
    """
    code, output, errors = _run(["env", "--format", "json", "--explain"], environment)
    message = _message(errors)
    if code == 2:
        return Report((Check("environment", FAIL, message, "make the named variables agree, or set only one of them"),))
    explained = _document(output, "env").get("variables", {})
    if not explained:
        return Report((Check("environment", WARN, message or "nothing says who this process is in its job", "see docs/env.md"),))
    checks = [Check(name, PASS, f"{entry['value']} (from {entry['from']})") for name, entry in explained.items()]
    return Report(tuple(checks), {name: str(entry["value"]) for name, entry in explained.items()})


def diagnose(endpoint: str | None = None, *, command: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Report:
    """Makes every check of `rallypoint doctor`: environment, names, network, server, limits.

    `endpoint` is the store (`HOST:PORT`). By default it is the one that the environment names. `command` is the job's command line
    (`["torchrun", …]`). If you give it, its flags are checked too.
    """
    arguments = ["doctor", "--json", *([endpoint] if endpoint else []), *(["--", *command] if command else [])]
    _, output, errors = _run(arguments, environment)
    entries = _document(output, "doctor", errors).get("checks")
    if not isinstance(entries, list):
        raise ProgramError(f"`rallypoint doctor --json` printed no list of checks; {SAME_VERSION}")
    return Report(tuple(map(_check, entries)))


def _check(entry: Mapping[str, Any]) -> Check:
    try:
        verdict = str(entry["verdict"]).upper()
        check = Check(str(entry["id"]), verdict, str(entry["evidence"]), str(entry.get("remedy") or ""))
    except KeyError as missing:
        raise ProgramError(f"a check of `rallypoint doctor --json` has no {missing}; {SAME_VERSION}") from None
    if verdict not in (PASS, WARN, FAIL):
        raise ProgramError(f"`rallypoint doctor --json` gave the verdict {verdict!r}; {SAME_VERSION}")
    return check


def _run(arguments: list[str], environment: Mapping[str, str] | None) -> tuple[int, str, str]:
    """Runs the program, and returns its exit code, stdout and stderr. The codes 0, 1 and 2 are valid answers."""
    try:
        command = [find_binary(), *arguments]
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            env=None if environment is None else {"PATH": os.environ.get("PATH", os.defpath), **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramError(str(error)) from error
    if "unrecognized subcommand" in ended.stderr:
        raise ProgramError(f"{command[0]} has no command `{arguments[0]}`: install a newer one, of the same version as this package")
    if ended.returncode not in (0, 1, 2):
        raise ProgramError(f"`{' '.join(command)}` ended with {ended.returncode}: {_message(ended.stderr)}")
    return ended.returncode, ended.stdout, ended.stderr


def _document(output: str, command: str, errors: str = "") -> dict[str, Any]:
    try:
        document = json.loads(output or "{}")
    except ValueError:
        document = None
    if not isinstance(document, dict) or (errors and not document):
        raise ProgramError(f"`rallypoint {command}` printed no JSON: {_message(errors) or output[:200]}")
    return document


def _message(errors: str) -> str:
    lines = [line.removeprefix("rallypoint: ").removeprefix("error: ").strip() for line in errors.splitlines() if line.strip()]
    return plain(" ".join(lines))
