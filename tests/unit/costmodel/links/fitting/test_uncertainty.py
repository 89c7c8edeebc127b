"""How well latency and slope are known, against the plain formulas of one line."""

import math
from itertools import pairwise

import numpy as np
import pytest

from scalebench.costmodel.links.fitting.lines import Lines
from scalebench.costmodel.links.fitting.uncertainty import (
    _neighbour_factor,
    covariance,
    half_widths,
)

T_4 = 2.7764451051977987
"""Student's t of 4 degrees of freedom, 97.5 %."""


def made(residuals, weights=None, rows=None):
    residuals = np.asarray(residuals, dtype=float)
    n = len(residuals)
    weights = np.ones(n) if weights is None else np.asarray(weights, dtype=float)
    rows = np.stack((np.ones(n), np.arange(1.0, n + 1)), axis=-1) if rows is None else rows
    return Lines(np.ones((1, 2)), residuals[None], weights[None], rows[None])


def factor_of(residuals, weights):
    """Kendall's correction of one line, number by number."""
    n = sum(w > 0 for w in weights)
    scaled = [math.sqrt(w) * r for w, r in zip(weights, residuals, strict=True)]
    products = sum(a * b for a, b in pairwise(scaled))
    found = products / sum(one**2 for one in scaled)
    if n < 7 or (found + 2 / n) * math.sqrt(n) <= 1:
        return 1.0
    rho = min(max(found + (2 + 4 * found) / n, 0.0), 0.8)
    return (1 + rho) / (1 - rho)


def test_weighted_residuals_widen_by_their_own_correlation():
    """Random walks of 5 to 12 points: too few, hardly correlated, and more."""
    random = np.random.default_rng(3)
    seen = set()
    for _ in range(200):
        n = int(random.integers(5, 13))
        share = random.uniform(0, 1)
        residuals = random.standard_normal(n)
        for i in range(1, n):
            residuals[i] = share * residuals[i - 1] + (1 - share) * residuals[i]
        weights = random.uniform(0.2, 3.0, n) * (random.random(n) > 0.1)
        residuals = np.where(weights > 0, residuals, 0.0)
        expected = factor_of(residuals, weights)
        found = _neighbour_factor(made(residuals, weights))
        assert found == pytest.approx([expected])
        seen.add("none" if expected == 1 else "most" if expected > 8.99 else "some")
    assert seen == {"none", "some", "most"}


def test_a_line_without_any_residual_is_not_widened():
    assert _neighbour_factor(made(np.zeros(8))).tolist() == [1.0]


def covariance_of(lines, i):
    """The larger variance of two, for each parameter, and the usual correlation."""
    w, r, x = lines.weights[i], lines.residuals[i], lines.rows[i]
    bread = np.linalg.inv(x.T @ (w[:, None] * x))
    usual = (w * r**2).sum() / (np.count_nonzero(w) - 2) * bread
    rest = np.maximum(1 - w * np.einsum("ni,ij,nj->n", x, bread, x), 0.05)
    meat = x.T @ ((w**2 * r**2 / rest)[:, None] * x)
    own = bread @ meat @ bread
    wide = [math.sqrt(max(own[k, k] / usual[k, k], 1.0)) for k in (0, 1)]
    factor = factor_of(r, w)
    return [[usual[a, b] * wide[a] * wide[b] * factor for b in (0, 1)] for a in (0, 1)]


def test_the_covariance_is_the_larger_one_times_what_neighbours_share():
    """Some points determine their own time: their share of the rest counts as a twentieth."""
    random = np.random.default_rng(4)
    floor = widened = 0
    for n in (5, 6, 7, 9, 12) * 6:
        rows = np.stack((np.ones(n), random.uniform(0.1, 1.0, n)), axis=-1)
        rows[-1, 1] = random.choice([1.0, 30.0])
        weights = random.uniform(0.5, 2.0, n)
        residuals = np.cumsum(random.normal(0, 0.1, n)) + random.normal(0, 0.2, n)
        lines = made(residuals, weights, rows)
        floor += int(1 - lines.leverage[0].max() < 0.05)
        widened += int(_neighbour_factor(lines)[0] > 1)
        assert covariance(lines)[0] == pytest.approx(np.array(covariance_of(lines, 0)), rel=1e-6)
    assert floor > 3
    assert widened > 3


def test_the_interval_is_students_t_of_the_errors():
    lines = made([0.1, -0.2, 0.15, 0.05, -0.2, 0.1])
    errors = np.sqrt(np.diag(covariance(lines)[0]))
    assert half_widths(lines)[0] == pytest.approx(T_4 * errors)


def test_two_points_tell_no_interval():
    assert np.isnan(half_widths(made([0.0, 0.0]))).all()


def test_times_exactly_on_a_line_have_an_interval_of_no_width():
    assert half_widths(made(np.zeros(6))).tolist() == [[0.0, 0.0]]
