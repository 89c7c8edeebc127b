"""Time to a loss at sizes that were not measured: predicted speed, times the samples it needs."""

from collections.abc import Sequence
from typing import NamedTuple

from scalebench.analysis.convergence.noise_scale import samples_ratio
from scalebench.records.summary import Row
from scalebench.stats import Estimate


class Training(NamedTuple):
    """Samples in a step, and samples per second; the ends of its interval where there is one."""

    batch: int
    throughput: float
    low: float | None = None
    high: float | None = None


class TimeToLoss(NamedTuple):
    """How a training compares with another one until both reach the same loss.

    Attributes:
        statistical_efficiency: Samples that the other one needs over samples that this needs.
        speedup: Seconds that the other one needs over seconds that this needs.
        low: Of the speedup, with the throughput and the noise scale at the ends of their
            intervals that are worse; None: one of them has no interval.
        high: Likewise, at the better ends.
    """

    statistical_efficiency: float
    speedup: float
    low: float | None
    high: float | None


def time_to_loss(training: Training, base: Training, scale: Estimate) -> TimeToLoss:
    """Compare two trainings by the gradient noise scale.

    Each batch is taken at its own best learning rate.

    Args:
        training: What is asked about.
        base: What it is compared with.
        scale: Gradient noise scale, samples.
    """

    def statistical(noise: float) -> float:
        return samples_ratio(base.batch, training.batch, noise)

    def speedup(noise: float | None, throughput: float | None) -> float | None:
        if noise is None or throughput is None:
            return None
        return throughput / base.throughput * statistical(noise)

    worse, better = sorted((scale.low, scale.high), key=lambda n: statistical(n) if n else 0.0)
    return TimeToLoss(
        statistical(scale.value),
        training.throughput / base.throughput * statistical(scale.value),
        speedup(worse, training.low),
        speedup(better, training.high),
    )


def noise_scale_of_workload(rows: Sequence[Row], workload: str) -> Estimate | None:
    """Return the noise scale that a race on a workload found, or None."""
    races = (row.race for row in rows if row.workload == workload and row.race is not None)
    return next((race.noise_scale for race in races if race.noise_scale is not None), None)
