"""What a row of the summary says of its pipeline: stage times, bubbles, microbatches in flight."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalebench.costmodel.dry_run import dry_run, equal_times
from scalebench.costmodel.schedule_orders import bubble_law
from scalebench.pipeline_trace import PipelineTrace

MOST_ACTIONS = 2000
"""Passes of a step that a row lists; the launches' own files have all."""


def pipeline_fields(pipelines: Sequence[PipelineTrace]) -> dict[str, Any]:
    """Return the field ``pipeline`` of a row.

    ``bubble_law`` is the ratio of the schedule's law, ``bubble_equal_stages`` that of its dry run
    with equal stages and a backward pass of twice the forward pass; both are predicted.
    ``bubble_measured_times`` is the dry run with the measured stage times, and ``idle_ratio`` the
    part of the traced steps in which no action ran: the bubble, waits, transfer, optimizer and the
    host's own work together. ``in_flight`` holds, for each rank, the most microbatches that it
    keeps for their backward passes, by the order in which it did them. ``actions`` are the passes
    of one typical step of the first pipeline, and when its dry run has them; null: there are more
    than 2000.

    Args:
        pipelines: Of all launches and side by side; at least one, all of them traced whole.
    """
    first = pipelines[0]
    strategy, schedule = first.strategy, first.schedule
    assert schedule is not None, "pipelines that were not traced whole are left out"
    p, m, v = len(first.ranks), strategy.microbatches, strategy.chunks
    home = schedule.rank_of_stage
    equal = dry_run(schedule, equal_times(schedule.num_stages))
    ratios = [one.timeline.bubble_ratio for one in pipelines if one.timeline is not None]
    return {
        "schedule": strategy.schedule,
        "num_ranks": p,
        "num_microbatches": m,
        "chunks": v,
        "num_pipelines": strategy.data_parallel,
        "bubble_law": bubble_law(strategy.schedule, p, m, v),
        "bubble_equal_stages": equal.bubble_ratio,
        "bubble_measured_times": float(np.mean(ratios)),
        "idle_ratio": float(np.mean([one.idle_ratio for one in pipelines])),
        "in_flight": schedule.in_flight(),
        "stages": [
            {"stage": stage, "rank": home[stage], **_times(pipelines, stage)}
            for stage in sorted(home)
        ],
        "actions": _actions(first) if sum(map(len, schedule.ranks)) <= MOST_ACTIONS else None,
    }


def _actions(pipeline: PipelineTrace) -> list[dict[str, Any]] | None:
    """Return the passes of one typical step, seconds after the first of them began."""
    if pipeline.schedule is None or pipeline.timeline is None:
        return None
    planned = pipeline.timeline
    step = pipeline.chosen[len(pipeline.chosen) // 2]
    done = {rank: pipeline.spans(rank, step) for rank in pipeline.ranks}
    begin_ns = min(start for spans in done.values() for start, _ in spans.values())
    return [
        {
            "rank": rank,
            **action._asdict(),
            "start_s": (done[rank][action][0] - begin_ns) / 1e9,
            "end_s": (done[rank][action][1] - begin_ns) / 1e9,
            "planned_start_s": planned.start_s[place][number],
            "planned_end_s": planned.end_s[place][number],
        }
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
