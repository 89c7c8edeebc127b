"""Hugging Face Accelerate: ``prepare`` wraps model and optimizer, the loop stays the user's own.

``accumulate`` holds back the synchronisation of all microbatches but the last; ``backward`` divides
the loss by their number. Behind ``prepare`` is what a plug-in says: DDP, FSDP2 or DeepSpeed.
Source: Accelerate's documentation, "Gradient accumulation", "FSDP2" and "DeepSpeed".
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Accelerate
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import building_nothing
from scalebench.worker.strategies.base import Training, gathered_gradients
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.strategies.frameworks.deepspeed import (
    deepspeed_gradients,
    engine_config,
    load_deepspeed,
    settings_in_force,
    shards_of_stage_3,
)
from scalebench.worker.strategies.frameworks.surroundings import (
    between_all,
    ddp_settings,
    framework_facts,
    look_like_torchrun,
    sum_of_parts,
)
from scalebench.worker.workloads.batches import split


class AccelerateTraining(Training):
    """Model and optimizer as ``Accelerator.prepare`` returns them."""

    frees_gradients = True

    def __init__(self, strategy: Accelerate, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.groups = between_all(context)
        self.keeps_built = bool(strategy.stage)
        with building_nothing():
            self.accelerator = accelerator_of(strategy, workload, context)
            self.bare = prepare_module(workload, strategy, context.device)
            self.shapes = {name: p.shape for name, p in self.bare.named_parameters()}
            self.optimizer = make_optimizer(workload, self.bare.parameters())
            self.module, self.prepared = self.accelerator.prepare(self.bare, self.optimizer)
        self.facts = framework_facts(strategy, self.settings())

    @property
    def through_deepspeed(self) -> bool:
        """Whether the module is DeepSpeed's engine."""
        return bool(self.strategy.plugin == "deepspeed")

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch, in ``accumulate`` microbatches."""
        losses = []
        for microbatch in split(batch, self.strategy.accumulate):
            with self.accelerator.accumulate(self.module):
                loss = self.loss(self.module, microbatch)
                self.backward(loss)
                losses.append(loss.detach())
                self.prepared.step()
                self.prepared.zero_grad()
        return sum_of_parts(losses)

    def backward(self, loss: torch.Tensor) -> None:
        """Run backward; show the gradients to who wants to see them before they are gone.

        Accelerate's backward also steps where DeepSpeed is behind it. For the one step whose
        gradients are looked at, the engine that ``prepare`` returned is asked directly.
        """
        if self.before_update is None:
            self.accelerator.backward(loss)
            return
        if self.through_deepspeed:
            self.module.backward(loss)
        else:
            self.accelerator.backward(loss)
        if self.accelerator.sync_gradients:
            self.before_update()
        if self.through_deepspeed:
            self.module.step()

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients, before the update."""
        if self.through_deepspeed:
            yield from deepspeed_gradients(self.bare, self.shapes, self.device)
            return
        yield from gathered_gradients(self.bare, self.device)

    def kept_shards(self) -> list[torch.Tensor]:
        """Return the parameters of this rank that the module does not show."""
        return shards_of_stage_3(self.bare) if self.through_deepspeed else []

    def settings(self) -> dict[str, Any]:
        """Return what is in force, as the wrapped module tells it."""
        if self.through_deepspeed:
            return {"plugin": "deepspeed"} | settings_in_force(self.module)
        chosen: dict[str, Any] = {"plugin": self.strategy.plugin}
        if isinstance(self.module, DistributedDataParallel):
            chosen |= ddp_settings(self.module)
        return chosen | {"gradient_accumulation_steps": self.strategy.accumulate}


def accelerator_of(strategy: Accelerate, workload: Workload, context: RankContext) -> Any:
    """Return an ``Accelerator`` with the plug-in that a strategy asks for."""
    look_like_torchrun(context)
    options = _PLUGINS[strategy.plugin](strategy, workload, context)
    from accelerate import Accelerator

    on_cpu = context.device.type == "cpu"
    return Accelerator(
        cpu=on_cpu and strategy.plugin != "deepspeed",
        mixed_precision="bf16" if strategy.autocast else "no",
        gradient_accumulation_steps=strategy.accumulate,
        **options,
    )


def _ddp(strategy: Accelerate, workload: Workload, context: RankContext) -> dict[str, Any]:
    from accelerate.utils import DistributedDataParallelKwargs

    if strategy.as_shipped:
        return {}
    bucket = {} if strategy.bucket_mb is None else {"bucket_cap_mb": strategy.bucket_mb}
    return {
        "kwargs_handlers": [DistributedDataParallelKwargs(gradient_as_bucket_view=True, **bucket)]
    }


def _fsdp2(strategy: Accelerate, workload: Workload, context: RankContext) -> dict[str, Any]:
    from accelerate.utils import FullyShardedDataParallelPlugin

    os.environ["ACCELERATE_USE_FSDP"] = "true"
    blocks = sorted({type(block).__name__ for block in workload.blocks})
    return {
        "fsdp_plugin": FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=True,
            auto_wrap_policy="transformer_based_wrap" if blocks else "no_wrap",
            transformer_cls_names_to_wrap=blocks or None,
            cpu_ram_efficient_loading=False,
        )
    }


def _deepspeed(strategy: Accelerate, workload: Workload, context: RankContext) -> dict[str, Any]:
    load_deepspeed(context)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    from accelerate.utils import DeepSpeedPlugin

    config = engine_config(strategy, context)
    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=config)}


_PLUGINS: dict[str, Callable[[Accelerate, Workload, RankContext], dict[str, Any]]] = {
    "ddp": _ddp,
    "fsdp2": _fsdp2,
    "deepspeed": _deepspeed,
}
"""Plug-in → what ``Accelerator`` is given for it."""
