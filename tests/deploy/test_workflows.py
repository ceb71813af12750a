"""What a forge's CI reads: the workflows, as far as they can be checked without running them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from program import PACKAGE, ROOT, VERSION, binary
from render import call

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


def test_the_action_runs_doctor_on_a_folder(tmp_path: Path) -> None:
    """The script of its last step, as a runner starts it: exit codes and the report."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    *_, step = action["runs"]["steps"]
    used = set(re.findall(r"inputs\.(\w+)", str(action["runs"]["steps"])))
    assert used == set(action["inputs"])
    report = tmp_path / "report.sarif"

    def run(manifests: str) -> int:
        given = {"PROGRAM": str(binary()), "MANIFESTS": manifests, "RALLYPOINT_STRICT": "false", "REPORT": str(report)}
        assert given.keys() == step["env"].keys()
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], env=os.environ | given, cwd=ROOT, capture_output=True, check=False)
        return done.returncode

    assert run("deploy/kustomize/overlays/leaderworkerset") == 0
    assert json.loads(report.read_text())["runs"][0]["results"] == []
    assert run("tests/data/manifests/endpoint-selects-all.yaml") == 1
    assert json.loads(report.read_text())["runs"][0]["results"]


def test_the_action_builds_the_program_where_none_is_given(tmp_path: Path) -> None:
    first, second = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert first["if"] == "inputs.program == ''"
    (tmp_path / "cargo").write_text('#!/bin/sh\nmkdir -p "$6/bin" && ln -s "$PROGRAM" "$6/bin/rallypoint" && echo "$@"\n')
    (tmp_path / "cargo").chmod(0o755)
    runner = {"GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    build = ["bash", "-eo", "pipefail", "-c", first["run"]]
    built = subprocess.run(build, env=os.environ | runner | {"PROGRAM": str(binary())}, capture_output=True, text=True, check=True)
    assert built.stdout == f"install --locked --path {ROOT} --root {tmp_path}/rallypoint\n"
    given = {"PROGRAM": "", "MANIFESTS": "deploy/kustomize/overlays/leaderworkerset", "RALLYPOINT_STRICT": "true", "REPORT": ""}
    subprocess.run(["bash", "-eo", "pipefail", "-c", second["run"]], env=os.environ | runner | given, cwd=ROOT, check=True)


def test_pre_commit_runs_the_hook_on_the_manifests_of_a_commit(tmp_path: Path) -> None:
    """The real pre-commit, with the hook's file as a repository of its own."""
    made = subprocess.run([ROOT / "scripts" / "python-env", "pre-commit", "pre-commit==4.7.0"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    hook, user, programs = (tmp_path / name for name in ("hook", "user", "programs"))
    for folder in (hook, user, programs):
        folder.mkdir()
    (programs / "rallypoint").symlink_to(binary())
    environment = {"PATH": f"{programs}:{made}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    def git(folder: Path, *command: str) -> None:
        done = run(folder, "git", "-c", "user.name=test", "-c", "user.email=test@example.org", *command)
        assert done.returncode == 0, done.stderr

    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hook)
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "hook"], ["tag", "v1"]):
        git(hook, *command)
    (user / ".pre-commit-config.yaml").write_text(f"repos: [{{repo: {hook}, rev: v1, hooks: [{{id: rallypoint-doctor}}]}}]\n")
    (user / "train.py").write_text("# not a manifest\n")
    shutil.copy(ROOT / "deploy/kustomize/overlays/leaderworkerset/serving.yaml", user)
    git(user, "init", "--quiet")
    git(user, "add", ".")
    good = run(user, "pre-commit", "run")
    assert good.returncode == 0 and "rallypoint doctor" in good.stdout and "Passed" in good.stdout, good.stdout + good.stderr
    shutil.copy(ROOT / "tests/data/manifests/endpoint-selects-all.yaml", user)
    git(user, "add", ".")
    bad = run(user, "pre-commit", "run")
    assert bad.returncode == 1 and "FAIL endpoint" in bad.stdout, bad.stdout + bad.stderr


def test_kubectl_finds_the_program_as_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "kubectl-rallypoint").symlink_to(binary())
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["kubectl", "rallypoint", "--version"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == f"rallypoint {VERSION}\n"
