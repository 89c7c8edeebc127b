"""Pipeline parallel: every rank holds some of the layers, and microbatches pass through the ranks.

The layers are cut into stages. ``torch.distributed.pipelining`` sends a microbatch's activations
from a stage to the next, and their gradients back; a schedule says in which order each rank does
its forward and backward passes. Gradients add up over the microbatches. Two kinds of parameters
need more: one that stages on several ranks share (tied weights) has a gradient on each of them,
to be summed; and with several pipelines side by side, every gradient is averaged over them.

The loss is known where the last stage is. It goes to the other ranks when the steps are over.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from scalebench.spec import Pipeline
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.execution import make_optimizer, precision
from scalebench.worker.strategies.pipelining.actions import marked
from scalebench.worker.strategies.pipelining.layout import Layout
from scalebench.worker.strategies.pipelining.loss import inputs_of, loss_of
from scalebench.worker.strategies.pipelining.schedule import build_schedule
from scalebench.worker.strategies.pipelining.stages import Stages
from scalebench.worker.workloads.batches import split


class PipelineTraining:
    """This rank's stages, and the schedule that runs them."""

    def __init__(self, strategy: Pipeline, workload: Workload, context: RankContext) -> None:
        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        self.layout = Layout(strategy, context)
        self.own = Stages(strategy, workload, self.layout, context.device)
        self.facts = {"layers": asdict(self.own.layers)}
        self.module = torch.nn.ModuleList(self.own.modules.values())
        self.optimizer = make_optimizer(workload, self.module.parameters())
        num_stages, group = self.layout.num_stages, self.layout.pipeline
        self.stages = [
            PipelineStage(module, index, num_stages, context.device, group=group)
            for index, module in self.own.modules.items()
        ]
        self.schedule = build_schedule(
            strategy.schedule, self.stages, strategy.microbatches, self.loss_of_microbatch
        )
        self.numbers = torch.arange(strategy.microbatches)  # on the host: reading one is no wait
        self.microbatches: list[Any] = []

    def step(self, batch: Any) -> torch.Tensor:
        """Train on the pipeline's batch; the loss is 0 where the last stage is not."""
        self.optimizer.zero_grad()
        self.microbatches = split(batch, self.strategy.microbatches)
        inputs = inputs_of(self.loss, batch) if self.layout.has_first else ()
        losses: list[torch.Tensor] = []
        self.schedule.step(*inputs, target=self.numbers, losses=losses, return_outputs=False)
        self.own.sum_tied_gradients()
        self.layout.average_over_pipelines(self.module.parameters())
        self.optimizer.step()
        if not losses:
            return torch.zeros((), device=self.device)
        return torch.stack([loss.detach() for loss in losses]).sum()

    def loss_of_microbatch(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Return a microbatch's share of the mean loss; the last stage calls it."""
        with precision(self.strategy, self.device):
            mean = loss_of(self.loss, output, self.microbatches[int(number)])
        return mean / self.strategy.microbatches

    def share_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """Give the losses of several steps, shape [steps], to all ranks of the pipeline."""
        shared = losses.to(self.device)
        dist.all_reduce(shared, group=self.layout.pipeline)
        return shared

    def collective_groups(self) -> dict[str, int]:
        """Return name and size of the groups in which this rank's gradients are reduced."""
        return self.own.tied_groups | self.layout.groups

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients of the last step, each sent by the rank that holds it."""
        return self.own.gradients(self.device)

    def marked_actions(self) -> AbstractContextManager[None]:
        """Mark every forward and backward pass in the trace."""
        return marked(self.stages)
