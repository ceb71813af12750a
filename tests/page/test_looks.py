"""The page at 4, 64 and 4096 nodes, in light and dark, wide and narrow: nothing sticks out, every node has its cell.

With RALLYPOINT_SCREENSHOTS=DIR the pictures stay there, to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from admin import Admin
from browser import Browser, Page
from documents import Document, example, missing_nodes, run_of

RUNS: dict[str, Callable[[], Document]] = {
    "4": lambda: example("run_4_nodes_one_missing"),
    "64": lambda: example("run_64_nodes"),
    "static": lambda: example("run_static_rank_missing"),
    "4096": lambda: missing_nodes(run_of(4096, 4000), "train-llm-4000", "train-llm-4017"),
    "4096-ranks": lambda: run_of(4096, 4096, local=8, ranks_joined=32000, gone=(17, 801)),
}


@pytest.mark.parametrize(("size", "scheme"), [((1280, 900), "light"), ((380, 800), "dark")], ids=["wide-light", "narrow-dark"])
@pytest.mark.parametrize("name", RUNS)
def test_it_is_readable(
    admin: Admin,
    browser: Browser,
    open_page: Callable[[str], Page],
    tmp_path: Path,
    name: str,
    size: tuple[int, int],
    scheme: str,
) -> None:
    browser.size(*size)
    browser.media(prefers_color_scheme=scheme)
    run = RUNS[name]()
    for other in ("run_4_nodes_one_missing", "run_64_nodes", "run_static_rank_missing"):
        document = example(other)
        admin.runs[document["run_id"]] = document
    admin.runs[run["run_id"]] = run
    page = open_page(f"{admin.url}/#run={run['run_id']}")
    page.until_says("#nodes-legend", "joined")
    folder = Path(os.environ.get("RALLYPOINT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(folder / f"{name}-{'narrow' if size[0] < 800 else 'wide'}-{scheme}.png")

    assert page.js("document.documentElement.scrollWidth") <= size[0]
    cells = page.js("nodeGrid.cells.length")
    assert cells == max(run["nodes"]["joined"], run["nodes"]["expected"]["min"])
    shape = page.js("({...nodeGrid.shape})")
    assert shape["left"] + shape["columns"] * shape["w"] <= page.js("document.querySelector('#nodes-grid').clientWidth") + 1
    rows = -(-cells // shape["columns"])
    assert page.js("document.querySelector('#nodes-grid').clientHeight") == pytest.approx(shape["top"] + rows * shape["h"], abs=1)
    if run["nodes"]["missing"] > run["nodes"]["gone"]:
        assert page.variable("missing") in page.colors("#nodes-grid") or page.variable("missing-fill") in page.colors("#nodes-grid")
