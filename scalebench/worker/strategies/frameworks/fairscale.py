"""FairScale: ``OSS`` divides the optimizer over the ranks, ``ShardedDataParallel`` the reduction.

Each parameter has an owner. Its gradient is reduced to the owner alone, in buckets of one owner's
small parameters; the owner updates it and broadcasts it. Gradients live inside the buckets, and
FairScale expects that they are zeroed, not removed: the ``zero_grad`` of its module does that, the
optimizer's, which removes them since torch 2.0, would train on gradients that were not reduced.
Source: FairScale's documentation, "Optimizer state sharding" and "Sharded data parallel".
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import FairScale
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.data_parallel import Accumulating
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.strategies.frameworks.surroundings import (
    between_all,
    framework_facts,
    look_like_torchrun,
)

SHIPPED_ELEMENTS = 2**23


class FairScaleTraining(Accumulating):
    """The model in ``ShardedDataParallel``, its optimizer in ``OSS``."""

    def __init__(self, strategy: FairScale, workload: Workload, context: RankContext) -> None:
        look_like_torchrun(context)
        from fairscale.nn.data_parallel import ShardedDataParallel
        from fairscale.optim.oss import OSS

        super().__init__(strategy, workload, context)
        self.groups = between_all(context)
        self.bare = prepare_module(workload, strategy, context.device)
        make_own: Any = partial(make_optimizer, workload)  # called with the parameters it owns
        self.stepper = OSS(self.bare.parameters(), optim=make_own)
        elements = strategy.elements_per_bucket
        options = {} if elements is None else {"reduce_buffer_size": elements}
        self.module = ShardedDataParallel(self.bare, self.stepper, **options)
        self.facts = framework_facts(
            strategy, {"reduce_buffer_size": elements or SHIPPED_ELEMENTS, "reduce_fp16": False}
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the parameters that this rank owns."""
        own: torch.optim.Optimizer = self.stepper.optim
        return own

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch, in ``accumulate`` microbatches."""
        self.module.zero_grad()
        loss = self.forward_backward(batch)
        self.stepper.step()
        return loss

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Send each mean gradient of the last step from its owner to all ranks."""
        owners: dict[torch.nn.Parameter, int] = {
            parameter: rank
            for rank, groups in enumerate(self.stepper.partition_parameters())
            for group in groups
            for parameter in group["params"]
        }
        for name, parameter in self.bare.named_parameters():
            owned = parameter.grad
            gradient = torch.zeros_like(parameter) if owned is None else owned.clone()
            dist.broadcast(gradient, src=owners[parameter])
            yield name, gradient
