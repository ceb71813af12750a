"""Finds the `rallypoint` program that comes with the wheel of this package."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def find_binary() -> str:
    """The path of the program: RALLYPOINT_BIN, else the one installed with this package, else the one on PATH.

    If there is none, raises a FileNotFoundError that says where it looked.
    """
    given = os.environ.get("RALLYPOINT_BIN")
    if given:
        if os.access(given, os.X_OK):
            return given
        raise FileNotFoundError(f"RALLYPOINT_BIN={given} is no program")
    name = "rallypoint" + (sysconfig.get_config_var("EXE") or "")
    package = Path(__file__).resolve().parent
    # `pip install --target DIR` and `--prefix DIR` (DIR/lib/pythonX.Y/site-packages), then this environment's, then `--user`.
    folders = [package.parent / "bin", *(parent / "bin" for parent in package.parents[3:4])]
    folders += [Path(sysconfig.get_path("scripts")), Path(sysconfig.get_path("scripts", f"{os.name}_user"))]
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    found = shutil.which(name)
    if found:
        return found
    looked = ", ".join(dict.fromkeys(map(str, folders)))
    raise FileNotFoundError(
        f"no program {name} in {looked}, nor on PATH: install the package with pip (python {sys.executable}), or set RALLYPOINT_BIN"
    )
