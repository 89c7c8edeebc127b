"""Marks in the stream of steps, resolved to durations after the fact: nothing waits inside."""

import time
from itertools import pairwise
from typing import Protocol

import torch


class StepClock(Protocol):
    """Takes a mark between steps."""

    def mark(self) -> None:
        """Note that one step ends and the next begins."""
        ...

    def resolve(self) -> list[float]:
        """Return the durations between the marks in seconds, and forget the marks."""
        ...


class HostClock:
    """``perf_counter_ns``: on CPU a step is over when its call returns."""

    def __init__(self) -> None:
        self.marks: list[int] = []

    def mark(self) -> None:
        """Note the time."""
        self.marks.append(time.perf_counter_ns())

    def resolve(self) -> list[float]:
        """Return the durations between the marks, seconds."""
        marks, self.marks = self.marks, []
        return [(b - a) / 1e9 for a, b in pairwise(marks)]


class CudaClock:
    """CUDA events on the current stream: the device notes when it gets there.

    The optimizer's kernels on this stream come after the gradients of every bucket, so an event
    behind them covers the communication streams as well.
    """

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Queue an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)

    def resolve(self) -> list[float]:
        """Wait for the last event; return the durations between them, seconds."""
        events, self.events = self.events, []
        if events:
            events[-1].synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]


def step_clock(device: torch.device) -> StepClock:
    """Return the clock for steps on ``device``."""
    return CudaClock() if device.type == "cuda" else HostClock()
