"""What can go wrong with a server, as exceptions: one class for each thing that a caller treats differently.

RallypointError
├── UnreachableError        no answer for as long as the caller was willing to wait
├── NotRallypointError      something answers there, but not a rallypoint server
└── ProblemError            the server said no; `code` is the API's, the text says what to do
    ├── ClosedError         the run is closed
    │   └── GracefulExitError   it was closed while this node stood by: nothing is wrong
    ├── TimedOutError       not enough nodes in time, or a barrier that not all reached
    ├── MismatchError       this node's parameters or rank contradict another node's
    └── PlaceLostError      this node's place is gone: lost, replaced, or it left
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._text import plain


class RallypointError(Exception):
    """Base of everything that this package raises on purpose."""


class UnreachableError(RallypointError):
    """The server did not answer for as long as the caller was willing to wait."""


class NotRallypointError(RallypointError):
    """Something answers at the endpoint, but it is not the admin port of a rallypoint server."""


class ProblemError(RallypointError):
    """The server's own refusal (`application/problem+json`)."""

    def __init__(self, status: int, code: str, detail: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        """The HTTP status."""
        self.code = code
        """The API's name for it, such as `join_timeout`."""
        self.extra = dict(extra or {})
        """The problem's further members, such as `missing`."""


class ClosedError(ProblemError):
    """The run is closed."""


class GracefulExitError(ClosedError):
    """The run was closed while this node stood by for a free place: nothing is wrong."""


class TimedOutError(ProblemError):
    """Not enough nodes joined, or not all arrived at the barrier, in time."""


class MismatchError(ProblemError):
    """This node's parameters contradict those that hold, or its rank is another node's."""


class PlaceLostError(ProblemError):
    """The node's place is gone: it was not heard from for too long, joined elsewhere, or was made to leave."""


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
    """The exception for a problem document."""
    code = str(body.get("code") or "")
    detail = plain(str(body.get("detail") or body.get("title") or f"HTTP status {status}"))
    extra = {name: value for name, value in body.items() if name not in ("title", "status", "detail", "code", "type")}
    return _BY_CODE.get(code, ProblemError)(status, code, detail, extra)
