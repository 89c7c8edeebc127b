"""DeepSpeed's engine: it owns the model, the optimizer and the step.

The engine is given the model and the optimizer, and a configuration, see
`scalebench.worker.strategies.frameworks.deepspeed_engine`. ``engine(batch)`` runs forward,
``engine.backward(loss)`` divides the loss by the microbatches and reduces gradients as ZeRO's stage
says, ``engine.step()`` updates at the last microbatch and does nothing at the others. Source:
DeepSpeed's documentation, "Training API".
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import DeepSpeed
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import building_nothing
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.strategies.frameworks.deepspeed_engine import (
    deepspeed_gradients,
    engine_config,
    load_deepspeed,
    settings_in_force,
    shards_of_stage_3,
)
from scalebench.worker.strategies.frameworks.surroundings import (
    between_all,
    framework_facts,
    sum_of_parts,
)
from scalebench.worker.workloads.batches import split


class DeepSpeedTraining(Training):
    """The model in DeepSpeed's engine."""

    frees_gradients = True

    def __init__(self, strategy: DeepSpeed, workload: Workload, context: RankContext) -> None:
        deepspeed = load_deepspeed(context)
        super().__init__(strategy, workload, context)
        self.groups = between_all(context)
        self.keeps_built = strategy.stage > 0
        self.module = prepare_module(
            workload, strategy.model_copy(update={"compile": False}), context.device
        )
        self.shapes = {name: p.shape for name, p in self.module.named_parameters()}
        with building_nothing():
            self.optimizer = make_optimizer(workload, self.module.parameters())
            deepspeed.init_distributed(dist_backend=dist.get_backend())
            self.engine, *_ = deepspeed.initialize(
                model=self.module, optimizer=self.optimizer, config=engine_config(strategy, context)
            )
        if strategy.compile:
            self.engine.compile()
        self.facts = framework_facts(strategy, settings_in_force(self.engine))

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch, in ``accumulate`` microbatches."""
        losses = []
        for microbatch in split(batch, self.strategy.accumulate):
            loss = self.loss(self.engine, microbatch)
            self.engine.backward(loss)
            losses.append(loss.detach())
            if self.before_update is not None and self.engine.is_gradient_accumulation_boundary():
                self.before_update()
            self.engine.step()
        return sum_of_parts(losses)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients, before the update: DeepSpeed frees them in it."""
        return deepspeed_gradients(self.module, self.shapes, self.device)

    def kept_shards(self) -> list[torch.Tensor]:
        """Return the parameters of this rank that the module does not show."""
        return shards_of_stage_3(self.module)
