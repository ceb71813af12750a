"""The wheel: what `pip install` of this repository brings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import installed
import pytest
from servers import REPOSITORY

(VERSION,) = re.findall(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with nothing but the wheel in it."""
    folder: Path = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    (wheel,) = (installed.PACKAGE.parent / "wheels").glob("rallypoint-*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", f"--python={folder / 'bin' / 'python'}"]
    subprocess.run([*pip, "install", "--no-index", str(wheel)], check=True)
    return folder


def run(environment: Path, *command: str) -> str:
    clean = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run([environment / "bin" / command[0], *command[1:]], capture_output=True, text=True, env=clean)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_it_is_for_every_python_of_the_platform() -> None:
    (wheel,) = (installed.PACKAGE.parent / "wheels").glob("rallypoint-*.whl")
    _, version, python, abi, platform = wheel.name.removesuffix(".whl").split("-")
    assert (version, python, abi) == (VERSION, "py3", "none")
    machine = os.uname().machine
    assert set(platform.split(".")) == {f"manylinux_2_17_{machine}", f"manylinux2014_{machine}"}


def test_the_program_runs_with_the_glibc_of_its_tag(environment: Path) -> None:
    """Versions of glibc's symbols stand as text in a program that wants them."""
    wanted = re.findall(rb"GLIBC_(\d+)\.(\d+)", (environment / "bin" / "rallypoint").read_bytes())
    assert wanted, "it is linked to glibc: a static program cannot load the resolver's modules of another one"
    assert max((int(major), int(minor)) for major, minor in wanted) <= (2, 17)


def test_what_the_package_index_shows_has_no_relative_link(environment: Path) -> None:
    (metadata,) = environment.glob("lib/python*/site-packages/rallypoint-*.dist-info/METADATA")
    head, _, readme = metadata.read_text().partition("\n\n")
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert len(links) > 5 and all(link.startswith("https://") for link in links), links
    (repository,) = re.findall(r'^repository = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)
    for link in (link for link in links if "/blob/main/" in link or "/main/docs/" in link):
        name = link.partition("/main/")[2]
        assert (REPOSITORY / name).is_file(), link
        assert link.replace("raw.githubusercontent.com", "github.com").startswith(repository), link
    urls = re.findall(r"^Project-URL: .*, (.*)$", head, re.MULTILINE)
    assert len(urls) >= 4 and all(url.startswith(repository) for url in urls), urls


def test_the_program_is_there(environment: Path) -> None:
    assert run(environment, "rallypoint", "--version") == f"rallypoint {VERSION}"
    assert run(environment, "python", "-m", "rallypoint", "--version") == f"rallypoint {VERSION}"


def test_the_package_needs_nothing_else(environment: Path) -> None:
    program = "import rallypoint, sys; print(rallypoint.__version__, 'torch' in sys.modules)"
    assert run(environment, "python", "-c", program) == f"{VERSION} False"


def test_torch_finds_the_plugin(environment: Path) -> None:
    program = """
from importlib.metadata import entry_points
print([(entry.name, entry.value) for entry in entry_points(group="torchrun.handlers")])
"""
    assert run(environment, "python", "-c", program) == "[('rallypoint', 'rallypoint.torchrun:handler')]"


def test_types_are_for_users_too(environment: Path) -> None:
    assert list(environment.glob("lib/python*/site-packages/rallypoint/py.typed"))
