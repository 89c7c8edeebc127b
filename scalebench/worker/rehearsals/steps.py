"""A step without its model: real messages between ranks that compute, where the step has them.

A collective that hides behind computation is carried by a thread of its own, one after the other,
as a backend does it; of messages between two ranks several are on the way at once. A rank takes the
time that it spends in messages, or waiting for them: those that nothing hides, waking up for them,
and waiting for the last rank.

A pipeline's step without its model: torch's schedule and real messages between busy ranks.

A pass repeats a small piece of computation for as often as fits into the time that the pass of the
real stage was measured to take, and hands on a tensor of the same size. What a step takes longer
than its passes is then the price of having a schedule: messages between ranks that compute, waking
up for them, cores and caches that are shared with them, and torch's own work.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed.pipelining import PipelineStage

from scalebench.spec.probes import PipelineRehearsal, Rehearsal, StepRehearsal
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.process.context import JobContext
from scalebench.worker.rehearsals.groups import Groups
from scalebench.worker.rehearsals.piece import Piece
from scalebench.worker.strategies.pipelining.schedule import build_schedule

ELEMENT_BYTES = 4


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


class PlayedPipeline:
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


class Work(Protocol):
    """What ranks do between messages."""

    def repeat(self, seconds: float) -> float:
        """Do it for ``seconds``; return what is left of them, or was taken: for the next call."""
        ...


class _Moment(NamedTuple):
    """What a rank does when its computation has come so far; it waits before it asks for more."""

    at_s: float
    asks: bool
    number: int


class PlayedStep:
    """One rank's part of a step; its buffers stay from step to step."""

    def __init__(
        self,
        plan: StepRehearsal,
        work: Work,
        groups: Groups,
        link: ThreadPoolExecutor,
    ) -> None:
        self.plan, self.work, self.link = plan, work, link
        self.operations: list[Operation] = [groups.operation(each) for each in plan.operations]
        asked = [_Moment(each.ready_s, True, i) for i, each in enumerate(plan.operations)]
        needed = [
            _Moment(each.needed_s, False, i)
            for i, each in enumerate(plan.operations)
            if each.needed_s > each.ready_s
        ]
        self.moments = sorted(asked + needed)

    def step(self) -> float:
        """Play a step; return how much of it this rank was in messages, seconds."""
        come_s = owed_s = waited_s = 0.0
        under_way: dict[int, Callable[[], None]] = {}
        for moment in self.moments:
            owed_s = self.work.repeat(owed_s + moment.at_s - come_s)
            come_s = moment.at_s
            began = time.perf_counter()
            self._act(moment, under_way)
            waited_s += time.perf_counter() - began
        self.work.repeat(owed_s + self.plan.computing_s - come_s)
        return waited_s

    def _act(self, moment: _Moment, under_way: dict[int, Callable[[], None]]) -> None:
        """Ask for a message or wait for one."""
        if not moment.asks:
            under_way.pop(moment.number)()
            return
        planned, operation = self.plan.operations[moment.number], self.operations[moment.number]
        wait: Callable[[], None]
        if operation.begin is None:
            wait = self.link.submit(operation.run).result
        else:
            wait = operation.begin()
        if planned.needed_s > planned.ready_s:
            under_way[moment.number] = wait
        else:
            wait()
