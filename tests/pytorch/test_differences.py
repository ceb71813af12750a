"""The table of differences itself: each row is a difference, and some test asserts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from differences import DIFFERENCES


@pytest.mark.parametrize("case", DIFFERENCES)
def test_row_differs_and_is_asserted(case: str) -> None:
    row = DIFFERENCES[case]
    assert row.rallypoint != row.torch
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tests = tests.replace("{write} on a barrier's key\"", 'set on a barrier\'s key" "add on a barrier\'s key"')
    assert f'"{case}"' in tests, f"no test asks for expected({case!r}, …)"
