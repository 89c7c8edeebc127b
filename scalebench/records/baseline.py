"""Which row a row's efficiency rests on: the plain model, in one process."""

import math
from collections.abc import Iterable
from statistics import fmean, median
from typing import Literal

from scalebench.records.summary import Row, RowKey, StepSamples

SAME = 1e-6
"""Numbers closer than this, as a ratio, were worked out from the same samples."""


def key_of(row: Row) -> RowKey:
    """Return what a row is found by, also in another run: suite, case, number of ranks."""
    return (row.suite, row.case, row.world_size)


def baseline_of(row: Row, rows: Iterable[Row]) -> Row | None:
    """Return which of a run's rows a row's efficiency is compared with; None: it is not there."""
    if row.baseline is not None:
        return next((other for other in rows if key_of(other) == row.baseline), None)
    return next((other for other in rows if _gives_its_efficiency(other, row)), None)


StepSeries = Literal["mean_s", "pace_s", "step_s"]
"""What of `StepSamples` a launch's step time is: its mean, or the median of a series."""


def series_of(*rows: Row) -> StepSeries:
    """Return what all of the rows have: older ones have no mean, those of version 0.1 no pace."""
    samples = [sample for row in rows for sample in row.samples if sample.step_s]
    if all(sample.mean_s for sample in samples):
        return "mean_s"
    return "pace_s" if all(sample.pace_s for sample in samples) else "step_s"


def steps_in(samples: StepSamples, series: StepSeries) -> list[float]:
    """Return the clean steps of a launch, seconds."""
    return samples.step_s if series == "step_s" else samples.pace_s


def step_of(samples: StepSamples, series: StepSeries) -> float:
    """Return the step time of a launch, seconds."""
    if series == "mean_s" and samples.mean_s is not None:
        return samples.mean_s
    return median(steps_in(samples, series))


def log_steps(row: Row, series: StepSeries) -> dict[int, float]:
    """Return the logarithm of the step time of every launch, by its number."""
    return {s.repeat: math.log(step_of(s, series)) for s in row.samples if s.step_s}


def log_efficiencies(row: Row, baseline: Row, series: StepSeries) -> list[float]:
    """Return the logarithm of the efficiency in every round in which both rows succeeded."""
    if not (row.global_batch and baseline.global_batch):
        return []
    own, theirs = log_steps(row, series), log_steps(baseline, series)
    ranks = row.world_size / baseline.world_size
    work = math.log(row.global_batch / baseline.global_batch / ranks)
    return [work + theirs[repeat] - own[repeat] for repeat in own if repeat in theirs]


def _gives_its_efficiency(other: Row, row: Row) -> bool:
    """Tell whether a plain row is a row's baseline; summaries of version 0.1 do not say which."""
    if other.strategy != "plain" or other.suite != row.suite or row.efficiency is None:
        return False
    found = log_efficiencies(row, other, series_of(row, other))
    return bool(found) and abs(fmean(found) - math.log(max(row.efficiency.value, 1e-12))) < SAME
