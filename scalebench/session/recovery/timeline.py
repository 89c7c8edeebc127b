"""From what was noted around a failure to its phases, which follow one another without a gap."""

from collections.abc import Sequence
from itertools import pairwise

from scalebench.records.measured.fault_events import Event
from scalebench.records.measured.recovery import FaultTimeline
from scalebench.spec.recovery import PHASES, FaultPlan, Restarter

Outside = tuple[int, int, int]
"""When a rank failed, when that was noticed, when no rank was left: ns of the monotonic clock."""


class NoTimeline(Exception):
    """A failure did not go as it should; the text says what is missing."""


def timelines_of(
    plans: Sequence[FaultPlan],
    by: Restarter,
    outside_ns: Sequence[Outside],
    attempts: Sequence[Sequence[Sequence[Event]]],
) -> list[FaultTimeline]:
    """Return the timelines of a job's failures, in order.

    ``plans`` and ``outside_ns`` are of each failure. ``attempts``: events of each rank: of the
    attempt that failed first, of the next, …; of one more than failed.

    Raises:
        NoTimeline: One is not complete, or a failure came before the job had caught up with the one
            before.
    """
    timelines: list[FaultTimeline] = []
    for number, plan in enumerate(plans):
        if timelines:
            since_s = (outside_ns[number][0] - outside_ns[number - 1][0]) / 1e9
            if since_s < timelines[-1].total_s:
                raise NoTimeline(
                    f"{failure_of(plan)}: the job had not caught up with the one before"
                )
        around = attempts[number], attempts[number + 1]
        try:
            found = timeline_of(plan, by, outside_ns[number], *around)
        except NoTimeline as error:
            raise NoTimeline(f"{failure_of(plan)}: {error}") from None
        timelines.append(found.model_copy(update={"restart": number + 1}))
    return timelines


def failure_of(plan: FaultPlan) -> str:
    """Say which failure a plan is of."""
    return f"failure {plan.attempt + 1} of the job, {plan.kind} of rank {plan.rank}"


def timeline_of(
    plan: FaultPlan,
    by: Restarter,
    outside_ns: Outside,
    before: Sequence[Sequence[Event]],
    after: Sequence[Sequence[Event]],
) -> FaultTimeline:
    """Return the timeline of one failure.

    A phase of the new ranks ends when the last of them is through it.

    ``before``: events of each rank that was there when one failed; ``after``: of each that
    continued.

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
        raise NoTimeline(f"{wrong[0]} ended before it began")
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
