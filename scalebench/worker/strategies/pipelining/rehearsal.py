"""A pipeline's step without its model: torch's schedule and real messages between busy ranks.

A pass repeats a small piece of computation for as often as fits into the time that the pass of the
real stage was measured to take, and hands on a tensor of the same size. What a step takes longer
than its passes is then the price of having a schedule: messages between ranks that compute, waking
up for them, cores and caches that are shared with them, and torch's own work.
"""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage

from scalebench.spec.probes import PipelineRehearsal, Rehearsal
from scalebench.worker.process.context import JobContext
from scalebench.worker.strategies.pipelining.schedule import build_schedule

ELEMENT_BYTES = 4
TOKENS, WIDTH, INNER_WIDTH = 64, 128, 512
"""Of the piece of computation: the feed-forward part of a small transformer's layer."""

TIMINGS = 50
"""Of the piece of computation, on each rank while the others wait."""


class Piece:
    """A piece of computation that takes about 0.2 ms.

    Attributes:
        piece_s: What it takes on a rank while the others wait, seconds.
    """

    def __init__(self) -> None:
        self.x = torch.randn(TOKENS, WIDTH)
        self.up, self.down = torch.randn(WIDTH, INNER_WIDTH), torch.randn(INNER_WIDTH, WIDTH)
        self.piece_s = 0.0

    def compute(self) -> None:
        """Compute it once."""
        with torch.no_grad():
            inner = torch.nn.functional.gelu(self.x @ self.up)
            torch.nn.functional.layer_norm(self.x + inner @ self.down, (WIDTH,))

    def measure(self, context: JobContext[Rehearsal]) -> None:
        """Time it on one rank after the other; what holds for all ranks is the mean."""
        own_s = [0.0] * context.job.world_size
        for rank in range(context.job.world_size):
            if rank == context.rank:
                own_s[rank] = self._alone_s()
            context.barrier()
        self.piece_s = statistics.fmean(context.agree_max(own_s))

    def _alone_s(self) -> float:
        marks = [time.perf_counter()]
        for _ in range(TIMINGS):
            self.compute()
            marks.append(time.perf_counter())
        return statistics.median(after - before for before, after in pairwise(marks))

    def repeat(self, seconds: float) -> None:
        """Compute it as often as fits into ``seconds``."""
        for _ in range(round(seconds / self.piece_s)):
            self.compute()


class _Passes(torch.autograd.Function):
    """Both passes of a stage: they take their time, and their results are zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, stage: "_Stage") -> torch.Tensor:
        """Map ``[1, ...]`` to ``[1, num_elements]`` of the stage."""
        stage.piece.repeat(stage.forward_s)
        ctx.shape, ctx.stage = x.shape, stage
        return torch.zeros(1, stage.num_elements)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients of x and weight; the stage has none."""
        ctx.stage.piece.repeat(ctx.stage.backward_s)
        of_x = torch.zeros(ctx.shape) if ctx.needs_input_grad[0] else None
        return of_x, torch.zeros(1), None


class _Stage(torch.nn.Module):
    """A stage with one parameter, so that there is something to train."""

    def __init__(self, plan: PipelineRehearsal, index: int, piece: Piece) -> None:
        super().__init__()
        stage = plan.stages[index]
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.forward_s, self.backward_s = stage.forward_s, stage.backward_s
        self.num_elements = max(1, stage.output_bytes // ELEMENT_BYTES)
        self.piece = piece

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[1, ...]`` to ``[1, num_elements]``."""
        return _Passes.apply(x, self.weight, self)  # type: ignore[no-any-return, no-untyped-call]


class _Played:
    """One rank's part of a pipeline; its stages lie on the ranks in turn."""

    def __init__(
        self, plan: PipelineRehearsal, piece: Piece, context: JobContext[Rehearsal]
    ) -> None:
        num_stages = len(plan.stages)
        own = range(context.rank, num_stages, context.job.world_size)
        stages = [
            PipelineStage(_Stage(plan, index, piece), index, num_stages, context.device)
            for index in own
        ]
        self.schedule = build_schedule(
            plan.schedule, stages, plan.microbatches, lambda output, _: output.sum()
        )
        self.inputs = (torch.zeros(plan.microbatches, 1),) if 0 in own else ()
        self.targets = torch.zeros(plan.microbatches)

    def step(self) -> None:
        """Play a step."""
        self.schedule.step(*self.inputs, target=self.targets, losses=[], return_outputs=False)


def rehearse(context: JobContext[Rehearsal]) -> tuple[tuple[float, ...], ...]:
    """Play the steps of all pipelines on the CPU, in blocks by turns.

    Returns:
        For each pipeline, what each step took all ranks together, seconds. The first of each block
        is not among them; in the very first, ranks tell one another the shapes of their tensors.
    """
    plan, piece = context.job, Piece()
    piece.measure(context)
    played = [_Played(pipeline, piece, context) for pipeline in plan.pipelines]
    found: list[list[float]] = [[] for _ in played]
    for _ in range(plan.blocks):
        for steps_s, pipeline in zip(found, played, strict=True):
            steps_s += _block(pipeline, plan.num_steps, context)
    return tuple(map(tuple, found))


def _block(pipeline: _Played, num_steps: int, context: JobContext[Rehearsal]) -> Sequence[float]:
    context.barrier()
    marks = [time.perf_counter()]
    for _ in range(1 + num_steps):
        pipeline.step()
        marks.append(time.perf_counter())
    ends = context.agree_max([mark - marks[0] for mark in marks])
    return [after - before for before, after in pairwise(ends[1:])]
