"""Data-parallel training on CPUs that goes on when ranks die or come. Nobody is started again.

    rallypoint serve
    python examples/elastic.py          in 3 terminals; then kill -9 one of them, and start it again

Each step has the same 64 samples, whoever computes them, so the loss is that of a run without a kill.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from rallypoint import elastic

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
PAUSE = 0.1  # a real step takes longer than this one
SAMPLES = 64


def samples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step."""
    chance = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 8, generator=chance)
    return x, torch.tanh(x.mean(dim=1, keepdim=True))


def train(step: int, rank: int, size: int) -> float:
    """One step: this rank's share of the samples, then the sum over all ranks."""
    x, y = samples(step)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x[rank::size]), y[rank::size], reduction="sum") / SAMPLES
    loss.backward()
    total = loss.detach()
    for tensor in (*(parameter.grad for parameter in model.parameters()), total):
        dist.all_reduce(tensor)
    optimizer.step()  # only now, after the last collective, is the step done
    return total.item()


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

with elastic.World("elastic-example", nodes="2:8", state={"model": model, "optimizer": optimizer}) as world:
    while world.step < STEPS:
        with world.try_step():  # a rank was lost: the block ends early, and the loop does this step again
            loss = train(world.step, world.rank, world.size)
            print(f"step {world.step}: rank {world.rank} of {world.size}, loss {loss:.6f}", flush=True)
            time.sleep(PAUSE)
