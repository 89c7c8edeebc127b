"""A rank that torchrun starts, and starts again: run as a program with the job's folder."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from scalebench.records.files import read_model
from scalebench.records.measured.recovery import FaultFolder
from scalebench.spec import Cell
from scalebench.spec.recovery import HANG_TIMEOUT_S
from scalebench.worker.checkpoints.trainee import note_start, train
from scalebench.worker.process.context import RankContext, rank_device
from scalebench.worker.process.setup import die_with_parent, prepare_rank


def main(root: Path) -> None:
    """Train as a launch of scalebench's own does it; torchrun says which attempt it is."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    run_rank(FaultFolder(root), rank, attempt, lambda: store_of_attempt(attempt))


def run_rank(folder: FaultFolder, rank: int, attempt: int, meet: Callable[[], Store]) -> None:
    """Train as the plan of an attempt says, as a rank that is no launch of scalebench's.

    ``attempt`` 0: begin; later ones continue from the newest checkpoint. ``meet`` returns the store
    over which the ranks of this attempt find one another.
    """
    die_with_parent(os.getppid())
    plan = folder.read_plan(attempt)
    note_start(folder, plan, rank)
    cell = read_model(folder.job, Cell)
    prepare_rank(cell, rank)
    device = rank_device(cell, rank)
    timeout_s = HANG_TIMEOUT_S if plan.fails and plan.kind == "hang" else cell.collective_timeout_s
    dist.init_process_group(
        cell.backend,
        store=meet(),
        rank=rank,
        world_size=cell.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=cell.limit_s))
    train(RankContext(cell, rank, rank, device, control), folder, plan)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.destroy_process_group()


def store_of_attempt(attempt: int) -> Store:
    """Return the agent's store, under a prefix: further groups find no addresses of dead ranks.

    ``init_process_group`` by itself uses the agent's store too, and ``new_group`` after a restart
    then connects to what it finds there of the attempt before (torch 2.13).
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return PrefixStore(f"scalebench/attempt{attempt}", TCPStore(address, port, is_master=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
