"""Random plays (scripts/play): one of them, and that what judges them finds what is false, what is missing, and what differs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import ForkServer
from package import package

sys.path.insert(0, str(Path(__file__).with_name("plays")))
from judge import judge  # noqa: E402
from play import played  # noqa: E402
from record import Process, Record  # noqa: E402
from schedule import draw  # noqa: E402

SEED = 37
"""Of four ranks one is started with the rank of another, and one never starts."""
CUT_OFF = 666
"""Of three native nodes one is cut off while they train."""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    yield play(SEED, False, tmp_path_factory.mktemp("plays"))


def play(seed: int, apart: bool, folder: Path) -> Record:
    forks = ForkServer(package())
    try:
        return played(draw(seed, apart), folder / "play", forks, "28200-28239")
    finally:
        forks.stop()


@pytest.fixture
def changed(record: Record) -> Record:
    return copy.deepcopy(record)


def findings(record: Record) -> str:
    return "\n".join(judge(record)[1])


@pytest.mark.timeout(240)
def test_what_is_said_of_a_play_is_right(record: Record) -> None:
    page, found = judge(record)
    assert not found, page


@pytest.mark.timeout(240)
def test_what_is_said_of_a_host_that_is_cut_off_is_right(tmp_path: Path) -> None:
    record = play(CUT_OFF, True, tmp_path)
    page, found = judge(record)
    assert not found, page
    addresses = {peer for event in record.events for each in event.get("evidence", []) if (peer := each["peer"])}
    assert any(peer.startswith(record.job.address(1)) for peer in addresses), addresses
    told = [event["text"] for event in record.events if event["severity"] != "info"]
    assert any(record.job.host(0) in text for text in told), told


def test_a_false_word_is_found(changed: Record) -> None:
    changed.job.processes.append(Process("job", "rank", node=3, pid=1, born=changed.began, rank=3))
    assert "rank 3 is not absent" in findings(changed)


def test_what_is_not_said_is_found(changed: Record) -> None:
    changed.events = [event for event in changed.events if event["severity"] == "info"]
    for poll in changed.polls:
        for run in poll["runs"]:
            run["explanations"] = []
    found = findings(changed)
    assert "nothing said within" in found and "waits, and no warning holds" in found


def test_what_differs_is_found(changed: Record) -> None:
    for poll in changed.polls:
        poll["status"] = "no runs"
        for values in poll["metrics"].values():
            values["ranks_joined"] = 7
    found = findings(changed)
    assert "status has not" in found and "metric ranks_joined is 7" in found
