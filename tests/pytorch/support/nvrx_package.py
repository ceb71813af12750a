"""Installs nvidia-resiliency-ext 0.7.0. As a program it prints the PYTHONPATH with which Python finds it."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
NVRX = "nvidia-resiliency-ext==0.7.0"


def nvrx_path() -> str:
    """Its wheel is for Python 3.12 and a newer glibc, but the launcher is pure Python. What it needs is in nvrx.txt."""
    needs = REPOSITORY / "tests" / "pytorch" / "nvrx.txt"
    command = [REPOSITORY / "scripts" / "python-env", "nvrx", "--no-deps", "--requirement", needs]
    made = Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    (packages,) = made.glob("lib/python*/site-packages")
    package = made / "nvidia_resiliency_ext"
    if not package.exists():
        wheels = made / "wheels"
        pip = [made / "bin" / "python", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, NVRX]
        subprocess.run([*pip, "--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_39_x86_64"], check=True)
        (wheel,) = wheels.iterdir()
        part = package.with_suffix(".part")
        zipfile.ZipFile(wheel).extractall(part)
        part.rename(package)
    return f"{package}:{packages}"


if __name__ == "__main__":
    print(nvrx_path())
