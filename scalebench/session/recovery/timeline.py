"""From what was noted around a failure to its phases, which follow one another without a gap."""

from collections.abc import Sequence
from itertools import pairwise

from scalebench.records.fault_events import Event
from scalebench.records.recovery import FaultTimeline
from scalebench.spec.recovery import PHASES, FaultPlan, Restarter


class NoTimeline(Exception):
    """A failure did not go as it should; the text says what is missing."""


def timeline_of(
    plan: FaultPlan,
    by: Restarter,
    outside_ns: tuple[int, int, int],
    before: Sequence[Sequence[Event]],
    after: Sequence[Sequence[Event]],
) -> FaultTimeline:
    """Return the timeline of one failure.

    A phase of the new ranks ends when the last of them is through it.

    Args:
        plan: Of the failure.
        by: Who started the ranks again.
        outside_ns: When the rank failed, when that was noticed, when no rank was left.
        before: Events of each rank that was there when one failed.
        after: Events of each rank that continued.

    Raises:
        NoTimeline: A rank did not get as far, or the moments are not in order.
    """
    lost = max((e.number for rank in before for e in rank if e.name == "step"), default=0)
    saved = max((e.number for rank in after for e in rank if e.name == "loaded"), default=0)
    moments = [
        *outside_ns,
        _last(after, "started"),
        _last(after, "connected"),
        _last(after, "built"),
        _last(after, "loaded"),
        _step(after, saved + 1),
        _step(after, lost + 1),
    ]
    seconds = [(b - a) / 1e9 for a, b in pairwise(moments)]
    wrong = [name for name, s in zip(PHASES, seconds, strict=True) if s < 0]
    if wrong:
        raise NoTimeline(f"{plan.kind} of rank {plan.rank}: {wrong[0]} ended before it began")
    return FaultTimeline(
        kind=plan.kind,
        restarted_by=by,
        rank=plan.rank,
        failed_after=lost,
        saved_after=saved,
        phases_s=dict(zip(PHASES, seconds, strict=True)),
        total_s=(moments[-1] - moments[0]) / 1e9,
        data_s=(_last(after, "loaded") - _last(after, "state")) / 1e9,
    )


def _last(ranks: Sequence[Sequence[Event]], name: str) -> int:
    """Return when the last rank came to an event."""
    return max(_first(events, name, None) for events in ranks)


def _step(ranks: Sequence[Sequence[Event]], number: int) -> int:
    """Return when the last rank had done a step."""
    return max(_first(events, "step", number) for events in ranks)


def _first(events: Sequence[Event], name: str, number: int | None) -> int:
    for event in events:
        if event.name == name and (number is None or event.number == number):
            return event.time_ns
    what = name if number is None else f"{name} {number}"
    raise NoTimeline(f"a rank that was started again did not come to {what!r}")
