"""`python -m rallypoint …` runs the program of the same name."""

from __future__ import annotations

import os
import sys

from ._binary import find_binary


def main() -> None:
    """Replaces this process by the program."""
    try:
        binary = find_binary()
    except FileNotFoundError as missing:
        sys.exit(f"rallypoint: {missing}")
    os.execv(binary, [binary, *sys.argv[1:]])


if __name__ == "__main__":
    main()
