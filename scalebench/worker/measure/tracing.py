"""Tracing steps with torch's profiler, from its memory to what is stored: operations, intervals."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._autograd import _KinetoEvent
from torch.profiler import record_function

from scalebench.records.folder import Scratch
from scalebench.records.measured.trace import (
    SETS,
    Trace,
    TracedAction,
    TracedOperation,
    TracedProduct,
)
from scalebench.trace.events import (
    CATEGORIES,
    Events,
    Intervals,
    Timeline,
    clip,
    none,
    subtract,
    union,
)
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.idle import SILENT, Launches, launches_between, shows_no_gpu
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.communication_kernels import PRODUCTS, STEP, carries_details
from scalebench.trace.operations.gpu_work import products_of, summed_products
from scalebench.trace.operations.kernel_launches import NEVER, runtime_calls
from scalebench.worker.portable import step_profiler
from scalebench.worker.strategies.pipelining import traced_actions

_CODES = {name: code for code, name in enumerate(CATEGORIES)}
FROM_MEMORY = hasattr(_KinetoEvent, "extra_meta")
"""Before torch 2.13 only the file that the profiler writes has NCCL's fields, and says what is a
kernel and what a copy."""
_RUNTIMES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")


@dataclass
class Capture:
    """One traced block: the profiler's events, and the clock they were taken by.

    Attributes:
        step_ns: ``time.monotonic_ns()`` at the beginning of every step.
        before_ns: The same, read before the profiler reads its clock.
        events: Known after the block, time stamps by ``monotonic_ns``.
        clock_error_s: How much the profiler's clock moved against ``monotonic_ns`` while the
            block ran: a clock that was set meanwhile shows here.
    """

    step_ns: list[int] = field(default_factory=list)
    before_ns: list[int] = field(default_factory=list)
    events: Events | None = None
    clock_error_s: float = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark one step."""
        self.before_ns.append(time.monotonic_ns())
        with record_function(STEP):
            self.step_ns.append(time.monotonic_ns())
            yield


@contextmanager
def traced(device: torch.device, groups: dict[str, int] | None = None) -> Iterator[Capture]:
    """Trace what runs inside the block; the capture's events are there when it is over."""
    capture = Capture()
    with step_profiler(device.type) as profiler:
        yield capture
    results = profiler.profiler.kineto_results
    if FROM_MEMORY:
        capture.events, capture.clock_error_s = read_events(
            results.events(), capture.before_ns, capture.step_ns, groups
        )
    else:
        events = written(results)
        marks = events.start_ns[marks_of(events)]
        capture.events, capture.clock_error_s = on_the_steps_clock(
            events, marks, capture.before_ns, capture.step_ns
        )
        if groups:
            capture.events = replace(capture.events, groups=groups)


def written(results: Any) -> Events:
    """Return the events of a profile by way of the file that the profiler writes."""
    with Scratch() as folder:
        path = folder / "trace.json"
        results.save(str(path))
        return read_kineto(path)


def on_the_steps_clock(
    events: Events, marks: Any, before_ns: list[int], step_ns: list[int]
) -> tuple[Events, float]:
    """Return events of a file with their times on the clock of ``step_ns``; see `clocks_apart`."""
    offset, moved_s = clocks_apart(marks, before_ns, step_ns)
    starts, ends = events.start_ns - offset, events.end_ns - offset
    return replace(events, start_ns=starts, end_ns=ends, clock_offset_ns=offset), moved_s


def marks_of(events: Events) -> NDArray[np.int64]:
    """Return the marks called `STEP` on the host, as indices, in the order of their times."""
    host = events.of("user_annotation")
    marks = host[[events.names[code] == STEP for code in events.name[host]]]
    return marks[np.argsort(events.start_ns[marks])]


def read_events(
    raw: list[Any], before_ns: list[int], step_ns: list[int], groups: dict[str, int] | None = None
) -> tuple[Events, float]:
    """Return the profiler's events on the clock of ``step_ns``, and the clocks' disagreement.

    Args:
        raw: torch's ``_KinetoEvent`` objects.
        before_ns: ``monotonic_ns`` before each event called `STEP`, in their order.
        step_ns: The same, read inside each of them.
        groups: Name of a process group → its number of ranks, as far as known.

    Returns:
        The events, and how far the clocks moved apart, seconds; see `clocks_apart`.
    """
    starts = np.array([event.start_ns() for event in raw], dtype=np.int64)
    names: dict[str, int] = {}
    name = np.array([names.setdefault(e.name(), len(names)) for e in raw], dtype=np.int32)
    code = np.array([_code(event.activity_type()) for event in raw], dtype=np.int8)
    on_device = code >= _CODES["kernel"]
    marks = starts[(name == names.get(STEP, -1)) & ~on_device]
    offset, moved_s = clocks_apart(marks, before_ns, step_ns)
    duration = np.array([event.duration_ns() for event in raw], dtype=np.int64)
    codes = [names[each] for each in PRODUCTS if each in names] if on_device.any() else []
    products = [(int(i), raw[i]) for i in np.flatnonzero(np.isin(name, codes))]
    events = Events(
        names=list(names),
        name=name,
        category=code,
        start_ns=starts - offset,
        end_ns=starts - offset + duration,
        thread=np.array([_lane(e, gpu) for e, gpu in zip(raw, on_device, strict=True)], np.int64),
        correlation=np.array([_launch(e, c) for e, c in zip(raw, code, strict=True)], np.int64),
        details={
            i: found
            for i, (event, gpu) in enumerate(zip(raw, on_device, strict=True))
            if (found := _details(event, gpu))
        },
        shapes={i: event.shapes() for i, event in products},
        types={i: event.dtypes() for i, event in products},
        groups=groups or {},
        clock_offset_ns=offset,
    )
    return events, moved_s


def clocks_apart(marks: Any, before_ns: list[int], step_ns: list[int]) -> tuple[int, float]:
    """Return profiler clock minus ours in nanoseconds, and how far they moved apart in seconds.

    The profiler reads its clock between two readings of ours, so each mark bounds the difference
    from both sides. A rank that loses its processor in between makes the bounds wider, never wrong:
    the clocks moved only where no difference lies within the bounds of all marks.

    ``before_ns`` and ``step_ns``: our clock, read before and inside each of the marks.
    """
    ordered = np.sort(marks)[: len(step_ns)]
    if not len(ordered):
        return 0, 0.0
    least = int(np.max(ordered - np.array(step_ns[: len(ordered)], dtype=np.int64)))
    most = int(np.min(ordered - np.array(before_ns[: len(ordered)], dtype=np.int64)))
    return least, max(0, least - most) / 1e9


def _code(activity: str) -> int:
    return _CODES["runtime"] if activity in _RUNTIMES else _CODES.get(activity, 0)


def _launch(event: Any, code: int) -> int:
    """Return what ties a kernel to its runtime call; operators have separate numbers."""
    return int(event.correlation_id()) if code >= _CODES["runtime"] else -1


def _lane(event: Any, on_device: bool) -> int:
    return int(event.device_resource_id() if on_device else event.start_thread_id())


def _details(event: Any, on_device: bool) -> dict[str, Any] | None:
    """Return what an event says of its operation, under the names that Kineto's files use."""
    if not carries_details(event.name()):
        return None
    details = {name: _value(text) for name, text in event.extra_meta().items()}
    if event.shapes():
        details |= {"Input Dims": event.shapes(), "Input type": event.dtypes()}
    operator = event.linked_correlation_id() if on_device else event.correlation_id()
    return details | {"External id": operator} if operator else details


def _value(text: str) -> Any:
    """Return a field of NCCL's: JSON, or a bare word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def only_group(world_size: int) -> dict[str, int]:
    """Return the process group that the training's operations belong to, if there is but one.

    Gloo's annotations do not name theirs.
    """
    groups = getattr(dist.distributed_c10d, "_world", None)
    names = [] if groups is None else list(groups.pg_names.values())
    return {"default": world_size} if len(names) == len(("default", "control")) else {}


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
