"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """The kernel kills this process with its parent, however that ends. In a child before exec, it holds beyond that."""
    pr_set_pdeathsig = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
