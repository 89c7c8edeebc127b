"""Play what is to be played in blocks by turns, so that what drifts hits all of it alike."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

from scalebench.records.probes import PlayedSteps
from scalebench.spec.probes import Rehearsal, StepRehearsal
from scalebench.worker.process.context import JobContext
from scalebench.worker.rehearsals.groups import Groups
from scalebench.worker.rehearsals.partly_busy import PartlyBusy, shares_of
from scalebench.worker.rehearsals.piece import Piece
from scalebench.worker.rehearsals.steps import PlayedPipeline, PlayedStep, Work


class Part(NamedTuple):
    """One of the things that are played.

    Attributes:
        blocks: Of it.
        play: Plays a block; returns what is kept of each of its steps, seconds.
    """

    blocks: int
    play: Callable[[], Sequence[float]]


def rehearse(context: JobContext[Rehearsal]) -> PlayedSteps:
    """Play the steps of all pipelines and of all other plans on the CPU.

    Returns:
        Times of each step but the first of each block; in the very first, the ranks of a pipeline
        tell one another the shapes of their tensors.
    """
    plan, piece, groups = context.job, Piece(), Groups(context)
    if plan.pipelines or any(step.computing_cpu_s is None for step in plan.steps):
        piece.measure(context)
    with ThreadPoolExecutor(1) as link:
        parts = [_pipeline(PlayedPipeline(p, piece, context), context) for p in plan.pipelines]
        parts += [_step(each, piece, groups, link, context) for each in plan.steps]
        kept: list[list[float]] = [[] for _ in parts]
        for block in range(max(part.blocks for part in parts)):
            for part, of_one in zip(parts, kept, strict=True):
                of_one += part.play() if block < part.blocks else ()
    times, first = tuple(map(tuple, kept)), len(plan.pipelines)
    return PlayedSteps(pipelines=times[:first], exposed=times[first:])


def _pipeline(pipeline: PlayedPipeline, context: JobContext[Rehearsal]) -> Part:
    """Return a pipeline, of which is kept what each step took all ranks together."""
    plan = context.job
    return Part(plan.blocks, lambda: _together(pipeline.step, plan.num_steps, context))


def _together(
    step: Callable[[], object], num_steps: int, context: JobContext[Rehearsal]
) -> list[float]:
    """Return what each step of a block took all ranks together, seconds."""
    context.barrier()
    marks = [time.perf_counter()]
    for _ in range(1 + num_steps):
        step()
        marks.append(time.perf_counter())
    ends = context.agree_max([mark - marks[0] for mark in marks])
    return [after - before for before, after in pairwise(ends[1:])]


def _step(
    plan: StepRehearsal,
    piece: Piece,
    groups: Groups,
    link: ThreadPoolExecutor,
    context: JobContext[Rehearsal],
) -> Part:
    """Return another step, of which is kept how much of it ranks spent in messages."""
    blocks, num_steps = plan.blocks or context.job.blocks, plan.num_steps or context.job.num_steps
    work: Work = piece
    if plan.computing_cpu_s is not None:
        work = _partly_busy(plan, plan.computing_cpu_s, piece, context)
    step = PlayedStep(plan, work, groups, link)
    return Part(blocks, lambda: _in_messages(step, num_steps, context))


def _partly_busy(
    plan: StepRehearsal, cpu_s: float, piece: Piece, context: JobContext[Rehearsal]
) -> PartlyBusy:
    """Return the computation of a step that takes ``cpu_s`` of the processor's time, seconds.

    On rank 0 it takes as long as the step's, which was measured there.
    """
    piece.warm_up()
    work = PartlyBusy(piece, cpu_s / plan.computing_s, shares_of(context)[0])
    context.barrier()
    began = time.perf_counter()
    work.repeat(plan.computing_s)
    took_s = time.perf_counter() - began
    work.adapt(plan.computing_s, *_means([took_s], context))
    return work


def _in_messages(step: PlayedStep, num_steps: int, context: JobContext[Rehearsal]) -> list[float]:
    """Return how much of each step ranks spent in messages, the mean over them, seconds."""
    context.barrier()
    own = [step.step() for _ in range(1 + num_steps)]
    return _means(own[1:], context)


def _means(own_s: list[float], context: JobContext[Rehearsal]) -> list[float]:
    """Return the means of times over the ranks that have rank 0's share of the processor."""
    shares = shares_of(context)
    counts = shares[context.rank] == shares[0]
    together_s = context.agree_sum([time_s if counts else 0.0 for time_s in own_s])
    return [total_s / shares.count(shares[0]) for total_s in together_s]
