"""Play what is to be played in blocks by turns, so that what drifts hits all of it alike."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from scalebench.records.probes import PlayedSteps
from scalebench.spec.probes import Rehearsal
from scalebench.worker.process.context import JobContext
from scalebench.worker.rehearsals.piece import Piece
from scalebench.worker.rehearsals.pipelines import PlayedPipeline
from scalebench.worker.rehearsals.steps import PlayedStep


def rehearse(context: JobContext[Rehearsal]) -> PlayedSteps:
    """Play the steps of all pipelines and of all other plans on the CPU.

    Returns:
        Times of each step but the first of each block; in the very first, the ranks of a pipeline
        tell one another the shapes of their tensors.
    """
    plan, piece = context.job, Piece()
    piece.measure(context)
    with ThreadPoolExecutor(1) as link:
        pipelines = [PlayedPipeline(each, piece, context) for each in plan.pipelines]
        steps = [PlayedStep(each, piece, context, link) for each in plan.steps]
        steps_s: list[list[float]] = [[] for _ in pipelines]
        exposed_s: list[list[float]] = [[] for _ in steps]
        for _ in range(plan.blocks):
            for found, pipeline in zip(steps_s, pipelines, strict=True):
                found += _pipeline_block(pipeline, plan.num_steps, context)
            for found, step in zip(exposed_s, steps, strict=True):
                found += _step_block(step, plan.num_steps, context)
    return PlayedSteps(pipelines=tuple(map(tuple, steps_s)), exposed=tuple(map(tuple, exposed_s)))


def _pipeline_block(
    pipeline: PlayedPipeline, num_steps: int, context: JobContext[Rehearsal]
) -> Sequence[float]:
    """Return what each step took all ranks together, seconds."""
    context.barrier()
    marks = [time.perf_counter()]
    for _ in range(1 + num_steps):
        pipeline.step()
        marks.append(time.perf_counter())
    ends = context.agree_max([mark - marks[0] for mark in marks])
    return [after - before for before, after in pairwise(ends[1:])]


def _step_block(
    step: PlayedStep, num_steps: int, context: JobContext[Rehearsal]
) -> Sequence[float]:
    """Return how much of each step ranks spent in messages, the mean over them, seconds."""
    context.barrier()
    own = [step.step() for _ in range(1 + num_steps)]
    return [total / context.job.world_size for total in context.agree_sum(own[1:])]
