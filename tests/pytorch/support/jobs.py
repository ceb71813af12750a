"""Launches real multi-node PyTorch jobs on this machine: torchrun agents, or plain python ranks, running `train.py`.

Every node (or plain rank) is a process group that dies with the process that started it, and its workers die with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from dying import die_with_parent
from forks import ForkedPlace, ForkedProcess
from pods import Pod
from servers import TORCH_VERSION, Server, binary, poll

TRAIN = Path(__file__).with_name("train.py")
WRAPPER = Path(__file__).with_name("workers_use_endpoint.sh")
IDLE = Path(__file__).with_name("idle_worker.sh")
PATIENCE = 75
"""Seconds for a job to end. Most take 5 to 15; this only bounds a hang."""
TAIL_LINES = 40
LAUNCHER_VARIABLES = re.compile(r"(MASTER_|PET_|TORCHELASTIC_|RALLYPOINT_|TORCH_)|(RANK|WORLD_SIZE|LOCAL_RANK)$")


class JobError(AssertionError):
    """A job did not do what the test expects of it."""


class ThisMachine:
    """A place for nodes that need no pod of their own: this machine's loopback network."""

    environment = {"GLOO_SOCKET_IFNAME": "lo"}
    agent_options = ["--local-addr=127.0.0.1"]

    def command(self, argv: list[str]) -> list[str]:
        return argv


class UnderRun(ThisMachine):
    """A place on this machine whose node is started by `rallypoint run`, with nothing but its rank and the server's addresses."""

    agent_options: list[str] = []

    def __init__(self, server: Server, rank: int, nodes: int, *flags: str) -> None:
        self.flags = [f"--nodes={nodes}", f"--node-rank={rank}", "--run-id=job", *flags]
        self.environment = {
            **ThisMachine.environment,
            "POD_NAME": f"node-{rank}",
            "POD_IP": "127.0.0.1",
            "RALLYPOINT_ENDPOINT": server.endpoint,
            "RALLYPOINT_ADMIN": f"{server.host}:{server.admin_port}",
        }

    def command(self, argv: list[str]) -> list[str]:
        return [str(binary()), "run", *self.flags, "--", *argv]


class InNetwork(ThisMachine):
    """A place in the network of an emulated pod, but no container."""

    environment: dict[str, str] = {}
    agent_options: list[str] = []

    def __init__(self, pod: Pod) -> None:
        self.pod = pod

    def command(self, argv: list[str]) -> list[str]:
        return self.pod.inside(argv)


Place = Pod | ThisMachine | ForkedPlace


def launch(place: Place, argv: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes] | ForkedProcess:
    """Starts a process group there, with its output in `log`."""
    if isinstance(place, ForkedPlace):
        return place.start(argv, environment, log)
    with log.open("wb") as output:
        return subprocess.Popen(
            place.command(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


@dataclass
class Node:
    """One started node: a torchrun agent with its workers, or a plain rank."""

    index: int
    process: subprocess.Popen[bytes] | ForkedProcess
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.output.splitlines()[-TAIL_LINES:])

    def state(self) -> str:
        code = self.process.poll()
        return "running" if code is None else f"ended with {code}"

    def kill(self) -> None:
        """SIGKILL to the whole node, and reap it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Job:
    """A job whose nodes are started together, or one by one with `start`."""

    folder: Path
    places: Sequence[Place]
    command: Callable[[int], list[str]]
    environment: Callable[[int], dict[str, str]]
    ranks: int
    nodes: dict[int, Node] = field(default_factory=dict)
    history: list[Node] = field(default_factory=list)

    def start(self, *indexes: int, train: Iterable[str] = ()) -> None:
        """Starts these nodes; a node that ended or was killed can be started again. `train` adds options of `train.py`."""
        for index in indexes:
            place = self.places[index]
            inherited = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
            environment = inherited | {"OMP_NUM_THREADS": "1", "NODE_INDEX": str(index)} | place.environment | self.environment(index)
            log = self.folder / f"node-{index}.{len(self.history)}.log"
            process = launch(place, [*self.command(index), *train], environment, log)
            self.nodes[index] = Node(index, process, log)
            self.history.append(self.nodes[index])

    def mark_seen(self, event: str, rank: int, attempt: int = 0) -> bool:
        return (self.folder / f"{event}-{rank}-{attempt}").exists()

    def wait_for_mark(self, event: str, rank: int, attempt: int = 0) -> None:
        """Returns when `train.py` on this rank has come to `event` (`init` or `training`); fails if a node ends before."""

        def seen() -> bool:
            for node in self.nodes.values():
                if node.process.poll() is not None and not self.mark_seen(event, rank, attempt):
                    self.fail(f"node {node.index} ended with {node.process.returncode} before rank {rank} came to {event!r}")
            return self.mark_seen(event, rank, attempt)

        poll(seen, f"rank {rank}, attempt {attempt} comes to {event!r}", PATIENCE)

    def forget_marks(self) -> None:
        """So that a later `wait_for_mark` waits for the ranks of a new round."""
        for mark in [*self.folder.glob("init-*"), *self.folder.glob("training-*")]:
            mark.unlink(missing_ok=True)

    def node_of_rank(self, rank: int) -> int:
        """The index of the node that this rank was on in the first attempt."""
        return int((self.folder / f"training-{rank}-0").read_text())

    def kill_node(self, index: int) -> None:
        """SIGKILL to a whole node, as when its machine is lost. The job goes on without it."""
        self.nodes.pop(index).kill()

    def freeze_node(self, index: int) -> None:
        """SIGSTOP to a whole node: its connections stay open, and it says nothing more."""
        os.killpg(self.nodes[index].process.pid, signal.SIGSTOP)

    def release(self, node: int | None = None) -> None:
        """Lets go the ranks that `train.py --hold` or `--late` holds, and idle workers, of one node if it is given."""
        (self.folder / ("go-on" if node is None else f"go-on-{node}")).touch()

    def fail_workers(self) -> None:
        """Idle workers of the first attempt end with an error, as real ones do when a rank is lost."""
        (self.folder / "fail").touch()

    def finish(self) -> None:
        """Waits until every node that was started has ended well."""
        deadline = time.monotonic() + PATIENCE
        while running := [node for node in self.nodes.values() if node.process.poll() != 0]:
            for node in running:
                if node.process.returncode is not None:
                    self.fail(f"node {node.index} ended with {node.process.returncode}")
            if time.monotonic() > deadline:
                self.fail(f"nodes {[node.index for node in running]} still run after {PATIENCE} s")
            time.sleep(0.05)

    def results(self, world_size: int | None = None) -> list[dict[str, Any]]:
        """Waits until every node that was started has ended well; gives the results of all ranks, which must agree."""
        world_size = world_size or self.ranks
        self.finish()
        results = [json.loads(path.read_text()) for path in self.folder.glob("rank-*.json")]
        results.sort(key=lambda result: result["rank"])
        if [(result["rank"], result["world_size"]) for result in results] != [(rank, world_size) for rank in range(world_size)]:
            self.fail(f"expected results of {world_size} ranks, found {[(result['rank'], result['world_size']) for result in results]}")
        if any((result["loss"], result["parameters"]) != (results[0]["loss"], results[0]["parameters"]) for result in results):
            self.fail("the ranks ended with different results")
        return results

    def failure(self, index: int, seconds: float = PATIENCE) -> str:
        """Waits until this node has ended with an error; gives its output. Other nodes may still run."""
        node = self.nodes[index]
        try:
            code = node.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"node {index} still runs after {seconds:g} s, but should have failed")
        if code == 0:
            self.fail(f"node {index} ended well, but should have failed")
        return node.output

    def assert_waits(self, index: int, seconds: float) -> None:
        """This node is still there after so many seconds."""
        try:
            code = self.nodes[index].process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        self.fail(f"node {index} ended with {code} within {seconds:g} s, but should have waited")

    def fail(self, why: str) -> NoReturn:
        raise JobError(f"{self.folder.name}: {why} (output of its nodes below)")

    def kill(self) -> None:
        for node in self.history:
            node.kill()

    def report(self) -> list[tuple[str, str]]:
        """For each node a heading and the end of its output."""
        return [(f"{self.folder.name}, node {node.index} ({node.state()})", node.tail()) for node in self.history]


class Jobs:
    """Makes the jobs of one test, and ends them with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Job] = []

    def kill(self) -> None:
        for job in self.started:
            job.kill()

    def report(self) -> list[tuple[str, str]]:
        return [section for job in self.started for section in job.report()]

    def torchrun(
        self,
        endpoint: str,
        *,
        backend: str = "c10d",
        nodes: int = 2,
        nnodes: str = "",
        procs: int = 1,
        run_id: str = "job",
        conf: str | Callable[[int], str] = "is_host=0",
        options: Iterable[str] = (),
        train: Iterable[str | Path] = (),
        environment: dict[str, str] | Callable[[int], dict[str, str]] | None = None,
        places: Sequence[Place] = (),
        wrapped: bool = False,
        idle: bool = False,
        program: Path = TRAIN,
        stand_in: Sequence[str] = (),
        start: Iterable[int] | None = None,
    ) -> Job:
        """A torchrun job; `backend` is `c10d`, `static` or a plugin's, `start` the nodes to start now (all, if not given). `conf` and `environment` may
        differ by node. Its workers run `train.py` or another `program`.

        `wrapped` sends the workers to the endpoint, `idle` runs workers that do nothing until they are released. `stand_in` comes behind Python in all
        commands: forks.py has one.
        """
        host, _, port = endpoint.rpartition(":")
        chosen: Sequence[Place] = places or [ThisMachine()] * nodes

        def command(index: int) -> list[str]:
            argv = [sys.executable, *stand_in, "-m", "torch.distributed.run", f"--nnodes={nnodes or nodes}", f"--nproc-per-node={procs}"]
            if backend == "static":
                argv += [f"--rdzv-id={run_id}", f"--master-addr={host}", f"--master-port={port}", f"--node-rank={index}"]
            else:
                argv += [f"--rdzv-id={run_id}", f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}"]
                argv += [f"--rdzv-conf={conf(index) if callable(conf) else conf}"]
                argv += chosen[index].agent_options
            if idle:
                return [*argv, *options, "--no-python", str(IDLE), str(job.folder)]
            place = chosen[index]
            python = [sys.executable, *(place.worker() if isinstance(place, ForkedPlace) else stand_in)]
            worker = ["--no-python", *([str(WRAPPER)] if wrapped else []), *python, str(program)]
            return [*argv, *options, *worker, "--out", str(job.folder), *map(str, train)]

        extra = {"STORE_ADDR": host, "STORE_PORT": port} if wrapped else {}

        def variables(index: int) -> dict[str, str]:
            return extra | ((environment(index) if callable(environment) else environment) or {})

        job = self._job(chosen, command, variables, nodes * procs)
        job.start(*(range(nodes) if start is None else start))
        return job

    def ranks(
        self,
        endpoint: str,
        *,
        world_size: int = 2,
        init_method: str = "env://",
        program: Path = TRAIN,
        train: Iterable[str | Path] = (),
        environment: dict[str, str] | None = None,
        places: Sequence[Place] = (),
        start: Iterable[int] | None = None,
    ) -> Job:
        """Plain `python train.py` (or another `program`) once per rank, told where and who it is by environment variables (env://) or an URL (tcp://)."""
        host, _, port = endpoint.rpartition(":")
        master = {"MASTER_ADDR": host, "MASTER_PORT": port} if init_method == "env://" else {}

        def command(_: int) -> list[str]:
            return [sys.executable, str(program), "--out", str(job.folder), "--init-method", init_method, *map(str, train)]

        def variables(index: int) -> dict[str, str]:
            return master | {"RANK": str(index), "WORLD_SIZE": str(world_size)} | (environment or {})

        job = self._job(places or [ThisMachine()] * world_size, command, variables, world_size)
        job.start(*(range(world_size) if start is None else start))
        return job

    def launched(self, argv: Sequence[str], places: Sequence[Place], procs: int = 1) -> Job:
        """`argv` followed by `train.py` on each place, which says everything else."""
        job = self._job(places, lambda _: [*argv, str(TRAIN), "--out", str(job.folder)], lambda _: {}, len(places) * procs)
        job.start(*range(len(places)))
        return job

    def programs(self, program: Path, environments: Sequence[dict[str, str]], arguments: Iterable[str] = ()) -> Job:
        """`program` on this machine once for each environment, with `--out` and these arguments."""
        job = self._job(
            [ThisMachine()] * len(environments),
            lambda _: [sys.executable, str(program), "--out", str(job.folder), *arguments],
            lambda index: environments[index],
            len(environments),
        )
        job.start(*range(len(environments)))
        return job

    def planned(self, places: Sequence[Place], command: Callable[[int], list[str]], ranks: int) -> Job:
        """Nodes of which none is started yet, each with a command of its own."""
        return self._job(places, command, lambda _: {}, ranks)

    def _job(self, places: Sequence[Place], command: Callable[[int], list[str]], environment: Callable[[int], dict[str, str]], ranks: int) -> Job:
        folder = self.folder / f"job-{len(self.started) + 1}"
        folder.mkdir()
        job = Job(folder, places, command, environment, ranks)
        self.started.append(job)
        return job


def clients_only(endpoint: str) -> dict[str, str]:
    """The variables that make every process of a static, env:// or tcp:// job a client of the endpoint: none tries to host the store."""
    host, _, port = endpoint.rpartition(":")
    before_2_6 = {"TORCHELASTIC_RESTART_COUNT": "0"} if TORCH_VERSION < (2, 6) else {}
    return before_2_6 | {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": host, "MASTER_PORT": port}
