"""The first FSDP, for comparison with `fsdp`: the same idea with one flat tensor for each group.

``FullyShardedDataParallel`` lays a group's parameters end to end in one padded tensor and divides
that, where FSDP2 divides every parameter by its first dimension. A gather is then a single copy
into place, but a shard is no longer a piece of one parameter (Zhao et al. 2023).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy

from scalebench.spec import Fsdp1
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, named_gradients
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_blocks
from scalebench.worker.strategies.wrapping import group_elements


class Fsdp1Training(Training):
    """The model wrapped in ``FullyShardedDataParallel``, and in it each of its blocks."""

    keeps_buffers = False

    def __init__(self, strategy: Fsdp1, workload: Workload, context: RankContext) -> None:
        if not workload.blocks:
            raise Unsupported("sharding by block needs a workload that names its blocks")
        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        blocks = set(workload.blocks)
        sharding = ShardingStrategy.FULL_SHARD
        if not strategy.reshard_after_forward:
            sharding = ShardingStrategy.SHARD_GRAD_OP
        self.facts = {"group_elements": group_elements(workload.blocks, workload.module, shards=1)}
        self.module = FullyShardedDataParallel(
            prepare_blocks(workload, strategy),
            sharding_strategy=sharding,
            auto_wrap_policy=CustomPolicy(lambda module: module in blocks),
            device_id=context.device,
            use_orig_params=True,
        )
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch; gathering and reducing happen in hooks of the groups."""
        self.optimizer.zero_grad()
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients of the last step on every rank."""
        with FullyShardedDataParallel.summon_full_params(self.module, with_grads=True):
            yield from named_gradients(self.module)
