"""What a run says of a metric of a row: one number, or one number per launch and its noise."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from scalebench.gate.metrics import Metric
from scalebench.grouping import totals
from scalebench.records.baseline import (
    StepSeries,
    baseline_of,
    key_of,
    log_efficiencies,
    log_steps,
    series_of,
    steps_in,
)
from scalebench.records.summary import Row
from scalebench.stats import CONFIDENCE, Estimate, Variance


@dataclass(frozen=True)
class Measured:
    """What one run measured of one metric of one row, launch by launch.

    Attributes:
        center: Mean over the launches, on the scale on which changes are differences.
        num_launches: At least one.
        variance: Between the launches; None: fewer than two, and nothing is known from other rows.
        within: Variance of one launch's value as the launch itself knows it; launches cannot
            differ by less.
        values: One per launch; empty: only mean and variance are known.
    """

    center: float
    num_launches: int
    variance: Variance | None = None
    within: float = 0.0
    values: tuple[float, ...] = ()


def measured(values: Sequence[float] | NDArray[np.float64], within: float = 0.0) -> Measured:
    """Return what one value per launch says; ``within`` as in `Measured`."""
    array = np.asarray(values, dtype=float)
    told = tuple(float(value) for value in array)
    return Measured(float(array.mean()), len(array), sample_variance(array), within, told)


def sample_variance(values: NDArray[np.float64]) -> Variance | None:
    """Return the variance of one value per launch; None: fewer than two."""
    if len(values) < 2:
        return None
    return Variance(float(values.var(ddof=1)), len(values) - 1)


@dataclass(frozen=True)
class Observation:
    """A metric of a row.

    Attributes:
        value: In the metric's unit.
        launches: On the scale on which changes are judged (logarithms of what is positive); None:
            one number, without launches.
    """

    value: float
    launches: Measured | None = None


def number(value: Any) -> float | None:
    """Return a finite number as float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


def have_peaks(*rows: Row) -> bool:
    """Tell whether each of the rows has the peak memory of every launch, of two or more."""
    samples = [[s.peak_memory_bytes for s in row.samples if s.step_s] for row in rows]
    return all(len(peaks) > 1 and all(peaks) for peaks in samples)


def observe(
    row: Row,
    metric: Metric,
    others: Sequence[Row],
    series: StepSeries | None = None,
    by_launch: bool = False,
) -> Observation | None:
    """Return what a row says of a metric; None: nothing.

    ``others``: all rows of the run, as efficiency rests on a second one. ``series``: what step
    times are taken from, so that runs of two versions can be compared; None: the row's own.
    ``by_launch``: peak memory is that of the launches (`have_peaks`).
    """
    if metric.name == "predicted_bubble_ratio":
        return Observation(row.pipeline.bubble_equal_stages) if row.pipeline else None
    if metric.name == "efficiency" and _is_baseline(row, others):
        return None  # it is 1 by definition
    if metric.name == "peak_memory_bytes" and by_launch:
        return _peak_memory(row)
    if metric.name == "time_to_target_s":
        found = row.race.time_to_target_s if row.race is not None else None
    else:
        found = getattr(row, metric.name)
    if isinstance(found, Estimate):
        return _estimated(row, metric, found, others, series)
    value = number(found)
    return None if value is None else Observation(value)


def collective_counts(row: Row) -> dict[str, float]:
    """Return how many collectives of each kind a rank takes part in per step; mean of launches."""
    return totals((one.kind, one.count) for one in row.communication or () if one.ordinal is None)


def _is_baseline(row: Row, others: Iterable[Row]) -> bool:
    found = baseline_of(row, others)
    return row.strategy == "plain" or (found is not None and key_of(found) == key_of(row))


def _estimated(
    row: Row, metric: Metric, found: Estimate, others: Sequence[Row], series: StepSeries | None
) -> Observation:
    own = series_of(row)
    if metric.name == "step_s":
        launches = _step_launches(row, series or own)
    elif metric.name == "efficiency":
        launches = _efficiency_launches(row, others, series or own)
    else:
        launches = None
    if launches is None:
        launches = from_estimate(found, logarithmic=metric.kind == "positive")
    elif series not in (None, own):
        return Observation(math.exp(launches.center), launches)
    return Observation(found.value, launches)


def _peak_memory(row: Row) -> Observation:
    peaks = [s.peak_memory_bytes for s in row.samples if s.step_s and s.peak_memory_bytes]
    launches = measured(np.log(peaks))
    return Observation(math.exp(launches.center), launches)


def _within(row: Row, series: StepSeries) -> float:
    found = [
        median_variance(steps_in(s, series))
        if series != "mean_s" or s.mean_variance is None
        else s.mean_variance
        for s in row.samples
        if s.step_s
    ]
    return float(np.mean(found)) if found else 0.0


def _step_launches(row: Row, series: StepSeries) -> Measured | None:
    steps = log_steps(row, series)
    return measured(list(steps.values()), _within(row, series)) if steps else None


def _efficiency_launches(row: Row, others: Iterable[Row], series: StepSeries) -> Measured | None:
    baseline = baseline_of(row, others)
    ratios = log_efficiencies(row, baseline, series) if baseline is not None else []
    if baseline is None or not ratios:
        return None
    return measured(ratios, _within(row, series) + _within(baseline, series))


def from_estimate(estimate: Estimate, logarithmic: bool) -> Measured | None:
    """Return mean and variance behind an estimate, from its t interval.

    The estimate is by `estimate_over_launches` if ``logarithmic``, else by `estimate_signed`.

    Returns:
        None: the numbers are no such estimate's.
    """
    ends = (estimate.value, estimate.low, estimate.high)
    if logarithmic and any(end is not None and end <= 0 for end in ends):
        return None
    value, low, high = (math.log(end) if logarithmic and end is not None else end for end in ends)
    assert value is not None, "an estimate has a value"
    if low is None or high is None or estimate.n < 2:
        return Measured(value, estimate.n)
    error = (high - low) / 2 / float(stdtrit(estimate.n - 1, (1 + CONFIDENCE) / 2))
    return Measured(value, estimate.n, Variance(error**2 * estimate.n, estimate.n - 1))


_RESAMPLES = 100
"""Of a launch: its standard error is then known to 7 % of itself."""


@cache
def _picks(num_steps: int) -> NDArray[np.intp]:
    """Return indices of circular blocks of ``√n`` steps, shape ``[resamples, n]``.

    Steps within a launch are autocorrelated, so blocks of consecutive steps are drawn, not steps:
    the circular block bootstrap (Politis & Romano 1992). The same for every launch of as many
    steps, so that a verdict can be had again.
    """
    length = max(1, round(num_steps**0.5))
    num_blocks = -(-num_steps // length)
    generator = np.random.default_rng((20040212, num_steps, _RESAMPLES))
    starts = generator.integers(0, num_steps, (_RESAMPLES, num_blocks, 1))
    picks = (starts + np.arange(length)) % num_steps
    return np.asarray(picks.reshape(_RESAMPLES, -1)[:, :num_steps], dtype=np.intp)


def median_variance(step_s: Sequence[float]) -> float:
    """Return the variance of the logarithm of a launch's median step, from within the launch.

    Launches differ at least by this; by how much more only several launches can tell.
    """
    steps = np.asarray(step_s, dtype=float)
    return float(np.log(np.median(steps[_picks(len(steps))], axis=1)).var(ddof=1))


def mean_variance(step_s: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the same of the mean step; of one step 0."""
    steps = np.asarray(step_s, dtype=float)
    return float(np.log(steps[_picks(len(steps))].mean(axis=1)).var(ddof=1))
