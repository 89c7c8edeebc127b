"""Does a batch fit? Trains two steps and counts the memory; nothing is compared, nothing timed.

So is one rank's share of a job of any size, alone on this machine, whose steps are timed as well.
The other ranks are not there: torch's fake process group answers every operation at once, with
whatever lies in the buffers. So the values are wrong and the times hold no communication; what the
rank computes, copies and keeps is what it would in the real job.
"""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalebench import units
from scalebench.records.measured.rank import Memory
from scalebench.worker.inspection.memory import watch_memory
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import build_watched
from scalebench.worker.measure.loop import Loop, Measurement
from scalebench.worker.portable import step_clock
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import optimizer_kind
from scalebench.worker.workloads.batches import endless

NUM_STEPS = 2
"""The optimizer makes its state in the first; DDP rebuilds its buckets in the second."""


def measure_fit(context: RankContext) -> Memory:
    """Return the peak of building and training.

    Raises:
        MemoryError: It is above the cell's limit.
    """
    memory = train_watched(context)
    peak, limit = memory.allocated_bytes, context.cell.memory_limit_bytes
    if limit is not None and peak is not None and peak > limit:
        raise MemoryError(
            f"the peak of {units.bytes_(peak)} is above the limit of {units.bytes_(limit)}"
        )
    return memory


def train_watched(
    context: RankContext, prepare: Callable[[Training], None] = lambda _: None
) -> Memory:
    """Return the memory of building and of two steps.

    ``prepare`` is given the training before its first step.
    """
    cell = context.cell
    workload = fresh_workload(context)
    feed = endless(workload.batches, context.device, cell.rank_batch)
    batches = [next(feed) for _ in range(NUM_STEPS)]
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        prepare(training)
        for batch in batches:
            with watch.stretch("communication", kept=training.keeps_buffers):
                training.step(batch)
    training.finish()
    return watch.memory


def measure_shard(context: RankContext) -> tuple[Measurement, dict[str, Any]]:
    """Time the share's steps, then count its memory; return the steps and the record's fields."""
    with context.slot():
        workload = fresh_workload(context)
        num_parameters = sum(p.numel() for p in workload.module.parameters())
        training = build_training(workload, context)
        leave_gradients(training)
        batches = endless(workload.batches, context.device, context.cell.rank_batch)
        gc.collect()
        loop = Loop(training, batches, context, step_clock(context.device.type))
        loop.warm_up(context.cell.steps)
    loop.measure_clean(context.cell.steps)
    known = {"optimizer": optimizer_kind(training.optimizer), **training.facts}
    seen = loop.seen
    with context.slot(last=True):
        del loop, training, workload, batches
        gc.collect()
        memory = train_watched(context, leave_gradients)
    return seen, {"num_parameters": num_parameters, "memory": memory, "facts": known}


def leave_gradients(training: Training) -> None:
    """Have DDP take its own gradients for those of all: the fake group has no answer for it."""
    module = training.module
    if isinstance(module, DistributedDataParallel):
        module.register_comm_hook(None, _leave)


def _leave(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer
