"""Points set aside, against the test of one line point by point."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from scalebench.costmodel.links.fitting.lines import Lines, fit_lines
from scalebench.costmodel.links.fitting.outliers import (
    _deletion_residuals,
    fit_without_outliers,
    spikes,
)


def columns(size):
    return np.stack((np.ones_like(size), size), axis=-1)


@pytest.mark.parametrize("left_out", [(), (0,), (1, 4)])
def test_a_deletion_residual_is_over_the_scatter_of_the_others(left_out):
    """Of a linear problem, where the fit without the point can be made anew."""
    random = np.random.default_rng(1)
    rows = np.stack((np.ones(7), np.arange(1.0, 8)), axis=-1)
    weights = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.0])
    weights[list(left_out)] = 0.0
    target = random.normal(0, 0.5, 7)

    def solved(w):
        return np.linalg.solve(rows.T @ (w[:, None] * rows), rows.T @ (w * target))

    residuals = np.where(weights > 0, target - rows @ solved(weights), 0.0)
    lines = Lines(np.ones((1, 2)), residuals[None], weights[None], rows[None])
    found = _deletion_residuals(lines)[0]
    for i in range(7):
        if weights[i] == 0:
            assert found[i] == -math.inf
            continue
        others = weights.copy()
        others[i] = 0.0
        theta = solved(others)
        rss = (others * (target - rows @ theta) ** 2).sum()
        scale = math.sqrt(rss / (5 - len(left_out) - 2))
        unscaled = np.linalg.inv(rows.T @ (others[:, None] * rows))
        spread = 1 / weights[i] + rows[i] @ unscaled @ rows[i]
        assert found[i] == pytest.approx((target[i] - rows[i] @ theta) / scale / math.sqrt(spread))


def test_no_point_is_held_against_a_line_more_exact_than_one_percent():
    """A sum of squares that is all the point's own: what is left is 0, and 1 % stands for it."""
    rows = columns(np.arange(1.0, 6))[None]
    residuals = np.array([[0.0, 0.0, 0.003, 0.0, 0.0]])
    weights = np.array([[1.0, 1.0, 4.0, 1.0, 1.0]])
    lines = Lines(np.ones((1, 2)), residuals, weights, rows)
    rest = 1 - lines.leverage[0, 2]
    assert _deletion_residuals(lines)[0, 2] == pytest.approx(2 * 0.003 / (0.01 * math.sqrt(rest)))


def test_a_point_that_determines_its_own_time_has_a_finite_residual():
    """The third is the only one with a second parameter: its leverage is 1."""
    rows = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    residuals = np.array([[0.0, 0.0, 1e-4]])
    lines = Lines(np.ones((1, 2)), residuals, np.ones((1, 3)), rows)
    assert lines.leverage[0, 2] == 1.0
    expected = 1e-4 / (0.01 * math.sqrt(1e-9))
    assert _deletion_residuals(lines)[0, 2] == pytest.approx(expected)


def kept_of(size, log_time, weights):
    """Rosner's test of one line; return the weights, and how near a decision was."""
    num_points = np.count_nonzero(weights)
    current, kept, nearest = weights.copy(), weights.copy(), math.inf
    for _ in range(num_points // 5):
        lines = fit_lines(columns(size)[None], log_time[None], current[None])
        dof = int(lines.dof[0])
        if dof <= 1:
            break
        excess = _deletion_residuals(lines)[0]
        suspect = int(np.argmax(excess))
        p_value = student.sf(excess[suspect], dof - 1) * np.count_nonzero(current)
        nearest = min(nearest, abs(math.log(max(p_value, 1e-300) / 0.01)))
        current[suspect] = 0.0
        if p_value < 0.01:
            kept = current.copy()
    return kept, nearest


def test_doubtful_points_are_set_aside_as_one_by_one():
    """Lines of 4 to 16 points with one to three slow ones, some just slow enough."""
    random = np.random.default_rng(5)
    count, longest = 120, 16
    size = np.tile(np.geomspace(8, 2**26, longest), (count, 1))
    log_time = np.log(1e-5 + size / 1e9) + 0.04 * random.standard_normal(size.shape)
    slow = random.random(size.shape) < 0.12
    log_time += slow * random.uniform(0.1, 0.6, size.shape)
    weights = random.uniform(0.7, 1.4, size.shape)
    lengths = random.integers(4, longest + 1, count)
    weights[np.arange(longest) >= lengths[:, None]] = 0.0
    found = fit_without_outliers(columns(size), log_time, weights).weights
    one_by_one = [kept_of(*one) for one in zip(size, log_time, weights, strict=True)]
    assert found.tolist() == [kept.tolist() for kept, _ in one_by_one]
    aside = (np.count_nonzero(weights, axis=1) - np.count_nonzero(found, axis=1)).tolist()
    assert {0, 1, 2, 3} <= set(aside)
    assert min(nearest for _, nearest in one_by_one) < 0.1


@pytest.mark.parametrize(("count", "most"), [(4, 0), (5, 1), (9, 1), (10, 2)])
def test_a_fifth_of_the_points_may_be_set_aside(count, most):
    """Half of them are slow, but for the last."""
    size = np.arange(1.0, count + 1)
    log_time = np.log(1.0 + size)
    log_time[1 : 1 + max(most, 1)] += 0.8
    found = fit_without_outliers(columns(size)[None], log_time[None], np.ones((1, count)))
    assert np.count_nonzero(found.weights == 0) == most


def test_no_points_leave_nothing_to_set_aside():
    empty = fit_without_outliers(np.zeros((0, 4, 2)), np.zeros((0, 4)), np.zeros((0, 4)))
    assert empty.theta.shape == (0, 2)


def spikes_of(size, time):
    """Of one row without padding, number by number."""

    def expected(a, b, i):
        return time[a] + (time[b] - time[a]) * (size[i] - size[a]) / (size[b] - size[a])

    inner = range(2, len(size) - 2)
    if not inner:
        return [False] * len(size)
    between = {i: time[i] - expected(i - 1, i + 1, i) for i in inner}
    scale = max(1.4826 * float(np.median([abs(b) for b in between.values()])), 0.01)
    pairs = {i: ((i - 1, i + 1), (i - 2, i - 1), (i + 1, i + 2)) for i in inner}
    return [
        i in pairs and all(time[i] - expected(a, b, i) > 4 * scale for a, b in pairs[i])
        for i in range(len(size))
    ]


def test_spikes_are_above_their_neighbours_and_both_sides_lines():
    """Rows of 4 to 15 points at uneven sizes, every third of them doubtful."""
    random = np.random.default_rng(2)
    count, longest = 200, 15
    size = np.cumsum(random.uniform(0.5, 2.0, (count, longest)), axis=1)
    time = 0.5 * size + 0.03 * random.standard_normal(size.shape)
    time += (random.random(size.shape) < 0.15) * random.uniform(0.1, 0.6, size.shape)
    lengths = random.integers(4, longest + 1, count)
    weights = (np.arange(longest) < lengths[:, None]).astype(float)
    found = spikes(size, time, weights)
    for i, length in enumerate(lengths):
        expected = spikes_of(size[i, :length], time[i, :length])
        assert found[i].tolist() == [*expected, *[False] * (longest - length)]
    assert found.sum() > 20


@pytest.mark.parametrize("length", [1, 4])
def test_four_points_have_no_spike(length):
    size = np.arange(1.0, length + 1)[None]
    assert spikes(size, size**2, np.ones((1, length))).tolist() == [[False] * length]
