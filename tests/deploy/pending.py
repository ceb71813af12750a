"""What the manifests, rules and the dashboard use and the program does not have yet.

A test fails as soon as the program has one of them: then take it out here, and its checks begin.
"""

from __future__ import annotations

COMMANDS: set[str] = set()
FLAGS: set[tuple[str, str]] = set()
VARIABLES: set[str] = set()
METRICS: set[str] = set()
