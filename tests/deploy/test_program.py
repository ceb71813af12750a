"""Manifests, chart and image call the program as it is: commands, flags, values, variables, version, ports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from program import VERSION, binary, commands, help_of
from render import CHART, DEPLOY, OVERLAYS, RENDERS, ROOT, call, render, text
from workload import Call, is_rallypoint

UNKNOWN = "--end-of-check"


def calls(name: str) -> list[Call]:
    """Every call of rallypoint in the pods of a rendering."""
    cluster = Cluster(render(name))
    found = [call for pod in cluster.pods for container in pod.containers for call in pod.calls(container)]
    return [call for call in found if call.argv[0] == "rallypoint"]


def flags(argv: tuple[str, ...]) -> list[str]:
    own = argv[: argv.index("--")] if "--" in argv else argv
    return [argument.partition("=")[0] for argument in own if argument.startswith("--")]


@pytest.mark.parametrize("name", [name for name in RENDERS if name != "monitoring"])
def test_the_program_accepts_every_call(name: str) -> None:
    found = calls(name)
    assert found
    for found_call in found:
        command = found_call.argv[1]
        assert command in commands()
        known_flags = re.findall(r"--[a-z-]+", help_of(command))
        for flag in flags(found_call.argv):
            assert flag in known_flags, (command, flag)
        known = list(found_call.argv[1:])
        # The first thing wrong is the flag that comes last: the values before it were read and found good.
        place = known.index("--") if "--" in known else len(known)
        known.insert(place, UNKNOWN)
        environment = {k: v for k, v in found_call.environment.items() if k.startswith("RALLYPOINT_")}
        done = subprocess.run([binary(), *known], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == (30 if "--exit-codes=kep-3416" in known else 2), done.stderr
        assert f"unexpected argument '{UNKNOWN}'" in done.stderr, done.stderr


@pytest.mark.parametrize("name", [name for name in RENDERS if name != "monitoring"])
def test_doctor_finds_nothing(name: str, tmp_path: Path) -> None:
    manifest = tmp_path / f"{name}.yaml"
    manifest.write_text(text(name))
    call(binary(), "doctor", "--strict", "--manifest", manifest)


def test_every_variable_is_one_that_the_program_reads() -> None:
    source = "".join(path.read_text() for folder in ("src", "crates") for path in (ROOT / folder).rglob("*.rs"))
    known = set(re.findall(r'"(RALLYPOINT_[A-Z_]+)"', source))
    used = {
        entry["name"]
        for name in RENDERS
        for workload in Cluster(render(name)).workloads
        for container in workload.containers
        for entry in container.get("env", [])
        if entry["name"].startswith("RALLYPOINT_")
    }
    assert used <= known


def test_images_and_chart_have_the_version_of_the_program() -> None:
    assert binary().exists()
    assert subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout == f"rallypoint {VERSION}\n"
    images = {
        container["image"]
        for name in RENDERS
        for workload in Cluster(render(name)).workloads
        for container in workload.containers
        if is_rallypoint(container)
    }
    assert images == {f"registry.example/rallypoint:{VERSION}"}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_readme_is_right() -> None:
    """Its commands that need no cluster run, its overlays are those that there are, its version is this one."""
    readme = (DEPLOY / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    lines = [line.partition("#")[0].split() for block in blocks for line in block.splitlines()]
    runnable = [line for line in lines if line[:2] in (["kubectl", "kustomize"], ["helm", "template"])]
    assert len(runnable) >= 2
    for line in runnable:
        call(*(str(ROOT / word) if word.startswith("deploy/") else word for word in line))
    assert sorted(re.findall(r"^\|.*\| `([-\w]+)` \| (?:sidecar|standalone)[^|]* \|$", readme, re.MULTILINE)) == sorted(OVERLAYS)
    assert set(re.findall(r"/rallypoint:(\d+\.\d+\.\d+)", readme)) == {VERSION}
    for command in lines:
        for word in command:
            assert not word.startswith("deploy/") or (ROOT / word).exists(), word


def test_the_ports_of_stores_of_runs_are_the_default() -> None:
    assert "[default: 29510-29599]" in " ".join(help_of("serve").split())
