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
        store = dist.distributed_c10d._get_default_store()
        if self.rank == 0:
            self.idle()
            store.set("shard_ready", "1")
        else:
            store.wait(["shard_ready"])

    def poll(self) -> None:
        store = dist.distributed_c10d._get_default_store()
        while not self.released():
            with contextlib.suppress(dist.DistStoreError):
                store.wait(["next_shard"], timedelta(seconds=1))

    def barrier(self) -> None:
        if self.rank == 0:
            self.idle()
        store_util.barrier(
            dist.distributed_c10d._get_default_store(), int(os.environ["WORLD_SIZE"]), "checkpoint", barrier_timeout=self.args.timeout
        )

    def group(self) -> None:
        if self.rank == 0:
            self.idle()
        dist.new_group([*range(dist.get_world_size())])

    def run(self) -> None:
        names = ("RANK", "NODE_INDEX", "GROUP_RANK")
        self.mark("born", json.dumps({name.lower(): int(os.environ.get(name) or 0) for name in names}))
        threading.Thread(target=self.obey, daemon=True).start()
        time.sleep(self.args.import_seconds)
        if self.args.store:
            host, _, port = self.args.store.rpartition(":")
            os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        dist.init_process_group("gloo", timeout=timedelta(seconds=self.args.timeout))
        self.mark("met")
        work: Callable[[], None] = getattr(self, self.args.do)
        work()
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the job's folder")
    parser.add_argument("--do", choices=["idle", "collectives", "key", "poll", "barrier", "group"], default="idle")
    parser.add_argument("--timeout", type=float, default=300, help="seconds before the process group gives up")
    parser.add_argument("--import-seconds", type=float, default=0, help="what comes before init_process_group")
    parser.add_argument("--store", default="", help="meet there, whatever torchrun says")
    Rank(parser.parse_args()).run()
