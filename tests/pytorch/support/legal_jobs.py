"""One rank of a job that does something legal that few jobs do. NAME says what; each job checks that it got what PyTorch promises.

The jobs are hostile to a server that cleans up behind dead processes: they make many groups, keep keys of their own beside a job's, hand the
store over themselves, or wait at barriers that PyTorch's table of keys does not have.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.elastic.utils import store as store_util

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PATIENCE = timedelta(seconds=60)
MANY = 300


def init(**options: object) -> None:
    dist.init_process_group("gloo", timeout=PATIENCE, **options)


def client() -> dist.TCPStore:
    """A client of the job's store besides that of the process group."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=PATIENCE, wait_for_workers=False)


def assert_sum(group: dist.ProcessGroup | None = None) -> None:
    """The ranks of the group reach each other."""
    total = torch.tensor([1.0])
    dist.all_reduce(total, group=group)
    assert total.item() == dist.get_world_size(group), total


def many_groups(_: Path) -> None:
    """300 groups, the members of which write an address each."""
    init()
    groups = [dist.new_group(range(WORLD_SIZE)) for _ in range(MANY)]
    for group in (groups[0], groups[MANY // 2], groups[-1]):
        assert_sum(group)


def debug_detail(_: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps each group, and makes one more for its checks; barriers are monitored."""
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    init()
    assert_sum()
    assert_sum(dist.new_group(range(WORLD_SIZE)))
    for _ in range(3):
        dist.monitored_barrier(timeout=PATIENCE, wait_all_ranks=True)


def store_by_hand(_: Path) -> None:
    """The store is made by the program, so that no `default_pg/` stands before the keys of the group."""
    init(store=client(), rank=RANK, world_size=WORLD_SIZE)
    assert_sum()
    assert_sum(dist.new_group(range(WORLD_SIZE)))


def shared_store(_: Path) -> None:
    """Keys of the program's own beside those of the group: values, counters, waits, and queues where the release has them."""
    init()
    store = client()
    store.set(f"shard-{RANK}", str(RANK))
    dist.barrier()
    assert [store.get(f"shard-{rank}") for rank in range(WORLD_SIZE)] == [str(rank).encode() for rank in range(WORLD_SIZE)]
    store.add("epochs", 1)
    dist.barrier()
    assert store.add("epochs", 0) % WORLD_SIZE == 0, "each run adds one for each rank"
    if hasattr(store, "queue_push"):
        store.queue_push("work", b"item")
        dist.barrier()
        assert store.queue_pop("work") == b"item"
    dist.destroy_process_group()
    assert store.get("shard-0") == b"0", "the group is gone, the key is the program's"


def checkpoints(folder: Path) -> None:
    """A distributed checkpoint, written and read by all ranks, twice into one folder."""
    init()
    for step in range(2):
        state = {"step": torch.tensor([step]), f"of-{RANK}": torch.full((4,), float(RANK))}
        checkpoint.save(state, checkpoint_id=folder / f"checkpoint-{step}")
        read = {"step": torch.tensor([-1]), f"of-{RANK}": torch.zeros(4)}
        checkpoint.load(read, checkpoint_id=folder / f"checkpoint-{step}")
        assert read["step"].item() == step and torch.equal(read[f"of-{RANK}"], state[f"of-{RANK}"])


def store_barriers(folder: Path) -> None:
    """The barrier on a store that torchrun and torch's checkpoint writers use, below a prefix of the group's store. Rank 0 comes late to each."""
    init()
    store = dist.PrefixStore("checkpoint", dist.distributed_c10d._get_default_store())
    for step in range(3):
        mark = folder / f"written-{step}"
        if RANK == 0:
            time.sleep(0.3)
            mark.touch()
        store_util.barrier(store, WORLD_SIZE, key_prefix=f"step-{step}", barrier_timeout=PATIENCE.total_seconds())
        assert mark.exists(), f"rank {RANK} came through the barrier of step {step} before rank 0 had arrived"


def checkpoint_barriers(folder: Path) -> None:
    """TCPStoreBarrier of torch's experimental checkpointers: keys at the root of a store that it makes for itself. Its rank 0 is the host of that
    store; here all ranks are clients, as in a job whose rank 0 is on another host than the server. Rank 0 comes late to each barrier."""
    from torch.distributed.checkpoint._experimental.barriers import TCPStoreBarrier

    hosted = dist.TCPStore
    dist.TCPStore = lambda *given, **options: hosted(*given, **options | {"is_master": False})
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    seconds = int(PATIENCE.total_seconds())
    barrier = TCPStoreBarrier(RANK, WORLD_SIZE, "checkpoint", seconds, True, port, host, seconds)
    for step in range(3):
        mark = folder / f"saved-{step}"
        if RANK == 0:
            time.sleep(0.3)
            mark.touch()
        barrier.execute_barrier()
        assert mark.exists(), f"rank {RANK} came through barrier {step} before rank 0 had arrived"


JOBS: dict[str, Callable[[Path], None]] = {
    job.__name__: job for job in (many_groups, debug_detail, store_by_hand, shared_store, checkpoints, store_barriers, checkpoint_barriers)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the job")
    parser.add_argument("--init-method", help="as jobs.py says it; always env:// here")
    parser.add_argument("name", choices=JOBS)
    arguments = parser.parse_args()
    JOBS[arguments.name](arguments.out)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
