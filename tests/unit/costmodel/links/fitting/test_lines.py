"""Lines by relative least squares: each part against linear algebra of a single line."""

import math

import numpy as np
import pytest
from scipy.optimize import nnls

from scalebench.costmodel.links.fitting import lines as lines_module
from scalebench.costmodel.links.fitting.lines import Lines, _residuals, _step, fit_lines

RANDOM = np.random.default_rng(11)


def columns(size):
    """What multiplies latency and slope at each size; [n, 2]."""
    size = np.asarray(size, dtype=float)
    return np.stack((np.ones_like(size), size), axis=-1)


def some_lines(count=4, num_points=7):
    """Random parts of lines, each with a point of weight 0."""
    weights = RANDOM.uniform(0.5, 2.0, (count, num_points))
    weights[:, 2] = 0.0
    residuals = np.where(weights > 0, RANDOM.normal(0, 0.3, weights.shape), 0.0)
    rows = RANDOM.uniform(0.1, 3.0, (count, num_points, 2))
    return Lines(np.ones((count, 2)), residuals, weights, rows)


def test_what_a_line_says_of_itself_is_linear_algebra():
    lines = some_lines()
    for i in range(4):
        w, r, rows = lines.weights[i], lines.residuals[i], lines.rows[i]
        inverse = np.linalg.inv(rows.T @ np.diag(w) @ rows)
        rss = sum(weight * residual**2 for weight, residual in zip(w, r, strict=True))
        assert lines.rss[i] == pytest.approx(rss)
        assert lines.dof[i] == 6 - 2
        assert lines.scale[i] == pytest.approx(math.sqrt(rss / 4))
        assert lines.unscaled_covariance[i] == pytest.approx(inverse)
        leverage = [weight * row @ inverse @ row for weight, row in zip(w, rows, strict=True)]
        assert lines.leverage[i] == pytest.approx(leverage)
        assert sum(leverage) == pytest.approx(2)


@pytest.mark.parametrize(("count", "dof"), [(2, 0), (3, 1)])
def test_two_points_leave_nothing_to_tell_the_scatter(count, dof):
    ones = np.ones((1, count))
    lines = Lines(np.ones((1, 2)), 0.5 * ones, ones, columns(range(count))[None])
    assert lines.dof.tolist() == [dof]
    assert math.isnan(lines.scale[0]) == (dof == 0)
    if dof:
        assert lines.scale[0] == pytest.approx(math.sqrt(3 * 0.25 / 1))


def test_points_of_one_size_leave_the_line_undetermined():
    lines = Lines(np.ones((1, 2)), np.zeros((1, 3)), np.ones((1, 3)), np.full((1, 3, 2), 0.5))
    assert np.isinf(lines.unscaled_covariance).all()


def test_residuals_and_rows_at_given_parameters():
    x = np.array([[[1.0, 3.0], [1.0, 5.0], [2.0, 0.0]], [[1.0, 7.0], [0.0, 2.0], [1.0, 1.0]]])
    log_time = np.log([[20.0, 30.0, 40.0], [50.0, 60.0, 70.0]])
    weights = np.array([[1.0, 2.0, 0.0], [3.0, 0.5, 1.0]])
    theta = np.array([[2.0, 6.0], [4.0, 0.5]])
    residuals, rows, rss = _residuals(x, log_time, weights, theta)
    fitted = np.array([[20.0, 32.0, 4.0], [7.5, 1.0, 4.5]])
    expected = log_time - np.log(fitted)
    expected[0, 2] = 0.0
    assert residuals == pytest.approx(expected)
    assert rows == pytest.approx(x / fitted[..., None])
    assert rss == pytest.approx(
        [
            2 * math.log(30 / 32) ** 2,
            3 * math.log(50 / 7.5) ** 2 + 0.5 * math.log(60) ** 2 + math.log(70 / 4.5) ** 2,
        ]
    )


def test_a_line_of_no_time_at_all_keeps_its_residuals_finite():
    residuals, rows, _ = _residuals(
        columns([3, 5])[None], np.zeros((1, 2)), np.ones((1, 2)), np.zeros((1, 2))
    )
    assert residuals == pytest.approx(np.full((1, 2), 300 * math.log(10)), rel=1e-12)
    assert rows == pytest.approx(columns([3, 5])[None] * 1e300)


def test_a_step_is_non_negative_least_squares():
    """Both parameters free, each alone, and none: all cases occur."""
    rows = RANDOM.uniform(0.0, 2.0, (300, 5, 2))
    residuals = RANDOM.normal(-0.6, 1.5, (300, 5))
    weights = RANDOM.uniform(0.0, 2.0, (300, 5))
    found = _step(rows, residuals, weights)
    positive = set()
    for i in range(300):
        root = np.sqrt(weights[i])
        theirs, _ = nnls(root[:, None] * rows[i], root * (1 + residuals[i]))
        assert found[i] == pytest.approx(theirs, rel=1e-7, abs=1e-9)
        positive.add(tuple(theirs > 0))
    assert len(positive) == 4


def test_a_step_without_a_latency_column_finds_the_slope():
    rows = np.stack((np.zeros(3), np.array([1.0, 2.0, 4.0])), axis=-1)
    assert _step(rows[None], np.array([[0.0, 1.0, 2.0]]), np.ones((1, 3))) == pytest.approx(
        np.array([[0.0, (1 + 4 + 12) / 21]])
    )
    away = _step(rows[None], np.array([[-3.0, -3.0, -3.0]]), np.ones((1, 3)))
    assert away.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("share", [0.8e-12, 1.6e-12])
def test_a_latency_that_adds_no_trillionth_to_any_time_is_none(share):
    """Beside the smallest size, of which it is the largest part."""
    size = np.geomspace(8, 8e9, 10)
    time = 1e-9 * size + 8e-9 * share
    found = fit_lines(columns(size)[None], np.log(time)[None], np.ones((1, 10)))
    assert (found.theta[0, 0] > 0) == (share > 1e-12)


def test_wild_times_are_fitted_as_well_as_any_line_can():
    """Times up to a thousandfold off, where single steps go too far; against a grid of lines.

    A line is a factor times ``h + D``, and the best factor for an h is a mean of logarithms.
    """
    size = np.geomspace(8, 2**28, 8)
    random = np.random.default_rng(0)
    log_time = np.log(1e-5 + size / 1e9) + 3 * random.standard_normal((400, 8))
    x = np.broadcast_to(columns(size), (400, 8, 2))
    found = fit_lines(x, log_time, np.ones((400, 8)))
    rest = log_time[:, None] - np.log(np.geomspace(1e-3, 1e13, 1000)[:, None] + size)
    best = ((rest - rest.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1).min(axis=1)
    assert (found.rss <= best * (1 + 1e-4)).all()
    fitted = (x * found.theta[:, None]).sum(axis=-1)
    assert found.residuals == pytest.approx(log_time - np.log(fitted), rel=1e-9, abs=1e-12)
    assert found.rows == pytest.approx(x / fitted[..., None])


def test_no_point_determines_more_than_its_own_time():
    """Of two points each has all of its time: 1 but for rounding, which is cut off."""
    rows = RANDOM.uniform(0.1, 3.0, (500, 2, 2))
    ones = np.ones((500, 2))
    leverage = Lines(ones, 0 * ones, RANDOM.uniform(0.1, 9, (500, 2)), rows).leverage
    assert leverage == pytest.approx(ones, abs=1e-6)
    assert leverage.max() == 1.0


def test_a_line_that_is_found_ends_the_search(monkeypatch):
    """Little noise takes a few steps; the last of them changes nothing."""
    taken = []

    def counted(*given):
        taken.append(given)
        return _step(*given)

    monkeypatch.setattr(lines_module, "_step", counted)
    size = np.geomspace(8, 2**26, 9)
    noise = 0.05 * RANDOM.standard_normal((3, 9))
    fit_lines(np.tile(columns(size), (3, 1, 1)), np.log(1e-5 + size / 1e9) + noise, np.ones((3, 9)))
    assert 2 < len(taken) < 15


def test_what_a_slope_adds_to_padding_does_not_count():
    """A trillionth of the times at the longest real size is none, whatever stands behind it."""
    size = np.geomspace(8, 8e9, 10)
    time = 1e-5 + 0.3e-12 * 1e-5 * size / size[6]
    weights = np.where(np.arange(10) < 7, 1.0, 0.0)
    found = fit_lines(columns(size)[None], np.log(time)[None], weights[None])
    assert found.theta[0] == pytest.approx([1e-5, 0.0], rel=1e-9)
    assert found.theta[0, 1] == 0.0
