"""rallypoint.elastic with real PyTorch: ranks are killed at any moment and come again, and nobody is started again.

Every job keeps a record of its steps in the state that ranks copy from each other. So it shows whether a step was lost or done twice.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import installed
import pytest
from dying import die_with_parent
from forks import STAND_IN, ForkedProcess, ForkServer
from pods import Pods
from rallypoint import elastic
from relayed import Relay
from servers import HOST, TORCH_VERSION, Server, binary, poll

pytest_plugins = ["job_fixtures"]

pytestmark = pytest.mark.skipif(TORCH_VERSION != (2, 15), reason="the interface is that of PyTorch 2.15")

REPOSITORY = Path(__file__).parents[2]
RANK = Path(__file__).with_name("support") / "elastic_rank.py"
DYING = RANK.with_name("elastic_dying.py")
STEPS = 120
KILL_SECONDS = float(os.environ.get("RALLYPOINT_ELASTIC_SECONDS", "60"))
"""How long ranks and the server are killed at random moments."""


class Rank:
    """A process of a job, and what it has said."""

    def __init__(self, forks: ForkServer, path: Path, environment: dict[str, str], command: list[str], within: int | None) -> None:
        self.path = path
        path.touch()
        self.process: ForkedProcess | subprocess.Popen[bytes] = ForkedProcess(forks, command, environment, path, within)

    @property
    def said(self) -> str:
        return self.path.read_text()

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.replace("}{", "}\n{").splitlines() if line.startswith("{") and line.endswith("}")]

    def last(self) -> dict[str, Any]:
        """The facts of its last step, of the end of its log only: a log may be long."""
        with self.path.open("rb") as log:
            log.seek(max(0, self.path.stat().st_size - 4096))
            lines = log.read().splitlines()
        steps = (json.loads(line) for line in reversed(lines) if line.startswith(b'{"at"') and line.endswith(b"}"))
        return next((fact for fact in steps if "size" in fact), {"at": 0.0, "step": -1, "rank": -1, "size": 0, "round": 0})

    def rank(self) -> int:
        return int(self.last()["rank"])

    def size(self) -> int:
        return int(self.last()["size"])

    def send(self, what: signal.Signals) -> None:
        os.kill(self.process.pid, what)

    def kill(self) -> None:
        self.send(signal.SIGKILL)


class RankOfPod(Rank):
    """A rank behind a program that starts it, as in a pod."""

    def __init__(self, job: Job, name: str, command: list[str]) -> None:
        self.path = job.folder / f"{name}.log"
        with self.path.open("wb") as log:
            environment = job.environment | {"POD_NAME": name}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent)


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
        self.within: int | None = None
        """A process on the host where ranks start, if it is another one."""
        self.ranks: list[Rank] = []
        self.until = folder / "until"
        """The ranks go on until this file is there: however slow the machine is, whoever comes again finds the others."""

    def arguments(self, nodes: str = "2:8") -> list[str]:
        return [str(STEPS), nodes, str(self.until)]

    def start(self, count: int, *command: str) -> list[Rank]:
        command = command or (str(RANK), *self.arguments())
        paths = [self.folder / f"rank-{len(self.ranks) + n}.log" for n in range(count)]
        new = [Rank(self.forks, path, self.environment, list(command), self.within) for path in paths]
        self.ranks += new
        return new

    def together(self, ranks: list[Rank], size: int, seconds: float = 60) -> None:
        """Waits until these ranks have done a step in a round of `size`."""
        poll(lambda: all(rank.size() == size for rank in ranks), f"a round of {size} in {self.folder}", seconds)

    def end(self, ranks: list[Rank]) -> int:
        """Lets these ranks end: they end well, with every step once and the right sum. How many steps they did."""
        self.until.touch()
        for rank in ranks:
            assert rank.process.wait(90) == 0, rank.said[-2000:]
        ends = [rank.facts[-1] for rank in ranks]
        count = len(ends[0]["steps"])
        assert count >= STEPS
        samples = range(count * 24)
        assert [end["total"] for end in ends] == len(ranks) * [float(sum(samples))]
        assert [end["steps"] for end in ends] == len(ranks) * [list(range(count))]
        return count

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
def test_the_others_go_on_when_ranks_are_killed(job: Job, rallypoint: Server, lost: list[int]) -> None:
    ranks = job.start(4)
    job.together(ranks, 4)
    ordered = by_rank(ranks)
    for rank in lost:
        ordered[rank].kill()
    left = [rank for n, rank in enumerate(ordered) if n not in lost]
    job.together(left, len(left))
    assert by_rank(left) == left, "the survivors keep their order"
    says = f"{len(left)} of 4 go on"
    poll(lambda: says in (rallypoint.get_json("/api/v1/runs/elastic")["explanation"] or {}).get("text", ""), "the run's headline says it")
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


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rank_that_dies_while_the_others_connect_to_it(job: Job, moment: str) -> None:
    ranks = job.start(3, str(DYING), *job.arguments())
    job.environment["ELASTIC_DIES"] = moment
    ranks += job.start(1, str(DYING), *job.arguments())
    job.together(ranks, 4)
    ranks.pop(0).kill()
    ranks.pop()
    # gloo itself would wait for 50 s, with the 10 s that a collective of this job may take.
    job.together(ranks, 2, seconds=25)
    job.end(ranks)


def test_a_rank_that_stops_while_the_others_connect_to_it_and_goes_on_later(job: Job) -> None:
    first, *ranks = job.start(3, str(DYING), *job.arguments())
    job.environment["ELASTIC_DIES"] = "stops"
    [stopped] = job.start(1, str(DYING), *job.arguments())
    job.together([first, *ranks, stopped], 4)
    first.kill()
    job.together(ranks, 2)
    # It connects to those who have given it up. gloo would end them.
    stopped.send(signal.SIGCONT)
    job.together([*ranks, stopped], 3)
    job.end([*ranks, stopped])


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
    ranks = job.start(2, str(program), *job.arguments("2:2"))
    job.together(ranks, 2)
    ranks[0].kill()
    assert ranks[1].process.wait(60) == 1
    assert "TimedOutError" in ranks[1].said


def test_a_rank_that_does_not_end_is_waited_for_until_the_join_timeout(job: Job) -> None:
    program = job.folder / "program.py"
    program.write_text(
        "import time\n"
        "from rallypoint import elastic\n"
        "with elastic.World('elastic', 2, state={}, join_timeout=3) as world:\n"
        "    time.sleep(300 * world.rank)\n"
    )
    ranks = job.start(2, str(program))
    poll(lambda: any(rank.process.poll() is not None for rank in ranks), "one of them ends", 60)
    [ended] = [rank for rank in ranks if rank.process.poll() is not None]
    assert "TimedOutError: run 'elastic', round 1: 1 of 2 ranks are finished after 3 s" in ended.said


class Counters:
    """What ranks share in their store."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = collections.defaultdict(int)
        self.decisions: dict[str, str] = {}

    def count(self, key: str, more: int) -> int:
        self.counts[key] += more
        return self.counts[key]

    def decide(self, key: str, proposal: str) -> str:
        return self.decisions.setdefault(key, proposal)


@pytest.mark.parametrize("comes", ["before", "after"])
def test_two_ranks_never_disagree_on_whether_all_are_there(comes: str) -> None:
    """A rank has news in the moment in which the last one comes."""
    shared = Counters()
    first, last = (object.__new__(elastic.World) for _ in range(2))
    for world in (first, last):
        round = types.SimpleNamespace(world_size=2)
        vars(world).update(_me=round, _group=shared, _number=1, _patience=60.0, _has_news=lambda: False)
    answers: list[bool] = []

    def news() -> bool:
        if comes == "before":
            answers.append(last._are_all_at("here", 0))
        return True

    vars(first).update(_has_news=news)
    answers.append(first._are_all_at("here", 0))
    if comes == "after":
        answers.append(last._are_all_at("here", 0))
    assert answers == 2 * [comes == "before"]


def test_another_release_of_pytorch_is_refused(job: Job) -> None:
    program = job.folder / "program.py"
    program.write_text(
        "import torch\ntorch.__version__ = '2.16.0'\nfrom rallypoint import elastic\nelastic.World('elastic', 1, state={})\n"
    )
    [rank] = job.start(1, str(program))
    assert rank.process.wait(60) == 1
    assert "it works with 2.15, and this is 2.16.0" in rank.said


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
    lost, left = job.start(2, *agent, *STAND_IN, str(RANK), *job.arguments())
    job.together([lost, left], 4)
    os.kill(lost.facts[0]["pid"], signal.SIGKILL)
    assert lost.process.wait(60) == 1
    job.together([left], 2)
    job.until.touch()
    assert left.process.wait(90) == 0, left.said[-2000:]
    one, other = (fact["steps"] for fact in left.facts if "end" in fact)
    assert one == other == list(range(len(one)))


@pytest.mark.parametrize("relay", ["on", "off"])
def test_rallypoint_run_starts_the_ranks(job: Job, relay: str) -> None:
    """Without torchrun: each pod runs `rallypoint run … python train.py`, and one that was lost is started again as it was."""
    job.environment |= job.forks.environment
    run = [str(binary()), "run", "--run-id=elastic-run", "--nodes=2:4", "--mode=env", f"--relay={relay}", "--", sys.executable]
    run += [*STAND_IN, str(RANK), *job.arguments()]
    pods = [RankOfPod(job, f"pod-{n}", run) for n in range(3)]
    try:
        job.together(pods, 3)
        pods[0].kill()
        job.together(pods[1:], 2)
        pods[0] = RankOfPod(job, "pod-0-again", run)
        job.together(pods, 3)
        job.end(pods)
        server = {job.environment["RALLYPOINT_ENDPOINT"], f"http://{job.environment['RALLYPOINT_ADMIN']}"}
        for pod in pods:
            told = {pod.facts[0]["store"], pod.facts[0]["admin"]}
            assert told == server if relay == "off" else not told & server, "what a rank says goes through the relay of its pod"
    finally:
        for pod in pods:
            pod.process.kill()
            pod.process.wait()


def test_the_example_has_the_losses_of_an_undisturbed_run(job: Job) -> None:
    def losses(rank: Rank) -> dict[int, float]:
        return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): .*loss (\S+)$", rank.said, re.MULTILINE)}

    example = [str(REPOSITORY / "examples" / "elastic.py"), "100"]
    calm = job.start(2, *example)
    assert [rank.process.wait(90) for rank in calm] == [0, 0], calm[0].said
    late = job.folder / "late.py"
    late.write_text(
        "import pathlib, runpy, time, torch\n"
        "while not pathlib.Path(__file__).with_name('go').exists():\n"
        "    time.sleep(0.05)\n"
        f"runpy.run_path({example[0]!r})\n"
    )
    ranks = job.start(3, *example)
    [new] = job.start(1, str(late), "100")
    poll(lambda: all("of 3, loss" in rank.said for rank in ranks), "a round of 3", 60)
    ranks[0].kill()
    poll(lambda: all(rank.said.splitlines()[-1].find("of 2, loss") > 0 for rank in ranks[1:]), "a round of 2", 60)
    late.with_name("go").touch()
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
        rallypoint.await_log("the connection closed, and nothing came for 1 s")
        job.end(ranks)


@pytest.mark.parametrize(("is_rank_killed_too", "away"), [(False, 0.5), (True, 0.5), (True, 15)])
def test_the_server_is_killed_and_starts_again_with_its_journal(
    forks: ForkServer, tmp_path: Path, rallypoint_factory: Callable[..., Server], is_rank_killed_too: bool, away: float
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
        time.sleep(away)
        rallypoint_factory(*journal, *addresses)
        job.together(ranks, len(ranks))
        job.end(ranks)


@pytest.fixture
def on_two_hosts(
    forks: ForkServer, tmp_path: Path, pods: Pods, serve_in: Callable[..., Server]
) -> Iterator[Callable[[str], tuple[Job, list[Rank]]]]:
    """Starts two ranks on each of two hosts, whose relays have different addresses. Named is the interface of gloo."""
    serve_in(pods["server"])
    job = Job(forks, tmp_path, 29500, 29501)
    relays: list[Relay] = []

    def start(interface: str) -> tuple[Job, list[Rank]]:
        for node, host in zip(pods.nodes, ["127.0.0.1", "127.0.0.2"], strict=True):
            relays.append(Relay(node, pods["server"].address, tmp_path / f"{node.name}.log", host=host))
            relays[-1].await_link()
            job.within = relays[-1].process.pid
            job.environment |= {
                "RALLYPOINT_ADMIN": f"{host}:29501",
                "RALLYPOINT_ENDPOINT": f"{host}:29500",
                "GLOO_SOCKET_IFNAME": interface,
            }
            job.start(2)
        return job, list(job.ranks)

    yield start
    job.stop()
    for relay in relays:
        relay.kill()


def test_the_relays_of_two_hosts_may_have_different_addresses(on_two_hosts: Callable[[str], tuple[Job, list[Rank]]]) -> None:
    job, ranks = on_two_hosts("eth0")
    job.together(ranks, 4)
    ranks.pop(0).kill()
    job.together(ranks, 3)
    job.end(ranks)


def test_an_address_of_loopback_that_gloo_says_to_another_host_is_named(on_two_hosts: Callable[[str], tuple[Job, list[Rank]]]) -> None:
    _, ranks = on_two_hosts("lo")
    poll(lambda: any("set GLOO_SOCKET_IFNAME" in rank.said for rank in ranks), "the hint", 60)


class Siege:
    """A job whose ranks and whose server are killed at random moments. Killed ranks come again as new processes."""

    RANKS = 5

    def __init__(self, job: Job, chance: random.Random, restart: Callable[[], None]) -> None:
        self.job, self.chance, self.restart = job, chance, restart
        self.waits: dict[str, list[float]] = collections.defaultdict(list)
        self.killed = 0
        self.alive = job.start(self.RANKS)
        job.together(self.alive, self.RANKS)

    def kill(self, *ranks: Rank) -> None:
        for rank in ranks:
            rank.kill()
            self.alive.remove(rank)
            self.killed += 1

    def any(self, count: int = 1) -> list[Rank]:
        return self.chance.sample(self.alive, count)

    def one(self) -> None:
        self.kill(*self.any())

    def rank_0(self) -> None:
        self.kill(by_rank(self.alive)[0])

    def two_at_once(self) -> None:
        self.kill(*self.any(2))

    def another_while_they_meet(self) -> None:
        self.one()
        # They are told after 1 s, and then they connect.
        time.sleep(self.chance.choice([self.chance.uniform(0, 2), self.chance.uniform(1, 1.4)]))
        self.one()

    def another_while_a_new_one_comes(self) -> None:
        self.one()
        self.alive += self.job.start(1)
        time.sleep(self.chance.uniform(0, 2))
        self.kill(*self.chance.sample([rank for rank in self.alive if rank.size()], 1))

    def server(self) -> None:
        self.restart()

    def server_and_one(self) -> None:
        self.one()
        time.sleep(self.chance.choice([0, self.chance.uniform(0, 1.5)]))
        self.restart()

    def happens(self) -> None:
        what = self.chance.choice(
            [
                *(self.one, self.rank_0, self.two_at_once, self.another_while_they_meet),
                *(self.another_while_a_new_one_comes, self.server, self.server_and_one),
            ]
        )
        what()
        killed = time.time()
        # What the others had begun may still end.
        poll(lambda: any(rank.last()["at"] > killed + 0.25 for rank in self.alive), f"a step after {what.__name__}", 60)
        steps = [rank.last()["at"] for rank in self.alive]
        self.waits[what.__name__].append(min(at for at in steps if at > killed + 0.25) - killed)
        self.alive += self.job.start(self.RANKS - len(self.alive))
        self.job.together(self.alive, self.RANKS)
        time.sleep(self.chance.uniform(0, 0.5))

    def report(self, steps: int) -> str:
        rows = [f"{self.killed} ranks were killed, {steps} steps done; seconds to the next step: median, worst, how often"]
        for what, waits in sorted(self.waits.items()):
            rows.append(f"{what.replace('_', ' ')}: {statistics.median(waits):.1f}, {max(waits):.1f}, {len(waits)}")
        return "\n".join(rows)


@pytest.mark.timeout(KILL_SECONDS + 240)
def test_ranks_and_the_server_are_killed_at_any_moment(
    forks: ForkServer, tmp_path: Path, rallypoint_factory: Callable[..., Server]
) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    journal = ("--journal", str(tmp_path / "journal"))
    server = rallypoint_factory(*journal)
    addresses = ("--listen", f"{HOST}:{server.port}", "--admin", f"{HOST}:{server.admin_port}")
    servers = [server]

    def restart() -> None:
        servers[-1].process.kill()
        servers[-1].process.wait()
        time.sleep(chance.uniform(0, 1))
        servers.append(rallypoint_factory(*journal, *addresses))

    with behind_relay(forks, tmp_path, server) as job:
        siege = Siege(job, chance, restart)
        over = time.monotonic() + KILL_SECONDS
        while time.monotonic() < over:
            siege.happens()
        print(siege.report(job.end(siege.alive)))
