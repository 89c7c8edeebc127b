"""Time to a loss at sizes that were not measured: predicted speed, times the samples it needs.

How many it needs follows from the gradient noise scale. Source: McCandlish, Kaplan, Amodei et al.
2018, arXiv:1812.06162, §2.2 and appendix A.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from scalebench.records.measured.rank import GradientNorms, RacePoint
from scalebench.records.summary import Row
from scalebench.stats import Estimate


def squared_gradient(norms: GradientNorms) -> float:
    """Return an unbiased estimate of ``|G|²``, G the true gradient.

    ``(n·|mean of g|² − mean of |g|²) / (n − 1)`` for n batches; may be negative.
    """
    n = norms.num_batches
    return (n * norms.square_of_mean - norms.mean_square) / (n - 1)


def gradient_variance(norms: GradientNorms) -> float:
    """Return an unbiased estimate of ``tr Σ``, Σ the covariance of one sample's gradient.

    ``b · (mean of |g|² − |mean of g|²) / (1 − 1/n)`` for n batches of b samples.
    """
    difference = norms.mean_square - norms.square_of_mean
    return norms.batch_size * difference / (1 - 1 / norms.num_batches)


def noise_scale(norms: Sequence[GradientNorms]) -> float | None:
    """Return ``B_simple = tr Σ / |G|²``, samples.

    Both are averaged over the given moments of a training before they are divided: the ratio of
    single estimates is biased.

    Returns:
        None: the gradient is not known to be larger than nothing.
    """
    if not norms:
        return None
    gradient = sum(map(squared_gradient, norms)) / len(norms)
    return sum(map(gradient_variance, norms)) / len(norms) / gradient if gradient > 0 else None


def samples_ratio(batch: float, other: float, scale: float) -> float:
    """Return samples to a target with a batch over those with another batch, as predicted.

    ``E(B) = E_min · (1 + B / B_noise)``: equation 2.11.
    It takes each batch at its own best learning rate.
    """
    return (1 + batch / scale) / (1 + other / scale)


@dataclass(frozen=True)
class Arrival:
    """When a launch reached the target, by the straight line between two evaluations.

    Attributes:
        samples: That all ranks together had trained on.
        trained_s: Seconds of training.
        elapsed_s: Seconds with the evaluations until then, that which found it not counted.
        sent_bytes: That the rank which sends most had sent; None: each step sends as many.
    """

    samples: float
    trained_s: float
    elapsed_s: float
    sent_bytes: float | None = None


def arrival(points: Sequence[RacePoint], target: float) -> Arrival | None:
    """Return when the loss reached a target and stayed there for one more evaluation.

    A loss that falls below it once by luck does not count, nor does one at the last evaluation,
    which no other confirms. MLPerf and AlgoPerf take the first evaluation that reaches the target;
    the line from the one before it removes the grid of evaluations from ratios.

    ``points``: evaluations of one launch in order, the first before any training.

    Returns:
        None: it did not reach the target.
    """
    below = [point.loss is not None and point.loss <= target for point in points]
    for index, (here, after) in enumerate(pairwise(below)):
        if here and after:
            return _crossing(points, index, target)
    return None


def _crossing(points: Sequence[RacePoint], index: int, target: float) -> Arrival:
    after = points[index]
    before = points[index - 1] if index else after
    high, low = before.loss, after.loss
    share = 1.0
    if high is not None and low is not None and high > target:
        share = (high - target) / (high - low)
    since_s = share * (after.trained_s - before.trained_s)
    return Arrival(
        samples=_between(before.samples, after.samples, share),
        trained_s=before.trained_s + since_s,
        elapsed_s=before.elapsed_s + since_s,
        sent_bytes=None
        if before.sent_bytes is None or after.sent_bytes is None
        else _between(before.sent_bytes, after.sent_bytes, share),
    )


def loss_at_time(points: Sequence[RacePoint], trained_s: float) -> float | None:
    """Return the loss after so many seconds of training, by the line between two evaluations.

    Returns:
        None: the training was shorter, or the loss next to it was not finite.
    """
    for before, after in pairwise(points):
        if before.trained_s <= trained_s <= after.trained_s:
            if before.loss is None or after.loss is None:
                return None
            length = after.trained_s - before.trained_s
            share = (trained_s - before.trained_s) / length if length else 1.0
            return _between(before.loss, after.loss, share)
    return None


def loss_after(points: Sequence[RacePoint], samples: int) -> float | None:
    """Return the loss of the evaluation after so many samples; None: there is none."""
    return next((point.loss for point in points if point.samples == samples), None)


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


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
