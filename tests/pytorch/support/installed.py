"""Importing this module puts the Python package, as users install it, on the path. That may take a release build (package.py)."""

from __future__ import annotations

import sys

from package import package
from servers import HOST, Server

PACKAGE = package()
sys.path.insert(0, str(PACKAGE))


def admin_endpoint(server: Server) -> str:
    """What `--rdzv-endpoint` is for this server."""
    return f"{HOST}:{server.admin_port}"
