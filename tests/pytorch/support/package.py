"""The Python package as users install it: the wheel, alone in a folder of its own."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from servers import REPOSITORY


@functools.cache
def package() -> Path:
    """The folder with the installed package: what RALLYPOINT_PACKAGE names, else made by `scripts/wheel`, a release build."""
    given = os.environ.get("RALLYPOINT_PACKAGE")
    if given:
        return Path(given).resolve()
    made = subprocess.run([REPOSITORY / "scripts" / "wheel"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip())
