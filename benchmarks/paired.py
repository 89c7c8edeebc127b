"""Two ways of doing the same, in pairs of neighbours: how much longer does one take?

Blocks that stand next to each other in time share most of what the machine does to them, so the
logarithm of the ratio of each pair is taken, and the centre of these.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Z_95 = 1.959964


@dataclass(frozen=True)
class Difference:
    """How much longer one of two takes, as a plain ratio (0.01: one hundredth longer).

    Attributes:
        low: Lower end of the 95 % interval.
        high: Upper end.
        num_pairs: Pairs it rests on.
    """

    value: float
    low: float
    high: float
    num_pairs: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return (
            f"{100 * self.value:+.2f} % (95 % interval {100 * self.low:+.2f} to "
            f"{100 * self.high:+.2f} %, {self.num_pairs} pairs)"
        )


def paired_difference(these_s: ArrayLike, those_s: ArrayLike) -> Difference:
    """Estimate how much longer ``these_s`` are than ``those_s``.

    The Hodges-Lehmann estimate, the median of all means of two log ratios, with the interval of
    Wilcoxon's signed-rank statistic (Hollander, Wolfe & Chicken 2014, §3.2): single blocks that
    were disturbed do not move it, and for undisturbed ones it is nearly as sharp as the mean.
    Where the log ratios of consecutive pairs are correlated with coefficient r > 0, the interval
    is made wider by √((1+r)/(1−r)), the effective sample size of a first-order process.

    Args:
        these_s: Durations, seconds, shape (n,).
        those_s: Durations of the same work next to them in time, shape (n,).
    """
    logs = np.log(np.asarray(these_s, dtype=float) / np.asarray(those_s, dtype=float))
    n = len(logs)
    first, second = np.triu_indices(n)
    means = np.sort((logs[first] + logs[second]) / 2)
    correlation = max(0.0, float(np.corrcoef(logs[:-1], logs[1:])[0, 1]))
    wider = math.sqrt((1 + correlation) / (1 - correlation))
    reach = Z_95 * wider * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    lowest = max(0, math.floor(len(means) / 2 - reach))
    low, center, high = means[lowest], np.median(means), means[-1 - lowest]
    return Difference(math.expm1(center), math.expm1(low), math.expm1(high), num_pairs=n)


def judge(difference: Difference, same: Difference, limit: float) -> str:
    """Say whether ``difference`` is below ``limit``, as far as the noise lets one say it.

    Args:
        difference: Of what is judged.
        same: Of two things that are the same, measured in the same way (the A/A arm): an
            instrument that sees more than the limit there can say nothing about the other.
        limit: Plain ratio.
    """
    target = f"target: upper bound below {100 * limit:g} %"
    seen = max(abs(same.low), abs(same.high))
    blind = seen >= limit
    if not blind and difference.high < limit:
        return f"{target}: met"
    if difference.low > max(limit, seen):
        return f"{target}: MISSED"
    why = "the A/A interval is wider than the target" if blind else "the target lies inside"
    return (
        f"{target}: INCONCLUSIVE ({why}); about {pairs_to_decide(difference, same, limit):,} pairs "
        f"would decide at this noise, {difference.num_pairs} were run"
    )


def pairs_to_decide(difference: Difference, same: Difference, limit: float) -> int:
    """Return how many pairs would bring both intervals clear of the limit.

    The width of an interval falls with the root of the number of pairs. A true difference of
    none is assumed for ``same``; for ``difference`` the point that was measured, unless it is so
    near the limit that only a multiple of the pairs could part them (at most 100 times).
    """
    for_same = (same.half_width / limit) ** 2
    distance = max(abs(limit - difference.value), limit / 10)
    for_difference = (difference.half_width / distance) ** 2
    return math.ceil(difference.num_pairs * max(1.0, for_same, for_difference))
