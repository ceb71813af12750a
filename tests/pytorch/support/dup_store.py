"""What torchcomms' gloo does with stores (comms/torchcomms/utils/StoreManager.cpp, August 2026), done with torch: rank 0 hosts a second store at a
port of its own, tells the others this port alone, and all dial it at MASTER_ADDR."""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import TCPStore

PATIENCE = timedelta(seconds=int(os.environ["TRAIN_OPTIONS"]))
rank, host, port = int(os.environ["RANK"]), os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
first = TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=PATIENCE)
if rank == 0:
    second = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    first.set("dup_store_port", str(second.port))
    second.set("hello", "from rank 0")
    second.get("thanks")
else:
    second = TCPStore(host, int(first.get("dup_store_port")), is_master=False, timeout=PATIENCE)
    print(f"rank {rank} has read {second.get('hello').decode()}", flush=True)
    second.set("thanks", "")
