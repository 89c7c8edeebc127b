"""Where a series of runs changed its level, and how sure that is.

E-divisive (Matteson & James 2014): the split that makes the energy distance between the two sides
largest, tested by permutation, and the same again within the sides. It assumes no distribution; it
is what continuous benchmarking of databases has used for years (Daly et al. 2020).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

    Args:
        values: In order of time.
        family: How many series are looked at together; the level is divided by it.
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
