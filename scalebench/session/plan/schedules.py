"""A schedule by its name, for drawing: from its rule, or asked of torch in a worker."""

from typing import Any

from scalebench.costmodel.pipelines.dry_run import Timeline
from scalebench.costmodel.pipelines.orders import FROM_TORCH, plan_schedule, style_of, why_not
from scalebench.costmodel.pipelines.schedule import Action, Schedule, check
from scalebench.errors import UsageError
from scalebench.launch.local import LocalLauncher

MOST_PASSES = 2**17
"""Forward passes of all stages beyond which working out a schedule takes more than seconds."""
FEWEST_CHUNKS = {"one": 1, "two": 2, "any": 1}
FEWEST_INTERLEAVED = 2
_CHUNKS = {"one": "chunk on each rank", "two": "chunks on each rank"}


def schedule_by_name(name: str, ranks: int, microbatches: int, chunks: int | None) -> Schedule:
    """Return a schedule.

    ``name`` is one of `STYLES`. ``chunks``: stages on each rank; None: as many as it has at least.

    Raises:
        UsageError: There is none of this name, or torch refuses these numbers.
    """
    style = style_of(name)
    fewest = FEWEST_CHUNKS[style.chunks]
    if name in ("interleaved-1f1b", "looped-bfs"):
        fewest = FEWEST_INTERLEAVED
    v = fewest if chunks is None else chunks
    if style.chunks != "any" and v != fewest:
        raise UsageError(
            f"-v {v}: {name} has {style.chunks} {_CHUNKS[style.chunks]}. Give -v {fewest}, or "
            "leave -v out."
        )
    if (passes := ranks * microbatches * v) > MOST_PASSES:
        raise UsageError(
            f"-p {ranks} -m {microbatches} -v {v}: that makes p·m·v = {passes:,} forward passes, "
            f"and at most {MOST_PASSES:,} are drawn. Choose smaller numbers."
        )
    reason = why_not(name, ranks, microbatches, v)
    if reason is not None:
        raise UsageError(f"-p {ranks} -m {microbatches} -v {v}: {reason}. Choose other numbers.")
    if name not in FROM_TORCH:
        return plan_schedule(name, ranks, microbatches, v)
    with LocalLauncher() as launcher:
        orders = launcher.schedule(name, ranks, microbatches, v)
    order = tuple(tuple(Action.parse(action) for action in actions) for actions in orders)
    schedule = Schedule(name, microbatches, order)
    check(schedule)
    return schedule


def schedule_as_json(timeline: Timeline) -> dict[str, Any]:
    """Return a dry run as data: every action with start and end, in forward passes."""
    schedule = timeline.schedule
    return {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "bubble_ratio": timeline.bubble_ratio,
        "in_flight": schedule.in_flight(),
        "actions": [
            {"rank": rank, **action._asdict(), "start": start, "end": end}
            for rank, actions in enumerate(schedule.ranks)
            for action, start, end in zip(
                actions, timeline.start_s[rank], timeline.end_s[rank], strict=True
            )
        ],
    }
