"""What a rank's traced steps were made of, in seconds per step.

Every moment of a step is given to exactly one part, in this order: encoding and decoding;
computation; waiting for other ranks inside an operation; exposed transfer (the rest of the
communication that nothing hides); copies and fills of GPU memory; waiting for the next batch;
other idle time (on the host: the interpreter, DDP's bookkeeping, the operating system; on a GPU:
nothing was running). The parts add up to the step.

Copies hide no communication: overlap is communication during computation, as
HolisticTraceAnalysis counts it. Communication during copies alone is exposed, and has a number.

Source of the definitions: docs/definitions.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from scalebench.grouping import by_key
from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.records.rows.budget import RankTimes
from scalebench.records.rows.steps import OperationFigures
from scalebench.trace.events import (
    Intervals,
    intersect,
    intervals,
    length_s,
    none,
    subtract,
    union,
)

PRECEDENCE = (
    *("codec", "compute", "wait", "exposed_transfer"),
    *("copies", "data_stall", "other_idle"),
)
"""What shares out a step: where several happen at once, the first of them has the moment.

Most are worked out in `partition`; any other is the trace's own set of that name.
"""


@dataclass(frozen=True)
class Partition:
    """Some steps of a rank, every moment given to exactly one part; every set is tidy.

    Attributes:
        compute: Computation, encoding and decoding included.
        exposed: Communication while nothing was computed.
        copies: Copies and fills of GPU memory, whatever else ran.
        parts: What the rank did → when, in order of precedence; together they are the steps.
    """

    steps: Intervals
    compute: Intervals
    communication: Intervals
    exposed: Intervals
    copies: Intervals
    parts: dict[str, Intervals]


def partition(
    trace: Trace, chosen: Sequence[int], waiting: Intervals | None = None, gap_ns: int = 0
) -> Partition:
    """Give every moment of a rank's traced steps to one part.

    ``waiting``: when it waited for others inside operations; see `matching`. None: never. Gaps in
    the computation of at most ``gap_ns`` are computation, too.
    """
    steps = union(intervals([trace.steps[i] for i in chosen]))
    counted = frozenset(chosen)
    computed = union(intervals(trace.compute), intervals(trace.codec))
    compute = closed(within(steps, computed), gap_ns)
    sent = [op for op in trace.operations if op.step in counted]
    communication = within(steps, in_flight(trace, sent))
    copies = within(steps, intervals(trace.copies or []))
    known = {
        "compute": compute,
        "wait": intersect(communication, none() if waiting is None else waiting),
        "exposed_transfer": communication,
        "copies": copies,
        "data_stall": within(steps, intervals(trace.data)),
        "other_idle": steps,
    }
    parts, given = {}, none()
    for name in PRECEDENCE:
        found = known.get(name)
        spans = within(steps, intervals(getattr(trace, name))) if found is None else found
        parts[name] = subtract(spans, given)
        given = union(given, spans)
    exposed = subtract(communication, compute)
    return Partition(steps, compute, communication, exposed, copies, parts)


def closed(spans: Intervals, gap_ns: int) -> Intervals:
    """Return the tidy set with gaps of at most ``gap_ns`` closed."""
    wider = spans + np.array([0, gap_ns])  # those that touch are one
    return union(wider) - np.array([0, gap_ns]) if len(spans) and gap_ns else spans


class Breakdown(RankTimes):
    """One rank's step: seconds per step, means over the traced steps that were chosen.

    Attributes:
        step_s: The traced step.
        compute_s: Union of computation, encoding and decoding included.
        busy_s: Computation without encoding and decoding.
        comm_s: Union of communication.
        encode_s: The part of ``codec_s`` that encodes; ``decode_s`` the part that decodes.
        exposed_comm_s: Communication while nothing was computed: wait, exposed transfer, bubble.
        bubble_s: The part of waiting for other ranks that a pipeline's schedule explains; it is
            no part of ``wait_s``.
        copies_s: Union of copies and fills of GPU memory, whatever else ran.
        copies_alone_s: The part of it during which nothing was computed or communicated.
        comm_beside_copies_s: The part of ``exposed_comm_s`` during which memory was copied.
        parts: What shares out the step: activity of a part of the budget → seconds.
    """

    num_steps: int
    encode_s: float
    decode_s: float
    parts: dict[str, float]
    by_kind: tuple[OperationFigures, ...]
    by_bucket: tuple[OperationFigures, ...]

    def with_bubble(self, bubble_s: float) -> Self:
        """Return the breakdown with this much of the wait called bubble, or as much as there is."""
        bubble_s = min(bubble_s, self.wait_s)
        moved = {"bubble": bubble_s, "wait": self.wait_s - bubble_s}
        named = {f"{name}_s": seconds for name, seconds in moved.items()}
        return self.model_copy(update={**named, "parts": self.parts | moved})


def break_down(
    rank: int,
    trace: Trace,
    waiting: Intervals | None = None,
    chosen: Sequence[int] | None = None,
    shared: Partition | None = None,
) -> Breakdown:
    """Share out a rank's traced steps, at least one.

    See `partition` for the arguments; ``shared`` is what it returns for them, where it is known.
    """
    indices = range(len(trace.steps)) if chosen is None else chosen
    num_steps, counted = len(indices), set(indices)
    found = shared or partition(trace, indices, waiting)
    operations = [op for op in trace.operations if op.step in counted]

    def per_step(spans: Intervals) -> float:
        return length_s(spans) / num_steps

    parts = {name: per_step(spans) for name, spans in found.parts.items()} | {"bubble": 0.0}
    seconds = {f"{name}_s": part for name, part in parts.items()} | {
        "step_s": per_step(found.steps),
        "compute_s": per_step(found.compute),
        "busy_s": parts["compute"],
        "comm_s": per_step(found.communication),
        "exposed_comm_s": per_step(found.exposed),
        "encode_s": per_step(within(found.steps, intervals(trace.encode))),
        "decode_s": per_step(within(found.steps, intervals(trace.decode))),
        "copies_s": per_step(found.copies),
        "copies_alone_s": parts["copies"],
        "comm_beside_copies_s": per_step(intersect(found.exposed, found.copies)),
    }
    return Breakdown(
        rank=rank,
        num_steps=num_steps,
        parts=parts,
        by_kind=_figures(operations, num_steps, found, by_bucket=False),
        by_bucket=_figures(operations, num_steps, found, by_bucket=True),
        **seconds,
    )


def in_flight(trace: Trace, operations: Iterable[TracedOperation]) -> Intervals:
    """Return when a rank communicated.

    Where the trace tells when the rank was blocked by sends and receives, that stands for them:
    their own annotations last until somebody waits for them.
    """
    if not trace.blocked:
        return covered_by(operations)
    others = covered_by(op for op in operations if not is_between_two(op))
    return union(others, intervals(trace.blocked))


def is_between_two(operation: TracedOperation) -> bool:
    """Whether ``Trace.blocked`` stands for an operation, where that is known."""
    return operation.kind in ("send", "recv")


def covered_by(operations: Iterable[TracedOperation]) -> Intervals:
    """Return the union of operations."""
    return union(intervals([(op.start_ns, op.end_ns) for op in operations]))


def within(steps: Intervals, spans: Intervals) -> Intervals:
    """Return the part of ``spans`` that lies in the steps."""
    return intersect(spans, steps)


def _figures(
    operations: Sequence[TracedOperation], num_steps: int, found: Partition, by_bucket: bool
) -> tuple[OperationFigures, ...]:
    groups = by_key(((op.kind, op.ordinal if by_bucket else None), op) for op in operations)
    return tuple(
        _one(kind, ordinal, alike, num_steps, found)
        for (kind, ordinal), alike in sorted(groups.items(), key=str)
    )


def _one(
    kind: str,
    ordinal: int | None,
    operations: Sequence[TracedOperation],
    num_steps: int,
    found: Partition,
) -> OperationFigures:
    covered = within(found.steps, covered_by(operations))
    exposed = subtract(covered, found.compute)
    sizes = [op.num_bytes for op in operations if op.num_bytes is not None]
    phases = [op.phase for op in operations]
    return OperationFigures(
        kind=kind,
        ordinal=ordinal,
        phase=max(sorted(set(phases)), key=phases.count),
        count=len(operations) / num_steps,
        num_bytes=float(np.sum(sizes)) / num_steps if len(sizes) == len(operations) else None,
        total_s=length_s(covered) / num_steps,
        exposed_s=length_s(exposed) / num_steps,
        hidden_s=(length_s(covered) - length_s(exposed)) / num_steps,
    )
