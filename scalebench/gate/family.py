"""Verdicts on all rows of a call that rest on launches: judged together, since they err together.

The rule, for a change for the worse (for the better, the same with the sign turned):

- **regressed**: the 95 % interval lies wholly beyond the floor; and the p-value of no change,
  corrected for all rows that decide (Holm), is at most 0.5 %; and the rank test of the launches
  does not object. Where there are several accepted runs, what another host alone may change is
  no change.
- **unchanged**: the 95 % interval lies wholly within the floor (two one-sided tests, Schuirmann
  1987).
- **inconclusive**: everything else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalebench.gate.change import (
    RANK_LEVEL,
    TEST_LEVEL,
    Change,
    Side,
    change_between,
    further_launches,
    holm,
    min_detectable,
    rank_p_value,
)
from scalebench.gate.measured import Measured
from scalebench.gate.run_variance import change_over_runs, run_sd
from scalebench.gate.variance import Typical, typical_variance
from scalebench.stats import CONFIDENCE, Variance

Finding = Literal["regressed", "improved", "unchanged", "inconclusive"]


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

    What both launches of a round share, drift, cancels in their difference: the variance of the
    change is that of the differences over the rounds, with one degree of freedom less than rounds
    (Student's paired t). Half of each goes to either side, so that Welch's formula gives it back.
    The rank test of two independent sides does not apply.

    Args:
        base: One value per round.
        new: The same rounds; where they are not as many, nothing is paired.
    """
    if len(base.values) != len(new.values) or len(base.values) < 2:
        return base, new
    differences = np.subtract(new.values, base.values)
    half = Variance(float(differences.var(ddof=1)) / 2, (len(differences) - 1) / 2)
    return replace(base, variance=half, values=()), replace(new, variance=half, values=())


def judge(pairs: Sequence[Pair], error_budget: float = 1.0) -> list[Judgement]:
    """Return the verdict on every pair, in order.

    Args:
        pairs: All rows of a call.
        error_budget: Of all errors that the promise leaves room for, what this analysis may
            make: levels shrink by it, and intervals grow.
    """
    level, confidence = TEST_LEVEL * error_budget, 1 - (1 - CONFIDENCE) * error_budget
    bases = _sides(pairs, [pair.base for pair in pairs])
    news = _sides(pairs, [pair.new for pair in pairs])
    changes = [
        change_over_runs(change_between(base, new, confidence), pair.runs, (base, new))
        for pair, base, new in zip(pairs, bases, news, strict=True)
    ]
    corrected = _corrected(pairs, changes)
    sizes = {flag: sum(pair.decides == flag for pair in pairs) for flag in (True, False)}
    return [
        _judge(pair, (base, new), change, p, level / max(sizes[pair.decides], 1), level)
        for pair, base, new, change, p in zip(pairs, bases, news, changes, corrected, strict=True)
    ]


def _sides(pairs: Sequence[Pair], sides: Sequence[Measured]) -> list[Side]:
    """Return one run's sides with the variances that are used."""
    lenders: dict[str, list[Variance]] = {pair.kind: [] for pair in pairs}
    for pair, side in zip(pairs, sides, strict=True):
        if side.variance is not None and not pair.shared:
            lenders[pair.kind].append(side.variance)
    typical = {kind: typical_variance(variances) for kind, variances in lenders.items()}
    return [
        Side(side.center, side.num_launches, _used(side, typical[pair.kind]), side.values)
        for pair, side in zip(pairs, sides, strict=True)
    ]


def _used(side: Measured, typical: Typical) -> Variance | None:
    variance = typical.moderate(side.variance)
    if variance is None or variance.value >= side.within:
        return variance
    return replace(variance, value=side.within)


def _direction(change: Change) -> int:
    return 1 if change.value > 0 else -1


def _corrected(pairs: Sequence[Pair], changes: Sequence[Change]) -> list[float | None]:
    """Return the p-values in each change's direction, corrected within what decides and the rest.

    Both directions are tested of every row: twice as many p-values enter, half of them large. A
    family for each direction, since a regression is what must not be cried falsely.
    """
    corrected: list[float | None] = [None] * len(pairs)
    for decides in (True, False):
        for sign in (1, -1):
            of_sign = {
                index: p
                for index, (pair, change) in enumerate(zip(pairs, changes, strict=True))
                if pair.decides == decides
                and (p := change.p_value(sign * pair.worse, pair.hosts)) is not None
            }
            for index, p in zip(of_sign, holm(list(of_sign.values())), strict=True):
                if _direction(changes[index]) == sign * pairs[index].worse:
                    corrected[index] = p
    return corrected


def _judge(
    pair: Pair,
    sides: tuple[Side, Side],
    change: Change,
    p: float | None,
    of_one: float,
    of_all: float,
) -> Judgement:
    """Judge a pair, its p-value held to the level of all; one alone has that ``of_one``."""
    sign = _direction(change)
    rank = rank_p_value(sides[0].values, sides[1].values, sign)
    finding, objection = _finding(pair, change, p, rank, of_all)
    floor_worse = pair.floor if pair.worse > 0 else pair.floor_down
    detectable = min_detectable(change, floor_worse, of_one)
    open_ = (
        finding == "inconclusive" and not pair.runs
    )  # launches do not narrow what runs differ by
    return Judgement(
        finding=finding,
        change=change,
        p_value=p,
        rank_p_value=rank,
        min_detectable=None if detectable is None else detectable + pair.hosts,
        further_launches=further_launches(*sides, floor_worse, of_one, change.confidence)
        if open_
        else None,
        objection=objection,
        run_sd=run_sd(pair.runs, sides[0].variance),
    )


def _finding(
    pair: Pair, change: Change, p: float | None, rank: float | None, level: float
) -> tuple[Finding, str]:
    if change.interval is None or p is None:
        return "inconclusive", ""
    low, high = change.interval
    if -pair.floor_down < low and high < pair.floor:
        return "unchanged", ""
    up = change.value > 0
    beyond = low - pair.floor if up else -high - pair.floor_down
    if beyond <= 0:
        return "inconclusive", ""
    if beyond <= pair.hosts:
        other = f"a host that differs by {100 * math.expm1(pair.hosts):.2g} % explains it"
        return "inconclusive", f"{other}; --interleave rules that out"
    if p > level:
        return "inconclusive", f"with this many rows, chance alone can explain it (p = {p:.2g})"
    if rank is not None and rank > RANK_LEVEL:
        return "inconclusive", f"the rank test over launches does not confirm it (p = {rank:.2g})"
    worse = _direction(change) == pair.worse
    return ("regressed" if worse else "improved"), ""
