"""One rank that trains in blocks: FSDP in scalebench's loop, and as one writes it by hand.

Two loops by hand train what scalebench's loop trains, sharded by its strategy: they tell what the
loop and the strategy's step do besides. A third trains a model of its own, sharded by a few lines
that use nothing of the strategy: it tells whether the strategy shards otherwise than one would. Two
models of one process differ by up to 0.8 %, either way and otherwise in the next process, though,
which no number of blocks averages away. So that one is told beside and not judged; the functions
that a step calls are counted in both. Run as ``python -m benchmarks.fsdp_blocks PLAN_JSON RANK``.
"""

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.cells import cpu_cell
from benchmarks.probe_blocks import GLOBAL_BATCH, Arms, BlockPlan, run_for
from scalebench.spec import Fsdp
from scalebench.worker.inspection.verify import fresh_workload
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import RankContext, connected


class FsdpArms(Arms):
    """The arms, the one called ``own`` with a model of its own."""

    def __init__(self, plan: BlockPlan, context: RankContext) -> None:
        super().__init__(plan, context)
        self.own = sharded_by_hand(context)

    def driven_by_hand(self, name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Return what an arm's loop by hand trains."""
        return self.own if name == "own" else super().driven_by_hand(name)

    def calls_of_a_step(self) -> dict[str, int]:
        """Return how many functions one step calls in all: no clock, so the same every time."""
        batch = next(self.feed)
        module, optimizer = self.own

        def by_hand() -> None:
            optimizer.zero_grad()
            self.loss(module, batch).backward()
            optimizer.step()

        return {
            "own": num_calls(by_hand),
            "scalebench": num_calls(lambda: self.training.step(batch)),
        }


def num_calls(action: Callable[[], object]) -> int:
    """Return the number of calls, of Python's functions and of built-in ones."""
    count = 0

    def see(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def sharded_by_hand(context: RankContext) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return the workload's model, its blocks and itself wrapped, and its optimizer."""
    workload = fresh_workload(context)
    mesh = init_device_mesh("cpu", (context.cell.world_size,))
    for block in workload.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(workload.module, mesh=mesh)
    optimizer = torch.optim.AdamW(workload.module.parameters(), lr=1e-3, fused=True)
    return workload.module, optimizer


def train_in_blocks(plan: BlockPlan, rank: int) -> None:
    """Run one rank, in the state in which scalebench measures, and write its record."""
    cell = cpu_cell(plan.world_size, plan.steps, GLOBAL_BATCH, Fsdp())
    process.pin(rank, cell.threads, "cpu")
    process.schedule_as_batch()
    process.use_threads(cell.threads)
    order = random.Random(plan.seed)
    with connected(cell, rank, Path(plan.folder) / "store") as context:
        arms = FsdpArms(plan, context)
        by_hand = [partial(arms.by_hand, name) for name in ("hand", "again", "own")]
        compared = [arms.scalebench, *by_hand]
        blocks = run_for(plan.seconds, compared, order, context)
        record = {"blocks": blocks, "calls": arms.calls_of_a_step()}
    plan.record(rank).write_text(json.dumps(record))


if __name__ == "__main__":
    train_in_blocks(BlockPlan(**json.loads(sys.argv[1])), int(sys.argv[2]))
