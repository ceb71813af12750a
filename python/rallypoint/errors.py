"""What can go wrong with a server, as exceptions. There is one class for each case that callers treat differently.

RallypointError
├── UnreachableError        no answer for as long as the caller was willing to wait
├── NotRallypointError      something answers there, but not a rallypoint server's admin port: waiting does not help
└── ProblemError            the server said no: `code` is the API's name for it, the text says what to do
    ├── ClosedError         the run is closed
    │   └── GracefulExitError   it was closed while this node waited for a free place: nothing is wrong
    ├── TimedOutError       not enough nodes joined in time, or not all arrived at the barrier
    ├── MismatchError       this node's parameters or rank contradict another node's
    └── PlaceLostError      this node's place is gone: lost, replaced, or it left
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._text import plain


class RallypointError(Exception):
    """Base class of all errors of this package."""


class UnreachableError(RallypointError):
    """The server did not answer for as long as the caller was willing to wait."""


class NotRallypointError(RallypointError):
    """Something answers at the endpoint, but it is not the admin port of a rallypoint server. Waiting does not help."""


class ProblemError(RallypointError):
    """The server's own refusal (`application/problem+json`)."""

    def __init__(self, status: int, code: str, detail: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        """The HTTP status."""
        self.code = code
        """The API's name for it, such as `join_timeout`."""
        self.extra = dict(extra or {})
        """The other members of the problem, such as `missing`."""


class ClosedError(ProblemError):
    """The run is closed."""


class GracefulExitError(ClosedError):
    """The run was closed while this node waited for a free place: nothing is wrong."""


class TimedOutError(ProblemError):
    """Not enough nodes joined, or not all arrived at the barrier, in time."""


class MismatchError(ProblemError):
    """This node's parameters contradict those of the run or barrier, or another node has its rank."""


class PlaceLostError(ProblemError):
    """The node has lost its place: the server did not hear from it for too long, it joined elsewhere, or it was made to leave."""


_BY_CODE: dict[str, type[ProblemError]] = {
    "closed": ClosedError,
    "graceful_exit": GracefulExitError,
    "join_timeout": TimedOutError,
    "barrier_timeout": TimedOutError,
    "parameter_mismatch": MismatchError,
    "barrier_mismatch": MismatchError,
    "duplicate_rank": MismatchError,
    "lost": PlaceLostError,
    "replaced": PlaceLostError,
    "left": PlaceLostError,
}


def problem(status: int, body: Mapping[str, Any]) -> ProblemError:
    """The exception for a problem document of the API."""
    code = str(body.get("code") or "")
    detail = plain(str(body.get("detail") or body.get("title") or f"HTTP status {status}"))
    extra = {name: value for name, value in body.items() if name not in ("title", "status", "detail", "code", "type")}
    return _BY_CODE.get(code, ProblemError)(status, code, detail, extra)
