"""Logs that a server cannot be reached: first after a while, then again with growing pauses, and once more when it answers again."""

from __future__ import annotations

import logging

log = logging.getLogger("rallypoint")


class Trouble:
    """One of these is the `on_trouble` of `Client.post`."""

    def __init__(self, what: str, meanwhile: str, *, quiet: float = 0.0) -> None:
        self._what, self._meanwhile, self._quiet = what, meanwhile, quiet
        self._next = quiet
        self._said = False

    def __call__(self, cause: str, lasted: float) -> None:
        if not cause:
            if self._said:
                log.warning("rallypoint: %s: the server answers again after %.0f s", self._what, lasted)
            self._next, self._said = self._quiet, False
        elif lasted >= self._next:
            log.warning("rallypoint: %s: no answer for %.0f s, %s: %s", self._what, lasted, self._meanwhile, cause)
            self._next, self._said = max(30.0, 2 * lasted), True
