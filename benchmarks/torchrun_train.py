"""What one would write without scalebench: the same model in a plain loop, for ``torchrun``.

Every rank notes on the machine's monotonic clock when its first step began, and how long the
window after the warm-up took.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec.presets import resolve_workload
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload


def main() -> None:
    """Train, and leave one record per rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="global")
    parser.add_argument("--warmup", type=int, required=True, help="steps before the window")
    parser.add_argument("--steps", type=int, required=True, help="steps of the window")
    parser.add_argument("--bucket-mb", type=float, help="DDP with this bucket; none: bare model")
    parser.add_argument("--records", type=Path, required=True, help="folder")
    parser.add_argument("--batch-class", action="store_true", help="scheduled as SCHED_BATCH")
    parser.add_argument("--pinned", action="store_true", help="to one processor per rank")
    given = parser.parse_args()

    if given.batch_class:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if given.pinned:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["LOCAL_RANK"])]})
    dist.init_process_group("gloo")
    train_and_note(given)
    dist.destroy_process_group()  # after DDP is gone: otherwise its destructor may hang


def train_and_note(given: argparse.Namespace) -> None:
    """Train, and leave this rank's record.

    DDP's reducer holds the process group. If it is the last to do so, its destructor joins gloo's
    thread while it holds the interpreter's lock, which that thread may be waiting for.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    batch_size = given.batch_size // world_size
    shard = Shard(rank, world_size, batch_size, 0, torch.device("cpu"))
    workload = build_workload(resolve_workload(given.workload, "cpu"), shard)
    module = workload.module
    if given.bucket_mb:
        module = DistributedDataParallel(module, bucket_cap_mb=given.bucket_mb)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    batches = iter(workload.batches)

    def train(num_steps: int) -> None:
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = workload.loss(module, next(batches))
            loss.backward()
            optimizer.step()

    first_step_ns = time.monotonic_ns()
    train(given.warmup)
    window_began_ns = time.monotonic_ns()
    train(given.steps)
    window_s = (time.monotonic_ns() - window_began_ns) / 1e9
    record = {"pid": os.getpid(), "first_step_ns": first_step_ns, "window_s": window_s}
    (given.records / f"rank{rank}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
