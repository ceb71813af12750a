"""Text that a server, or a peer through it, chose: escaped where it becomes part of a sentence, so that no log line is forged
and nothing steers a terminal. What is data (names, addresses) stays as it is.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """The text on one line, with everything escaped that does not show as what it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
