"""One rank of the jobs of `scripts/try-gpu`: it trains on a GPU with NCCL, or on the CPU with gloo, and checks its own result.

Watchdog, heartbeat monitor and flight recorder are as the environment says. NAME says what the rank does; each leaves `rank-R.json` in the folder
of the job.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Rank:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.arguments = arguments
        # All ranks are on one GPU: two of them can meet over gloo only.
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    def mark(self, event: str) -> None:
        (self.out / f"{event}-{RANK}-0").touch()

    def init(self, backend: str = "") -> None:
        self.mark("init")
        options: dict[str, object] = {"device_id": self.device} if self.arguments.eager and self.device.type == "cuda" else {}
        if self.arguments.init_method != "env://":
            options |= {"rank": RANK, "world_size": WORLD_SIZE}
        timeout = timedelta(seconds=self.arguments.timeout)
        dist.init_process_group(backend or self.arguments.backend, init_method=self.arguments.init_method, timeout=timeout, **options)

    def assert_sum(self, group: dist.ProcessGroup | None = None) -> None:
        """The ranks reach each other. With NCCL this makes the group's communicator, if it is the first time."""
        total = torch.ones(1024, device=self.device)
        dist.all_reduce(total, group=group)
        assert total.eq(WORLD_SIZE).all(), total

    def step(self, model: torch.nn.Module) -> float:
        torch.manual_seed(RANK)
        inputs = torch.randn(64, 32, device=self.device)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        return loss.item()

    def train(self) -> dict[str, object]:
        """Trains for some seconds, so that the threads beside it use the store too, and with `--hold` until the file `go-on` is there. Then the rank needs
        the store again, and makes all groups anew."""
        self.init()
        self.assert_sum()
        self.assert_sum(dist.new_group())
        torch.manual_seed(0)
        inner = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(self.device)
        model = torch.nn.parallel.DistributedDataParallel(inner)
        losses, until = [self.step(model)], time.monotonic() + self.arguments.seconds
        self.mark("training")
        # All ranks make the same number of steps: they end when none goes on.
        goes_on = torch.ones(1, device=self.device)
        while goes_on:
            losses.append(self.step(model))
            goes_on.fill_(time.monotonic() < until or self.arguments.hold and not (self.out / "go-on").exists())
            dist.all_reduce(goes_on, dist.ReduceOp.MAX)
            time.sleep(0.05)
        assert losses[-1] < losses[0], losses
        self.assert_sum(dist.new_group())
        dist.barrier()
        result = {"steps": len(losses), "loss": [losses[0], losses[-1]], "flight_recorder": self.recorded()}
        dist.destroy_process_group()
        self.init()
        self.assert_sum()
        return result

    def recorded(self) -> int:
        """Entries of the flight recorder."""
        if "nccl" not in self.arguments.backend:
            return 0
        return len(pickle.loads(torch._C._distributed_c10d._dump_nccl_trace()).get("entries", []))

    def save(self) -> dict[str, object]:
        """Asynchronous checkpoints, by a thread and by a process that has a process group of its own."""
        self.init("cpu:gloo" + (",cuda:nccl" if self.arguments.backend == "nccl" else ""))
        self.assert_sum()
        self.mark("training")
        seconds: dict[str, object] = {}
        for kind in checkpoint.state_dict_saver.AsyncCheckpointerType:
            state = {"weights": torch.full((1 << 16,), float(RANK), device=self.device), "step": torch.tensor([7])}
            folder = self.out / f"checkpoint-{kind.value}"
            for step in range(2):
                started = time.monotonic()
                checkpoint.async_save(state, checkpoint_id=folder / str(step), async_checkpointer_type=kind).result(timeout=40)
                seconds[f"{kind.value}-{step}"] = round(time.monotonic() - started, 2)
            read = {"weights": torch.zeros(1 << 16, device=self.device), "step": torch.tensor([0])}
            checkpoint.load(read, checkpoint_id=folder / "1")
            assert read["step"].item() == 7, read
        return seconds

    def stuck(self) -> dict[str, object]:
        """The GPU is busy for longer than a collective may take: the watchdog ends the process."""
        self.init()
        self.assert_sum()
        self.mark("training")
        torch.cuda._sleep(int(60e9))
        self.assert_sum()
        return {}


JOBS: dict[str, Callable[[Rank], dict[str, object]]] = {"train": Rank.train, "save": Rank.save, "stuck": Rank.stuck}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the job")
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--timeout", type=float, default=40, help="seconds before a collective gives up")
    parser.add_argument("--seconds", type=float, default=4, help="for how long it trains at least")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--eager", action="store_true", help="the communicator is made with the process group")
    parser.add_argument("name", choices=JOBS)
    rank = Rank(parser.parse_args())
    result = JOBS[rank.arguments.name](rank)
    (rank.out / f"rank-{RANK}.json").write_text(json.dumps({"rank": RANK, "world_size": WORLD_SIZE, **result}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
