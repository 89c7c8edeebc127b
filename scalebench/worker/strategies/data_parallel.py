"""Every rank keeps the whole model: alone, with all of the optimizer (DDP), or a part of it (ZeRO).

What is divided, and the sources: `scalebench.spec.strategies.data_parallel`. With gradient
accumulation only the last microbatch communicates: the others run under ``no_sync``.
ZeroRedundancyOptimizer gives each parameter to one rank, the largest first to the rank with the
least: whole parameters, so the shares are equal only as far as the sizes allow.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Ddp, Plain, Zero1
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.workloads.batches import split


def replicated(
    module: torch.nn.Module, device: torch.device, **options: Any
) -> DistributedDataParallel:
    """Return a module in DDP; its gradients live in the buckets unless options say otherwise."""
    device_ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(
        module, device_ids=device_ids, **{"gradient_as_bucket_view": True} | options
    )


class PlainTraining(Training):
    """The bare model in one process, no wrapper and no process group: the baseline."""

    def __init__(self, strategy: Plain, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.module = prepare_module(workload, strategy, context.device)
        self.optimizer = make_optimizer(workload, self.module.parameters())


class Accumulating(Training):
    """A training whose module can hold back the exchange of all microbatches but the last."""

    def microbatches(self, batch: Any) -> list[tuple[Any, float]]:
        """Return the parts of a batch, each with how many such parts the mean is of."""
        parts = self.strategy.accumulate
        return [(one, parts) for one in split(batch, parts)]

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Add the gradient of a batch, in ``accumulate`` microbatches."""
        *held_back, last = self.microbatches(batch)
        with self.module.no_sync() if held_back else nullcontext():
            losses = [super(Accumulating, self).forward_backward(*one) for one in held_back]
        losses.append(super().forward_backward(*last))
        return torch.stack(losses).sum() if held_back else losses[0]


class DdpTraining(Accumulating):
    """The model wrapped in ``DistributedDataParallel``."""

    def __init__(self, strategy: Ddp, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.module = replicated(
            prepare_module(workload, strategy, context.device),
            context.device,
            bucket_cap_mb=strategy.bucket_mb,
            static_graph=strategy.static_graph,
            gradient_as_bucket_view=strategy.gradient_as_bucket_view,
        )
        self.optimizer = make_optimizer(workload, self.module.parameters())


class Zero1Training(Training):
    """The model wrapped in ``DistributedDataParallel``, its optimizer in ZeRO's."""

    def __init__(self, strategy: Zero1, workload: Workload, context: RankContext) -> None:
        # Imported here: the package compiles scripts, 0.2 s that only a zygote takes once for all.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().__init__(strategy, workload, context)
        self.module = replicated(prepare_module(workload, strategy, context.device), context.device)
        make_own: Any = partial(make_optimizer, workload)  # called with the parameters it owns
        self.stepper = ZeroRedundancyOptimizer(
            self.module.parameters(), optimizer_class=make_own, parameters_as_bucket_view=True
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the parameters that this rank owns."""
        own: torch.optim.Optimizer = self.stepper.optim
        return own
