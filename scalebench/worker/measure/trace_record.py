"""From captured blocks to what is stored of them: operations and intervals, step by step."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalebench.records.measured.trace import (
    SETS,
    Trace,
    TracedAction,
    TracedOperation,
    TracedProduct,
)
from scalebench.trace.events import Events
from scalebench.trace.idle import SILENT, Launches, launches_between, shows_no_gpu
from scalebench.trace.intervals import Intervals, clip, none, subtract, union
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.gpu_work import products_of, summed_products
from scalebench.trace.operations.kernel_launches import NEVER, runtime_calls
from scalebench.trace.operations.names import STEP
from scalebench.trace.timeline import Timeline
from scalebench.worker.measure.tracing import Capture
from scalebench.worker.strategies.pipelining.actions import traced_actions


def trace_record(
    captures: Sequence[Capture],
    groups: Mapping[str, Sequence[int]] | None = None,
    axes: Mapping[str, Sequence[int]] | None = None,
    on_gpu: bool = False,
) -> Trace | None:
    """Return what counts of the captured blocks: every step but the first of each block.

    Args:
        captures: In the order in which they were taken.
        groups: Kind of operation → the ranks it goes between, where the training knows and the
            trace may not.
        axes: Dimension of the training's mesh → ranks of this rank's group along it; operations
            that no mark encloses go along the first.
        on_gpu: Whether the steps computed on a GPU: a trace without a kernel is then a broken one.

    Raises:
        ValueError: The profiler did not record every step, or CUPTI lost or shifted kernels.
    """
    blocks = [(c, c.events) for c in captures if c.events is not None and c.step_ns]
    if not blocks:
        return None
    for capture, events in blocks:
        if len(step_spans(events)) != len(capture.step_ns):
            raise ValueError("the profiler lost the step markers")
        if shows_no_gpu(events) or (on_gpu and not len(events.of("kernel"))):
            raise ValueError(SILENT)
    launches = sum((_counted_launches(events) for _, events in blocks), Launches())
    if launches.why_refused:
        raise ValueError(launches.why_refused)
    origin = blocks[0][0].step_ns[0]
    steps: list[tuple[int, int]] = []
    operations: list[TracedOperation] = []
    actions: list[TracedAction] = []
    products: list[TracedProduct] = []
    kept: dict[str, list[Intervals]] = {name: [] for name in SETS}
    unknown: dict[str, float] = {}
    for _, events in blocks:
        timeline = timeline_of(events)
        counted = step_spans(events)[1:]
        found_operations = _operations(timeline, counted, len(steps), origin)
        found_operations = _on_their_axes(found_operations, timeline, axes or {}, origin)
        operations += [_in_its_group(op, groups or {}) for op in found_operations]
        actions += traced_actions(events, counted, len(steps), origin)
        if len(counted) and events.types:
            products += products_of(events.only(events.start_ns >= _marks(events)[1, 0]))
        steps += [(int(start) - origin, int(end) - origin) for start, end in counted]
        for name, found in kept.items():
            whole = _set(timeline, name)
            found += [clip(whole, int(start), int(end)) - origin for start, end in counted]
        for name, seconds in timeline.unknown.items():
            unknown[name] = unknown.get(name, 0.0) + seconds
    sets = {name: union(*found).ravel().tolist() for name, found in kept.items()}
    return Trace(
        origin_ns=origin,
        steps=steps,
        operations=operations,
        actions=actions,
        products=summed_products(products),
        unknown=unknown,
        num_events=sum(len(events) for _, events in blocks),
        num_launches=launches.num,
        num_impossible=launches.num_impossible,
        clock_error_s=max(capture.clock_error_s for capture, _ in blocks),
        **sets,
    )


def step_spans(events: Events) -> Intervals:
    """Return beginning and end of every marked step, shape ``[steps, 2]``, without gaps.

    A step lasts until the next begins. On a GPU its boundaries are where the loop's own CUDA
    events are: the host is ahead of the device.
    """
    starts, ends = _marks(events).T
    if len(starts) == 0:
        return none()
    kernels = events.of("kernel")
    if len(kernels):
        return _on_device(events, kernels, np.column_stack((starts, ends)))
    return np.column_stack((starts, np.append(starts[1:], ends[-1])))


def _marks(events: Events) -> Intervals:
    """Return when the host began and ended each step, in order, shape ``[steps, 2]``."""
    marked = events.of("user_annotation")
    marked = marked[[events.names[i] == STEP for i in events.name[marked]]]
    marked = marked[np.argsort(events.start_ns[marked])]
    return np.column_stack((events.start_ns[marked], events.end_ns[marked]))


def _counted_launches(events: Events) -> Launches:
    """Return the launches of the steps that count: what a session's head lost is in the first."""
    marks = _marks(events)
    return launches_between(events, int(marks[0, 1]), int(marks[-1, 1]))


def _on_device(events: Events, kernels: Intervals, spans: Intervals) -> Intervals:
    """Return when the device began and ended the steps whose host spans are given.

    A CUDA event that the host records between two steps happens when the device has done all that
    was asked of it before, or at once where it waits for the host. So the time in which the device
    waits for a step's first kernel belongs to that step, as it does in the times of the steps.
    """
    asked_ns, _ = runtime_calls(events, kernels)
    done_ns = events.end_ns[kernels]

    def recorded(moment: int) -> int:
        earlier = done_ns[(asked_ns != NEVER) & (asked_ns < moment)]
        return max(moment, int(earlier.max(initial=moment)))

    boundaries = [recorded(int(moment)) for moment in (*spans[:, 0], spans[-1, 1])]
    return np.column_stack((boundaries[:-1], boundaries[1:]))


def _set(timeline: Timeline, name: str) -> Intervals:
    data = timeline.annotations.get("data", none())
    if name == "compute":
        stages = timeline.annotations.get("stage", none())
        # On the host, what makes a batch on the training thread is no part of the model.
        own = timeline.compute if timeline.on_gpu else subtract(timeline.compute, data)
        return union(own, stages)
    if name == "copies":
        return timeline.copies
    if name == "codec":
        marks = [timeline.annotations.get(mark, none()) for mark in ("encode", "decode")]
        return union(*marks)
    if name.startswith("blocked"):
        if timeline.on_gpu:
            return none()
        names = ("blocked", "blocked_sending") if name == "blocked" else (name,)
        return union(*(timeline.annotations.get(mark, none()) for mark in names))
    if name == "experts" and timeline.on_gpu:
        return none()  # the mark is the host's, which only asks for the work
    return timeline.annotations.get(name, none())


def _on_their_axes(
    operations: Sequence[TracedOperation],
    timeline: Timeline,
    axes: Mapping[str, Sequence[int]],
    origin: int,
) -> list[TracedOperation]:
    """Return the operations, each with the dimension of the mesh, and the group, that carried it.

    An operation belongs to the mark inside which the host asked for it. Without a mark, what one
    rank sends to another goes along a pipeline, where the mesh has one; all else along the first.
    """
    if not axes:
        return list(operations)
    asked_ns = [op.start_ns if op.enqueued_ns is None else op.enqueued_ns for op in operations]
    asked = np.array(asked_ns, dtype=np.int64)
    first = next(iter(axes))
    between_stages = "pipeline" if "pipeline" in axes else first
    names = np.array(
        [between_stages if op.kind in ("send", "recv") else first for op in operations],
        dtype=object,
    )
    for axis in axes:
        for begin, end in timeline.annotations.get(f"axis.{axis}", none()) - origin:
            names[(asked >= begin) & (asked < end)] = axis
    return [
        op.model_copy(
            update={
                "axis": name,
                "group": "ranks " + ",".join(map(str, axes[name])),
                "group_size": len(axes[name]),
            }
        )
        for op, name in zip(operations, names, strict=True)
    ]


def _in_its_group(
    operation: TracedOperation, groups: Mapping[str, Sequence[int]]
) -> TracedOperation:
    """Return the operation with its group, where the trace does not tell and the training does."""
    ranks = groups.get(operation.kind)
    if ranks is None or operation.group is not None:
        return operation
    named = {"group": "ranks " + ",".join(map(str, ranks)), "group_size": len(ranks)}
    return operation.model_copy(update=named)


def _operations(
    timeline: Timeline, steps: Intervals, first: int, origin: int
) -> list[TracedOperation]:
    found: list[TracedOperation] = []
    if len(steps) == 0:
        return found
    seen = [0] * len(steps)
    for op in timeline.operations:
        step = int(np.searchsorted(steps[:, 0], op.start_ns, side="right")) - 1
        if step < 0 or op.start_ns >= steps[step, 1]:
            continue
        found.append(
            TracedOperation(
                kind=op.kind,
                name=op.name,
                step=first + step,
                ordinal=seen[step],
                start_ns=op.start_ns - origin,
                end_ns=op.end_ns - origin,
                enqueued_ns=None if op.enqueued_ns is None else op.enqueued_ns - origin,
                num_bytes=op.num_bytes,
                dtype=op.dtype,
                group=op.group,
                group_size=op.group_size,
                phase=op.phase,
                sequence=op.sequence,
            )
        )
        seen[step] += 1
    return found
