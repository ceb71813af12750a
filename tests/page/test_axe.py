"""axe, the usual checker of accessibility, finds nothing on the page, in the light and in the dark."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from admin import Admin
from browser import Browser, Page
from documents import missing_nodes, run_of

Open = Callable[[str], Page]


def axe() -> str:
    """The checker's script, which axe-playwright-python carries; the package itself is not imported."""
    found = importlib.util.find_spec("axe_playwright_python")
    assert found and found.submodule_search_locations, "axe-playwright-python is missing; tests/page/requirements.txt names it"
    (script,) = Path(found.submodule_search_locations[0]).rglob("axe.min.js")
    return script.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, admin: Admin, browser: Browser, open_page: Open) -> None:
    browser.media(prefers_color_scheme=scheme)
    for n in range(10):
        admin.set(run_of(4, 4, run_id=f"job-{n}"))
    stuck = missing_nodes(run_of(64, 63, run_id="stuck", local=8, ranks_joined=500, gone=(3,)), "stuck-63")
    admin.set(stuck | {"debug_server": "stuck-0:25999"})
    page = open_page(f"{admin.url}/#run=stuck")
    page.until_says("#nodes-legend", "missing")
    for grid in ("nodes", "ranks"):
        page.js("document.querySelector(arguments[0]).open = true", f"#{grid}-table")
    page.until("the table is there", lambda: page.js("document.querySelectorAll('#nodes-rows tr').length") > 60)
    browser.driver.execute_script(axe())
    answer = browser.driver.execute_async_script("const done = arguments[0]; axe.run().then(done, (e) => done({ failed: String(e) }))")
    assert len(answer["passes"]) > 15, answer
    found = [{"rule": one["id"], "help": one["help"], "where": [node["html"][:200] for node in one["nodes"]]} for one in answer["violations"]]
    assert not found, json.dumps(found, indent=1)
