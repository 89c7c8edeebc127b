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
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from scalebench.records.rows.communication import OperationFigures
from scalebench.records.trace import Trace, TracedOperation
from scalebench.trace.intervals import (
    Intervals,
    intersect,
    intervals,
    length_s,
    none,
    subtract,
    union,
)


@dataclass(frozen=True)
class Breakdown:
    """One rank's step: seconds per step, means over the traced steps that were chosen.

    The parts that share out the step are ``codec_s``, ``busy_s``, ``wait_s``,
    ``exposed_transfer_s``, ``copies_alone_s``, ``data_stall_s``, ``other_idle_s`` and ``bubble_s``.

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
    """

    rank: int
    num_steps: int
    step_s: float
    compute_s: float
    busy_s: float
    comm_s: float
    exposed_comm_s: float
    exposed_transfer_s: float
    wait_s: float
    codec_s: float
    data_stall_s: float
    other_idle_s: float
    bubble_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    copies_s: float = 0.0
    copies_alone_s: float = 0.0
    comm_beside_copies_s: float = 0.0
    by_kind: tuple[OperationFigures, ...] = ()
    by_bucket: tuple[OperationFigures, ...] = ()

    def with_bubble(self, bubble_s: float) -> Self:
        """Return the breakdown with this much of the wait called bubble, or as much as there is."""
        bubble_s = min(bubble_s, self.wait_s)
        return replace(self, bubble_s=bubble_s, wait_s=self.wait_s - bubble_s)


def break_down(
    rank: int,
    trace: Trace,
    waiting: Intervals | None = None,
    chosen: Sequence[int] | None = None,
) -> Breakdown:
    """Share out a rank's traced steps.

    Args:
        rank: Whose.
        trace: Its trace, with at least one step.
        waiting: When it waited for others inside operations; see `matching`. None: never.
        chosen: Indices of the steps that count; None: all.
    """
    indices = range(len(trace.steps)) if chosen is None else chosen
    steps = union(intervals([trace.steps[i] for i in indices]))
    num_steps = len(indices)
    counted = frozenset(indices)
    operations = [op for op in trace.operations if op.step in counted]
    compute = within(steps, union(intervals(trace.compute), intervals(trace.codec)))
    codec = within(steps, intervals(trace.codec))
    communication = within(steps, in_flight(trace, operations))
    exposed = subtract(communication, compute)
    wait = intersect(exposed, none() if waiting is None else waiting)
    copies = within(steps, intervals(trace.copies or []))
    busy = union(compute, communication, copies)
    stall = subtract(within(steps, intervals(trace.data)), busy)
    accounted = union(busy, stall)

    def per_step(spans: Intervals) -> float:
        return length_s(spans) / num_steps

    return Breakdown(
        rank=rank,
        num_steps=num_steps,
        step_s=per_step(steps),
        compute_s=per_step(compute),
        busy_s=per_step(subtract(compute, codec)),
        comm_s=per_step(communication),
        exposed_comm_s=per_step(exposed),
        exposed_transfer_s=per_step(subtract(exposed, wait)),
        wait_s=per_step(wait),
        codec_s=per_step(codec),
        data_stall_s=per_step(stall),
        other_idle_s=per_step(subtract(steps, accounted)),
        encode_s=per_step(within(steps, intervals(trace.encode))),
        decode_s=per_step(within(steps, intervals(trace.decode))),
        copies_s=per_step(copies),
        copies_alone_s=per_step(subtract(copies, union(compute, communication))),
        comm_beside_copies_s=per_step(intersect(exposed, copies)),
        by_kind=_figures(operations, num_steps, steps, compute, by_bucket=False),
        by_bucket=_figures(operations, num_steps, steps, compute, by_bucket=True),
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
    operations: Sequence[TracedOperation],
    num_steps: int,
    steps: Intervals,
    compute: Intervals,
    by_bucket: bool,
) -> tuple[OperationFigures, ...]:
    groups: dict[tuple[str, int | None], list[TracedOperation]] = {}
    for op in operations:
        groups.setdefault((op.kind, op.ordinal if by_bucket else None), []).append(op)
    return tuple(
        _one(kind, ordinal, alike, num_steps, steps, compute)
        for (kind, ordinal), alike in sorted(groups.items(), key=str)
    )


def _one(
    kind: str,
    ordinal: int | None,
    operations: Sequence[TracedOperation],
    num_steps: int,
    steps: Intervals,
    compute: Intervals,
) -> OperationFigures:
    covered = within(steps, covered_by(operations))
    exposed = subtract(covered, compute)
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
