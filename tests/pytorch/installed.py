"""The Python package as users install it: the wheel, alone in a folder of its own. Importing this module puts it on the path.

`scripts/wheel` makes it, unless RALLYPOINT_PACKAGE names such a folder that is there already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servers import HOST, REPOSITORY, Server


def package() -> Path:
    """The folder with the installed package."""
    given = os.environ.get("RALLYPOINT_PACKAGE")
    if given:
        return Path(given).resolve()
    made = subprocess.run([REPOSITORY / "scripts" / "wheel"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip())


PACKAGE = package()
sys.path.insert(0, str(PACKAGE))


def admin_endpoint(server: Server) -> str:
    """What `--rdzv-endpoint` is for this server."""
    return f"{HOST}:{server.admin_port}"
