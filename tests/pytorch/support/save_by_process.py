"""A rank that saves a checkpoint as `dcp.async_save` does it in processes: one beside each rank, which meet by themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint, and for what each rank has come to")
    parser.add_argument("--init-method", default="env://")
    args = parser.parse_args()
    dist.init_process_group("gloo", init_method=args.init_method)
    rank = dist.get_rank()
    saved = dcp.async_save(
        {"weights": torch.full((4,), float(rank))}, checkpoint_id=args.out / "checkpoint", async_checkpointer_type=AsyncCheckpointerType.PROCESS
    )
    (args.out / f"asked-{rank}").touch()
    saved.result()
    (args.out / f"saved-{rank}").touch()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # the process that saves imports this file
    main()
