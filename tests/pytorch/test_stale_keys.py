"""One long-lived server, and jobs that come again: what is left of a dead process must not reach the next one, and nothing else may be lost.

PyTorch never deletes its keys, so on PyTorch's own server every one of these runs reads addresses of processes that are gone: a promise has its
failing twin there. All processes are clients of the server (see `clients_only`).
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import Job, Jobs, clients_only
from servers import Server, StoreServer, TorchServer, poll

pytest_plugins = ["job_fixtures"]

SUPPORT = Path(__file__).with_name("support")

GIVE_UP = ("--timeout", "2")
"""For ranks that are meant to fail: gloo tries a dead address for about five times as long."""
FAST = "--no-ddp"
ADDRESS_OF_RANK_1 = "/default_pg/0//cpu//0/1"


def env_job(jobs: Jobs, server: StoreServer, *, train: Iterable[str] = (), **options: Any) -> Job:
    return jobs.ranks(server.endpoint, environment=clients_only(server.endpoint), train=[FAST, *train], **options)


def static_job(jobs: Jobs, endpoint: str, *, train: Iterable[str] = (), **options: Any) -> Job:
    return jobs.torchrun(endpoint, backend="static", environment=clients_only(endpoint), train=[FAST, *train], **options)


def c10d_job(jobs: Jobs, server: Server, **options: Any) -> Job:
    return jobs.torchrun(server.endpoint, train=[FAST], **options)


def is_awaited(server: Server, key: str) -> bool:
    return any(key in json.dumps(wait) for wait in server.waits())


def assert_awaited(server: Server, key: str) -> None:
    """Someone waits for this key, so nobody has taken an old value of it."""
    poll(lambda: is_awaited(server, key), f"someone waits for {key}", 60)


def dropped(server: Server, cause: str) -> int:
    """How many keys the server's rules have dropped for this cause."""
    lines = server.metrics().splitlines()
    name = f'rallypoint_keys_dropped_total{{cause="{cause}"}} '
    return int(next(float(line.removeprefix(name)) for line in lines if line.startswith(name)))


# --- The next run on the same server


def test_env_run_twice(rallypoint: Server, jobs: Jobs) -> None:
    env_job(jobs, rallypoint, world_size=4).results()
    second = env_job(jobs, rallypoint, world_size=4, start=[0])
    assert_awaited(rallypoint, ADDRESS_OF_RANK_1)
    second.start(1, 2, 3)
    second.results()


def test_env_run_twice_fails_if_keys_are_kept(torch_server: TorchServer, jobs: Jobs) -> None:
    env_job(jobs, torch_server).results()
    second = env_job(jobs, torch_server, start=[0], train=GIVE_UP)
    assert "connectFullMesh failed" in second.failure(0)


def test_static_run_twice_with_another_number_of_nodes(rallypoint: Server, jobs: Jobs) -> None:
    static_job(jobs, rallypoint.endpoint, nodes=2).results()
    second = static_job(jobs, rallypoint.endpoint, nodes=3, start=[1])
    assert_awaited(rallypoint, "torchelastic/assigned_ranks/1")
    assert not second.mark_seen("init", 1)
    second.start(0, 2)
    second.results()


def test_static_run_twice_starts_too_early_if_keys_are_kept(torch_server: TorchServer, jobs: Jobs) -> None:
    """Node 1 reads its ranks of the first run, and starts a worker although node 0 is not there."""
    static_job(jobs, torch_server.endpoint, nodes=2).results()
    second = static_job(jobs, torch_server.endpoint, nodes=3, start=[1])
    second.wait_for_mark("init", 1)


def test_c10d_run_twice_with_the_same_id(rallypoint_factory: Callable[..., Server], jobs: Jobs) -> None:
    server = rallypoint_factory("--test-settings", "forget-closed-after=2s")
    c10d_job(jobs, server, nodes=1).results()
    poll(lambda: dropped(server, "run_over"), "the run is over and its keys are dropped", 20)
    c10d_job(jobs, server, nodes=2).results()


def test_c10d_run_twice_is_refused_if_finished_runs_are_remembered(rallypoint_factory: Callable[..., Server], jobs: Jobs) -> None:
    server = rallypoint_factory("--test-settings", "forget-closed-after=1h", "--forget-run-after", "1s", "--reset-when-idle", "off")
    c10d_job(jobs, server, nodes=1).results()
    time.sleep(3)
    assert "RendezvousClosedError" in c10d_job(jobs, server, nodes=1).failure(0)


@pytest.mark.parametrize("form", ["hand", "detail", "rpc", "stateless", "checkpoint"])
def test_other_groups_run_twice_at_once(rallypoint: Server, jobs: Jobs, form: str) -> None:
    """Process groups that `init_process_group` with env:// does not make: the second run must not read the first one's keys."""
    environment = clients_only(rallypoint.endpoint) | {"WORLD_SIZE": "2"}
    if form == "detail":
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    if form == "checkpoint":
        environment["DCP_USE_PREFIX_STORE"] = "1"
    for _ in range(2):
        environments = [environment | {"RANK": str(rank)} for rank in range(2)]
        jobs.programs(SUPPORT / "group_forms.py", environments, ["--form", form]).finish()


def test_a_store_for_one_job_is_empty_for_the_next(rallypoint_factory: Callable[..., Server]) -> None:
    server = rallypoint_factory("--one-job", "on")
    server.client().set("mine", "1")
    server.await_log("the store is for one job at a time", 20)
    assert not server.client().check(["mine"])


def test_keys_that_stay_are_told(rallypoint: Server) -> None:
    rallypoint.client().set("mine", "1")
    rallypoint.await_log("--one-job on", 20)


# --- NCCL, up to the exchange of its id


@pytest.fixture(scope="module")
def pretended_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that says one CUDA device is there: far enough for NCCL's process groups to exchange their id over the store."""
    if not torch.backends.cuda.is_built():
        pytest.skip("this PyTorch is built without CUDA, and has no NCCL")
    library = tmp_path_factory.mktemp("gpu") / "pretended_gpu.so"
    source = SUPPORT / "pretended_gpu.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def nccl_rank(jobs: Jobs, server: Server, library: Path, rank: int, form: str) -> Job:
    """Ends by itself once it has the id, as there is no GPU."""
    environment = clients_only(server.endpoint) | {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LD_PRELOAD": str(library)}
    environment["TORCH_DIST_USE_NCCL2"] = "1" if form == "nccl2" else "0"
    return jobs.programs(SUPPORT / "group_forms.py", [environment], ["--form", "nccl"])


@pytest.mark.parametrize("form", ["nccl2", "nccl"])
def test_an_nccl_id_is_not_handed_to_the_next_run(rallypoint: Server, jobs: Jobs, pretended_gpu: Path, form: str) -> None:
    """The second run's rank 1 waits for rank 0's new id; with the old one it would go on by itself. A restart of both is the same to the store."""
    key = "nccl_storekey_0" if form == "nccl2" else "//cuda//0"
    first = [nccl_rank(jobs, rallypoint, pretended_gpu, rank, form) for rank in range(2)]
    for job in first:
        job.failure(0)
    poll(lambda: dropped(rallypoint, "writer_gone"), "the id is dropped", 20)
    second = nccl_rank(jobs, rallypoint, pretended_gpu, 1, form)
    assert_awaited(rallypoint, key)
    second.kill_node(0)


# --- A restart inside one run


def static_restart(jobs: Jobs, server: StoreServer) -> Job:
    """A job whose rank 1 has crashed and is held back in its second attempt, while rank 0 makes its process group again."""
    job = static_job(jobs, server.endpoint, options=["--max-restarts=1"], train=["--crash", "1:0", "--late", "1:1"])
    job.wait_for_mark("init", rank=0, attempt=1)
    return job


def test_static_restart(rallypoint: Server, jobs: Jobs) -> None:
    job = static_restart(jobs, rallypoint)
    assert_awaited(rallypoint, ADDRESS_OF_RANK_1)
    job.release()
    assert [result["attempt"] for result in job.results()] == [1, 1]


def skewed_restart(jobs: Jobs, server: StoreServer, *train: str) -> Job:
    """A job whose rank 0 was killed and started again at once, while rank 1 of the old process group lives on and its address is there."""
    job = env_job(jobs, server, train=["--hold"])
    for rank in (0, 1):
        job.wait_for_mark("training", rank)
    job.kill_node(0)
    job.start(0, train=train)
    return job


def test_skewed_restart(rallypoint: Server, jobs: Jobs) -> None:
    job = skewed_restart(jobs, rallypoint)
    assert_awaited(rallypoint, ADDRESS_OF_RANK_1)
    job.kill_node(1)
    job.release()
    job.assert_waits(0, 1)
    job.start(1)
    job.results()


def test_skewed_restart_fails_if_keys_are_kept(torch_server: TorchServer, jobs: Jobs) -> None:
    job = skewed_restart(jobs, torch_server, *GIVE_UP)
    output = job.failure(0)
    assert "gloo" in output
    assert "wait timeout" not in output  # it did not wait for the new rank 1


# --- Jobs that end early, or meet late


def test_lazy_gloo_whose_ranks_end_early(rallypoint: Server, jobs: Jobs) -> None:
    """Rank 2 is gone before rank 1 comes: rank 1 still finds rank 0, which had found rank 2."""
    environment = clients_only(rallypoint.endpoint) | {"TORCH_GLOO_LAZY_INIT": "1", "WORLD_SIZE": "3"}
    job = jobs.programs(SUPPORT / "lazy_gloo.py", [environment | {"RANK": str(rank)} for rank in range(3)])
    poll(lambda: job.nodes[2].process.poll() == 0, "rank 2 ends well", 60)
    poll(lambda: dropped(rallypoint, "writer_gone"), "what rank 2 wrote is dropped", 20)
    (job.folder / "left").touch()
    job.finish()


# --- Several jobs at once


def test_jobs_at_once_each_on_its_own_store(rallypoint_factory: Callable[..., Server], jobs: Jobs) -> None:
    """Two listening ports and one store made for a run by its id: three stores, three jobs that write the same keys."""
    server = rallypoint_factory("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0")
    made = post_json(server, "/api/v1/stores", {"run_id": "third"})
    assert made["run_id"] == "third"
    endpoints = [f"127.0.0.1:{port}" for port in server.ports] + [f"{made['host']}:{made['port']}"]
    assert len(set(endpoints)) == 3
    running = [static_job(jobs, endpoint, nodes=1, procs=2) for endpoint in endpoints]
    for job in running:
        job.results()


def test_two_jobs_on_one_store_are_reported(rallypoint: Server, jobs: Jobs) -> None:
    for _ in range(2):
        env_job(jobs, rallypoint, start=[0]).wait_for_mark("init", 0)
    rallypoint.await_log("two processes have claimed rank 0", 20)


# --- What must be kept


def test_a_key_outlives_the_rank_that_set_it(rallypoint: Server, jobs: Jobs) -> None:
    """Rank 1 is long gone when rank 0 reads `done_1`; its agent stays, in the exit barrier."""
    job = static_job(jobs, rallypoint.endpoint, train=["--done-keys"])
    assert job.results()[0]["done"] == ["0", "1"]


def test_a_store_of_plain_keys_is_never_reset(rallypoint_factory: Callable[..., Server]) -> None:
    server = rallypoint_factory("--reset-when-idle", "1s", "--forget-run-after", "1s")
    server.client().set("checkpoint", "epoch-3")
    server.client().add("epochs", 3)
    time.sleep(3)
    assert server.client().get("checkpoint") == b"epoch-3"
    assert server.client().add("epochs", 1) == 4


def test_a_store_that_a_job_has_used_is_reset_when_idle(rallypoint_factory: Callable[..., Server], jobs: Jobs) -> None:
    server = rallypoint_factory("--reset-when-idle", "1s")
    server.client().set("checkpoint", "epoch-3")
    env_job(jobs, server).results()
    poll(lambda: not server.client().check(["checkpoint"]), "the idle store is reset", 20)


def test_a_process_group_is_destroyed_and_made_again(rallypoint: Server, jobs: Jobs) -> None:
    env_job(jobs, rallypoint, train=["--reinit"]).results()


def post_json(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.admin_port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
