"""What a run says of a metric of a row; several runs of the same are one with as many launches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from scalebench.gate.metrics import Metric
from scalebench.grouping import totals
from scalebench.records.rows.budget import Budget
from scalebench.records.rows.race import FailureFigures, RecoveryFigures, SaveFigures
from scalebench.records.summary import (
    Row,
    RowKey,
    StepSeries,
    Summary,
    baseline_of,
    key_of,
    log_efficiencies,
    log_steps,
    series_of,
    step_of,
    steps_in,
)
from scalebench.stats import CONFIDENCE, Estimate, Variance, estimate_over_launches, estimate_signed

_POSITIVE = ("throughput", "tokens_per_s", "speedup", "efficiency", "energy_j_per_sample")
_SIGNED = (
    *("comm_s", "exposed_comm_s", "exposed_transfer_s", "wait_s"),
    *("compute_s", "copies_s", "comm_beside_copies_s"),
)


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


def merged(runs: Sequence[Summary]) -> Summary:
    """Return one summary whose launches are those of all runs, numbered by run.

    A row that failed in one of the runs is that run's row. Budgets and times of recovery are the
    means of the runs', peak memory is the largest; what else is not estimated over launches is the
    first run's.

    Args:
        runs: In the order in which they were made, at least one.
    """
    first = runs[0]
    by_run = [{key_of(row): row for row in run.rows} for run in runs]
    keys = dict.fromkeys(key for rows in by_run for key in rows)
    statuses = [run.status for run in runs if run.status != "complete"]
    return first.model_copy(
        update={
            "rows": [_merged_row(key, by_run) for key in keys],
            "status": statuses[0] if statuses else "complete",
        }
    )


def _merged_row(key: RowKey, by_run: Sequence[dict[RowKey, Row]]) -> Row:
    rows = [found[key] for found in by_run if key in found]
    bad = next((row for row in rows if row.status != "ok"), None)
    if bad is not None:
        return bad
    samples = [
        launch.model_copy(update={"repeat": number})
        for number, found in enumerate(by_run)
        if key in found
        for launch in found[key].samples[:1]
    ]
    measured = [launch for launch in samples if launch.step_s]
    series = series_of(*rows)
    steps = [step_of(launch, series) for launch in measured]
    peaks = [row.peak_memory_bytes for row in rows if row.peak_memory_bytes is not None]
    return rows[0].model_copy(
        update={
            "samples": samples,
            "step_s": estimate_over_launches(steps) if steps else None,
            "peak_memory_bytes": max(peaks, default=None),
            "budget": _mean_budget([row.budget for row in rows]),
            "recovery": merged_recovery([row.recovery for row in rows]),
            "num_clean_steps": sum(len(launch.step_s) for launch in samples),
            **{name: _estimate(rows, name, signed=False) for name in _POSITIVE},
            **{name: _estimate(rows, name, signed=True) for name in _SIGNED},
        }
    )


def _mean_budget(budgets: Sequence[Budget | None]) -> Budget | None:
    """Return the mean of the loss budgets, part by part; None: a run has none."""
    known = [budget for budget in budgets if budget is not None]
    if not known or len(known) < len(budgets):
        return None
    means = _means([dict(budget) for budget in known])
    return known[0].model_copy(update={**means, "points": _means([b.points for b in known])})


def _means(tables: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        name: sum(table[name] for table in tables) / len(tables)
        for name in tables[0]
        if all(isinstance(table.get(name), float) for table in tables)
    }


def _estimate(rows: Sequence[Row], name: str, signed: bool) -> Estimate | None:
    found = [getattr(row, name) for row in rows]
    values = [estimate.value for estimate in found if estimate is not None]
    if len(values) < len(rows):
        return None
    return estimate_signed(values) if signed else estimate_over_launches(values)


def merged_recovery(runs: Sequence[RecoveryFigures | None]) -> RecoveryFigures | None:
    """Return the figures of several runs, one value each; what a run does not have is left out.

    Restores, which have no interval, are the first run's. None: a run has no figures.
    """
    known = [figures for figures in runs if figures is not None]
    if not known or len(known) < len(runs):
        return None
    saves = [[figures.save_by(save.method) for figures in known] for save in known[0].saves]
    failures = [[_failure_like(figures, one) for figures in known] for one in known[0].failures]
    update = {
        "saves": [_merged_save([s for s in of if s]) for of in saves if None not in of],
        "failures": [_merged_failure([f for f in of if f]) for of in failures if None not in of],
    }
    return known[0].model_copy(update=update)


def _failure_like(figures: RecoveryFigures, like: FailureFigures) -> FailureFigures | None:
    wanted = (like.kind, like.restarted_by)
    found = (one for one in figures.failures if (one.kind, one.restarted_by) == wanted)
    return next(found, None)


def _merged_save(saves: Sequence[SaveFigures]) -> SaveFigures:
    slower = [save.slower_s.value for save in saves if save.slower_s is not None]
    names = ("stall_s", "durable_s", "bandwidth_byte_per_s", "cost_s")
    means = {
        name: estimate_over_launches([getattr(save, name).value for save in saves])
        for name in names
    }
    complete = len(slower) == len(saves)
    return saves[0].model_copy(
        update={**means, "slower_s": estimate_signed(slower) if complete else None}
    )


def _merged_failure(failures: Sequence[FailureFigures]) -> FailureFigures:
    phases = [name for name in failures[0].phases_s if all(name in f.phases_s for f in failures)]
    return failures[0].model_copy(
        update={
            "phases_s": {
                name: estimate_signed([f.phases_s[name].value for f in failures]) for name in phases
            },
            "restart_s": estimate_signed([f.restart_s.value for f in failures]),
            "total_s": estimate_signed([f.total_s.value for f in failures]),
            "lost_steps": sum(f.lost_steps for f in failures) / len(failures),
        }
    )
