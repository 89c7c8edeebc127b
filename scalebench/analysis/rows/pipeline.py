"""What a row of the summary says of its pipeline: stage times, bubbles, microbatches in flight."""

from collections.abc import Sequence

import numpy as np

from scalebench.analysis.pipeline_trace import PipelineTrace
from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import bubble_law
from scalebench.records.rows.pipeline import PipelineFigures, StageTimes, TimedPass

MOST_ACTIONS = 2000
"""Passes of a step that a row lists; the launches' own files have all."""


def pipeline_figures(pipelines: Sequence[PipelineTrace]) -> PipelineFigures:
    """Return the field ``pipeline`` of a row; its passes are left out where they are too many.

    Args:
        pipelines: Of all launches and side by side; at least one, all of them traced whole.
    """
    first = pipelines[0]
    strategy, schedule = first.strategy, first.schedule
    assert schedule is not None, "pipelines whose trace is incomplete are left out"
    p, m, v = len(first.ranks), strategy.microbatches, strategy.chunks
    home = schedule.rank_of_stage
    equal = dry_run(schedule, equal_times(schedule.num_stages))
    ratios = [one.timeline.bubble_ratio for one in pipelines if one.timeline is not None]
    return PipelineFigures(
        schedule=strategy.schedule,
        num_ranks=p,
        num_microbatches=m,
        chunks=v,
        num_pipelines=len(first.traces) // p,
        bubble_law=bubble_law(strategy.schedule, p, m, v),
        bubble_equal_stages=equal.bubble_ratio,
        bubble_measured_times=float(np.mean(ratios)),
        idle_ratio=float(np.mean([one.idle_ratio for one in pipelines])),
        in_flight=schedule.in_flight(),
        stages=[
            StageTimes(stage=stage, rank=home[stage], **_times(pipelines, stage))
            for stage in sorted(home)
        ],
        actions=_actions(first) if sum(map(len, schedule.ranks)) <= MOST_ACTIONS else None,
    )


def _actions(pipeline: PipelineTrace) -> list[TimedPass] | None:
    """Return the passes of one typical step, seconds after the first of them began."""
    if pipeline.schedule is None or pipeline.timeline is None:
        return None
    planned = pipeline.timeline
    step = pipeline.chosen[len(pipeline.chosen) // 2]
    done = {rank: pipeline.spans(rank, step) for rank in pipeline.ranks}
    begin_ns = min(start for spans in done.values() for start, _ in spans.values())
    return [
        TimedPass(
            rank=rank,
            **action._asdict(),
            start_s=(done[rank][action][0] - begin_ns) / 1e9,
            end_s=(done[rank][action][1] - begin_ns) / 1e9,
            planned_start_s=planned.start_s[place][number],
            planned_end_s=planned.end_s[place][number],
        )
        for place, rank in enumerate(pipeline.ranks)
        for number, action in enumerate(pipeline.schedule.ranks[place])
        if action in done[rank]
    ]


_NAMES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}


def _times(pipelines: Sequence[PipelineTrace], stage: int) -> dict[str, float]:
    """Return a stage's time for one microbatch by kind of action: means over the pipelines."""
    found = {
        name: [one.seconds[kind, stage] for one in pipelines if (kind, stage) in one.seconds]
        for kind, name in _NAMES.items()
    }
    return {name: float(np.mean(times)) for name, times in found.items() if times}
