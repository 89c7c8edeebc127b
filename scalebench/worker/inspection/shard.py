"""One rank's share of a job of any size, alone on this machine: its computation and its memory.

The other ranks are not there: torch's fake process group answers every operation at once, with
whatever lies in the buffers. So the values are wrong and the times hold no communication; what the
rank computes, copies and keeps is what it would in the real job.
"""

import gc
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalebench.worker.inspection.fit import train_watched
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.measure.loop import Loop, Measurement
from scalebench.worker.portable import step_clock
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import optimizer_kind
from scalebench.worker.workloads.batches import endless


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
