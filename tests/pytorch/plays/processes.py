"""The processes of a job of a play: starts them, does things to them, and sees in /proc what becomes of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dying import die_with_parent
from forks import STAND_IN, ForkedProcess, ForkServer
from hosts import Hosts
from jobs import LAUNCHER_VARIABLES, clients_only
from package import package
from record import Job, Process
from schedule import Plan
from servers import Server, binary

PROGRAM = Path(__file__).with_name("rank.py")
NATIVE = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=6"
ORPHANS = ["sh", "-c", '"$@"; exit $?', "sh"]
"""Between an agent and its ranks, which outlive it then, as they do where nothing else ends them."""


class JobProcesses:
    """All processes of one job of a play."""

    def __init__(self, folder: Path, plan: Plan, forks: ForkServer, hosts: Hosts, server: Server, port: int, offset: int) -> None:
        self.folder, self.plan, self.forks, self.hosts, self.server, self.port = folder, plan, forks, hosts, server, port
        folder.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name, text in forks.programs().items():
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        self.job = Job(plan, port, offset)
        self.processes = self.job.processes
        self.handles: dict[int, ForkedProcess | subprocess.Popen[bytes]] = {}
        self.seen: set[int] = set()

    def command(self, node: int, as_node: int, nnodes: str) -> list[str]:
        plan, python = self.plan, [sys.executable, *STAND_IN]
        program = [
            str(PROGRAM),
            "--out",
            str(self.folder),
            "--do",
            plan.do,
            f"--timeout={plan.timeout}",
            f"--import-seconds={plan.imports[node]}",
            *(["--nccl"] if plan.nccl else []),
        ]
        if plan.mode == "env":
            return self.in_pod([*python, *program], as_node, nnodes) if plan.pods else [*python[:1], *program]
        agent = [f"--nproc-per-node={plan.procs}", f"--max-restarts={plan.restarts}", "--monitor-interval=0.3"]
        if plan.pods:
            agent += [f"--rdzv-conf={NATIVE}" if plan.mode == "native" else "--rdzv-conf=last_call_timeout=1"]
            agent += [*self.local_address(node), "--no-python", *ORPHANS, *python, *program]
            return self.in_pod(["torchrun", *agent], as_node, nnodes)
        agent = [*python, "-m", "torch.distributed.run", *agent, f"--nnodes={nnodes}", f"--rdzv-id={plan.run_id}"]
        if plan.mode == "static":
            agent += [f"--master-addr={self.hosts.server}", f"--master-port={self.port}", f"--node-rank={as_node}"]
        else:
            native = plan.mode == "native"
            endpoint = f"{self.hosts.server}:{self.server.admin_port if native else self.port}"
            agent += [f"--rdzv-backend={'rallypoint' if native else 'c10d'}", f"--rdzv-endpoint={endpoint}", *self.local_address(node)]
            agent += [f"--rdzv-conf={NATIVE if native else 'is_host=0,last_call_timeout=1'}"]
        if plan.mode == "c10d" and plan.here:
            program += [f"--store={self.hosts.server}:{self.port}"]
        return [*agent, "--no-python", *ORPHANS, *python, *program]

    def local_address(self, node: int) -> list[str]:
        """Hosts of their own have names of their own."""
        return [] if self.plan.apart else [f"--local-addr={self.job.address(node)}"]

    def in_pod(self, command: list[str], as_node: int, nnodes: str) -> list[str]:
        plan, server = self.plan, self.server
        mode = "plugin" if plan.mode == "native" else plan.mode
        run = [
            str(binary()),
            "run",
            f"--nodes={nnodes}",
            f"--node-rank={as_node}",
            f"--nproc-per-node={plan.procs}",
            f"--run-id={plan.run_id}",
        ]
        host = self.hosts.server
        run += [f"--endpoint={host}:{self.port}", f"--admin=http://{host}:{server.admin_port}", f"--mode={mode}"]
        return [*run, f"--relay={'on' if plan.relay else 'off'}", "--", *command]

    def start(self, node: int, as_node: int | None = None, more: int = 0) -> Process:
        """Starts a node, or one that claims the place of another, or one that counts on `more` nodes."""
        plan = self.plan
        places = self.forks.environment | self.hosts.environment()
        inherited = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}
        environment = inherited | {"OMP_NUM_THREADS": "1", "NODE_INDEX": str(node), "POD_NAME": self.job.host(node)} | places
        claimed = node if as_node is None else as_node
        if plan.pods:
            environment |= {
                "PYTHONPATH": str(package()),
                "PATH": f"{self.programs}:{environment['PATH']}",
                "POD_IP": self.job.address(node),
            }
        elif plan.mode == "env":
            environment |= clients_only(f"{self.hosts.server}:{self.port}") | {"RANK": str(claimed), "WORLD_SIZE": str(plan.nodes + more)}
        elif plan.mode == "native":
            environment |= {"PYTHONPATH": str(package())}
            environment |= {"PET_NODE_RANK": str(claimed)} if plan.ranked else {}
        else:
            environment |= clients_only(f"{self.hosts.server}:{self.port}")
        nnodes = str(plan.nodes + more) if more else plan.nnodes
        argv = self.command(node, claimed, nnodes)
        # The fork server reads what comes behind Python.
        argv = argv if plan.mode == "env" or plan.pods else [argv[0], *argv[1 + len(STAND_IN) :]]
        began, log = time.time(), self.folder / f"node-{node}.{len(self.processes)}.log"
        within = self.hosts.within(self.job, node)
        handle = (
            started([*in_namespaces(within), *argv], environment, log)
            if plan.pods
            else ForkedProcess(self.forks, argv[1:], environment, log, within)
        )
        kind = "rank" if plan.is_bare else "agent"
        process = Process(self.plan.run_id, kind, node, handle.pid, began, as_node=as_node)
        if kind == "rank":
            process.rank, process.imports = claimed, plan.imports[node]
        self.processes.append(process)
        self.handles[handle.pid] = handle
        self.seen.add(handle.pid)
        return process

    def look(self) -> None:
        """Takes in what has become of all."""
        for path in self.folder.glob("born-*.json"):
            pid = int(path.stem.partition("-")[2])
            if pid not in self.seen:
                self.seen.add(pid)
                told = json.loads(path.read_text())
                rank = Process(
                    self.plan.run_id, "rank", told["node_index"], pid, path.stat().st_mtime, self.plan.imports[told["node_index"]]
                )
                rank.rank, rank.group_rank = told["rank"], told["group_rank"]
                self.processes.append(rank)
        now = time.time()
        for process in self.processes:
            if process.ended is None:
                if process.met is None and (path := self.folder / f"met-{process.pid}.json").exists():
                    process.met = path.stat().st_mtime
                if state_of(process.pid) in ("", "Z", "X"):
                    process.ended = now
            if process.ended is not None and process.code is None and process.pid in self.handles:
                process.code = self.handles[process.pid].poll()

    def agents(self, node: int | None = None, alive: bool = True) -> Iterator[Process]:
        """The direct processes: agents, or ranks without."""
        for process in self.processes:
            if process.pid in self.handles and (node is None or process.node == node) and (process.ended is None or not alive):
                yield process

    def ranks(self, node: int | None = None) -> list[Process]:
        return [each for each in self.processes if each.kind == "rank" and each.ended is None and (node is None or each.node == node)]

    def all_have_met(self) -> bool:
        return sum(rank.met is not None for rank in self.ranks()) >= self.plan.nodes * self.plan.procs

    def of_node(self, node: int) -> list[Process]:
        """All that lives of a node."""
        return [process for process in self.processes if process.node == node and process.ended is None]

    def kill(self, processes: Iterable[Process], how: str = "killed", number: int = signal.SIGKILL, alone: bool = False) -> None:
        """Sends a signal to these and, unless they are meant `alone`, to what has been started by them and may become ranks."""
        for process in processes:
            process.how = how
            send(number, [process.pid, *([] if alone else descendants(process.pid))])

    def kill_node(self, node: int) -> None:
        self.kill(self.of_node(node))

    def freeze(self, node: int) -> list[Process]:
        frozen = self.of_node(node)
        self.kill(frozen, "frozen", signal.SIGSTOP)
        for process in frozen:
            process.frozen.append([time.time()])
        return frozen

    def thaw(self, processes: list[Process]) -> None:
        self.kill((process for process in processes if process.ended is None), "", signal.SIGCONT)
        for process in processes:
            process.frozen[-1].append(time.time())

    def cut(self, node: int) -> list[Process]:
        self.hosts.cut(self.job, node)
        cut = self.of_node(node)
        for process in cut:
            process.how = "cut off"
            process.frozen.append([time.time()])
        return cut

    def heal(self, node: int, processes: list[Process]) -> None:
        self.hosts.heal(self.job, node)
        for process in processes:
            process.frozen[-1].append(time.time())

    def order(self, ranks: Iterable[Process], code: int) -> None:
        """These ranks end at once with this code."""
        for rank in ranks:
            rank.how = f"told to end with {code}"
            (self.folder / f".do-{rank.pid}").write_text(str(code))
            (self.folder / f".do-{rank.pid}").rename(self.folder / f"do-{rank.pid}")

    def release(self) -> None:
        self.job.released.append([time.time()])
        (self.folder / "go-on").touch()

    def once_more(self) -> None:
        self.job.released[-1].append(time.time())
        (self.folder / "go-on").unlink()

    def end(self) -> None:
        left = [process.pid for process in self.processes if process.ended is None]
        # Between a frozen agent and its ranks some may be stopped that nobody else ends.
        send(signal.SIGKILL, [*left, *(pid for each in left for pid in descendants(each))])
        for handle in self.handles.values():
            handle.wait(10)


def started(argv: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A program that is started and not forked."""
    with log.open("wb") as output:
        return subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_parent)


def in_namespaces(of: int | None) -> list[str]:
    """What comes before a program that runs where this process does."""
    return [] if of is None else ["nsenter", f"--target={of}", "--net", "--uts", "--mount", "--"]


def send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def state_of(pid: int) -> str:
    """The letter of /proc; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> list[int]:
    """What this process has started, and what that has."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    found = children.get(pid, [])
    for each in found:
        found.extend(children.get(each, []))
    return found
