"""What ties a process to the one that started it. Nothing is imported here that takes time."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """Called in the child: the kernel kills it when its parent ends, however that happens."""
    pr_set_pdeathsig = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
