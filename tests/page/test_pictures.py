"""The pictures of the README and the pages show the program as it is. `scripts/pictures` makes them anew."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from documents import REPOSITORY
from pictures import FOLDER, HIGH, PAGES, WIDE, demo, facts, mark, words, words_of

ANEW = "make the pictures anew: scripts/pictures"


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_shows_the_present_layout(name: str) -> None:
    width, height, made_from = facts((FOLDER / name).read_bytes())
    assert (width, height) == (WIDE, HIGH), ANEW
    assert made_from == mark(), ANEW


def test_the_demo_says_what_its_picture_shows(binary: Path) -> None:
    assert words([line for _, line in demo(binary)]) == words_of((FOLDER / "demo.svg").read_text()), ANEW


def test_each_picture_is_made_by_a_script_and_shown() -> None:
    """None is left over, and none was made by hand."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    pages = [(REPOSITORY / name).read_text() for name in listed.stdout.split()]
    shown = {name for page in pages for name in re.findall(r"!\[[^\]]*\]\([^)]*?docs/img/([^)]+)\)|!\[[^\]]*\]\(img/([^)]+)\)", page) for name in name if name}
    there = {path.name for path in FOLDER.iterdir()}
    assert there == shown == {*PAGES, "demo.svg", "elastic.svg", "growth.svg"}
