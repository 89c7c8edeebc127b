"""Transfer and wait in the traces of any job, one file per rank.

The clocks of foreign traces were not aligned by anybody. But an operation that synchronises its
ranks ends on all of them at nearly the same time: the median difference of the ends is the offset
of two clocks, and what the differences scatter by is the error of a wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scalebench.records.measured.trace import ClockAlignment, Trace, TracedOperation
from scalebench.records.rows.communication import Straggler
from scalebench.trace.intervals import Intervals, intersect, length_s
from scalebench.trace.operations.matching import SYNCHRONISING, match, stragglers, together
from scalebench.trace.timeline import Timeline


@dataclass(frozen=True)
class RankWait:
    """How one rank's exposed communication divides, seconds."""

    exposed_transfer_s: float
    wait_s: float


@dataclass(frozen=True)
class JobWaits:
    """The waits of all ranks of a job.

    Attributes:
        ranks: Rank → its share; empty when they are not known.
        reason: Why they are not known; None: they are.
        clock_error_s: How far a single wait may be wrong because the clocks differ.
        stragglers: Who came last how often.
    """

    ranks: Mapping[int, RankWait]
    reason: str | None = None
    clock_error_s: float = 0.0
    stragglers: tuple[Straggler, ...] = ()


def waits_of(
    timelines: Mapping[int, Timeline],
    exposed: Mapping[int, Intervals],
    world_size: int | None = None,
) -> JobWaits:
    """Tell transfer and wait apart, if the traces of all ranks of each group are there.

    Of ``timelines``, operations and extent are looked at. ``exposed``: rank → tidy set of the
    communication that no computation hides, on its clock. ``world_size``: where a trace does not
    tell.
    """
    if len(timelines) < 2:
        return _unknown("the trace of one rank does not show when the others arrived")
    told = {r: replace(t, world_size=t.world_size or world_size) for r, t in timelines.items()}
    traces = {rank: as_trace(timeline) for rank, timeline in told.items()}
    matched, num_alone = together(traces)
    found = match(traces)
    if found.mismatch:
        return _unknown(f"the ranks' operations differ: {found.mismatch}")
    if not matched:
        knows_size = any(timeline.world_size for timeline in told.values())
        return _unknown(_why_none_matches(traces, knows_size))
    if num_alone:
        return _unknown(f"{num_alone} operations are not in the traces of all their ranks")
    clocks, error_s = clocks_by_ends(traces)
    found = match(traces, clocks)
    shares = {}
    for rank in timelines:
        waiting = found.waiting[rank] + traces[rank].origin_ns
        wait_s = length_s(intersect(exposed[rank], waiting))
        shares[rank] = RankWait(length_s(exposed[rank]) - wait_s, wait_s)
    return JobWaits(shares, None, error_s, tuple(stragglers(found.arrivals)))


def _why_none_matches(traces: Mapping[int, Trace], knows_size: bool) -> str:
    operations = [op for trace in traces.values() for op in trace.operations]
    awaited = [op for op in operations if op.kind in (*SYNCHRONISING, "broadcast")]
    if not awaited:
        return "no operation is known in which ranks wait for each other"
    if all(op.group_size is None for op in awaited):
        whose = "operations go between" if knows_size else "job has"
        return f"the traces do not say how many ranks the {whose}"
    return "no operation is in the traces of all its ranks"


def _unknown(reason: str) -> JobWaits:
    return JobWaits({}, reason)


def as_trace(timeline: Timeline) -> Trace:
    """Return a timeline in the form in which the ranks of a launch store theirs.

    An operation that names no group goes between all ranks, if there are no several groups.
    """
    all_ranks = timeline.world_size if timeline.num_groups < 2 else None
    origin, end = timeline.extent
    starts = timeline.steps[:, 0]
    return Trace(
        origin_ns=origin,
        steps=[(0, end - origin)] * (len(starts) + 1),
        operations=[
            TracedOperation(
                kind=op.kind,
                name=op.name,
                step=int(np.searchsorted(starts, op.start_ns, side="right")),
                ordinal=0,
                start_ns=op.start_ns - origin,
                end_ns=op.end_ns - origin,
                num_bytes=op.num_bytes,
                dtype=op.dtype,
                group=op.group,
                group_size=op.group_size or all_ranks,
                phase=op.phase,
                sequence=op.sequence,
            )
            for op in timeline.operations
        ],
    )


def clocks_by_ends(traces: Mapping[int, Trace]) -> tuple[dict[int, ClockAlignment], float]:
    """Align the ranks' clocks by the ends of their operations.

    Returns:
        Rank → its clock against the first rank's; and half of what the differences of the ends
        scatter by (their inter-quartile range), of the worst rank, seconds.
    """
    matched, _ = together(traces)
    reference = min(traces)
    clocks: dict[int, ClockAlignment] = {}
    worst_ns = 0.0
    for rank in traces:
        apart = [
            (operation[rank].end_ns + traces[rank].origin_ns)
            - (operation[reference].end_ns + traces[reference].origin_ns)
            for operation in matched
            if rank in operation and reference in operation
        ]
        if not apart:
            continue
        scatter_ns = float(np.subtract(*np.percentile(apart, [75, 25]))) / 2
        worst_ns = max(worst_ns, scatter_ns)
        clocks[rank] = ClockAlignment(
            method="operations",
            at_ns=traces[rank].origin_ns,
            offset_ns=round(float(np.median(apart))),
            bound_ns=round(scatter_ns),
        )
    return clocks, worst_ns / 1e9
