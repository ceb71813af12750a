"""Meet before training starts: the Python side of a rallypoint server.

torchrun uses it with `--rdzv-backend=rallypoint` (see `rallypoint.torchrun`). Your own programs can use

    join       join a run, hold the place in it, and know its other nodes
    peers      meet once, only to learn who is there
    barrier    wait until all have arrived
    check_env  say what the environment tells about this process, and whether its variables contradict each other
    diagnose   check everything that can keep a job from starting: PASS, WARN or FAIL, each with what to do

and `from rallypoint import elastic`, a process group that goes on in its processes when ranks die or come.

This package needs only the standard library. Only `rallypoint.torchrun` and `rallypoint.elastic` use torch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from .api import Membership, barrier, join, peers
from .checks import Check, ProgramError, Report, check_env, diagnose
from .errors import (
    ClosedError,
    GracefulExitError,
    MismatchError,
    NotRallypointError,
    PlaceLostError,
    ProblemError,
    RallypointError,
    TimedOutError,
    UnreachableError,
)
from .rendezvous import Action, News, Peer, Round, Waiting

try:
    __version__ = version("rallypoint")
except PackageNotFoundError:  # run from the source tree
    __version__ = "0+unknown"

__all__ = [
    "Action",
    "Check",
    "ClosedError",
    "GracefulExitError",
    "Membership",
    "MismatchError",
    "News",
    "NotRallypointError",
    "Peer",
    "PlaceLostError",
    "ProblemError",
    "ProgramError",
    "RallypointError",
    "Report",
    "Round",
    "TimedOutError",
    "UnreachableError",
    "Waiting",
    "__version__",
    "barrier",
    "check_env",
    "diagnose",
    "join",
    "peers",
]
