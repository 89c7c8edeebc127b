"""Many runs in a row: where a number changed its level, also by less than any two runs can tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scalebench.errors import UsageError
from scalebench.gate.changepoint import SHORTEST, change_points
from scalebench.gate.metrics import METRICS, Metric
from scalebench.gate.observation import observe
from scalebench.records.baseline import series_of
from scalebench.records.summary import Row, Summary

FEWEST = 2 * SHORTEST


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
class History:
    """What many runs say.

    Attributes:
        runs: Names, in order of time.
        num_series: Series that were long enough to be looked at.
        num_short: Series that were not.
        shifts: In order of time.
    """

    runs: tuple[str, ...]
    num_series: int
    num_short: int
    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class _Series:
    metric: Metric
    row: Row
    runs: list[Summary]
    values: list[float]


def history(summaries: Sequence[Summary]) -> History:
    """Look for changes of level in every row's step time and efficiency.

    Args:
        summaries: Of runs of the same things on the same machine, in any order.

    Raises:
        UsageError: There are too few.
    """
    if len(summaries) < FEWEST:
        raise UsageError(
            f"{len(summaries)} runs are too few for a history. Name at least {FEWEST}, for example "
            "reports/*_ddp_*."
        )
    ordered = sorted(summaries, key=lambda summary: (summary.created, summary.run_id))
    series = _series(ordered)
    long = [one for one in series if len(one.values) >= FEWEST]
    shifts = [shift for one in long for shift in _shifts(one, len(long))]
    return History(
        runs=tuple(summary.run_id for summary in ordered),
        num_series=len(long),
        num_short=len(series) - len(long),
        shifts=tuple(sorted(shifts, key=lambda shift: shift.created)),
    )


def _series(ordered: Sequence[Summary]) -> list[_Series]:
    """Return one series for each row and metric that any of the runs has."""
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
                one = found.setdefault(key, _Series(metric, row, [], []))
                one.runs.append(summary)
                one.values.append(seen.value)
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
