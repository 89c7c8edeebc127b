"""Steps of the fit one by one, each against the plain formula of a single sweep."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.links.fitting.fit import _bandwidth
from scalebench.costmodel.links.fitting.lines import Lines, fit_lines
from scalebench.costmodel.links.fitting.outliers import SMALLEST_SCALE, spikes
from scalebench.costmodel.links.fitting.piecewise import _in_a_row
from scalebench.costmodel.links.fitting.sweeps import make_sweep, stack
from scalebench.costmodel.links.fitting.uncertainty import _neighbour_factor, covariance
from tests.builders.link_sweeps import point, sizes, sweep

SIZE = np.log(np.array(sizes(12)))


def padded(values, length):
    """One row, filled up with zeros to ``length``."""
    return np.array([[*values, *[0.0] * (length - len(values))]])


@pytest.mark.parametrize(
    ("count", "seen"),
    [
        (4, []),
        (5, []),  # of one or a few interpolations the spike's own are the typical ones
        (8, []),
        (9, [2, 6]),
        (10, [2, 7]),
        (11, [2, 3, 4, 5, 6, 7, 8]),
        (12, [2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
@pytest.mark.parametrize("padding", [0, 3])
def test_a_spike_is_seen_where_most_neighbours_are_even_and_never_at_the_ends(count, seen, padding):
    size = np.arange(1.0, count + padding + 1)[None, :]
    weights = padded(np.ones(count), count + padding)
    found = []
    for place in range(count):
        time = padded(np.zeros(count), count + padding)
        time[0, place] = 1.0
        told = np.flatnonzero(spikes(size, time, weights)).tolist()
        assert told in ([], [place])
        found += told
    assert found == seen


def test_a_spike_stands_four_typical_deviations_above_its_neighbours():
    size, weights = np.arange(1.0, 13)[None, :], np.ones((1, 12))
    for height, seen in ((4.01 * SMALLEST_SCALE, True), (3.99 * SMALLEST_SCALE, False)):
        time = np.zeros((1, 12))
        time[0, 5] = height
        assert spikes(size, time, weights).any() == seen
    step = (size > 6).astype(float)
    assert not spikes(size, step, weights).any()
    assert not spikes(size, -step, weights).any()


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_a_regime_is_three_neighbours_or_more(aside):
    word = "".join("x" if one else "." for one in aside)
    runs = [part for part in word.replace(".", " . ").split()]
    expected = [part != "." and len(part) >= 3 for part in runs for _ in part]
    assert _in_a_row(np.array([aside]))[0].tolist() == expected


def test_the_weight_of_a_point_follows_from_its_interval():
    """σ of 1 %, 1 %, 2 % and 4 %: the typical variance is that of the middle two."""
    sigma = np.array([0.01, 0.01, 0.02, 0.04])
    reach = np.exp(1.959964 * sigma)
    points = [
        point(size, 1e-3, low_s=1e-3 / r, high_s=1e-3 * r)
        for size, r in zip(sizes(4), reach, strict=True)
    ]
    weights = 1 / (sigma**2 + (0.01**2 + 0.02**2) / 2)
    made = make_sweep(points)
    assert made.weights == pytest.approx(weights / weights.mean(), rel=1e-4)
    assert made.weights.mean() == pytest.approx(1.0)
    twice = make_sweep([*points, points[0]])
    assert twice.weights.mean() == pytest.approx(1.0)
    vague = [points[0], point(sizes(2)[1], 1e-3)]
    assert make_sweep(vague).weights.tolist() == [1.0, 1.0]


def test_sweeps_of_different_lengths_are_padded_without_weight():
    long, short = (make_sweep(sweep(sizes(n), np.arange(1.0, n + 1))) for n in (6, 4))
    size, log_time, weights = stack([long, short])
    assert size.shape == (2, 6)
    assert size[1, :4].tolist() == short.size_bytes.tolist()
    assert size[1, 4:].tolist() == [2 * size[1, 3], 4 * size[1, 3]]
    assert log_time[1].tolist() == [*short.log_time, 0.0, 0.0]
    assert weights.tolist() == [[1.0] * 6, [1.0] * 4 + [0.0] * 2]


def factor_of(residuals):
    """The same for one sweep of weight 1, number by number."""
    n = len(residuals)
    products = sum(a * b for a, b in pairwise(residuals))
    found = products / sum(one**2 for one in residuals)
    if n < 7 or (found + 2 / n) * math.sqrt(n) <= 1:
        return 1.0
    rho = min(max(found + (2 + 4 * found) / n, 0.0), 0.8)
    return (1 + rho) / (1 - rho)


@pytest.mark.parametrize(
    "residuals",
    [
        [1.0, 1, 1, -1, -1, -1],
        [1.0, 1, 1, -1, -1, -1, -1],
        [1.0, 1, 0, -1, 0, 1, 0, -1],
        [1.0, -1, 1, -1, 1, -1, 1, -1],
        [1.0, 1, -1, 1, 1, -1, 1, 1, -1, 1],
        [1.0] * 12 + [-1.0] * 12,
    ],
)
@pytest.mark.parametrize("padding", [0, 5])
def test_correlated_neighbours_widen_an_interval_by_kendalls_correction(residuals, padding):
    length = len(residuals) + padding
    weights = padded(np.ones(len(residuals)), length)
    none = np.zeros((1, length, 2))
    lines = Lines(np.ones((1, 2)), padded(residuals, length), weights, none)
    assert _neighbour_factor(lines)[0] == pytest.approx(factor_of(residuals))


def test_the_residuals_above_tell_all_cases_apart():
    assert factor_of([1.0, 1, 1, -1, -1, -1]) == 1.0  # too few
    assert factor_of([1.0, -1, 1, -1, 1, -1, 1, -1]) == 1.0
    assert factor_of([1.0, 1, 1, -1, -1, -1, -1]) == pytest.approx(9.0)  # the largest
    assert 1 < factor_of([1.0, 1, 0, -1, 0, 1, 0, -1]) < 9


def test_a_latency_of_rounding_is_none_beside_a_longer_sweep():
    """Times of bandwidth alone, padded to the length of another sweep."""
    size = np.array(sizes(6), dtype=float)
    x = np.stack((np.ones(9), np.append(size, size[-1] * np.array([2.0, 4.0, 8.0]))), axis=-1)
    found = fit_lines(x[None], padded(np.log(1e-9 * size), 9), padded(np.ones(6), 9))
    assert found.theta[0] == pytest.approx([0.0, 1e-9], rel=1e-9)
    assert found.theta[0, 0] == 0.0


@pytest.mark.parametrize(("slope", "bandwidth"), [(2e-9, 1e9), (0.0, None), (-1e-9, None)])
def test_a_time_that_does_not_grow_tells_no_bandwidth(slope, bandwidth):
    assert _bandwidth(2.0, slope) == (bandwidth and pytest.approx(bandwidth))


@pytest.mark.parametrize("noisy_at", [0, 5])
def test_the_variance_is_the_larger_of_the_usual_one_and_hc2(noisy_at):
    """Of six points, too few for a correction by their neighbours; one end scatters more."""
    x = np.stack((np.ones(6), np.arange(6.0)), axis=-1)
    residuals = np.array([1.0, -1, 1, -1, 1, -1]) * 1e-2
    residuals[noisy_at] *= 20
    found = covariance(Lines(np.ones((1, 2)), residuals[None], np.ones((1, 6)), x[None]))[0]
    inverse = np.linalg.inv(x.T @ x)
    usual = residuals @ residuals / (6 - 2) * inverse
    leverage = np.array([row @ inverse @ row for row in x])
    hc2 = inverse @ x.T @ np.diag(residuals**2 / (1 - leverage)) @ x @ inverse
    expected = np.maximum(np.diag(usual), np.diag(hc2))
    assert np.diag(found) == pytest.approx(expected)
    assert (expected > np.diag(usual)).any()
    correlation = found[0, 1] / math.sqrt(found[0, 0] * found[1, 1])
    assert correlation == pytest.approx(usual[0, 1] / math.sqrt(usual[0, 0] * usual[1, 1]))
