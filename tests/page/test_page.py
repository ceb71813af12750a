"""The page in a real browser: it fills, follows, survives, and trusts nobody's text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from admin import Admin
from browser import Browser, Page
from documents import EXAMPLES, NOW, example, explanation, missing_nodes, run_of, summary
from selenium.webdriver.common.keys import Keys

Open = Callable[[str], Page]


def test_a_missing_node_is_named_with_what_to_do(admin: Admin, open_page: Open) -> None:
    admin.set(example("run_4_nodes_one_missing"))
    page = open_page(admin.url)
    page.until_says("#sentence", "Waiting for 1 of 4 nodes")
    page.until_says("#explanations", "announced itself: train-llm-2")
    assert page.text("#explanations .text").startswith("3 of 4 nodes"), "the name of the run stands above"
    assert "What to do" in page.js("getComputedStyle(document.querySelector('.remedy'), '::before').content")
    assert "look at the missing node's pod" in page.text("#explanations .remedy")
    assert page.text("#explanations .when").startswith("Warning, by elimination, since ")
    page.until_says("#nodes-legend", "1 missing")
    assert page.text("#nodes-legend").split("\n") == ["3 joined", "1 missing"]
    assert "last train-llm-3 +1.2 s; 0.8 s after the one before" in page.text("#joins-summary")
    page.until_says("#moments", "train-llm-3 joined round 0 (3 nodes, +1.2 s)")
    assert page.js("document.title") == "Waiting for 1 of 4 nodes · train-llm · 127.0.0.1"


@pytest.mark.parametrize(
    "text",
    [
        "train-llm round 1 complete: 3 of 4 go on 0.2 s later, nobody was started again; lost: train-llm-2, rank 2: the connection closed",
        "train-llm: train-llm-2, rank 2: not heard from for 1.5 s; given up after 5 s of silence",
        "train-llm round 0: 3 of 4 nodes are there",
    ],
)
def test_the_name_of_the_run_stands_there_once(admin: Admin, open_page: Open, text: str) -> None:
    run = run_of(4, 3)
    run["explanations"] = [explanation(7, "train-llm", "round_complete", text, "look at its log")]
    run["timeline"] = [{"at": NOW, "run_id": "train-llm", "code": "round_complete", "text": text}]
    admin.set(run)
    page = open_page(admin.url)
    said = text.split(": ")[-1]
    page.until_says("#explanations", said)
    page.until_says("#moments", said)
    names = re.findall(r"(?<![\w-])train-llm(?![\w-])", page.text("#run"))
    assert len(names) == 1, page.text("#run")


def test_the_grid_fills_up_as_events_arrive(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(64, 10))
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "10 joined")
    joined = page.variable("joined")
    before = page.colors("#nodes-grid")[joined]
    for n in (11, 40, 64):
        admin.set(run_of(64, n))
        page.until_says("#nodes-legend", f"{n} joined")
    assert page.text("#nodes-legend") == "64 joined"
    assert page.colors("#nodes-grid")[joined] > 5 * before
    page.until_says("#sentence", "Running: 64 nodes")


def test_relays_are_counted_and_one_that_is_away_is_named(admin: Admin, open_page: Open) -> None:
    page = open_page(admin.url)
    page.until_says("#link", "live")
    assert page.text("#relays") == ""
    admin.send("links", {"connected": 11, "away": 1, "clients": 96, "resumes": 3})
    page.until_says("#relays", "12 relays with 96 clients, 1 of them is away")
    said = "the link of train-3 at 10.0.0.7 has been away for 4 s; its relay holds 8 clients"
    admin.send("explanation", {**explanation(9, None, "link_away", said, "look at the network"), "store": None})
    page.until_says("#notices", said)


def test_the_recorded_events_are_understood(admin: Admin, open_page: Open) -> None:
    snapshot, *rest = (EXAMPLES / "events.txt").read_text().split("\n\n")
    run = example("run_4_nodes_one_missing")
    admin.runs[run["run_id"]] = run
    page = open_page(admin.url)
    page.until_says("#sentence", "Waiting for 1 of 4 nodes")
    page.until_says("#explanations", "announced itself: ")

    complete = {**run, **json.loads(rest[1].split("data: ")[1])}
    admin.runs[run["run_id"]] = complete
    for n, event in enumerate(rest):
        if event.startswith("id: 5"):
            page.until_says("#sentence", "All 4 nodes are there")
            page.until_says("#moments", "train-llm-2 joined round 0 (4 nodes, +42.3 s)")
            del admin.runs[run["run_id"]]
        admin.raw(f"{event}\n\n".encode() if n % 2 == 0 else f"{event}\n\n".replace("\n", "\r\n").encode())
    page.until_says("#empty", "No runs")
    assert snapshot.startswith("id: 1\nevent: snapshot")


def test_a_moment_shows_before_the_document_is_fetched_again(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(4, 2))
    page = open_page(admin.url)
    page.until_says("#moments", "train-llm-1 joined")
    admin.send("moment", {"at": NOW + 1, "run_id": "train-llm", "code": "lost", "text": "train-llm-1: connection closed"})
    admin.send("moment", {"at": NOW + 2, "run_id": "other", "code": "lost", "text": "other-1: connection closed"})
    page.until_says("#moments", "train-llm-1: connection closed")
    assert "other-1" not in page.text("#moments")


def test_what_happened_again_and_again_is_one_line(admin: Admin, open_page: Open) -> None:
    run = run_of(4, 2)
    moments = ["train-llm round 0: the link of n1 is away", *["train-llm round 0: the link of n1 is back"] * 3]
    run["timeline"] = [{"at": NOW + at, "run_id": "train-llm", "code": "x", "text": text} for at, text in enumerate(moments)]
    admin.set(run)
    page = open_page(admin.url)
    page.until_says("#moments", "the link of n1 is back (3 times)")
    lines = page.js("[...document.querySelectorAll('#moments li span')].map((line) => line.innerText)")
    assert lines == ["the link of n1 is back (3 times)", "the link of n1 is away"]


def test_no_state_of_a_cell_is_cut_into_another(admin: Admin, browser: Browser, open_page: Open) -> None:
    run = run_of(64, 64)
    states = ["announced", "waiting", "earlier", "redundant", "gone", "finished"]
    for state, node in zip(states, run["participants"], strict=False):
        node["state"] = state
    admin.set(run)
    browser.size(1280, 900)
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "1 announced, not joined")
    page.driver.execute_script(
        """
        window.drawn = [];
        CanvasRenderingContext2D.prototype.fillText = (text) => window.drawn.push(text);
        nodeGrid.draw();
        """
    )
    drawn = page.js("window.drawn")
    assert "not joined" in drawn and "next round" in drawn
    assert not [text for text in drawn if "…" in text and "train-llm" not in text], "only names are shortened"
    joined = [text for text in drawn if text.startswith("rank ")]
    assert len(joined) > 50, "each node that has joined says its rank"
    assert len({"+" in text for text in joined}) == 1, "either all say when they came, or none"


def test_on_a_phone_the_answer_stands_before_the_server(admin: Admin, browser: Browser, open_page: Open) -> None:
    for n in range(4):
        admin.set(run_of(4, 3, run_id=f"job-{n}"))
    browser.size(380, 800)
    page = open_page(admin.url)
    page.until_says("#health", "Memory")
    top = lambda where: page.js("document.querySelector(arguments[0]).getBoundingClientRect().top", where)
    assert top("#sentence") < top("#health-facts")
    bottom = page.js("document.querySelector('#runs').getBoundingClientRect().bottom")
    assert page.js("document.querySelector('#runs li:last-child').getBoundingClientRect().bottom") <= bottom + 1, "all four are seen"


def test_who_waits_for_what_is_one_row_a_reason(admin: Admin, open_page: Open) -> None:
    admin.set(example("run_static_rank_missing"))
    page = open_page(admin.url)
    page.until_says("#waits-rows", "rank 0, rank 1, rank 3")
    row = page.text("#waits-rows")
    assert page.js("document.querySelectorAll('#waits-rows tr').length") == 1
    for words in ("/default_pg/0//cpu//0/2", "the address must come from rank 2: never seen", "38 s"):
        assert words in row
    assert page.text("#sentence") == "Waiting for 1 of 4 ranks"
    assert page.text("#ranks-legend").split("\n") == ["3 joined", "1 missing"]
    # It goes on by itself.
    page.until("time passes", lambda: "38 s" not in page.text("#waits-rows"))


def test_a_server_that_is_gone_is_said_and_waited_for(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(4, 3))
    page = open_page(admin.url)
    page.until_says("#link", "live")
    assert not page.shown("#gone")
    admin.stop()
    page.until_says("#gone", "The server does not answer since")
    assert "What you see is from then" in page.text("#gone")
    assert page.text("#link").startswith("no answer")
    assert page.js("document.title").startswith("No answer · ")
    # What was known stays to be seen, and time does not go on in it.
    assert page.text("#sentence") == "Waiting for 1 of 4 nodes"
    time.sleep(1.2)  # by then every text that goes on by itself has stopped, if it does
    frozen = page.text("#since")
    time.sleep(1.5)
    assert page.text("#since") == frozen

    admin.set(run_of(4, 4))
    admin.start()
    page.until("it is back", lambda: not page.shown("#gone"))
    page.until_says("#sentence", "Running: 4 nodes")
    page.until_says("#link", "live")


def test_a_page_that_is_opened_before_any_run_shows_the_first(admin: Admin, open_page: Open) -> None:
    page = open_page(admin.url)
    page.until_says("#empty", "No runs")
    page.until_says("#empty", "rallypoint doctor rally.example:29500")
    page.until_says("#empty", "torchrun --nnodes=1 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=rally.example:29500")
    admin.set(run_of(4, 1))
    page.until_says("#sentence", "Waiting for 3 of 4 nodes")


def test_without_events_the_page_looks_by_itself(admin: Admin, open_page: Open) -> None:
    admin.events_status = 502
    admin.set(run_of(4, 3))
    page = open_page(admin.url)
    page.until_says("#link", "looking every 2 s")
    page.until_says("#nodes-legend", "3 joined")
    admin.set(run_of(4, 4))
    page.until_says("#sentence", "Running: 4 nodes")
    assert not page.shown("#gone")
    admin.events_status = 200
    page.until_says("#link", "live")


def test_a_run_with_a_debug_server_links_to_it(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(4, 4, run_id="plain"))
    admin.set(run_of(4, 4, run_id="debugged") | {"debug_server": "train-0:25999"})
    page = open_page(f"{admin.url}/#run=debugged")
    page.until_says("#since", "stacks of its ranks")
    assert page.js("document.querySelector('#since a').href") == "http://train-0:25999/"
    page = open_page(f"{admin.url}/#run=plain")
    page.until_says("#run-name", "plain")
    page.until("no link is left", lambda: page.js("document.querySelector('#since a')") is None)


def test_text_of_peers_is_never_markup(admin: Admin, open_page: Open) -> None:
    evil = "<script>hacked = 1</script><img src=x onerror='hacked = 1'>\"'&amp;\x1b[2J\u202eabc"
    admin.set(hostile := missing_nodes(run_of(4, 3, run_id=evil), evil))
    hostile["participants"][1].update(name=evil, node_id=evil, peer=evil)
    hostile["timeline"][0].update(text=evil)
    hostile["workers_store"] = hostile["debug_server"] = evil
    hostile["waits"] = [{**example("waits")["waits"][0], "who": evil, "missing": [evil], "writer": evil, "reason": evil}]
    said = explanation(9, None, evil, evil, evil)
    admin.explanations.append(said)
    admin.set(run_of(2, 1, run_id="../../livez"))
    page = open_page(f"{admin.url}/#run={'%3Cscript%3E'}")
    page.until_says("#empty", "The run <script> is not here")
    page.focus("#runs a")
    page.press(Keys.ENTER)
    page.until_says("#waits-rows", "<script>hacked = 1</script>")
    for where in ("#runs", "#run-name", "#explanations", "#moments", "#waits-rows", "#since", "#notices"):
        assert "<script>hacked = 1</script>" in page.text(where), where
        assert "\\u{1b}[2J\\u{202e}abc" in page.text(where), where
    page.focus("#nodes-grid")
    page.press(Keys.ARROW_RIGHT)
    page.until_says("#nodes-detail", "<script>hacked = 1</script>")
    assert page.js("document.querySelectorAll('img').length") == 0
    assert page.js("document.querySelectorAll('script').length") == 1
    assert page.js("typeof hacked") == "undefined"
    # The address of a run is one part of a path, whatever is in it.
    assert not any("livez" in path and "%2F" not in path for path in admin.requests)


def test_the_browser_itself_refuses_what_the_page_never_does(admin: Admin, browser: Browser, open_page: Open) -> None:
    admin.set(run_of(4, 3))
    page = open_page(admin.url)
    page.until_says("#link", "live")
    attempt = """
        const node = document.createElement('script');
        node.textContent = 'hacked = 1';
        document.body.append(node);
    """
    with pytest.raises(Exception, match="TrustedScript"):
        page.driver.execute_script(attempt)
    with pytest.raises(Exception, match="TrustedHTML"):
        page.driver.execute_script("document.body.innerHTML = '<b>x</b>'")
    assert page.js("typeof hacked") == "undefined"
    assert any("Trusted" in message for message in browser.complaints())


def test_the_keyboard_is_enough(admin: Admin, open_page: Open) -> None:
    run = run_of(64, 64, gone=(17, 40))
    admin.set(run)
    admin.set(run_of(4, 2, run_id="other"))
    page = open_page(f"{admin.url}/#run=train-llm")
    page.until_says("#nodes-legend", "2 gone")
    # Tab leads through everything there is, in order.
    page.js("document.activeElement.blur()")
    order = []
    for _ in range(12):
        page.press(Keys.TAB)
        order.append(page.focused())
    assert order[0] == "Skip to the run"
    assert order.index("nodes-grid") < order.index("moments")

    page.focus("#nodes-grid")
    page.until_says("#nodes-detail", "train-llm-0")
    page.press(Keys.ARROW_RIGHT)
    assert page.text("#nodes-detail").startswith("train-llm-1 · rank 1 · joined")
    page.press(Keys.END)
    assert page.text("#nodes-detail").startswith("train-llm-63")
    page.press("n")
    assert page.text("#nodes-detail").startswith("train-llm-17 · rank 17 · gone")
    page.press("n")
    assert page.text("#nodes-detail").startswith("train-llm-40")
    page.press(Keys.HOME, Keys.ARROW_DOWN)
    assert page.text("#nodes-detail").startswith("train-llm-8")
    page.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_LEFT)
    assert page.text("#nodes-detail").startswith("train-llm-0")

    page.focus("#runs a")
    page.press(Keys.ARROW_DOWN)
    assert "other" in page.focused() or "train-llm" in page.focused()
    # The focus stays where it is although the list is made anew.
    before = page.js("document.activeElement.closest('li').dataset.run")
    name = before.split(" ")[1]
    admin.set(run_of(4, 3, run_id="other"))
    page.until_says("#runs", "3/4 nodes")
    assert page.js("document.activeElement.closest('li')?.dataset.run") == before
    page.press(Keys.ENTER)
    page.until("the run is chosen", lambda: name in page.text("#run-name"))


def test_the_mouse_tells_of_a_cell_too(admin: Admin, open_page: Open) -> None:
    admin.set(missing_nodes(run_of(4, 3), "train-llm-3"))
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "3 joined")
    page.point_at("#nodes-grid", 20, 20)
    page.until_says("#nodes-detail", "train-llm-0 · joined")
    width = page.js("document.querySelector('#nodes-grid').clientWidth")
    page.point_at("#nodes-grid", min(280, width / 4) * 3 + 20, 20)
    page.until_says("#nodes-detail", "train-llm-3 · missing · rank 3 · announced · last seen")


def test_a_node_that_died_is_one_cell(admin: Admin, open_page: Open) -> None:
    """The server names it as missing as well."""
    admin.set(run_of(4, 4, gone=(1,)))
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "1 gone")
    assert page.text("#nodes-legend").split("\n") == ["3 joined", "1 gone"]
    assert page.js("document.title").startswith("Running, but 1 node is gone · ")


def test_a_screen_reader_is_told_in_words(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(64, 64, local=8, ranks_joined=500, gone=(3,)))
    page = open_page(admin.url)
    page.until_says("#ranks-legend", "8 disconnected")
    label = lambda id: page.js("document.querySelector(arguments[0]).getAttribute('aria-label')", f"#{id}-grid")
    assert page.text("#nodes-who") == "gone: train-llm-3"
    assert page.text("#ranks-who") == "disconnected: 24-31; missing: 500-511"
    assert label("nodes").startswith("64 nodes: 63 joined, 1 gone.")
    assert label("ranks").startswith("512 ranks: 492 joined, 12 missing, 8 disconnected.")
    assert page.js("document.querySelector('#joins-chart').getAttribute('aria-label')").startswith("Number of nodes over time: first train-llm-0")
    for id in ("sentence", "nodes-detail", "ranks-detail"):
        assert page.js("document.getElementById(arguments[0]).getAttribute('aria-live')", id) == "polite"


def test_it_is_dark_where_the_reader_wants_it_dark(admin: Admin, browser: Browser, open_page: Open) -> None:
    admin.set(run_of(4, 3))
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "3 joined")
    ground = lambda: page.js("getComputedStyle(document.body).backgroundColor")
    light, joined = ground(), page.variable("joined")
    browser.media(prefers_color_scheme="dark")
    page.until("another ground", lambda: ground() != light)
    assert page.variable("joined") != joined
    page.until("the grid is drawn anew", lambda: page.variable("joined") in page.colors("#nodes-grid"))


def test_a_run_that_nobody_counts_is_shown_all_the_same(admin: Admin, open_page: Open) -> None:
    run = run_of(4, 3)
    run["nodes"].update(expected=None, missing=None)
    admin.set(run)
    page = open_page(admin.url)
    page.until_says("#sentence", "3 nodes have joined; how many are expected is not known")
    page.until_says("#nodes-legend", "3 joined")
    assert "3/? nodes" in page.text("#runs")


@pytest.mark.parametrize("field", ["time", "max"])
def test_numbers_beyond_all_measure_do_no_harm(admin: Admin, open_page: Open, field: str) -> None:
    run = run_of(4, 3)
    if field == "max":
        run["nodes"].update(expected={"min": 4294967295, "max": 4294967295, "source": "api"}, missing=4294967292)
    else:
        run.update(round=2**63, deadline=1e300, started_at=-1e300, state_since=1e300)
        run["timeline"][-1]["at"] = 1e300
        run["participants"][1].update(joined_at=1e300, after_seconds=1e300, gone_at=-1e300)
    admin.set(run)
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "3 joined")
    admin.set(run_of(4, 4))
    page.until_says("#sentence", "Running: 4 nodes")


def test_4096_nodes_that_join_at_once_do_not_choke_it(admin: Admin, open_page: Open) -> None:
    """Every node is an event; the page is made anew a few times a second and stays quick to answer."""
    nodes = 4096
    admin.set(run_of(nodes, 1, local=8))
    page = open_page(admin.url)
    page.until_says("#nodes-legend", "1 joined")
    page.driver.execute_script(
        """
        window.shows = 0;
        new MutationObserver(() => { window.shows += 1; }).observe(document.querySelector('#nodes-summary'), { childList: true });
        window.longest = 0;
        let last = performance.now();
        setInterval(() => { const at = performance.now(); window.longest = Math.max(window.longest, at - last); last = at; }, 10);
        """
    )
    began = time.monotonic()
    document = run_of(nodes, nodes, local=8, ranks_joined=nodes * 8)
    for n in range(2, nodes):
        small = summary(document)
        small.update(version=n, state="joining", nodes={**document["nodes"], "joined": n, "missing": nodes - n})
        admin.send("run", small)
    admin.set(document)
    page.until_says("#sentence", "Running: 4096 nodes")
    page.until_says("#nodes-legend", "4096 joined")
    page.until_says("#ranks-legend", "32768 joined")
    took = time.monotonic() - began
    assert page.js("window.shows") <= 4 * took + 3
    details = [path for path in admin.requests if path.startswith("/api/v1/runs/")]
    assert len(details) <= 4 * took + 3
    assert page.js("window.longest") < 2000


def test_a_thousand_runs_are_a_list(admin: Admin, open_page: Open) -> None:
    for n in range(1000):
        run = run_of(4, 4, run_id=f"job-{n}")
        admin.runs[run["run_id"]] = run
    bad = missing_nodes(run_of(4, 2, run_id="stuck"), "stuck-2")
    admin.runs["stuck"] = bad
    page = open_page(admin.url)
    page.until_says("#run-name", "stuck round 0")
    assert page.js("document.querySelectorAll('#runs a').length") == 1001
    assert "stuck" in page.js("document.querySelector('#runs a').innerText")
    admin.remove("stuck")
    page.until("another is shown", lambda: "stuck" not in page.text("#run-name"))


def test_a_run_is_found_by_a_part_of_its_name(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(4, 4, run_id="shown"))
    page = open_page(f"{admin.url}/#run=shown")
    page.until_says("#run-name", "shown round 0")
    assert page.js("document.querySelector('#find').hidden"), "there is nothing to look for among few"
    for n in range(30):
        admin.set(run_of(4, 4, run_id=f"Job-{n}"))
    page.until("there is much to look through", lambda: not page.js("document.querySelector('#find').hidden"))
    page.focus("#find")
    page.press(*"job-2")
    page.until("the list is short", lambda: page.js("document.querySelectorAll('#runs a').length") == 11)
    assert page.text("#run-count") == "11 of 31"
    assert "shown round 0" in page.text("#run-name"), "what is looked at stays"
    admin.remove("Job-2")
    page.until("the list goes on living", lambda: page.text("#run-count") == "10 of 30")


def test_what_the_pictures_show_is_also_a_table(admin: Admin, open_page: Open) -> None:
    admin.set(run_of(4, 4, local=2, ranks_joined=7, gone=(3,)))
    page = open_page(admin.url)
    page.until_says("#ranks-legend", "missing")
    rows = lambda grid: page.js("[...document.querySelectorAll(arguments[0])].map((row) => row.innerText)", f"#{grid}-rows tr")
    assert rows("nodes") == [], "it costs nothing while nobody looks"
    for grid in ("nodes", "ranks"):
        page.js("document.querySelector(arguments[0]).open = true", f"#{grid}-table")
    page.until("there are the nodes", lambda: len(rows("nodes")) == 4)
    assert rows("nodes")[0].startswith("train-llm-0\tjoined\trank 0") and "gone" in rows("nodes")[3]
    page.until("there are the ranks", lambda: len(rows("ranks")) == 8)
    admin.set(run_of(4, 4, local=2, ranks_joined=8))
    page.until("it changes with the picture", lambda: "gone" not in " ".join(rows("nodes")))


def test_the_links_lead_to_routes_of_the_server(admin: Admin, open_page: Open) -> None:
    page = open_page(admin.url)
    named = page.js("[...document.querySelectorAll('footer a')].map((link) => new URL(link.href).pathname)")
    document = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
    assert named and set(named) <= set(document["paths"])


def test_an_explanation_says_what_it_was_seen_from_and_what_it_means(admin: Admin, open_page: Open) -> None:
    run = example("run_4_nodes_one_missing")
    who = {"who": "train-llm-0", "peer": "10.0.0.7:41000", "pid": 12}
    run["explanations"][0]["evidence"] = [{"seen": "waits", **who, "key": "<b>0/role</b>", "at": NOW - 30}]
    admin.set(run)
    page = open_page(admin.url)
    page.until_says("#explanations", "announced itself: train-llm-2")
    assert page.js("document.querySelector('#explanations .why').open") is False
    page.js("document.querySelector('#explanations .why summary').click()")
    page.until_says("#explanations .why ul", "train-llm-0 (10.0.0.7:41000, pid 12) has waited for <b>0/role</b>")
    page.until_says("#explanations .why p", "A round is not complete. Missing nodes are named if")
    run["explanations"][0]["text"] += ", again"
    admin.set(run)
    page.until_says("#explanations .text", "again")
    assert page.js("document.querySelector('#explanations .why').open") is True


def test_the_servers_own_health_is_shown(admin: Admin, open_page: Open) -> None:
    page = open_page(admin.url)
    page.until_says("#health", "3.34 MiB of 1 GiB")
    assert "2 h 1 min" in page.text("#health") and "Journal\nnone" in page.text("#health")
    assert page.js("document.querySelectorAll('#health .warning, #health .error').length") == 0
    admin.health.update(memory_bytes=1 << 30, journal={"path": "/data", "error": "No space left on device", "broken_seconds": 61.0})
    page.until_says("#health .error", "cannot be written for 1 min 1 s: No space left on device")
    assert page.text("#health .warning").endswith("1 GiB of 1 GiB")


def test_nodes_that_wait_for_the_next_round_are_there(admin: Admin, open_page: Open) -> None:
    run = run_of(4, 4, gone=(1,))
    run["state"] = "restarting"
    run["nodes"].update(joined=1, waiting=3, missing=0)
    for node in run["participants"]:
        if node["state"] != "gone":
            node.update(state="waiting", rank=None, joined_at=None, after_seconds=None)
    admin.set(run)
    page = open_page(admin.url)
    page.until_says("#sentence", "Restarting: 3 nodes wait for the next round; 1 node is gone")
    page.until_says("#nodes-legend", "1 gone")
    assert "missing" not in page.text("#nodes-legend") and "4/4 nodes" in page.text("#runs")
