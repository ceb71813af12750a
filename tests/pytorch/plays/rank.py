"""One rank of a play: it meets the others, and then does what DO says until `go-on` is in the job's folder.

Every process that runs this leaves `born-PID.json`, and `met-PID` when its process group is there. It ends at once with the exit
code that it finds in `do-PID`, wherever it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.utils import store as store_util


class Rank:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out
        self.rank = int(os.environ["RANK"])
        self.store: dist.Store

    def mark(self, event: str, text: str = "") -> None:
        partial = self.out / f".{event}-{os.getpid()}"
        partial.write_text(text)
        partial.rename(self.out / f"{event}-{os.getpid()}.json")

    def obey(self) -> None:
        order = self.out / f"do-{os.getpid()}"
        while not order.exists():
            time.sleep(0.05)
        os._exit(int(order.read_text()))

    def released(self) -> bool:
        return (self.out / "go-on").exists()

    def idle(self) -> None:
        while not self.released():
            time.sleep(0.05)

    def collectives(self) -> None:
        last = torch.zeros(1)
        while not last:
            last += self.rank == 0 and self.released()
            dist.all_reduce(last)
            time.sleep(0.05)

    def key(self) -> None:
        if self.rank == 0:
            self.idle()
            self.store.set("shard_ready", "1")
        else:
            self.store.wait(["shard_ready"])

    def poll(self) -> None:
        while not self.released():
            with contextlib.suppress(dist.DistStoreError):
                self.store.wait(["next_shard"], timedelta(seconds=1))

    def barrier(self) -> None:
        if self.rank == 0:
            self.idle()
        store_util.barrier(self.store, int(os.environ["WORLD_SIZE"]), "checkpoint", barrier_timeout=self.args.timeout)

    def group(self) -> None:
        if self.rank == 0:
            self.idle()
        dist.new_group([*range(dist.get_world_size())])

    def meet_by_nccl_id(self, timeout: timedelta) -> None:
        """What ProcessGroupNCCL2 of torch 2.15 says to the store. The rest needs a GPU: then all wait for each other beside it."""
        store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        self.store = dist.PrefixStore("default_pg", store)
        key = "0//cuda//0/nccl_storekey_0"
        if self.rank == 0:
            self.store.set(key, os.urandom(128).hex())
        came = f"came-{self.store.get(key).decode()[:16]}"
        (self.out / f"{came}-{self.rank}").touch()
        until = time.monotonic() + timeout.total_seconds()
        while len([*self.out.glob(f"{came}-*")]) < int(os.environ["WORLD_SIZE"]):
            if time.monotonic() > until:
                raise TimeoutError("not all ranks have come for the NCCL id")
            time.sleep(0.05)

    def run(self) -> None:
        names = ("RANK", "NODE_INDEX", "GROUP_RANK")
        self.mark("born", json.dumps({name.lower(): int(os.environ.get(name) or 0) for name in names}))
        threading.Thread(target=self.obey, daemon=True).start()
        time.sleep(self.args.import_seconds)
        if self.args.store:
            host, _, port = self.args.store.rpartition(":")
            os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        timeout = timedelta(seconds=self.args.timeout)
        if self.args.nccl:
            self.meet_by_nccl_id(timeout)
        else:
            dist.init_process_group("gloo", timeout=timeout)
            self.store = dist.distributed_c10d._get_default_store()
        self.mark("met")
        work: Callable[[], None] = getattr(self, self.args.do)
        work()
        if not self.args.nccl:
            dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the job's folder")
    parser.add_argument("--do", choices=["idle", "collectives", "key", "poll", "barrier", "group"], default="idle")
    parser.add_argument("--timeout", type=float, default=300, help="seconds before the process group gives up")
    parser.add_argument("--import-seconds", type=float, default=0, help="what comes before init_process_group")
    parser.add_argument("--nccl", action="store_true", help="meet by an NCCL id, and not with gloo")
    parser.add_argument("--store", default="", help="meet there, whatever torchrun says")
    Rank(parser.parse_args()).run()
