"""Exposed communication of a rank by the dimension of the mesh whose group carried it.

Every moment of a traced step in which a rank communicates and computes nothing belongs to the
dimensions whose operations are in flight then, in equal parts. While the rank waits, it belongs to
those in whose operations it waits.
"""

from dataclasses import dataclass

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.records.trace import Trace, TracedOperation
from scalebench.trace.breakdown import covered_by, in_flight, is_between_two, within
from scalebench.trace.intervals import (
    Intervals,
    divided,
    intersect,
    intervals,
    subtract,
    union,
)


@dataclass(frozen=True)
class ExposedAlong:
    """Exposed communication along one dimension, seconds per traced step."""

    transfer_s: float
    wait_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.transfer_s + self.wait_s


def exposed_by_axis(launch: LaunchAttribution, rank: int) -> dict[str | None, ExposedAlong]:
    """Return dimension → exposed transfer and wait of a rank; they sum to its breakdown's.

    None stands for operations of no dimension.

    Args:
        launch: Of a strategy without a bubble of its own.
        rank: Whose operations.
    """
    trace, chosen = launch.traces[rank], launch.typical_steps
    steps = union(intervals([trace.steps[i] for i in chosen]))
    compute = within(steps, union(intervals(trace.compute), intervals(trace.codec)))
    flying = {
        axis: subtract(within(steps, spans), compute)
        for axis, spans in in_flight_by_axis(trace, frozenset(chosen)).items()
    }
    waited_in = launch.matched.waiting_along.get(rank, {})
    exposed, waiting = union(*flying.values()), union(*waited_in.values())
    waits = divided(intersect(exposed, waiting), waited_in)
    transfers = divided(subtract(exposed, waiting), flying)
    per_step = 1e-9 / len(chosen)
    return {
        axis: ExposedAlong(per_step * transfers[axis], per_step * waits.get(axis, 0.0))
        for axis in flying
    }


def in_flight_by_axis(trace: Trace, chosen: frozenset[int]) -> dict[str | None, Intervals]:
    """Return dimension → when a rank communicated along it in some steps, as `in_flight` has it."""
    by_axis: dict[str | None, list[TracedOperation]] = {}
    for op in trace.operations:
        if op.step in chosen:
            by_axis.setdefault(op.axis, []).append(op)
    if not trace.blocked:
        return {axis: covered_by(operations) for axis, operations in by_axis.items()}
    between_two = {axis for axis, ops in by_axis.items() if any(is_between_two(op) for op in ops)}
    return {
        axis: in_flight(trace, by_axis.get(axis, ()))
        if axis in (between_two or {None})
        else covered_by(by_axis[axis])
        for axis in dict.fromkeys((*by_axis, *(() if between_two else (None,))))
    }
