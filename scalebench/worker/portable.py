"""What measures a rank's steps, in scalebench's own ranks and in a user's script alike.

A user's interpreter loads it as well: the standard library and torch alone, Python 3.9, torch 2.4.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

FEWEST_STEPS = 10
"""With fewer steps nothing is said of their steady state."""
MAX_STEPS = 4
MIN_STEPS = 2
"""That count in a block of a round."""
TEARDOWN = "TEARDOWN_CUPTI"
"""Kineto's variable: without it CUPTI stays attached after a trace, and every launch of a kernel
takes longer from then on. On an H200 steps of 4.1 ms took 5.5 ms between traces, with it 3.9."""


class HostClock:
    """The machine's monotonic clock: on CPU a step is over when its call returns."""

    def now(self) -> Any:
        """Take a mark."""
        return time.monotonic_ns()

    def is_capturing(self) -> bool:
        """Tell whether a CUDA graph is being captured: nothing runs, and no mark can be taken."""
        return False

    def seconds(self, earlier: Any, later: Any) -> float | None:
        """Return the seconds between two marks; None: the device has not got there yet."""
        elapsed: float = (later - earlier) / 1e9
        return elapsed

    def reach(self, mark: Any) -> None:
        """Wait until a mark has been reached."""

    def wait_for_all(self) -> None:
        """Wait until every mark has been reached."""


class CudaClock:
    """CUDA events on the current stream: the device notes when it gets there.

    The optimizer's kernels on this stream come after the gradients of every bucket, so an event
    behind them covers the communication streams as well.
    """

    def now(self) -> Any:
        """Queue an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_capturing(self) -> bool:
        """Tell whether a CUDA graph is being captured: nothing runs, and no mark can be taken."""
        return torch.cuda.is_current_stream_capturing()

    def seconds(self, earlier: Any, later: Any) -> float | None:
        """Return the seconds between two events; None: the device has not got there yet."""
        if not later.query():
            return None
        milliseconds: float = earlier.elapsed_time(later)
        return milliseconds / 1e3

    def reach(self, mark: Any) -> None:
        """Wait until the device has got to an event."""
        mark.synchronize()

    def wait_for_all(self) -> None:
        """Wait until the device has done everything."""
        torch.cuda.synchronize()


def clock_for(device: str) -> Any:
    """Return the clock for steps on ``cpu`` or ``cuda``."""
    return CudaClock() if device == "cuda" and torch.cuda.is_available() else HostClock()


def between(clock: Any, marks: list[Any]) -> list[float | None]:
    """Return, for every mark after the first, the seconds since the last one before it.

    None: the mark was not taken, or the device has not got there yet.
    """
    found: list[float | None] = []
    last = marks[0] if marks else None
    for mark in marks[1:]:
        found.append(None if mark is None else clock.seconds(last, mark))
        last = last if mark is None else mark
    return found


class StepClock:
    """Marks in the stream of steps, resolved to durations later: nothing waits inside."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Note that one step ends and the next begins."""
        self._marks.append(self._clock.now())

    def resolve(self) -> list[float]:
        """Return the durations between the marks in seconds, and forget the marks."""
        marks, self._marks = self._marks, []
        if marks:
            self._clock.reach(marks[-1])
        return [found for found in between(self._clock, marks) if found is not None]


def step_clock(device: str) -> StepClock:
    """Return a clock for the steps of a loop on ``cpu`` or ``cuda``."""
    return StepClock(clock_for(device))


def steady_start(step_s: Sequence[float]) -> int | None:
    """Find where the start-up transient of a series ends.

    The marginal standard error rule (MSER; White 1997): drop as many leading steps d as makes the
    standard error of what is left smallest, ``argmin_d Σ_{i≥d}(x_i − x̄_d)² / (n−d)²``. The answer
    counts only if it lies in the first half of the series; otherwise the series is too short to
    tell (Hoad, Robinson & Davies 2010, who recommend the rule for automation). No threshold and
    no guessed warm-up: noise makes both terms larger alike.

    Returns:
        Index of the first steady step, or None: more steps are needed.
    """
    n = len(step_s)
    if n < FEWEST_STEPS:
        return None
    # Sums of squares of the small differences, not of the large values.
    x = [step - step_s[-1] for step in step_s]
    total = squares = 0.0
    errors = [0.0] * n
    for i in range(n - 1, -1, -1):
        total += x[i]
        squares += x[i] * x[i]
        left = n - i
        errors[i] = max(squares - total * total / left, 0.0) / left**2
    candidates = errors[: n - 2]  # of the last two nothing could be said
    first = candidates.index(min(candidates))
    return first if first <= n // 2 else None


def how_many(rounds_s: float, step_s: float, num_kinds: int) -> tuple[int, int]:
    """Return how many rounds fit into ``rounds_s`` seconds, and the steps of a block that count.

    At least one round of two steps: with long steps that takes longer than asked.
    """
    for num_steps in (MAX_STEPS, MIN_STEPS):
        num_rounds = int(rounds_s / (step_s * num_kinds * (num_steps + 1)))
        if num_rounds >= 2:
            return num_rounds, num_steps
    return 1, MIN_STEPS


def step_profiler(device: str) -> Any:
    """Return torch's profiler for steps on ``cpu`` or ``cuda``, not yet started.

    By itself it sees the threads that inherit its state. What a communication hook begins in a
    callback, PowerSGD's second and third all-reduce, begins on one of gloo's own threads. So on the
    CPU every thread is recorded, from torch 2.6 on. On a GPU callbacks run on the thread that waits
    for them, and kernels are seen wherever they begin.
    """
    activities, config = [ProfilerActivity.CPU], None
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        os.environ.setdefault(TEARDOWN, "1")
    else:
        try:
            from torch._C._profiler import _ExperimentalConfig

            config = _ExperimentalConfig(profile_all_threads=True)
        except (ImportError, TypeError):
            config = None
    return quiet_profiler(activities=activities, record_shapes=True, experimental_config=config)


def quiet_profiler(**settings: Any) -> Any:
    """Return torch's profiler; torch 2.11 would warn of a second cycle where there is one."""
    warnings.filterwarnings("ignore", "Warning: Profiler clears events")
    return profile(**settings)


def allocator_retries(device: str) -> int | None:
    """Return how often CUDA's allocator had to free its cache and retry so far; None on CPU."""
    if device != "cuda":
        return None
    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def memory(device: str, retries_before: int | None = None) -> dict[str, Any]:
    """Return the peaks so far in bytes, named as in `scalebench.records.measured.rank.Memory`.

    CUDA counts from the start of the process.

    ``device``: ``cpu`` or ``cuda``. ``retries_before``: those of the allocator before the first
    step: loading a model may have some.
    """
    found: dict[str, Any] = {"rss_bytes": peak_rss_bytes()}
    if device == "cuda" and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        found["allocated_bytes"] = torch.cuda.max_memory_allocated()
        found["reserved_bytes"] = torch.cuda.max_memory_reserved()
        found["device_bytes"] = total - free
        if retries_before is not None:
            found["allocator_retries"] = (allocator_retries(device) or 0) - retries_before
    return found


def peak_rss_bytes() -> int | None:
    """Return the peak resident set of this process in bytes, or None where it is not told."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) * 1024 if found else None


def scheduling_class() -> str:
    """Return the scheduling class of this process; ``default`` is SCHED_OTHER."""
    if not hasattr(os, "sched_getscheduler"):
        return "default"
    names = ("SCHED_BATCH", "SCHED_IDLE", "SCHED_FIFO", "SCHED_RR")
    known = {getattr(os, name): name for name in names if hasattr(os, name)}
    return known.get(os.sched_getscheduler(0), "default")


def scheduling() -> dict[str, Any]:
    """Return the processors of this process and its scheduling class, as far as they are told."""
    told: dict[str, Any] = {"scheduling_class": scheduling_class()}
    if hasattr(os, "sched_getaffinity"):
        told["affinity"] = sorted(os.sched_getaffinity(0))
    return told


def device_facts(on_cuda: bool) -> dict[str, Any]:
    """Return the name and the UUID of the device that this process trains on."""
    if not on_cuda:
        return {"device_name": "cpu", "device_uuid": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"device_name": properties.name, "device_uuid": str(getattr(properties, "uuid", None))}
