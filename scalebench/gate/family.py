"""Verdicts on all rows of a call that rest on launches: judged together, since they err together.

The verdict follows from the interval of the change. Of the rows that decide, all intervals hold
together 99 times in 100 (Bonferroni); each of the others does. For a metric of which less is
better, the other way round for one of which more is:

- **regressed**: the lower end is above the tolerance;
- **probably regressed**: the interval lies above zero and reaches below the tolerance;
- **unchanged**, **not worse**, **improved**: the upper end is below the tolerance, and the lower
  end above its negative, or not, or the whole interval below that (two one-sided tests, Schuirmann
  1987);
- **no change seen**: the interval has zero and the tolerance in it. So it is called, too, where
  the ranks of the launches object, or a slower host explains the change.
- **inconclusive**: there is no interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalebench.gate.change import (
    JOB_LEVEL,
    RANK_LEVEL,
    TEST_LEVEL,
    Change,
    Typical,
    change_between,
    change_over_runs,
    further_launches,
    min_detectable,
    rank_p_value,
    run_sd,
    typical_variance,
)
from scalebench.gate.observation import Measured
from scalebench.stats import Variance

Finding = Literal[
    "regressed",
    "probably regressed",
    "improved",
    "not worse",
    "unchanged",
    "no change seen",
    "inconclusive",
]

OPEN: tuple[Finding, ...] = ("probably regressed", "no change seen", "inconclusive")
"""What more launches may decide."""

TRIMMED = 0.15
"""Share of the rounds of two versions that is cut at either end."""


@dataclass(frozen=True)
class Pair:
    """One metric of one row in both runs.

    Attributes:
        kind: Rows of the same kind have noise of the same sort, and lend it to one another.
        floor: The smallest change of interest, as a difference upwards; positive.
        floor_down: The same downwards, positive: logarithms are not symmetrical.
        worse: 1: larger is worse, -1: smaller is worse.
        decides: Whether it belongs to the family that the false-alarm rate holds for.
        shared: Rows of this kind rest on the same launches of a further row, as efficiencies do on
            the plain model's. They are no independent witnesses of noise and lend none: if those
            launches agree by luck, all rows seem quiet at once.
        runs: Every accepted run of the baseline by itself, where there are several; ``base`` is all
            of them together.
        hosts: By how much another host alone may change it, as a difference in either direction.
        jobs: Launches are whole jobs, each with a log.
    """

    kind: str
    base: Measured
    new: Measured
    floor: float
    floor_down: float
    worse: int = 1
    decides: bool = True
    shared: bool = False
    runs: tuple[Measured, ...] = ()
    hosts: float = 0.0
    jobs: bool = False


@dataclass(frozen=True)
class Judgement:
    """The verdict on a `Pair`, everything on the scale of its measurements.

    Attributes:
        p_value: Of no change in the direction of the change, corrected for the family.
        objection: Why a change whose interval lies beyond the floor does not count; ``""``: none.
        run_sd: By how much accepted runs differ beyond their launches; None: there is only one.
    """

    finding: Finding
    change: Change
    p_value: float | None
    rank_p_value: float | None
    min_detectable: float | None
    further_launches: int | None
    objection: str = ""
    run_sd: float | None = None


def paired(base: Measured, new: Measured) -> tuple[Measured, Measured]:
    """Return two sides whose launches stood next to each other in time, by turns.

    What both launches of a round share, drift, cancels in their difference. A round in which
    something else ran on the machine tells nothing: the change is the mean of the differences
    without the outermost, `TRIMMED`, its variance that of the differences with these drawn in
    to the next ones, with one degree of freedom less than are left (Tukey & McLaughlin 1963; Yuen
    1974). Half of it goes to either side, so that Welch's formula gives it back. The rank test of
    two independent sides does not apply.

    Args:
        base: One value per round.
        new: The same rounds; where they are not as many, nothing is paired.
    """
    if len(base.values) != len(new.values) or len(base.values) < 2:
        return base, new
    differences = np.sort(np.subtract(new.values, base.values))
    num_cut = int(TRIMMED * len(differences))
    kept = differences[num_cut : len(differences) - num_cut]
    drawn_in = np.clip(differences, kept[0], kept[-1])
    inflation = (len(differences) - 1) * len(differences) / (len(kept) - 1) / len(kept)
    half = Variance(float(drawn_in.var(ddof=1)) * inflation / 2, (len(kept) - 1) / 2)
    return (
        replace(base, variance=half, values=()),
        replace(new, center=base.center + float(kept.mean()), variance=half, values=()),
    )


def judge(pairs: Sequence[Pair], error_budget: float = 1.0) -> list[Judgement]:
    """Return the verdict on every pair, in order.

    ``error_budget``: of all errors that the promise leaves room for, what this analysis may make:
    intervals grow with it.
    """
    num_deciding = max(sum(pair.decides for pair in pairs), 1)
    numbers = [num_deciding if pair.decides else 1 for pair in pairs]
    bases = _sides(pairs, [pair.base for pair in pairs])
    news = _sides(pairs, [pair.new for pair in pairs])
    return [
        _judge(pair, sides, 1 - 2 * _level(pair, sides) * error_budget / number, number)
        for pair, sides, number in zip(pairs, zip(bases, news, strict=True), numbers, strict=True)
    ]


def _level(pair: Pair, sides: tuple[Measured, Measured]) -> float:
    """Return how often the interval may lie above the change."""
    own = [side.variance and side.variance.dof for side in (pair.base, pair.new)]
    borrows = own != [side.variance and side.variance.dof for side in sides]
    return JOB_LEVEL if pair.jobs and not borrows else TEST_LEVEL


def _sides(pairs: Sequence[Pair], sides: Sequence[Measured]) -> list[Measured]:
    lenders: dict[str, list[Variance]] = {pair.kind: [] for pair in pairs}
    for pair, side in zip(pairs, sides, strict=True):
        if side.variance is not None and not pair.shared:
            lenders[pair.kind].append(side.variance)
    typical = {kind: typical_variance(variances) for kind, variances in lenders.items()}
    return [
        replace(side, variance=_used(side, typical[pair.kind]))
        for pair, side in zip(pairs, sides, strict=True)
    ]


def _used(side: Measured, typical: Typical) -> Variance | None:
    variance = typical.moderate(side.variance)
    if variance is None or variance.value >= side.within:
        return variance
    return replace(variance, value=side.within)


def _judge(
    pair: Pair, sides: tuple[Measured, Measured], confidence: float, family_size: int
) -> Judgement:
    """Judge a pair by its interval; ``family_size`` rows are judged together with it."""
    change = change_over_runs(change_between(*sides, confidence, pair.jobs), pair.runs, sides)
    sign = 1 if change.value > 0 else -1
    rank = rank_p_value(sides[0].values, sides[1].values, sign)
    p = change.p_value(sign, pair.hosts)
    tolerance = pair.floor if pair.worse > 0 else pair.floor_down
    finding, objection = _finding(pair, change, rank)
    more = None
    if finding in OPEN and not pair.runs:  # launches do not narrow what runs differ by
        more = further_launches(*sides, tolerance, pair.worse, change.confidence, pair.jobs)
    return Judgement(
        finding=finding,
        change=change,
        p_value=None if p is None else min(1.0, family_size * p),
        rank_p_value=rank,
        min_detectable=min_detectable(change, tolerance, pair.hosts),
        further_launches=more,
        objection=objection,
        run_sd=run_sd(pair.runs, sides[0].variance),
    )


def _finding(pair: Pair, change: Change, rank: float | None) -> tuple[Finding, str]:
    if change.interval is None:
        return "inconclusive", ""
    low, high = sorted(pair.worse * end for end in change.interval)
    worse, better = pair.floor, pair.floor_down
    if pair.worse < 0:
        worse, better = better, worse
    if high < worse and high >= -better:
        return ("unchanged" if low > -better else "not worse"), ""
    if high >= worse and low <= 0:
        return "no change seen", ""
    slower = low > 0
    doubt = ""
    if low <= pair.hosts and high >= -better - pair.hosts:
        host = f"{100 * math.expm1(pair.hosts):.2g} % {'slower' if slower else 'faster'}"
        doubt = f"a host that is {host} explains it; --interleave rules that out"
    elif rank is not None and rank > RANK_LEVEL:
        few = "a few launches make it, and the rank test over all does not confirm it"
        doubt = f"{few} (p = {rank:.2g})"
    if not slower:
        return ("not worse" if doubt else "improved"), doubt
    if doubt:
        return "no change seen", doubt
    return ("regressed" if low > worse + pair.hosts else "probably regressed"), ""
