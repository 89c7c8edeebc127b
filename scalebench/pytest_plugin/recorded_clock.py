"""Step times that the devices measured, handed to pytest-benchmark through its public options.

pytest-benchmark times what a function takes on the host's clock. Here the clock is the recording
itself: a `RecordedClock` is the ``timer`` of the benchmark's marker, and ``benchmark.pedantic``
calls a function that moves it on by one recorded step. Its table, storage, comparison and
histograms then work on the steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Benchmark(Protocol):
    """The part of pytest-benchmark's fixture that is used."""

    extra_info: dict[str, Any]
    group: str | None

    def pedantic(self, target: Any, *, setup: Any, rounds: int, iterations: int) -> Any:
        """Call ``setup`` and ``target`` once for each round, and time the latter."""
        ...


class RecordedClock:
    """A clock that shows what was recorded; seconds."""

    __name__ = "steps_recorded_on_the_devices"

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time; pytest-benchmark asks before and after each round."""
        return self.now_s


def replay(benchmark: Benchmark, clock: RecordedClock, steps_s: Sequence[float]) -> None:
    """Give a benchmark one round for each recorded step.

    Args:
        benchmark: The fixture; ``clock`` has to be its timer.
        clock: Starts at 0 in each round, so that no step is rounded by the sum of those before.
        steps_s: At least one.
    """
    recorded: Iterator[float] = iter(steps_s)

    def rewind() -> None:
        clock.now_s = 0.0

    def step() -> None:
        clock.now_s = next(recorded, 0.0)  # a profiler calls once more than there are rounds

    benchmark.pedantic(step, setup=rewind, rounds=len(steps_s), iterations=1)
