"""Three ranks that find each other late, each pair when it first speaks (TORCH_GLOO_LAZY_INIT=1): rank 2 speaks with rank 0 and ends, before rank 1 has come.

The marks in `--out` put the ranks in that order, so that no clock has to.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    rank = int(os.environ["RANK"])

    def await_mark(name: str) -> None:
        while not (out / name).exists():
            time.sleep(0.05)

    if rank == 1:
        await_mark("left")
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    value = torch.full((1,), float(rank))
    if rank == 2:
        dist.send(value, 0)
    else:
        if rank == 0:
            dist.recv(value, 2)
            # What rank 1 reads must be there although rank 0 was paired with one that is gone.
            dist.send(value, 1)
        else:
            dist.recv(value, 0)
        assert value.item() == 2
    (out / f"done-{rank}").touch()
    os._exit(0)


if __name__ == "__main__":
    main()
