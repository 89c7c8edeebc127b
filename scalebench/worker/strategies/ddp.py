"""Distributed data parallel: a replica on every rank, gradients averaged while backward runs.

Each rank trains on its own part of the global batch. DDP collects gradients in buckets, and
starts the all-reduce of a bucket as soon as backward has filled it, so communication overlaps
with the rest of backward (Li et al. 2020). With gradient accumulation only the last microbatch
communicates: the others run under ``no_sync``.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Ddp
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_module
from scalebench.worker.workloads.batches import split


class DdpTraining(Training):
    """The model wrapped in ``DistributedDataParallel``."""

    def __init__(self, strategy: Ddp, workload: Workload, context: RankContext) -> None:
        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        self.module = DistributedDataParallel(
            prepare_module(workload, strategy, context.device),
            device_ids=[context.device] if context.device.type == "cuda" else None,
            bucket_cap_mb=strategy.bucket_mb,
            static_graph=strategy.static_graph,
            gradient_as_bucket_view=strategy.gradient_as_bucket_view,
        )
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch, in ``accumulate`` microbatches."""
        self.optimizer.zero_grad()
        *accumulated, last = split(batch, self.strategy.accumulate)
        with self.module.no_sync() if accumulated else nullcontext():
            losses = [self.forward_backward(microbatch) for microbatch in accumulated]
        losses.append(self.forward_backward(last))
        self.optimizer.step()
        return torch.stack(losses).sum() if accumulated else losses[0]

    def forward_backward(self, microbatch: Any) -> torch.Tensor:
        """Add one microbatch's share to the gradient; return its share of the mean loss."""
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, microbatch) / self.strategy.accumulate
        loss.backward()
        return loss.detach()
