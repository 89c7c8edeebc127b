"""Where a series changes its level, beside the plain formula."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from scalebench.gate.history import change_points


def mean_distance(pairs):
    return float(np.mean([abs(a - b) for a, b in pairs]))


def energy(before, after):
    """``nm/(n+m) · (2·E|X-Y| - E|X-X'| - E|Y-Y'|)``, pair by pair."""
    n, m = len(before), len(after)
    across = mean_distance(product(before, after))
    within = [mean_distance(combinations(side, 2)) for side in (before, after)]
    return n * m / (n + m) * (2 * across - sum(within))


def best_by_loops(values):
    energies = {n: energy(values[:n], values[n:]) for n in range(3, len(values) - 2)}
    best = max(energies, key=energies.__getitem__)
    return best, energies[best]


def points_by_loops(values, family):
    """Every stretch tested by as many orders as its level needs, the later stretch first."""
    level = 0.05 / family
    orders = math.ceil(10 / level)
    generator = np.random.default_rng((2014, len(values), family))
    found, todo = [], [(0, len(values))]
    while todo:
        start, end = todo.pop()
        part = values[start:end]
        if len(part) < 6:
            continue
        split, observed = best_by_loops(part)
        as_good = 0
        for _ in range(orders):
            drawn = [part[i] for i in generator.permutation(len(part))]
            as_good += best_by_loops(drawn)[1] >= observed - 1e-9
            if (1 + as_good) / (1 + orders) > level:
                break
        p_value = (1 + as_good) / (1 + orders)
        if p_value <= level:
            found.append((start + split, p_value))
            todo += [(start, start + split), (start + split, end)]
    return sorted(found)


@pytest.mark.parametrize(
    ("values", "family", "expected"),
    [
        ([0.0, 0.3, 0.1, 0.2, 0.5, 5.0, 5.4, 5.1, 5.3, 5.2], 1, [5]),
        ([0.0, 0.3, 0.1, 0.2, 0.5, 5.0, 5.4, 5.1, 5.3, 5.2], 2, [5]),
        ([0.0, 0.3, 0.1, 0.2, 0.4, 0.7, 5.0, 5.4, 5.1, 5.3, 9.0, 9.3, 9.1, 9.2], 1, [6, 10]),
        ([0.0, 2.3, 0.1, 2.2, 0.5, 1.0, 1.4, 2.1, 0.3], 1, []),
        ([0.0, 0.3, 0.1, 5.2, 5.1], 1, []),
    ],
)
def test_stretches_are_split_again_until_chance_explains_them(values, family, expected):
    found = [(point.index, point.p_value) for point in change_points(values, family)]
    assert [index for index, _ in found] == expected
    assert found == [(index, pytest.approx(p)) for index, p in points_by_loops(values, family)]
