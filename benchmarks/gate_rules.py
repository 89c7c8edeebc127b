"""The gate and other people's rules, asked the same question about the same steps."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from scalebench.gate.change import pooled_runs
from scalebench.gate.family import Judgement, Pair, judge
from scalebench.gate.metrics import METRICS
from scalebench.gate.observation import Measured, measured, median_variance
from scalebench.gate.result import WORSE

Steps = NDArray[np.float64]
"""Steps of a run, seconds, shape ``[rows, launches, steps]``; row 0 is the plain model."""

FLOORS = {metric.name: metric.relative_floor for metric in METRICS}
ALLOWANCES = {metric.name: metric.host_allowance for metric in METRICS}


def medians_of(run: Steps) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms of the launches' medians, and the variance of each within the launch.

    Both of shape ``[rows, launches]``.
    """
    within = [[median_variance(steps.tolist()) for steps in row] for row in run]
    return np.log(np.median(run, axis=2)), np.array(within)


Medians = tuple[NDArray[np.float64], NDArray[np.float64]]
"""What `medians_of` returns of a run."""


def gate_pairs(base: Medians, new: Medians, *further: Medians) -> list[Pair]:
    """Return what the gate judges of two runs: every row's step, and its efficiency but row 0's.

    The steps decide, as those of the largest N of so many cases; with further accepted runs the
    efficiencies, too.

    Args:
        base: Of `medians_of`.
        new: Likewise.
        further: Likewise, of further accepted runs of the baseline.
    """
    num_rows = len(base[0])
    runs = (base, *further, new)
    steps = [
        _pair("step_s", [measured(m[row], w[row].mean()) for m, w in runs])
        for row in range(num_rows)
    ]
    efficiencies = [
        _pair("efficiency", [measured(m[0] - m[row], w[0].mean() + w[row].mean()) for m, w in runs])
        for row in range(1, num_rows)
    ]
    return steps + efficiencies


def _pair(kind: str, runs: list[Measured]) -> Pair:
    """Return one pair; the last of the runs is the new one."""
    floor = FLOORS[kind]
    worse = -1 if kind == "efficiency" else 1
    up, down = math.log1p(floor), -math.log1p(-floor)
    *accepted, new = runs
    several = tuple(accepted) if len(accepted) > 1 else ()
    base = pooled_runs(several) if several else accepted[0]
    hosts = math.log1p(ALLOWANCES[kind]) if several else 0.0
    shared = kind == "efficiency"
    decides = bool(several) or not shared
    return Pair(kind, base, new, up, down, worse, decides, shared, several, hosts)


def gate_alarms(pairs: list[Pair], num_rows: int) -> tuple[set[int], list[Judgement]]:
    """Return the rows that turn the gate red, and its judgements of the steps."""
    found = judge(pairs)
    rows = [*range(num_rows), *range(1, num_rows)]
    judged = zip(rows, pairs, found, strict=True)
    alarms = {row for row, pair, one in judged if pair.decides and one.finding in WORSE}
    return alarms, found[:num_rows]


def _mean_5_percent(base: Steps, new: Steps) -> set[int]:
    ratio = new.mean(axis=(1, 2)) / base.mean(axis=(1, 2))
    return set(np.flatnonzero(ratio > 1.05).tolist())


def _threshold_7_percent(base: Steps, new: Steps) -> set[int]:
    ratio = np.median(new, axis=(1, 2)) / np.median(base, axis=(1, 2))
    return set(np.flatnonzero(ratio > 1.07).tolist())


def _mann_whitney_on_steps(base: Steps, new: Steps) -> set[int]:
    flat = [run.reshape(len(run), -1) for run in (new, base)]
    p = mannwhitneyu(*flat, alternative="greater", axis=1).pvalue
    return set(np.flatnonzero(p < 0.05).tolist())


def _double(base: Steps, new: Steps) -> set[int]:
    ratio = new.mean(axis=(1, 2)) / base.mean(axis=(1, 2))
    return set(np.flatnonzero(ratio > 2.0).tolist())


OTHERS: Mapping[str, Callable[[Steps, Steps], set[int]]] = {
    "pytest-benchmark `mean:5%`": _mean_5_percent,
    "±7 % of the median": _threshold_7_percent,
    "Mann–Whitney on steps, 5 %": _mann_whitney_on_steps,
    "github-action-benchmark, 200 %": _double,
}
"""Name → rule: steps of the baseline and of the new run → rows with an alarm. Each sees all steps
of all launches at once, which is more than most of them are given."""
