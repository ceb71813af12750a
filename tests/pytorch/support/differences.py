"""Where rallypoint answers otherwise than PyTorch 2.15's own server (libuv), on purpose.

The tests run against both servers and take the expected result from here, so that they fail when either of them
changes. `why` is the justification: each is a fault of that server (proto-notes/differences.md), not a matter of taste.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """The result of one case on each server."""

    rallypoint: Any
    torch: Any
    why: str


DIFFERENCES = {
    "split hello": Difference(
        "accepted",
        "closed",
        "TCP may cut the five bytes anywhere; PyTorch's server closes a connection whose hello it reads in two parts",
    ),
    "foreign first request": Difference(
        "closed",
        "kept",
        "a peer that is no client is closed and counted; PyTorch's server keeps it until it sends more",
    ),
    "wrong magic": Difference("closed", "kept", "the same, for a hello with another number"),
    "failed compare_set on a missing key": Difference(
        b"", b"\0", "the key does not exist, so whoever waits for it must not be woken"
    ),
    "key deleted while waiting for another": Difference(
        b"", b"\0", "wait promises that all keys exist; PyTorch's server counts arrivals and does not look again"
    ),
    "present key deleted while waiting for another": Difference(
        b"", b"\0", "the same, for a key that was there when the wait began"
    ),
    "plain key completes a wait with a non-empty queue": Difference(
        b"\0", b"", "all keys are there (check agrees); PyTorch's server waits for one more push"
    ),
    "two pushes count as two keys": Difference(
        b"", b"\0", "one of the keys is missing (check agrees); PyTorch's server counts both pushes"
    ),
    "push wakes a client that waits for something else": Difference(
        b"", b"\0", "a woken waiter stays registered on the queue in PyTorch's server and gets a false wake-up"
    ),
    "push reaches the next waiter": Difference(
        b"\0", b"", "the false wake-up above takes the place of the real one: a lost wake-up"
    ),
    "item of a woken client that left": Difference(
        b"\0", b"", "the item is still there and a client waits for it; PyTorch's server offers it to nobody"
    ),
    "item of a woken client that does something else": Difference(
        b"\0", b"", "the same, for a client that lives on without popping"
    ),
    "set on a barrier's key": Difference(
        b"", b"\0", "only arrivals release a barrier; in PyTorch's server any write to its key lets everybody through"
    ),
    "add on a barrier's key": Difference(b"", b"\0", "the same, for add"),
    "cancelled arrival": Difference(
        b"1", b"2", "a cancelled arrival is not there any more; counted on, it lets the next one through alone"
    ),
    "arrival of a client that left": Difference(b"1", b"2", "the same, for a client that disconnected"),
    "wait for a barrier's key": Difference(
        b"\0",
        b"",
        "the key exists from the first arrival on (check agrees); PyTorch's server wakes only at the release",
    ),
    "a retried arrival": Difference(
        "timed out", "let through", "a client that timed out and tries again is one arrival, not two"
    ),
    "count after a retry": Difference(b"2", b"3", "the same: the key holds the number of those who are there"),
}


def expected(case: str, kind: str) -> Any:
    """The result of this case on the server `kind`."""
    return getattr(DIFFERENCES[case], kind)
