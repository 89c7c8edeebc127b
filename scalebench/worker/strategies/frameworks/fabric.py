"""Lightning Fabric: ``setup`` wraps model and optimizer, ``fabric.backward`` runs backward.

DDP comes from ``DDPStrategy``. FSDP2 comes from ``ModelParallelStrategy``, which asks the user for
a function that shards the model over the mesh; it is the one of the strategy ``fsdp`` here. Source:
Lightning's documentation, "Fabric" and "Tensor and fully sharded parallelism".
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Fabric
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, gathered_gradients
from scalebench.worker.strategies.execution import make_optimizer, prepare_blocks, prepare_module
from scalebench.worker.strategies.frameworks.surroundings import (
    between_all,
    ddp_settings,
    framework_facts,
    look_like_torchrun,
    sum_of_parts,
)
from scalebench.worker.strategies.fsdp import group_elements
from scalebench.worker.workloads.batches import split


class FabricTraining(Training):
    """Model and optimizer as ``Fabric.setup`` returns them."""

    def __init__(self, strategy: Fabric, workload: Workload, context: RankContext) -> None:
        look_like_torchrun(context)
        from lightning.fabric import Fabric as LightningFabric
        from lightning.fabric.plugins.environments import LightningEnvironment

        super().__init__(strategy, workload, context)
        self.groups = between_all(context)
        self.keeps_buffers = strategy.sharding != "fsdp2"
        self.fabric = LightningFabric(
            accelerator=context.device.type,
            devices=context.cell.world_size,
            strategy=_strategy(strategy, workload, context),
            precision="bf16-mixed" if strategy.autocast else "32-true",
            plugins=[LightningEnvironment()],
        )
        self.fabric.launch()
        if strategy.sharding == "fsdp2":
            self.bare = prepare_blocks(workload, strategy)
            groups = group_elements(workload.blocks, self.bare, context.cell.world_size)
            self.module = self.fabric.setup_module(self.bare)
            self.optimizer = make_optimizer(workload, self.module.parameters())
            self.stepper = self.fabric.setup_optimizers(self.optimizer)
            told: dict[str, Any] = {"group_elements": groups}
        else:
            self.bare = prepare_module(workload, strategy, context.device)
            self.optimizer = make_optimizer(workload, self.bare.parameters())
            self.module, self.stepper = self.fabric.setup(self.bare, self.optimizer)
            told = {}
        self.facts = told | framework_facts(strategy, self.settings())

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Add the gradient of a batch, in ``accumulate`` microbatches."""
        microbatches = split(batch, self.strategy.accumulate)
        losses = []
        for number, microbatch in enumerate(microbatches, 1):
            held_back = number < len(microbatches)
            with self.fabric.no_backward_sync(self.module, enabled=held_back):
                loss = self.loss(self.module, microbatch)
                self.fabric.backward(loss / len(microbatches))
            losses.append(loss.detach())
        return sum_of_parts(losses)

    def without_synchronisation(self) -> AbstractContextManager[Any]:
        """Keep steps on their rank, by Fabric's own means."""
        held_back: AbstractContextManager[Any] = self.fabric.no_backward_sync(self.module)
        return held_back

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients of the last step."""
        return gathered_gradients(self.bare, self.device)

    def settings(self) -> dict[str, Any]:
        """Return what is in force, as the wrapped module tells it."""
        chosen: dict[str, Any] = {"strategy": type(self.fabric.strategy).__name__}
        for module in self.module.modules():
            if isinstance(module, DistributedDataParallel):
                chosen |= ddp_settings(module)
        return chosen | {"gradient_accumulation_steps": self.strategy.accumulate}


def _strategy(strategy: Fabric, workload: Workload, context: RankContext) -> Any:
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

    if strategy.sharding == "ddp":
        if strategy.as_shipped:
            return DDPStrategy()
        bucket = {} if strategy.bucket_mb is None else {"bucket_cap_mb": strategy.bucket_mb}
        return DDPStrategy(gradient_as_bucket_view=True, **bucket)
    if not workload.blocks:
        raise Unsupported("sharding by block needs a workload that names its blocks")

    def shard(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        for block in workload.blocks:
            fully_shard(block, mesh=mesh["data_parallel"])
        fully_shard(module, mesh=mesh["data_parallel"])
        return module

    return ModelParallelStrategy(
        shard, data_parallel_size=context.cell.world_size, tensor_parallel_size=1
    )
