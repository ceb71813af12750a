"""rallypoint.elastic with real PyTorch: ranks are killed at any moment and come again, and nobody is started again.

Every job keeps a record of its steps in the state that ranks copy from each other. So it shows whether a step was lost or done twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import installed
import pytest
from forks import STAND_IN, ForkedProcess, ForkServer
from servers import HOST, TORCH_VERSION, Server, binary, poll

pytestmark = pytest.mark.skipif(TORCH_VERSION != (2, 15), reason="the interface is that of PyTorch 2.15")

REPOSITORY = Path(__file__).parents[2]
RANK = Path(__file__).with_name("support") / "elastic_rank.py"
STEPS = 120


class Rank:
    """A process of a job, and what it has said."""

    def __init__(self, forks: ForkServer, path: Path, environment: dict[str, str], command: list[str]) -> None:
        self.path = path
        path.touch()
        self.process = ForkedProcess(forks, command, environment, path)

    @property
    def said(self) -> str:
        return self.path.read_text()

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.replace("}{", "}\n{").splitlines() if line.startswith("{") and line.endswith("}")]

    def step(self) -> int:
        """The last step that it has done."""
        return max((fact["step"] for fact in self.facts if "size" in fact), default=-1)

    def rank(self) -> int:
        return next((int(fact["rank"]) for fact in reversed(self.facts) if "rank" in fact), -1)

    def size(self) -> int:
        return next((int(fact["size"]) for fact in reversed(self.facts) if "size" in fact), 0)

    def send(self, what: signal.Signals) -> None:
        os.kill(self.process.pid, what)

    def kill(self) -> None:
        self.send(signal.SIGKILL)


class Job:
    """The ranks of one run, each started by hand."""

    def __init__(self, forks: ForkServer, folder: Path, port: int, admin: int) -> None:
        self.forks, self.folder = forks, folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
        self.environment |= {
            "PYTHONPATH": str(installed.PACKAGE),
            "RALLYPOINT_ADMIN": f"{HOST}:{admin}",
            "RALLYPOINT_ENDPOINT": f"{HOST}:{port}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.ranks: list[Rank] = []

    def start(self, count: int, *command: str) -> list[Rank]:
        command = command or (str(RANK), str(STEPS), "2:8")
        paths = [self.folder / f"rank-{len(self.ranks) + n}.log" for n in range(count)]
        new = [Rank(self.forks, path, self.environment, list(command)) for path in paths]
        self.ranks += new
        return new

    def together(self, ranks: list[Rank], size: int) -> None:
        """Waits until these ranks have done a step in a round of `size`."""
        poll(lambda: all(rank.size() == size for rank in ranks), f"a round of {size} in {self.folder}", 60)

    def end(self, ranks: list[Rank]) -> None:
        """These ranks end well, with every step once and the right sum."""
        for rank in ranks:
            assert rank.process.wait(90) == 0, rank.said[-2000:]
        ends = [rank.facts[-1] for rank in ranks]
        samples = range(STEPS * 24)
        assert [end["total"] for end in ends] == len(ranks) * [float(sum(samples))]
        assert [end["steps"] for end in ends] == len(ranks) * [list(range(STEPS))]

    def stop(self) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.kill()
                rank.process.wait()


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    server = ForkServer(installed.PACKAGE)
    yield server
    server.stop()


@pytest.fixture
def job(forks: ForkServer, tmp_path: Path, rallypoint: Server) -> Iterator[Job]:
    running = Job(forks, tmp_path, rallypoint.port, rallypoint.admin_port)
    yield running
    running.stop()


def by_rank(ranks: list[Rank]) -> list[Rank]:
    return sorted(ranks, key=Rank.rank)


def test_nobody_is_lost_and_all_end(job: Job) -> None:
    ranks = job.start(3)
    job.end(ranks)
    assert not any("is done again" in rank.said for rank in ranks[1:])


@pytest.mark.parametrize("lost", [[0], [2], [1, 2], [0, 3]], ids=str)
def test_the_others_go_on_when_ranks_are_killed(job: Job, lost: list[int]) -> None:
    ranks = job.start(4)
    job.together(ranks, 4)
    ordered = by_rank(ranks)
    for rank in lost:
        ordered[rank].kill()
    left = [rank for n, rank in enumerate(ordered) if n not in lost]
    job.together(left, len(left))
    assert by_rank(left) == left, "the survivors keep their order"
    job.end(left)


def test_a_rank_that_is_killed_while_the_others_meet(job: Job) -> None:
    ranks = job.start(4)
    job.together(ranks, 4)
    first, second, *left = by_rank(ranks)
    first.kill()
    poll(lambda: "is done again" in left[0].said, "the others notice it", 30)
    second.kill()
    job.together(left, 2)
    job.end(left)


def test_a_new_rank_gets_the_state_of_the_others(job: Job) -> None:
    ranks = job.start(3)
    job.together(ranks, 3)
    lost, *left = by_rank(ranks)
    lost.kill()
    job.together(left, 2)
    [new] = job.start(1)
    job.together([*left, new], 3)
    assert new.rank() == 2, "it comes last"
    job.end([*left, new])


def test_a_process_that_is_stopped_is_lost_after_the_keep_alive_and_comes_back(job: Job) -> None:
    ranks = job.start(3)
    job.together(ranks, 3)
    stopped, *left = by_rank(ranks)
    stopped.send(signal.SIGSTOP)
    job.together(left, 2)
    stopped.send(signal.SIGCONT)
    job.end(ranks)


def test_an_error_of_the_program_is_raised(job: Job) -> None:
    program = job.folder / "program.py"
    program.write_text(
        "from rallypoint import elastic\n"
        "with elastic.World('elastic', '1:2', state={}, keep_alive_misses=1) as world:\n"
        "    with world.try_step():\n"
        "        raise RuntimeError('shapes do not fit')\n"
    )
    [rank] = job.start(1, str(program))
    assert rank.process.wait(60) == 1
    assert "RuntimeError: shapes do not fit" in rank.said


def test_without_the_minimum_the_others_end_with_an_error(job: Job) -> None:
    program = job.folder / "program.py"
    program.write_text(RANK.read_text().replace("join_timeout=60", "join_timeout=5"))
    ranks = job.start(2, str(program), str(STEPS), "2:2")
    job.together(ranks, 2)
    ranks[0].kill()
    assert ranks[1].process.wait(60) == 1
    assert "TimedOutError" in ranks[1].said


def test_a_run_that_is_closed_ends_its_ranks(job: Job, rallypoint: Server) -> None:
    ranks = job.start(2)
    job.together(ranks, 2)
    close = ["ctl", "close", "--yes", "--run-id", "elastic", "--admin", f"{HOST}:{rallypoint.admin_port}"]
    subprocess.run([binary(), *close], check=True, timeout=30)
    assert [rank.process.wait(60) for rank in ranks] == [1, 1]
    assert all("ClosedError: the run was closed by an operator" in rank.said for rank in ranks)


def test_torchrun_loses_a_node_and_the_others_go_on(job: Job) -> None:
    job.environment |= job.forks.environment
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    lost, left = job.start(2, *agent, *STAND_IN, str(RANK), str(STEPS), "2:8")
    job.together([lost, left], 4)
    os.kill(lost.facts[0]["pid"], signal.SIGKILL)
    assert lost.process.wait(60) == 1
    job.together([left], 2)
    assert left.process.wait(90) == 0, left.said[-2000:]
    ends = [fact["steps"] for fact in left.facts if "end" in fact]
    assert ends == 2 * [list(range(STEPS))]


def test_the_example_has_the_losses_of_an_undisturbed_run(job: Job) -> None:
    def losses(rank: Rank) -> dict[int, float]:
        return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): .*loss (\S+)$", rank.said, re.MULTILINE)}

    example = [str(REPOSITORY / "examples" / "elastic.py"), "100"]
    calm = job.start(2, *example)
    assert [rank.process.wait(90) for rank in calm] == [0, 0], calm[0].said
    ranks = job.start(3, *example)
    poll(lambda: all("of 3, loss" in rank.said for rank in ranks), "a round of 3", 60)
    ranks[0].kill()
    poll(lambda: all(rank.said.splitlines()[-1].find("of 2, loss") > 0 for rank in ranks[1:]), "a round of 2", 60)
    [new] = job.start(1, *example)
    left = [*ranks[1:], new]
    assert [rank.process.wait(90) for rank in left] == [0, 0, 0], left[0].said
    wanted = losses(calm[0])
    assert sorted(wanted) == list(range(100)) and wanted[99] < wanted[0] / 2
    for rank in left:
        found = losses(rank)
        assert 99 in found
        assert found == pytest.approx({step: wanted[step] for step in found}, rel=1e-4)


@contextlib.contextmanager
def behind_relay(forks: ForkServer, folder: Path, server: Server) -> Iterator[Job]:
    """A job whose ranks know only the relay of their node."""
    ports = folder / "relay.json"
    command = [str(binary()), "relay", "--server", f"{HOST}:{server.admin_port}", "--listen", f"{HOST}:0", "--admin", f"{HOST}:0"]
    relay = subprocess.Popen([*command, "--ports-file", str(ports)])
    found = poll(lambda: ports.exists() and json.loads(ports.read_text()), "the relay listens")
    job = Job(forks, folder, found["stores"][0], found["admin"])
    try:
        yield job
    finally:
        job.stop()
        relay.kill()
        relay.wait()


def test_the_server_knows_at_once_of_a_rank_that_is_killed_behind_a_relay(forks: ForkServer, tmp_path: Path, rallypoint: Server) -> None:
    with behind_relay(forks, tmp_path, rallypoint) as job:
        ranks = job.start(3)
        job.together(ranks, 3)
        ranks.pop().kill()
        job.together(ranks, 2)
        assert "the connection closed, and nothing came for 1 s" in rallypoint.log_text()
        job.end(ranks)


@pytest.mark.parametrize("is_rank_killed_too", [False, True])
def test_the_server_is_killed_and_starts_again_with_its_journal(
    forks: ForkServer, tmp_path: Path, rallypoint_factory: Callable[..., Server], is_rank_killed_too: bool
) -> None:
    journal = ("--journal", str(tmp_path / "journal"))
    server = rallypoint_factory(*journal)
    addresses = ("--listen", f"{HOST}:{server.port}", "--admin", f"{HOST}:{server.admin_port}")
    with behind_relay(forks, tmp_path, server) as job:
        ranks = job.start(3)
        job.together(ranks, 3)
        server.process.kill()
        server.process.wait()
        if is_rank_killed_too:
            ranks.pop(0).kill()
        time.sleep(0.5)
        rallypoint_factory(*journal, *addresses)
        job.together(ranks, len(ranks))
        job.end(ranks)
