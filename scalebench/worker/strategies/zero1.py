"""ZeRO stage 1: DDP's replicas and gradients, the optimizer's state and work divided.

Gradients are all-reduced as DDP does it, so every rank has all of them. ZeroRedundancyOptimizer
gives each parameter to one rank, the largest first to the rank with the least; a rank keeps moments
for its own parameters only, updates these, and broadcasts them to the others (Rajbhandari et al.
2020). Whole parameters are given away, so the shares are equal only as far as the sizes allow.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Zero1
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_module


class Zero1Training(Training):
    """The model wrapped in ``DistributedDataParallel``, its optimizer in ZeRO's."""

    def __init__(self, strategy: Zero1, workload: Workload, context: RankContext) -> None:
        # Imported here: the package compiles scripts, 0.2 s that only a zygote takes once for all.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        self.module = DistributedDataParallel(
            prepare_module(workload, strategy, context.device),
            device_ids=[context.device] if context.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        make_own: Any = partial(make_optimizer, workload)  # called with the parameters it owns
        self.sharded_optimizer = ZeroRedundancyOptimizer(
            self.module.parameters(),
            optimizer_class=make_own,
            parameters_as_bucket_view=True,
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the parameters that this rank owns."""
        own: torch.optim.Optimizer = self.sharded_optimizer.optim
        return own

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch; all parameters are broadcast when their owners are done."""
        self.sharded_optimizer.zero_grad()
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        loss.backward()
        self.sharded_optimizer.step()
        return loss.detach()
