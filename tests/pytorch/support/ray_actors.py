"""What a RayJob runs: one actor on each worker of the cluster, and they meet by torch.distributed as their pods' variables say."""

from __future__ import annotations

import os
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=1)
class Rank:
    def sum(self, rank: int, size: int) -> float:
        sys.path.append(os.environ["TORCH_PACKAGES"])
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=rank, world_size=size)
        value = torch.tensor(float(rank + 1))
        dist.all_reduce(value)
        return float(value)


WORKERS = 2  # of the overlay
ray.init(log_to_driver=False)
# Ray takes a job as soon as its head is there.
while len(workers := [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]) < WORKERS:
    time.sleep(0.2)
places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in workers]
ranks = [Rank.options(scheduling_strategy=place).remote() for place in places]
print("sums", ray.get([actor.sum.remote(rank, len(ranks)) for rank, actor in enumerate(ranks)]))
