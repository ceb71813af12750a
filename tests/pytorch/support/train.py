"""The job that the launch tests and `scripts/demo` run: a tiny data-parallel training (gloo, CPU) that checks its own result.

Each step takes a global batch that depends on the step alone and splits it over the ranks, so the result is the same for every world size.
Every rank trains the same model once more by itself and compares: the job fails if the gradients were not averaged over all ranks.
With `--out DIR` each rank writes `rank-R.json` there. The other options make the job misbehave or linger at a chosen point.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path


def die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent, so that a killed agent leaves no rank behind."""
    pr_set_pdeathsig = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


die_with_parent()  # before the slow import

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

GLOBAL_BATCH = 24  # divisible by 1, 2, 3, 4, 6 and 8 ranks
LEARNING_RATE = 0.1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results and the progress marks of the ranks")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=30, help="seconds before the process group gives up")
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--no-ddp", action="store_true", help="average the gradients by hand; importing what DDP needs takes over a second")
    parser.add_argument("--new-group", action="store_true", help="also reduce within subgroups of the even and the odd ranks")
    parser.add_argument("--reinit", action="store_true", help="destroy the process group after training, make it again, train again")
    parser.add_argument("--done-keys", action="store_true", help="every rank sets done_R and ends; rank 0 reads them all two seconds later")
    parser.add_argument("--hold", action="store_true", help="in the middle of training, wait for the file `go-on` in the output folder")
    parser.add_argument("--elastic", action="store_true", help="train from the last checkpoint, one after each step, until the file `go-on` is in the output folder")
    parser.add_argument("--crash", metavar="RANK:ATTEMPT", help="that rank exits with code 13 in the middle of training")
    parser.add_argument("--kill", metavar="RANK:ATTEMPT", help="that rank kills itself with SIGKILL in the middle of training")
    parser.add_argument("--late", metavar="RANK:ATTEMPT", help="that rank waits for the file `go-on` before it joins the process group")
    parser.add_argument("--own-keys", choices=["slip", "barrier", "poll"], help="all ranks but 0 wait for a misspelt key of theirs, at a barrier that rank 0 never reaches, or again and again for a short time")
    parser.add_argument("--linger", type=float, default=0, help="seconds to stay after the result was written")
    return parser.parse_args()


def batch(step: int, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of the step's global batch."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(GLOBAL_BATCH, 4, generator=generator, dtype=torch.float64)
    targets = inputs.sum(dim=1, keepdim=True)
    return inputs.chunk(world_size)[rank], targets.chunk(world_size)[rank]


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def train_step(model: torch.nn.Module, step: int, rank: int, world_size: int, average_by_hand: bool = False) -> torch.Tensor:
    inputs, targets = batch(step, rank, world_size)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if average_by_hand:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            parameter -= LEARNING_RATE * parameter.grad
    return loss.detach()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train_alone(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The expected loss and parameters: the same training in one process, without any communication."""
    model = new_model()
    loss = torch.zeros((), dtype=torch.float64)
    for step in range(steps):
        loss = train_step(model, step, rank=0, world_size=1)
    return loss, flat(model)


def check_subgroups(rank: int, world_size: int) -> None:
    for parity in (0, 1):
        members = list(range(parity, world_size, 2))
        group = dist.new_group(members)
        if rank in members:
            total = torch.tensor([rank], dtype=torch.int64)
            dist.all_reduce(total, group=group)
            assert total.item() == sum(members), f"subgroup {members} summed to {total.item()}"


class Rank:
    """One rank's life: what it is asked to do, and the marks it leaves in the output folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    def mark(self, event: str) -> None:
        """Leave `EVENT-RANK-ATTEMPT` for the test that watches; in it, which of the test's nodes this is."""
        partial = self.args.out / f"{event}-{self.rank}-{self.attempt}.{os.urandom(8).hex()}"
        partial.write_text(os.environ.get("NODE_INDEX", ""))
        partial.rename(partial.with_suffix(""))

    def concerns(self, option: str | None) -> bool:
        return option == f"{self.rank}:{self.attempt}"

    def wait_for_release(self) -> None:
        while not (self.args.out / "go-on").exists():
            time.sleep(0.05)

    def misbehave(self) -> None:
        self.mark("training")
        if self.args.hold:
            self.wait_for_release()
        if self.args.own_keys:
            self.wait_for_own_keys()
        if self.concerns(self.args.crash):
            os._exit(13)
        if self.concerns(self.args.kill):
            os.kill(os.getpid(), signal.SIGKILL)

    def wait_for_own_keys(self) -> None:
        """What programs do with the store of the process group, gone wrong."""
        store = dist.distributed_c10d._get_default_store()
        if self.rank == 0:
            store.set("data_ready", "1")
            self.wait_for_release()
        elif self.args.own_keys == "slip":
            store.wait(["data_redy"])
        elif self.args.own_keys == "poll":
            while not (self.args.out / "go-on").exists():
                with contextlib.suppress(dist.DistStoreError):
                    store.wait(["next_shard"], timedelta(seconds=1))
        else:
            from torch.distributed.elastic.utils.store import barrier

            barrier(store, self.world_size, "checkpoint", barrier_timeout=self.args.timeout)

    def init(self) -> None:
        if self.concerns(self.args.late):
            self.wait_for_release()
        self.mark("init")
        where = {} if self.args.init_method == "env://" else {"rank": self.rank, "world_size": self.world_size}
        dist.init_process_group("gloo", init_method=self.args.init_method, timeout=timedelta(seconds=self.args.timeout), **where)

    def train(self) -> dict[str, object]:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        model = new_model() if self.args.no_ddp else torch.nn.parallel.DistributedDataParallel(new_model())
        loss = torch.zeros((), dtype=torch.float64)
        steps = self.args.steps
        if self.args.elastic:
            loss, steps = self.train_from_checkpoint(model)
        else:
            for step in range(steps):
                if step == steps // 2:
                    self.misbehave()
                loss = train_step(model, step, rank, world_size, average_by_hand=self.args.no_ddp)
        dist.all_reduce(loss)
        loss /= world_size
        everyone = [torch.empty_like(flat(model)) for _ in range(world_size)]
        dist.all_gather(everyone, flat(model))
        assert all(torch.equal(everyone[0], other) for other in everyone), "the ranks ended with different parameters"
        expected_loss, expected = train_alone(steps)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(everyone[0], expected, rtol=1e-9, atol=1e-12)
        return {"loss": loss.item(), "parameters": everyone[0].tolist(), "steps": steps}

    def train_from_checkpoint(self, model: torch.nn.Module) -> tuple[torch.Tensor, int]:
        """Goes on where rank 0's checkpoint is, which all take from rank 0. Returns the loss, and how many steps were made in all rounds."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        checkpoint = self.args.out / "checkpoint.json"
        state = torch.cat([torch.zeros(1, dtype=torch.float64), flat(model)])
        if rank == 0 and checkpoint.exists():
            state = torch.tensor(json.loads(checkpoint.read_text())["state"], dtype=torch.float64)
        dist.broadcast(state, 0)
        torch.nn.utils.vector_to_parameters(state[1:], model.parameters())
        step, is_last = int(state[0]), torch.zeros(1)
        while not is_last:
            loss = train_step(model, step, rank, world_size, average_by_hand=self.args.no_ddp)
            step += 1
            if rank == 0:
                written = {"state": [step, *flat(model).tolist()], "world_size": world_size}
                checkpoint.with_suffix(".new").write_text(json.dumps(written))
                checkpoint.with_suffix(".new").rename(checkpoint)
                is_last += (self.args.out / "go-on").exists()
            dist.broadcast(is_last, 0)
            time.sleep(0.02)
        return loss, step

    def set_done(self) -> list[str]:
        """The finishing protocol of many scripts: a rank may be gone long before its key is read."""
        store = dist.distributed_c10d._get_default_store()
        store.set(f"done_{self.rank}", str(self.rank))
        if self.rank != 0:
            return []
        time.sleep(2)
        return [store.get(f"done_{other}").decode() for other in range(self.world_size)]

    def run(self) -> None:
        started = time.monotonic()
        self.init()
        if self.args.new_group:
            check_subgroups(self.rank, self.world_size)
        result = self.train()
        if self.args.reinit:
            dist.destroy_process_group()
            self.init()
            assert self.train() == result, "the second process group trained to another result"
        if self.args.done_keys:
            result["done"] = self.set_done()
        result |= {
            "rank": self.rank,
            "world_size": self.world_size,
            "attempt": self.attempt,
            "host": os.uname().nodename,
            "store": f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}",
            "seconds": round(time.monotonic() - started, 3),
        }
        # Nodes that meet apart have the same ranks.
        partial = self.args.out / f"rank-{self.rank}.json.{os.urandom(8).hex()}"
        partial.write_text(json.dumps(result))
        partial.rename(self.args.out / f"rank-{self.rank}.json")
        time.sleep(self.args.linger)
        dist.destroy_process_group()


if __name__ == "__main__":
    Rank(parse_args()).run()
    # A thread of gloo that still drops a tensor while the interpreter ends aborts the process ("terminate called without an active
    # exception", https://github.com/pytorch/pytorch/pull/179291): PyTorch's own fault, seen once on a busy machine.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
