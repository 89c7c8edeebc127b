"""One traced step as its ranks went through it, all on rank 0's clock.

Every moment of a step belongs to one activity, by the same rules as the loss budget
(`scalebench.trace.breakdown`); communication that runs during computation is separate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.timing.steps import steps_of
from scalebench.records.measured.trace import Trace
from scalebench.trace.breakdown import PRECEDENCE, closed, partition
from scalebench.trace.intervals import Intervals, intersect
from scalebench.trace.operations.matching import shown_on_rank_0

MOST_RANKS = 16
VISIBLE = 1 / 2000
"""Of the step: shorter gaps between spans of one kind are closed, they are too short to be seen."""

ACTIVITIES = ("compute", *(name for name in PRECEDENCE if name != "compute"))
"""What a rank does at any moment; they share out the step."""

HIDDEN = "hidden_comm"
"""Communication during computation: not part of the sum."""


@dataclass(frozen=True)
class ShownOperation:
    """A communication as one rank had it; seconds after the step began on the first rank."""

    kind: str
    ordinal: int
    num_bytes: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankStep:
    """One rank's step.

    Attributes:
        spans: Activity, or `HIDDEN` → (start, end) in seconds after the step began on the first
            rank, in order.
    """

    rank: int
    spans: Mapping[str, Sequence[tuple[float, float]]]
    operations: tuple[ShownOperation, ...]

    def total_s(self, kind: str) -> float:
        """Return how long the rank did one thing."""
        return sum(end - start for start, end in self.spans.get(kind, ()))


@dataclass(frozen=True)
class StepTimeline:
    """One step of a row.

    Attributes:
        step_s: From the first rank's beginning to the last one's end.
        ranks: At most `MOST_RANKS`, evenly chosen where there are more.
        not_apart: Why wait is part of transfer; None: it is separate.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    step: int
    step_s: float
    ranks: tuple[RankStep, ...]
    num_ranks: int
    not_apart: str | None


def step_timeline(launch: LaunchAttribution) -> StepTimeline:
    """Return the median traced step of a launch."""
    cell, step = launch.result.cell, median_step(launch)
    clocks = launch.clocks
    shown = evenly(sorted(launch.traces), MOST_RANKS)
    shifts = {rank: shown_on_rank_0(launch.traces[rank].origin_ns, rank, clocks) for rank in shown}
    begin = min(launch.traces[rank].steps[step][0] + shifts[rank] for rank in shown)
    end = max(launch.traces[rank].steps[step][1] + shifts[rank] for rank in shown)
    waiting = {} if launch.not_apart else launch.waiting
    return StepTimeline(
        suite=cell.suite,
        case=cell.case,
        world_size=cell.world_size,
        repeat=cell.repeat,
        step=step,
        step_s=(end - begin) / 1e9,
        ranks=tuple(
            _rank_step(rank, launch.traces[rank], step, begin - shifts[rank], waiting.get(rank))
            for rank in shown
        ),
        num_ranks=len(launch.traces),
        not_apart=launch.not_apart,
    )


def median_step(launch: LaunchAttribution) -> int:
    """Return the typical traced step whose length is in the middle."""
    lengths = steps_of(launch.result.ranks, "traced")
    typical = sorted(launch.typical_steps, key=lambda index: float(lengths[index]))
    return typical[len(typical) // 2]


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the items, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[int(i)] for i in np.linspace(0, len(items) - 1, most).round()]


def _rank_step(
    rank: int, trace: Trace, step: int, begin_ns: int, waiting: Intervals | None
) -> RankStep:
    start, end = trace.steps[step]
    gap_ns = int((end - start) * VISIBLE)
    found = partition(trace, [step], waiting, gap_ns)
    operations = [op for op in trace.operations if op.step == step]
    sets = found.parts | {HIDDEN: intersect(found.communication, found.compute)}
    return RankStep(
        rank=rank,
        spans={k: _seconds(closed(sets[k], gap_ns), begin_ns) for k in (*ACTIVITIES, HIDDEN)},
        operations=tuple(
            ShownOperation(
                op.kind,
                op.ordinal,
                op.num_bytes,
                (op.start_ns - begin_ns) / 1e9,
                (op.end_ns - begin_ns) / 1e9,
            )
            for op in sorted(operations, key=lambda op: op.start_ns)
        ),
    )


def _seconds(spans: Intervals, begin_ns: int) -> tuple[tuple[float, float], ...]:
    return tuple((float(a), float(b)) for a, b in (spans - begin_ns) / 1e9)
