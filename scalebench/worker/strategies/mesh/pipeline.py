"""Pipeline parallel: every rank holds some of the layers, and microbatches pass through the ranks.

``torch.distributed.pipelining`` sends a microbatch's activations from a stage to the next, and
their gradients back. Gradients add up over the microbatches. Two kinds of parameters need more: one
that stages on several ranks share (tied weights) has a gradient on each of them, to be summed; and
with several pipelines side by side, every gradient is averaged over them. The loss is known where
the last stage is. It goes to the other ranks when the steps are over.

On a mesh a stage sends its activations to the rank of the next one that has the same place in all
other dimensions. With shards, a stage gathers its parameters once a step and keeps them for all
microbatches: given up after each they would be gathered for each (Liang et al. 2024, TorchTitan,
§3.2). Gradients are reduced once.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from scalebench.spec import Mesh, Pipeline
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training, on_axis, whole
from scalebench.worker.strategies.execution import make_optimizer, precision
from scalebench.worker.strategies.mesh.layers import hand_on_logits, local
from scalebench.worker.strategies.mesh.training import MeshTraining
from scalebench.worker.strategies.pipeline_stages import Stages
from scalebench.worker.strategies.pipelining import (
    Layout,
    build_schedule,
    inputs_of,
    loss_of,
    marked,
    receive,
    send,
)
from scalebench.worker.workloads.batches import num_samples, split


class InStages(Training):
    """This rank's stages, and the schedule that runs them."""

    own: Stages

    def make_schedule(
        self, strategy: Pipeline, workload: Workload, context: RankContext, lines: Any = None
    ) -> None:
        """Keep this rank's layers; the memory of all others is given up.

        ``lines``: the ranks of each pipeline; None: neighbours.
        """
        self.layout = Layout(strategy, context, lines)
        self.own = Stages(strategy, workload, self.layout, context.device)
        self.numbers = torch.arange(strategy.microbatches)  # on the host: reading one is no wait
        self.microbatches: Sequence[Any] = ()

    def start_schedule(self) -> None:
        """Have torch run the stages, which are as they will be."""
        self.stages = [
            PipelineStage(
                stage, index, self.layout.num_stages, self.device, group=self.layout.pipeline
            )
            for index, stage in self.own.modules.items()
        ]
        strategy = self.strategy
        self.schedule = build_schedule(
            strategy.schedule, self.stages, strategy.microbatches, self.loss_of_microbatch
        )

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Pass the pipeline's batch through; the loss is 0 where the last stage is not."""
        self.microbatches = split(batch, self.strategy.microbatches)
        inputs = inputs_of(self.loss, batch) if self.layout.has_first else ()
        losses: list[torch.Tensor] = []
        self.schedule.step(*inputs, target=self.numbers, losses=losses, return_outputs=False)
        if not losses:
            return torch.zeros((), device=self.device)
        return torch.stack([whole(loss.detach()) for loss in losses]).sum()

    def loss_of_microbatch(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Return a microbatch's share of the mean loss; the last stage calls it."""
        with precision(self.strategy, self.device):
            mean = loss_of(self.loss, output, self.microbatches[int(number)])
        part: torch.Tensor = mean / self.strategy.microbatches
        return part

    def share_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """Give the losses of several steps, shape [steps], to all ranks of the pipeline."""
        shared = losses.to(self.device)
        dist.all_reduce(shared, group=self.layout.pipeline)
        return super().share_losses(shared)

    def held_out_loss(self, batch: Any) -> torch.Tensor | None:
        """Pass a batch through the stages, forwards only; the last one knows the loss."""
        passed: Any = None
        for index, stage in self.own.modules.items():
            before, after = (self.layout.neighbour(index, way) for way in (-1, 1))
            if index == 0:
                given = inputs_of(self.loss, batch)
            else:
                given = (passed if before is None else receive(before, self.device),)
            passed = stage(*given)
            if after is not None:
                send(passed, after)
        last = self.layout.num_stages - 1 in self.own.modules
        return loss_of(self.loss, passed, batch) if last else None

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients of the last step, each sent by a rank that holds it."""
        return self.own.gradients(self.device)

    def marked_actions(self) -> AbstractContextManager[None]:
        """Mark every forward and backward pass in the trace."""
        return marked(self.stages)


class PipelineTraining(InStages):
    """Pipelines side by side."""

    def __init__(self, strategy: Pipeline, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.make_schedule(strategy, workload, context)
        self.facts = {"layers": asdict(self.own.layers)}
        self.module = torch.nn.ModuleList(self.own.modules.values())
        self.optimizer = make_optimizer(workload, self.module.parameters())
        self.start_schedule()

    def complete_gradients(self) -> None:
        """Sum what stages share; average over the pipelines."""
        for name, group in self.own.tied.items():
            dist.all_reduce(self.own.gradient_of(name), group=group)
        self.layout.average_over_pipelines(self.module.parameters())

    def collective_groups(self) -> dict[str, int]:
        """Return name and size of the groups in which this rank's gradients are reduced."""
        return self.own.tied_groups | self.layout.groups


TIED = "pipeline_tied"
"""Dimension of the ranks whose stages share a parameter: some of those in line."""


class MeshPipelineTraining(InStages, MeshTraining):
    """Pipelines whose stages are divided along the other dimensions of a mesh."""

    def build(self, strategy: Mesh, workload: Workload, context: RankContext) -> torch.nn.Module:
        """Return this rank's stages, divided."""
        lines = strategy.groups_along(context.cell.world_size, "pipeline")
        self.make_schedule(strategy.as_pipeline(), workload, context, lines)
        self.divide_layers(strategy, workload)
        stages = self.own.modules
        for index, stage in stages.items():
            layers = set(stage.children())
            self.shard([b for b in workload.blocks if b in layers], stage, reshard=False)
            if self.divides_logits and index == self.layout.num_stages - 1:
                hand_on_logits(stage, strategy, self.mesh["tensor"])
        self.own.find_own(workload.module)
        for group in self.own.tied.values():
            self.axes[TIED] = dist.get_process_group_ranks(group)
        self.passed_on = {index: PassedOn(stage) for index, stage in stages.items()}
        self.start_schedule()
        self.knows_shapes = False
        return torch.nn.ModuleList(stages.values())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on the pipeline's batch, and note what a step shows."""
        loss = Training.step(self, batch if self.tokens is None else self.tokens.of(batch))
        self.note(num_samples(batch))
        return loss

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Pass the batch through, the loss divided if that was asked for."""
        with self.dividing_the_loss():
            return super().forward_backward(batch, parts)

    def note(self, samples: int) -> None:
        """Keep what a step has shown; not the first, in which torch tries the shapes out."""
        if not self.knows_shapes:
            self.sizes.facts.clear()
            if self.tokens is not None:
                self.tokens.queries_bytes.clear()
            self.knows_shapes = True
        elif not self.seen:
            calls = 0 if self.tokens is None else len(self.tokens.queries_bytes)
            self.seen = self.first_facts(samples, calls) | self.facts_of_stages()

    def facts_of_stages(self) -> dict[str, Any]:
        """Return what a microbatch sends to other stages, and which gradients they share, bytes."""
        last = self.layout.num_stages - 1
        return {
            "sent_forward_bytes": [p.output_bytes for i, p in self.passed_on.items() if i < last],
            "sent_backward_bytes": [p.input_bytes for i, p in self.passed_on.items() if i > 0],
            "tied_bytes": [local(self.own.own[name].grad).nbytes for name in self.own.tied],
            "tied_ranks": len(self.axes.get(TIED, ())),
        }

    def complete_gradients(self) -> None:
        """Complete the gradients of each stage; then sum those that stages share."""
        MeshTraining.complete_gradients(self)
        for name, group in self.own.tied.items():
            with on_axis(TIED):
                dist.all_reduce(local(self.own.gradient_of(name)), group=group)


class PassedOn:
    """Bytes of a stage's input and output, of one microbatch on this rank."""

    def __init__(self, stage: torch.nn.Module) -> None:
        self.input_bytes = self.output_bytes = 0
        stage.register_forward_hook(self._note)

    def _note(self, _: torch.nn.Module, given: tuple[torch.Tensor, ...], output: Any) -> None:
        self.input_bytes, self.output_bytes = given[0].nbytes, output.nbytes
