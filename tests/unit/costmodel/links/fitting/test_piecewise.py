"""Lines put together by sweep: which sizes support them, and which were set aside."""

import numpy as np
import pytest

from scalebench.costmodel.links.fitting.lines import Lines
from scalebench.costmodel.links.fitting.piecewise import Pieces, fit_pieces
from scalebench.costmodel.links.fitting.uncertainty import covariance, half_widths

SIZE = np.geomspace(8, 2**27, 20)


def made():
    """Sweep 0 has one regime, sweep 1 two, sweep 2 one."""
    given = np.array(
        [[1.0, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 2, 2, 2], [1, 1, 1, 1, 1, 1]]
    )
    weights = given.copy()
    weights[0, [1, 2]] = weights[2, 5] = 0.0
    residuals = np.where(weights > 0, np.arange(24.0).reshape(4, 6) / 100 - 0.05, 0.0)
    rows = np.stack((np.ones((4, 6)), np.tile(np.arange(1.0, 7), (4, 1))), axis=-1)
    size = np.array([[3.0, 5, 7, 11, 13, 17]] * 4) * np.array([[1], [10], [10], [100]])
    return Pieces(
        np.array([0, 1, 1, 2]), size, given, Lines(np.ones((4, 2)), residuals, weights, rows)
    )


def test_rows_belong_to_their_sweep():
    assert [made().of_sweep(number) for number in range(4)] == [
        range(1),
        range(1, 3),
        range(3, 4),
        range(4, 4),
    ]


def test_sizes_support_a_line_or_were_set_aside_or_belong_to_another():
    pieces = made()
    assert [pieces.kept(row).tolist() for row in range(4)] == [
        [3, 11],
        [30, 50, 70],
        [110, 130],
        [300, 500, 700, 1100, 1300, 1700],
    ]
    assert [pieces.set_aside(row).tolist() for row in range(4)] == [[5, 7], [], [170], []]


def test_errors_are_ratios_at_the_sizes_that_support_the_line():
    """Residuals −0.05 and −0.02 of the first, 0.10 and 0.11 of the third."""
    pieces = made()
    assert pieces.errors(0) == pytest.approx([1 - np.exp(-0.05), 1 - np.exp(-0.02)])
    assert pieces.errors(2) == pytest.approx([np.exp(0.10) - 1, np.exp(0.11) - 1])


def test_covariance_and_intervals_are_those_of_the_lines():
    pieces = made()
    assert pieces.covariance[3] == pytest.approx(covariance(pieces.lines)[3])
    assert pieces.half_widths[3] == pytest.approx(half_widths(pieces.lines)[3])


def fitted(log_time, weights=None):
    """Fit one sweep; return sizes kept and set aside of each regime, as numbers of points."""
    weights = np.ones(len(log_time)) if weights is None else weights
    size = SIZE[: len(log_time)]
    pieces = fit_pieces(size[None], log_time[None], weights[None])
    assert pieces.owner.tolist() == [0] * len(pieces.owner)
    where = {round(one): i for i, one in enumerate(size)}
    return [
        tuple([where[round(one)] for one in part(row)] for part in (pieces.kept, pieces.set_aside))
        for row in pieces.of_sweep(0)
    ]


EXACT = np.log(1e-5 + SIZE / 1e9)
NOISE = 0.01 * np.random.default_rng(3).standard_normal(20)


@pytest.mark.parametrize("slow", [(), (9,), (2, 13), (4, 10, 16), (0, 19), (6, 7)])
def test_a_line_with_slow_points_is_one_line_without_them(slow):
    """Also two neighbours, and the ends: three in a row would be a regime."""
    log_time = EXACT + NOISE
    log_time[list(slow)] += 0.7
    ((kept, aside),) = fitted(log_time)
    assert aside == list(slow)
    assert kept == [i for i in range(20) if i not in slow]


@pytest.mark.parametrize("slow", [(), (4,), (15,)])
def test_a_change_of_regime_is_found_with_a_slow_point_on_either_side(slow):
    log_time = EXACT + NOISE
    log_time[10:] += 0.9
    log_time[list(slow)] += 0.8
    small, large = fitted(log_time)
    assert sorted(small[0] + small[1]) == list(range(10))
    assert sorted(large[0] + large[1]) == list(range(10, 20))
    assert small[1] + large[1] == list(slow)


def test_slow_points_that_make_up_a_regime_are_one():
    """Four neighbours at the end of twenty, as many as might be set aside."""
    log_time = EXACT + NOISE
    log_time[16:] += 0.6
    assert [kept for kept, _ in fitted(log_time)] == [list(range(16)), list(range(16, 20))]


def test_each_sweep_is_fitted_as_if_it_were_alone():
    """Five, one of them padded: one line, one with slow points, and changes of regime."""
    times = np.tile(EXACT, (5, 1)) + 0.02 * np.random.default_rng(4).standard_normal((5, 20))
    times[1, [4, 9]] += 0.8
    times[2, 8:] += 0.7
    times[3, 10:] += 0.5
    times[3, [3, 15]] += 0.9
    times[4, 12:] = 0.0
    weights = np.ones((5, 20))
    weights[4, 12:] = 0.0
    together = fit_pieces(np.tile(SIZE, (5, 1)), times, weights)
    assert together.owner.tolist() == [0, 1, 2, 2, 3, 3, 4]
    for number in range(5):
        count = int(weights[number].sum())
        alone = fitted(times[number, :count])
        rows = together.of_sweep(number)
        for row, (kept, aside) in zip(rows, alone, strict=True):
            assert together.kept(row).tolist() == SIZE[kept].tolist()
            assert together.set_aside(row).tolist() == SIZE[aside].tolist()
