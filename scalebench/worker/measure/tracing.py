"""Tracing steps with torch's profiler, read from memory into columns: no detour by way of JSON."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._autograd import _KinetoEvent
from torch.profiler import record_function

from scalebench.records.storage.folder import Scratch
from scalebench.trace.events import CATEGORIES, Events
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.operations.communication_kernels import carries_details
from scalebench.trace.operations.names import PRODUCTS, STEP
from scalebench.worker.portable import step_profiler

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
