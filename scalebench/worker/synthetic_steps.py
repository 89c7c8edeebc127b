"""Steps and pipelines without their models: real messages during real work, block by block.

A step: a rank computes for as long as the step does, and sends its messages where the step has
them. A collective that hides behind computation is carried by a thread of its own, one after the
other, as a backend does it; of messages between two ranks several are on the way at once. What is
kept is the time that a rank spends in messages, or waiting for them: those that nothing hides,
waking up for them, and waiting for the last rank.

A pipeline: torch's schedule. A pass repeats a small piece of computation for as often as fits into
the time that the pass of the real stage was measured to take, and hands on a tensor of the same
size. What a step takes longer than its passes is then the price of having a schedule: messages
between ranks that compute, waking up for them, cores and caches that are shared with them, and
torch's own work.

All of it is done in blocks by turns, so that what drifts affects all of it alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from scalebench.records.measured.probes import PlayedSteps
from scalebench.spec.probes import (
    PipelineRehearsal,
    Rehearsal,
    RehearsedOperation,
    StepRehearsal,
    Transfer,
)
from scalebench.worker.collectives.operations import Operation, build
from scalebench.worker.process.context import JobContext
from scalebench.worker.strategies.pipelining import build_schedule

TOKENS, WIDTH, INNER_WIDTH = 64, 128, 512
"""Of the piece of computation: the feed-forward part of a small transformer's layer."""
FIRST = 20
"""Pieces that take longer than any other."""
TIMINGS = 50
"""Of the piece of computation, on each rank while the others wait."""
TURN_S = 0.02
"""A rank waits and then computes in turns of about this length, as the layers of a model do."""
ELEMENT_BYTES = 4

Groups = tuple[tuple[int, ...], ...]
Context = JobContext[Rehearsal]


class Work(Protocol):
    """What ranks do between messages."""

    def repeat(self, seconds: float) -> float:
        """Do it for ``seconds``; return what is left of them, or was taken: for the next call."""
        ...


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

    def measure(self, context: Context) -> None:
        """Time it on one rank after the other; what holds for all ranks is the mean."""
        own_s = [0.0] * context.job.world_size
        for rank in range(context.job.world_size):
            if rank == context.rank:
                marks = [time.perf_counter()]
                for _ in range(TIMINGS):
                    self.compute()
                    marks.append(time.perf_counter())
                own_s[rank] = statistics.median(b - a for a, b in pairwise(marks))
            context.barrier()
        self.piece_s = statistics.fmean(context.agree_max(own_s))

    def repeat(self, seconds: float) -> float:
        """Compute it as often as fits into ``seconds``; at most half a piece is left, or taken."""
        times = max(0, round(seconds / self.piece_s))
        for _ in range(times):
            self.compute()
        return seconds - times * self.piece_s


class PartlyBusy:
    """A rank's computation that keeps the processor busy for a part of its time.

    On a share of a processor a rank is stopped as soon as it has used it up, at moments of its own,
    and goes on when the next period begins. So this uses as much processor time as the real step
    does, and is stopped for it; the rest is waiting that no share makes longer. What is sent has
    just been computed: so in each turn waiting comes first.

    ``busy``: processor seconds of a second of computation. ``share``: of a processor that the rank
    has: the computing of a turn takes so much longer.

    Attributes:
        waiting: Seconds of waiting in a second of computation.
    """

    def __init__(self, piece: Piece, busy: float, share: float) -> None:
        self.piece, self.busy = piece, busy
        self.waiting = max(0.0, 1.0 - busy / share)
        self._left_s = 0.0

    def repeat(self, seconds: float) -> float:
        """Wait and compute for ``seconds``; return 0: what is left is kept here."""
        turns = max(1, round(seconds / TURN_S))
        for _ in range(turns):
            time.sleep(self.waiting * seconds / turns)
            self._left_s += self.busy * seconds / turns
            while self._left_s > 0:  # in whole pieces: a little is taken from the next turn
                before_s = time.thread_time()
                self.piece.compute()
                self._left_s -= time.thread_time() - before_s
        return 0.0

    def adapt(self, wanted_s: float, took_s: float) -> None:
        """Wait more, or less, so that what took ``took_s`` takes ``wanted_s``."""
        self.waiting = max(0.0, self.waiting + 1.0 - took_s / wanted_s)


class _Moment(NamedTuple):
    """What a rank does when its computation has come so far; it waits before it asks for more."""

    at_s: float
    asks: bool
    number: int


class SyntheticStep:
    """One rank's part of a step; its buffers stay from step to step."""

    def __init__(
        self,
        plan: StepRehearsal,
        work: Work,
        operations: Sequence[Operation],
        link: ThreadPoolExecutor,
    ) -> None:
        self.plan, self.work, self.operations, self.link = plan, work, operations, link
        planned = list(enumerate(plan.operations))
        asked = [_Moment(each.ready_s, True, i) for i, each in planned]
        needed = [_Moment(each.needed_s, False, i) for i, each in planned if _hides(each)]
        self.moments = sorted(asked + needed)

    def step(self) -> float:
        """Do a step; return how much of it this rank was in messages, seconds."""
        done_s = left_s = waited_s = 0.0
        under_way: dict[int, Callable[[], None]] = {}
        for moment in self.moments:
            left_s = self.work.repeat(left_s + moment.at_s - done_s)
            done_s = moment.at_s
            began = time.perf_counter()
            self._act(moment, under_way)
            waited_s += time.perf_counter() - began
        self.work.repeat(left_s + self.plan.computing_s - done_s)
        return waited_s

    def _act(self, moment: _Moment, under_way: dict[int, Callable[[], None]]) -> None:
        """Ask for a message or wait for one."""
        if not moment.asks:
            under_way.pop(moment.number)()
            return
        begin, run = self.operations[moment.number].begin, self.operations[moment.number].run
        wait: Callable[[], None] = begin() if begin else self.link.submit(run).result
        if _hides(self.plan.operations[moment.number]):
            under_way[moment.number] = wait
        else:
            wait()


def _hides(planned: RehearsedOperation) -> bool:
    return planned.needed_s > planned.ready_s


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


class SyntheticPipeline:
    """One rank's part of a pipeline; its stages lie on the ranks in turn."""

    def __init__(self, plan: PipelineRehearsal, piece: Piece, context: Context) -> None:
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
        """Do a step."""
        self.schedule.step(*self.inputs, target=self.targets, losses=[], return_outputs=False)


class _Part(NamedTuple):
    """A step or a pipeline.

    Attributes:
        run: Does a block; returns what is kept of each of its steps, seconds.
    """

    blocks: int
    run: Callable[[], Sequence[float]]


def rehearse(context: Context) -> PlayedSteps:
    """Do the steps of all pipelines and of all other plans on the CPU.

    Returns:
        Times of each step but the first of each block; in the very first, the ranks of a pipeline
        tell one another the shapes of their tensors.
    """
    plan, piece = context.job, Piece()
    made: dict[Groups, dist.ProcessGroup] = {}
    if plan.pipelines or any(step.computing_cpu_s is None for step in plan.steps):
        piece.measure(context)
    with ThreadPoolExecutor(1) as link:
        parts = []
        for each in plan.pipelines:
            pipeline = SyntheticPipeline(each, piece, context)
            run = partial(_together, pipeline.step, plan.num_steps, context)
            parts.append(_Part(plan.blocks, run))
        for step in plan.steps:
            work: Work = piece
            if step.computing_cpu_s is not None:
                work = _partly_busy(step, step.computing_cpu_s, piece, context)
            operations = [_operation(planned, made, context) for planned in step.operations]
            one = SyntheticStep(step, work, operations, link)
            in_messages = partial(_in_messages, one, step.num_steps or plan.num_steps, context)
            parts.append(_Part(step.blocks or plan.blocks, in_messages))
        kept: list[list[float]] = [[] for _ in parts]
        for block in range(max(part.blocks for part in parts)):
            for part, of_one in zip(parts, kept, strict=True):
                of_one += part.run() if block < part.blocks else ()
    times, first = tuple(map(tuple, kept)), len(plan.pipelines)
    return PlayedSteps(pipelines=times[:first], exposed=times[first:])


def _operation(
    planned: RehearsedOperation, made: dict[Groups, dist.ProcessGroup], context: Context
) -> Operation:
    """Return an operation among all ranks, or among those of this rank's group.

    Each group is made once, whatever its operations: all ranks ask for the same, in one order.
    """
    transfer = Transfer(operation=planned.op, size_bytes=planned.size_bytes)
    if planned.groups is None:
        return build(transfer, context)
    if planned.groups not in made:
        groups = [(ranks, dist.new_group(list(ranks))) for ranks in planned.groups]
        made[planned.groups] = next(group for ranks, group in groups if context.rank in ranks)
    return build(transfer, context, made[planned.groups])


def _partly_busy(plan: StepRehearsal, cpu_s: float, piece: Piece, context: Context) -> PartlyBusy:
    """Return the computation of a step that takes ``cpu_s`` of the processor's time, seconds.

    On rank 0 it takes as long as the step's, which was measured there.
    """
    for _ in range(FIRST):
        piece.compute()
    work = PartlyBusy(piece, cpu_s / plan.computing_s, _shares(context)[0])
    context.barrier()
    began = time.perf_counter()
    work.repeat(plan.computing_s)
    took_s = time.perf_counter() - began
    work.adapt(plan.computing_s, *_means([took_s], context))
    return work


def _together(step: Callable[[], object], num_steps: int, context: Context) -> list[float]:
    """Return what each step of a block took all ranks together, seconds."""
    context.barrier()
    marks = [time.perf_counter()]
    for _ in range(1 + num_steps):
        step()
        marks.append(time.perf_counter())
    ends = context.agree_max([mark - marks[0] for mark in marks])
    return [after - before for before, after in pairwise(ends[1:])]


def _in_messages(step: SyntheticStep, num_steps: int, context: Context) -> list[float]:
    """Return how much of each step ranks spent in messages, the mean over them, seconds."""
    context.barrier()
    own = [step.step() for _ in range(1 + num_steps)]
    return _means(own[1:], context)


def _means(own_s: list[float], context: Context) -> list[float]:
    """Return the means of times over the ranks that have rank 0's share of the processor."""
    shares = _shares(context)
    counts = shares[context.rank] == shares[0]
    together_s = context.agree_sum([time_s if counts else 0.0 for time_s in own_s])
    return [total_s / shares.count(shares[0]) for total_s in together_s]


def _shares(context: Context) -> tuple[float, ...]:
    """Return the share of a processor that each rank has; 1 where there is no quota."""
    hosts, size = context.job.virtual_hosts, context.job.world_size
    shares = None if hosts is None else hosts.shares(size)
    return shares or (1.0,) * size
