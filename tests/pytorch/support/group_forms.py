"""One rank of a process group that is made in one of several ways, for `test_stale_keys`."""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=30)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOST, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def plain_store() -> dist.TCPStore:
    return dist.TCPStore(HOST, PORT, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def hand() -> None:
    """On a store that the program gives to PyTorch."""
    dist.init_process_group("gloo", store=plain_store(), rank=RANK, world_size=SIZE, timeout=TIMEOUT)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))


def detail() -> None:
    """With what TORCH_DISTRIBUTED_DEBUG=DETAIL adds."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    dist.all_reduce(torch.ones(1))
    dist.monitored_barrier()


def rpc() -> None:
    from torch.distributed import rpc

    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=SIZE)
    if RANK == 0:
        rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), torch.ones(1)))
    rpc.shutdown()


def stateless() -> None:
    """As vLLM makes its groups."""
    store = dist.PrefixStore(f"tcp://{HOST}:{PORT}", plain_store())
    dist.ProcessGroupGloo(store, RANK, SIZE, TIMEOUT).allreduce([torch.ones(1)]).wait()


def checkpoint() -> None:
    """Beside the group of the ranks, that of the processes which write their checkpoints."""
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", timeout=TIMEOUT)
    with tempfile.TemporaryDirectory() as folder:
        everywhere = [folder]
        dist.broadcast_object_list(everywhere)
        kind = dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
        dcp.async_save({"rank": torch.tensor([RANK])}, checkpoint_id=everywhere[0], async_checkpointer_type=kind).result(60)
        dist.barrier()


def nccl() -> None:
    dist.init_process_group("nccl", timeout=timedelta(seconds=8), device_id=torch.device("cuda:0"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--form", choices=["hand", "detail", "rpc", "stateless", "checkpoint", "nccl"])
    globals()[parser.parse_args().form]()
    os._exit(0)


if __name__ == "__main__":
    main()
