"""Escapes text that a server, or a peer through the server, chose, where this text becomes part of a sentence.

So nobody can forge a log line or send control codes to a terminal. Data (names, addresses) stays as it is.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """The text on one line. Every character that is not printable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
