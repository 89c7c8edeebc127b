"""Runs in a row: how far each number has drifted, and where it changed its level.

A drift is what a straight line through the logarithms rises by from the first run to the last. A
change of level is found by E-divisive (Matteson & James 2014): the split that makes the energy
distance between the two sides largest, tested by permutation, and the same again within the sides.
It assumes no distribution; it is what continuous benchmarking of databases has used for years (Daly
et al. 2020).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scalebench.errors import UsageError
from scalebench.gate.change import Change, change_between, min_detectable
from scalebench.gate.metrics import METRICS, Metric
from scalebench.gate.observation import Measured, observe
from scalebench.records.summary import Row, Summary, series_of

SHORTEST = 3
"""Runs on each side of a change."""

LEVEL = 0.05
"""Of all series of a call in which nothing changed, the part of calls with a change reported."""

_SEED = 2014


@dataclass(frozen=True)
class ChangePoint:
    """A change of level.

    Attributes:
        index: The first value after it.
        p_value: Of no change in its stretch of the series, by permutation.
    """

    index: int
    p_value: float


def change_points(values: Sequence[float], family: int = 1) -> list[ChangePoint]:
    """Return where the level of a series changes, in order.

    ``values`` are in order of time; ``family``: how many series are looked at together.
    """
    series = np.asarray(values, dtype=float)
    level = LEVEL / max(family, 1)
    permutations = math.ceil(10 / level)
    generator = np.random.default_rng((_SEED, len(series), family))
    found: list[ChangePoint] = []
    stretches = [(0, len(series))]
    while stretches:
        start, end = stretches.pop()
        if end - start < 2 * SHORTEST:
            continue
        split, p_value = _test(series[start:end], permutations, level, generator)
        if p_value <= level:
            found.append(ChangePoint(start + split, p_value))
            stretches += [(start, start + split), (start + split, end)]
    return sorted(found, key=lambda point: point.index)


def _test(
    series: NDArray[np.float64], permutations: int, level: float, generator: np.random.Generator
) -> tuple[int, float]:
    """Return the best split of a stretch, and how often chance makes one as good.

    Where chance has done so too often for the level, the rest is not counted out: the p-value is
    then a lower bound above the level.
    """
    distances = np.abs(series[:, None] - series[None, :])
    split, observed = _best_split(distances)
    as_good = 0
    for _ in range(permutations):
        order = generator.permutation(len(series))
        as_good += _best_split(distances[np.ix_(order, order)])[1] >= observed * (1 - 1e-12)
        if 1 + as_good > level * (1 + permutations):
            break
    return split, (1 + as_good) / (1 + permutations)


def _best_split(distances: NDArray[np.float64]) -> tuple[int, float]:
    """Return the split with the largest energy distance, and that.

    ``Q = nm/(n+m) · (2·E|X-Y| - E|X-X'| - E|Y-Y'|)`` for the n values before and the m after; all
    splits at once from the sums over the leading and trailing squares of the matrix.
    """
    total = len(distances)
    n = np.arange(SHORTEST, total - SHORTEST + 1)
    m = total - n
    corner = distances.cumsum(axis=0).cumsum(axis=1)
    before = corner[n - 1, n - 1]
    across = corner[n - 1, total - 1] - before
    after = corner[-1, -1] - before - 2 * across
    within = before / np.maximum(n * (n - 1), 1) + after / np.maximum(m * (m - 1), 1)
    q = n * m / total * (2 * across / (n * m) - within)
    best = int(np.argmax(q))
    return int(n[best]), float(q[best])


FEWEST_RUNS = 2
FEWEST_FOR_LEVELS = 2 * SHORTEST
"""Runs that a series needs, so that a change of level can be told from noise."""


@dataclass(frozen=True)
class Shift:
    """A change of level in the series of one metric.

    Attributes:
        run_id: The first run after it.
        created: When that run began.
        before: Median of the runs between the change before it and this one.
        after: Median up to the next change.
        change: ``after / before - 1``.
        p_value: By permutation, before the correction for the number of series.
        worse: Whether it is a change for the worse.
    """

    suite: str
    case: str
    world_size: int
    metric: str
    run_id: str
    created: str
    before: float
    after: float
    change: float
    p_value: float
    worse: bool


@dataclass(frozen=True)
class Trend:
    """One metric of one row over the runs.

    Attributes:
        run_ids: The runs that have it, in order of time.
        values: One per run, in the metric's unit (seconds, or a ratio).
        drift: From the first run to the last, a ratio.
        low: Lower end of its interval, which holds for all series together 95 times in 100; null:
            nothing tells how far two runs differ by chance.
        high: Upper end, likewise.
        smallest_drift: The smallest drift for the worse that would have been found 95 times in 100,
            a positive ratio; null like ``low``.
        worse: Whether the interval excludes no drift, and it is for the worse.
        better: Likewise for the better.
        changed_level: Whether it has a `Shift`, so that a straight line does not describe it.
    """

    suite: str
    case: str
    world_size: int
    metric: str
    run_ids: tuple[str, ...]
    values: tuple[float, ...]
    drift: float
    low: float | None
    high: float | None
    smallest_drift: float | None
    worse: bool
    better: bool
    changed_level: bool = False

    @property
    def series(self) -> tuple[str, str, int, str]:
        """Suite, case, number of ranks and metric."""
        return self.suite, self.case, self.world_size, self.metric


@dataclass(frozen=True)
class History:
    """What runs in a row say.

    Attributes:
        runs: Names, in order of time.
        num_short: Series too short to be looked at for changes of level.
        shifts: In order of time.
        trends: Of every row and metric that two runs or more have.
    """

    runs: tuple[str, ...]
    num_short: int
    shifts: tuple[Shift, ...]
    trends: tuple[Trend, ...] = ()


@dataclass(frozen=True)
class _Series:
    metric: Metric
    row: Row
    runs: list[Summary]
    values: list[float]
    launches: list[Measured]


def history(summaries: Sequence[Summary]) -> History:
    """Look for drift and for changes of level in every row's step time and efficiency.

    Args:
        summaries: Of runs of the same things on the same machine, in any order.

    Raises:
        UsageError: There are too few.
    """
    if len(summaries) < FEWEST_RUNS:
        raise UsageError("One run has no history. Name two or more, for example reports/*_ddp_*.")
    ordered = sorted(summaries, key=lambda summary: (summary.created, summary.run_id))
    series = _series(ordered)
    long = [one for one in series if len(one.values) >= FEWEST_FOR_LEVELS]
    shifts = [shift for one in long for shift in _shifts(one, len(long))]
    shifted = {(s.suite, s.case, s.world_size, s.metric) for s in shifts}
    return History(
        runs=tuple(summary.run_id for summary in ordered),
        num_short=len(series) - len(long),
        shifts=tuple(sorted(shifts, key=lambda shift: shift.created)),
        trends=tuple(replace(one, changed_level=one.series in shifted) for one in _trends(series)),
    )


def trends(summaries: Sequence[Summary]) -> tuple[Trend, ...]:
    """Return the drift of every series that two runs or more have; ``summaries`` in any order."""
    return _trends(_series(sorted(summaries, key=lambda one: (one.created, one.run_id))))


def _trends(series: Sequence[_Series]) -> tuple[Trend, ...]:
    long = [one for one in series if len(one.values) >= FEWEST_RUNS]
    return tuple(_trend(one, 1 - LEVEL / len(long)) for one in long)


def _trend(series: _Series, confidence: float) -> Trend:
    change = _drift(series.launches, confidence)
    worse = -1 if series.metric.higher_is_better else 1
    low, high = change.interval or (None, None)
    sign = 0 if low is None or high is None or low <= 0 <= high else worse * math.copysign(1, low)
    seen = min_detectable(change, 0.0)
    return Trend(
        suite=series.row.suite,
        case=series.row.case,
        world_size=series.row.world_size,
        metric=series.metric.name,
        run_ids=tuple(run.run_id for run in series.runs),
        values=tuple(series.values),
        drift=math.expm1(change.value),
        low=None if low is None else math.expm1(low),
        high=None if high is None else math.expm1(high),
        smallest_drift=None if seen is None else abs(math.expm1(worse * seen)),
        worse=sign > 0,
        better=sign < 0,
    )


def _drift(launches: Sequence[Measured], confidence: float) -> Change:
    """Return what a straight line through the runs rises by, from the first to the last.

    Its error is by how much the runs scatter around the line, and never less than their launches
    explain. Two runs do not scatter around a line: only their launches tell.
    """
    variances = [
        one.variance and replace(one.variance, value=max(one.variance.value, one.within))
        for one in launches
    ]
    if len(launches) == FEWEST_RUNS:
        known = [replace(one, variance=v) for one, v in zip(launches, variances, strict=True)]
        return change_between(known[0], known[1], confidence)
    last = len(launches) - 1
    place = np.arange(last + 1) - last / 2
    weights = last * place / (place @ place)
    centers = np.array([one.center for one in launches])
    drift = float(weights @ centers)
    off_line = centers - centers.mean() - drift / last * place
    scatter = float(off_line @ off_line) / (last - 1) * float(weights @ weights)
    by_launches = sum(
        weight**2 * variance.value / one.num_launches
        for weight, variance, one in zip(weights, variances, launches, strict=True)
        if variance is not None
    )
    return Change(drift, math.sqrt(max(scatter, by_launches)), last - 1, confidence)


def _series(ordered: Sequence[Summary]) -> list[_Series]:
    metrics = [metric for metric in METRICS if metric.name in ("step_s", "efficiency")]
    steps = series_of(*(row for summary in ordered for row in summary.rows))
    found: dict[tuple[str, str, int, bool, str], _Series] = {}
    for summary in ordered:
        for row in summary.rows:
            for metric in metrics:
                seen = observe(row, metric, summary.rows, steps) if row.status == "ok" else None
                if seen is None or seen.value <= 0:
                    continue
                key = (row.suite, row.case, row.world_size, row.pinned, metric.name)
                one = found.setdefault(key, _Series(metric, row, [], [], []))
                one.runs.append(summary)
                one.values.append(seen.value)
                one.launches.append(seen.launches or Measured(math.log(seen.value), 1))
    return list(found.values())


def _shifts(series: _Series, family: int) -> list[Shift]:
    logs = [math.log(value) for value in series.values]
    points = change_points(logs, family)
    edges = [0, *(point.index for point in points), len(logs)]
    levels = [float(np.median(series.values[start:end])) for start, end in pairwise(edges)]
    shifts = []
    for number, point in enumerate(points):
        before, after = levels[number], levels[number + 1]
        run = series.runs[point.index]
        shifts.append(
            Shift(
                suite=series.row.suite,
                case=series.row.case,
                world_size=series.row.world_size,
                metric=series.metric.name,
                run_id=run.run_id,
                created=run.created,
                before=before,
                after=after,
                change=after / before - 1,
                p_value=point.p_value,
                worse=(after > before) != series.metric.higher_is_better,
            )
        )
    return shifts
