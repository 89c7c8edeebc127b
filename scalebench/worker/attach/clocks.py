"""Marks between steps, resolved to seconds later: nothing waits for the device while steps run."""

from __future__ import annotations

import time
from typing import Any

import torch


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

    def settle(self) -> None:
        """Wait until every mark has been reached."""


class CudaClock:
    """CUDA events on the current stream: the device notes when it gets there."""

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

    def settle(self) -> None:
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
