"""torchft's replica groups with a store for each group (examples/replica_groups.py): two groups of two ranks, without a GPU.

Rank 0 of one group is killed and comes again on another node: what it hosts then has another address.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dying import die_with_parent
from servers import HOST, REPOSITORY, Server, poll

HERE = Path(__file__).parent
EXAMPLE = REPOSITORY / "examples" / "replica_groups.py"
STEPS = 12
LIGHTHOUSE = """
from torchft.coordination import LighthouseServer
import time
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=3000)
print(lighthouse.address(), flush=True)
time.sleep(3600)
"""
pytestmark = pytest.mark.timeout(600)  # the package may have to be downloaded, and its import takes long
PATIENCE = 180


@pytest.fixture(scope="module")
def torchft() -> dict[str, str]:
    command = [REPOSITORY / "scripts" / "python-env", "torchft", "--no-deps", "--requirement", HERE / "torchft.txt"]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    (packages,) = Path(made).glob("lib/python*/site-packages")
    return {"PYTHONPATH": str(packages), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def port_range() -> str:
    first = free_port()
    return f"{first}-{first + 9}"


class Groups:
    """Two replica groups. Each rank is started again when it has failed, as its operator would."""

    def __init__(self, folder: Path, environment: dict[str, str], store: Callable[[int, int, int], dict[str, str]]) -> None:
        self.folder, self.store = folder, store
        self.environment = os.environ | environment
        command = [sys.executable, "-c", LIGHTHOUSE]
        self.lighthouse = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment, preexec_fn=die_with_parent
        )
        assert self.lighthouse.stdout is not None
        self.address = self.lighthouse.stdout.readline().strip()
        self.ranks: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        self.lives = {(group, rank): 0 for group in (0, 1) for rank in (0, 1)}
        for place in self.lives:
            self.start(place)

    def start(self, place: tuple[int, int]) -> None:
        group, rank = place
        self.lives[place] += 1
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "REPLICA_GROUP": str(group), "TORCHFT_LIGHTHOUSE": self.address}
        own |= self.store(group, rank, self.lives[place])
        with self.log(place).open("ab") as log:
            self.ranks[place] = subprocess.Popen(
                [sys.executable, str(EXAMPLE), str(STEPS)], stdout=log, stderr=log, env=self.environment | own, preexec_fn=die_with_parent
            )

    def log(self, place: tuple[int, int]) -> Path:
        return self.folder / f"group-{place[0]}-rank-{place[1]}.log"

    def said(self, place: tuple[int, int], pattern: str) -> list[str]:
        return re.findall(pattern, self.log(place).read_text(errors="replace"))

    def step(self, place: tuple[int, int]) -> int:
        return max(map(int, self.said(place, r"(?m)^group \d rank \d step (\d+)$")), default=0)

    def tend(self) -> bool:
        """Starts again what has failed. Whether all have trained to the end."""
        for place, process in list(self.ranks.items()):
            if process.poll() not in (None, 0):
                self.start(place)
        return all(self.said(place, "has trained") for place in self.ranks)

    def lose_rank_0_of_group_1(self) -> None:
        def has_begun() -> bool:
            self.tend()
            return self.step((1, 0)) >= 3

        poll(has_begun, "the groups train", PATIENCE)
        self.ranks[1, 0].kill()
        self.ranks[1, 0].wait()

    def end(self) -> None:
        for process in [*self.ranks.values(), self.lighthouse]:
            process.kill()
            process.wait()


@pytest.fixture
def groups(torchft: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Groups]]:
    made: list[Groups] = []

    def make(store: Callable[[int, int, int], dict[str, str]]) -> Groups:
        made.append(Groups(tmp_path, torchft, store))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_a_group_recovers_whose_rank_0_comes_again_elsewhere(
    rallypoint_factory: Callable[..., Server], groups: Callable[..., Groups]
) -> None:
    server = rallypoint_factory("--store-ports", port_range())
    admin = {"RALLYPOINT_ADMIN": f"http://{server.host}:{server.admin_port}"}
    trained = groups(lambda *_: admin)
    trained.lose_rank_0_of_group_1()
    poll(trained.tend, "all four ranks have trained", PATIENCE)
    weights = {trained.said(place, r"has trained: (.*)")[-1] for place in trained.ranks}
    assert len(weights) == 2, "rank 0 of both groups has one model, and so has rank 1"


def test_a_group_does_not_whose_rank_0_hosts_its_store(groups: Callable[..., Groups]) -> None:
    first, second, moved = free_port(), free_port(), free_port()

    def store(group: int, rank: int, life: int) -> dict[str, str]:
        port = (first, second)[group] if (group, rank, life > 1) != (1, 0, True) else moved
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    hung = groups(store)
    hung.lose_rank_0_of_group_1()

    def are_back() -> bool:
        hung.tend()
        return all(len(hung.said((1, rank), "meets at")) >= 2 for rank in (0, 1))

    poll(are_back, "both ranks of the group have come again", PATIENCE)
    steps = hung.step((0, 0))
    end = time.monotonic() + 20
    while time.monotonic() < end:
        assert not hung.tend()
        time.sleep(0.2)
    assert hung.step((0, 0)) == steps, "one rank waits for a store that is not there any more"
