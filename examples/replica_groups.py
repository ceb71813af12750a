"""torchft with a store for each replica group that none of its ranks hosts: `POST /api/v1/stores`.

Each rank gets RANK, WORLD_SIZE, REPLICA_GROUP, TORCHFT_LIGHTHOUSE and RALLYPOINT_ADMIN=http://HOST:29501, and the number of steps.
What has failed is started again. Rank 0 may then be on another node: its group finds it by the store, whose address stays.
"""

import json
import os
import sys
import time
import urllib.request
from datetime import timedelta
from urllib.parse import urlsplit

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def store_of(group: str) -> tuple[str, int]:
    """The store of this replica group: the first rank that asks opens it."""
    admin = os.environ["RALLYPOINT_ADMIN"]
    body = json.dumps({"run_id": f"torchft-{group}"}).encode()
    request = urllib.request.Request(f"{admin}/api/v1/stores", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(urlsplit(admin).hostname), json.load(answer)["port"]


def main(steps: int) -> None:
    group, rank = os.environ["REPLICA_GROUP"], int(os.environ["RANK"])
    if "RALLYPOINT_ADMIN" in os.environ:
        host, port = store_of(group)
    else:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank == 0:
            hosted = torch.distributed.TCPStore(host, port, is_master=True, wait_for_workers=False)  # noqa: F841
    print(f"group {group} rank {rank} meets at {host}:{port}", flush=True)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=2,
        replica_id=f"group-{group}",
        store_addr=host,
        store_port=port,
        timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=5),
    )
    parallel, stepper = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    while manager.current_step() < steps:
        time.sleep(0.1)
        stepper.zero_grad()
        parallel(torch.ones(2, 4) * (1 + rank)).sum().backward()
        stepper.step()
        print(f"group {group} rank {rank} step {manager.current_step()}", flush=True)
    print(f"group {group} rank {rank} has trained: {model.weight.tolist()}", flush=True)
    time.sleep(3)  # the others may still ask this manager for the last step
    manager.shutdown(wait=False)
    os._exit(0)  # torchft's threads would keep a process whose peers have gone


main(int(sys.argv[1]))
