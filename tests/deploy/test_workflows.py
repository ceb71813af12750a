"""What a forge's CI reads: the workflows, as far as they can be checked without running them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from program import PACKAGE, ROOT, VERSION

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))


def actionlint(*files: Path) -> tuple[int, str]:
    done = subprocess.run(["actionlint", *files], capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_workflows_are_sound() -> None:
    assert len(WORKFLOWS) == 3
    assert actionlint(*WORKFLOWS) == (0, "")


def test_a_mistake_is_found(tmp_path: Path) -> None:
    file = tmp_path / "bad.yml"
    file.write_text((FOLDER / "workflows" / "ci.yml").read_text().replace("matrix.sections", "matrix.section"))
    assert "section" in actionlint(file)[1]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_that_a_workflow_calls_are_there(workflow: Path) -> None:
    text = workflow.read_text()
    called = set(re.findall(r"\b((?:scripts|deploy/image)/[\w-]+)", text))
    assert called and all((ROOT / name).is_file() for name in called), called


def test_every_section_of_the_tests_is_run() -> None:
    (job,) = yaml.safe_load((FOLDER / "workflows" / "ci.yml").read_text())["jobs"].values()
    sections = " ".join(job["strategy"]["matrix"]["sections"]).split()
    (all_of_them,) = re.findall(r"^\[ \$\{#sections\[@\]\} -gt 0 \] \|\| sections=\((.*)\)$", (ROOT / "scripts/test").read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(all_of_them.split())


def test_every_night_has_schedules_that_nobody_has_run(tmp_path: Path) -> None:
    workflow = yaml.safe_load((FOLDER / "workflows" / "nightly.yml").read_text())
    # YAML takes the key `on` for a truth value.
    assert workflow[True]["schedule"]
    (job,) = workflow["jobs"].values()
    (run,) = [step["run"] for step in job["steps"] if "simulate" in step.get("run", "")]

    def seeds(seconds: int) -> str:
        """What cargo is asked for, at this time."""
        for name, says in (("date", seconds), ("cargo", "$RALLYPOINT_SEEDS")):
            (tmp_path / name).write_text(f"#!/bin/sh\necho {says}\n")
            (tmp_path / name).chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run(["bash", "-c", run], cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True).stdout

    assert seeds(86_400 * 20_783) == seeds(86_400 * 20_784 - 1) == "20783:200000\n"
    assert seeds(86_400 * 20_784) == "20784:200000\n"


def test_a_release_is_refused_while_something_is_missing() -> None:
    """This tree has placeholders, and another version than the one asked for."""
    done = subprocess.run([ROOT / "scripts" / "release-check", "99.0.0"], capture_output=True, text=True)
    assert done.returncode == 1
    for file in ("Cargo.toml", "deploy/helm/rallypoint/Chart.yaml", "CHANGELOG.md", "kustomize/base/sidecar"):
        assert file in done.stderr, done.stderr
    done = subprocess.run([ROOT / "scripts" / "release-check", VERSION], capture_output=True, text=True)
    assert "Cargo.toml does not say" not in done.stderr
    if "OWNER" in PACKAGE["repository"]:
        assert "still have a placeholder" in done.stderr and " Cargo.toml " in done.stderr
