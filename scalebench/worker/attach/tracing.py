"""Traced blocks of steps: torch's profiler, switched on and off between two steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch.autograd.profiler import record_function

from scalebench.worker.portable import step_profiler

STEP = "scalebench.step"
"""`scalebench.trace.marks.STEP`. Here it is a point between two steps, not a span."""


class Traces:
    """The traced blocks of a rank.

    Attributes:
        blocks: For each, the number of its first step, ``before_ns`` and ``step_ns`` (the machine's
            monotonic clock before and inside each mark), and later its ``file``.
        failure: Why there are none; None: nothing went wrong.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.blocks: list[dict[str, Any]] = []
        self.failure: str | None = None
        self._profilers: list[Any] = []
        self._running = False

    def begin(self, first: int) -> None:
        """Switch the profiler on before a step."""
        if self.failure is not None:
            return
        profiler = step_profiler(self.device)
        try:
            profiler.start()
        except Exception as error:  # the script may be profiling itself
            self.failure = f"torch's profiler did not start: {error}"
            return
        self._running = True
        self._profilers.append(profiler)
        self.blocks.append({"first": first, "before_ns": [], "step_ns": []})
        self.mark()

    def mark(self) -> None:
        """Mark the end of a step and the beginning of the next."""
        if self._running:
            self.blocks[-1]["before_ns"].append(time.monotonic_ns())
            with record_function(STEP):
                self.blocks[-1]["step_ns"].append(time.monotonic_ns())

    def end(self) -> None:
        """Switch the profiler off."""
        if not self._running:
            return
        self._running = False
        try:
            self._profilers[-1].stop()
        except Exception as error:
            self.failure = f"torch's profiler did not stop: {error}"

    def store(self, folder: Path, rank: int) -> None:
        """Write every block's trace to a file."""
        self.end()
        for number, profiler in enumerate(self._profilers):
            if self.failure is not None:
                return
            file = folder / f"trace{rank}.{number}.json"
            try:
                profiler.export_chrome_trace(str(file))
            except Exception as error:
                self.failure = f"torch's profiler could not store its trace: {error}"
                return
            self.blocks[number]["file"] = str(file)
        self._profilers.clear()
