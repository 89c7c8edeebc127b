"""Records made of fitted lines: the law's factors, intervals, and what makes a fit poor."""

import math

import numpy as np
import pytest

from scalebench.costmodel.links.fitted import Regime
from scalebench.costmodel.links.fitting.fit import (
    _link_fit,
    _poor,
    _regime,
    _why_not,
    fit_link,
    fit_links,
)
from scalebench.costmodel.links.fitting.lines import Lines
from scalebench.costmodel.links.fitting.piecewise import Pieces
from scalebench.costmodel.links.fitting.sweeps import Sweep, SweepKey
from scalebench.costmodel.links.fitting.uncertainty import covariance
from scalebench.costmodel.links.laws import Terms, law_terms
from scalebench.errors import UsageError
from scalebench.stats import quantile
from tests.builders.link_sweeps import line, point, sizes, sweep

SIZE = np.array([5.0, 7, 11, 13, 17, 23, 29])
KEY = SweepKey("lab", "all_reduce", "float32", 5, "backend", True)


def pieces(theta=((6e-6, 3e-9), (9e-6, 2e-9))):
    """One sweep in two regimes of three sizes; a fourth of the first, 7 bytes, was set aside."""
    given = np.array([[1.0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]])
    weights = given.copy()
    weights[0, 1] = 0.0
    residuals = np.array([[0.03, 0, -0.05, 0.06, 0, 0, 0], [0, 0, 0, 0, 0.01, -0.04, 0.02]])
    theta = np.array(theta)
    x = np.stack((np.ones(7), SIZE), axis=-1)
    rows = x / (x @ theta.T).T[..., None]
    return Pieces(
        np.zeros(2, int), np.tile(SIZE, (2, 1)), given, Lines(theta, residuals, weights, rows)
    )


def test_a_regime_is_its_line_with_the_laws_factors_divided_out():
    """8 steps and 1.6 bytes; the second line has one degree of freedom."""
    made = pieces()
    found = _regime(made, 1, Terms(8, 1.6))
    known = covariance(made.lines)[1]
    half = float(quantile(1)) * np.sqrt(np.diag(known))
    assert (found.min_bytes, found.max_bytes, found.num_sizes) == (17, 29, 3)
    assert found.alpha_s == pytest.approx(9e-6 / 8)
    assert found.alpha_low_s == pytest.approx(max(9e-6 - half[0], 0) / 8)
    assert found.alpha_high_s == pytest.approx((9e-6 + half[0]) / 8)
    assert found.bandwidth_byte_per_s == pytest.approx(1.6 / 2e-9)
    assert found.bandwidth_low_byte_per_s == pytest.approx(1.6 / (2e-9 + half[1]))
    assert half[1] > 2e-9
    assert found.bandwidth_high_byte_per_s is None
    errors = [math.expm1(0.01), 1 - math.exp(-0.04), math.expm1(0.02)]
    assert found.error_ratio == pytest.approx(errors[2])
    assert found.worst_error_ratio == pytest.approx(errors[1])
    assert found.set_aside_bytes == ()
    assert found.scale == pytest.approx(math.sqrt(0.01**2 + 0.04**2 + 0.02**2))
    assert found.freedom == 1
    assert found.covariance == pytest.approx(
        (known[0, 0], known[0, 1], known[1, 1]), rel=1e-9, abs=0
    )


def test_an_interval_of_bandwidth_has_two_ends_where_the_slope_is_well_known():
    size = np.geomspace(8, 2**26, 8)
    noise = 0.01 * np.array([1, -1, 1, -1, -1, 1, -1, 1])
    times = (1e-5 + size / 1e9) * np.exp(noise)
    (found,) = fit_link(sweep(size.astype(int), times)).regimes
    low, high = found.bandwidth_low_byte_per_s, found.bandwidth_high_byte_per_s
    best = found.bandwidth_byte_per_s
    assert 0.9 * best < low < best < high < 1.1 * best
    assert 1 / low - 1 / best == pytest.approx(1 / best - 1 / high, rel=1e-6, abs=0)
    half = float(quantile(found.freedom)) * math.sqrt(found.covariance[2])
    assert 1 / low - 1 / best == pytest.approx(half, rel=1e-6, abs=0)
    assert 0 < found.alpha_low_s < found.alpha_s < found.alpha_high_s
    assert found.alpha_high_s - found.alpha_s == pytest.approx(
        found.alpha_s - found.alpha_low_s, rel=1e-6, abs=0
    )


def test_a_fit_joins_its_regimes_under_the_law():
    found = _link_fit(
        Sweep(KEY, SIZE, np.zeros(7), np.ones(7), 9),
        pieces(((6e-6, 3e-9), (9e-6, 2e-9))),
        0,
        {"all_reduce": "binomial tree"},
    )
    assert (found.link, found.op, found.dtype) == ("lab", "all_reduce", "float32")
    assert (found.world_size, found.algorithm, found.in_place) == (5, "backend", True)
    assert (found.law, found.num_points, found.terms) == ("binomial tree", 9, Terms(6, 6))
    assert [regime.alpha_s for regime in found.regimes] == pytest.approx([1e-6, 1.5e-6])
    errors = sorted(abs(math.expm1(r)) for r in (0.03, -0.05, 0.06, 0.01, -0.04, 0.02))
    assert found.error_ratio == pytest.approx((errors[2] + errors[3]) / 2)
    assert found.regimes[0].set_aside_bytes == (7,)
    assert found.regimes[0].error_ratio == pytest.approx(1 - math.exp(-0.05))


def regime(max_bytes, set_aside=()):
    return Regime(
        min_bytes=1,
        max_bytes=max_bytes,
        num_sizes=3,
        alpha_s=1.0,
        alpha_low_s=1.0,
        alpha_high_s=1.0,
        bandwidth_byte_per_s=1.0,
        bandwidth_low_byte_per_s=1.0,
        bandwidth_high_byte_per_s=1.0,
        error_ratio=0.0,
        worst_error_ratio=0.0,
        set_aside_bytes=set_aside,
        scale=0.0,
        freedom=1,
        covariance=(0.0, 0.0, 0.0),
    )


@pytest.mark.parametrize(
    ("regimes", "errors", "size", "why"),
    [
        ([regime(9)], [0.0, 0.1, 0.5], [9], None),
        ([regime(9)], [0.0, 0.101, 0.5], [9], "the typical size is 10.1 % off the line"),
        ([regime(9)], [0.0, 0.1, 0.51], [9], "one size is 51.0 % off the line"),
        (
            [regime(9)],
            [0.2, 0.3, 0.6],
            [9],
            "the typical size is 30.0 % off the line; one size is 60.0 % off the line",
        ),
        ([regime(9, (2,))], [0.0] * 4, [9], "1 of 5 sizes were too slow for the line"),
        ([regime(9, (2,))], [0.0] * 5, [9], None),
        ([regime(5, (2,)), regime(9, (6,))], [0.0] * 8, [9], "2 of 10 sizes were too slow"),
        ([regime(5, (2,)), regime(9, (6,))], [0.0] * 9, [9], None),
        ([regime(5), regime(9)], [0.0] * 9, [4, 9, 10], None),
        ([regime(20), regime(9)], [0.0] * 9, [4, 9, 10, 11], "the 2 largest sizes were too slow"),
    ],
)
def test_a_fit_is_poor_by_its_errors_what_was_set_aside_and_what_lies_beyond(
    regimes, errors, size, why
):
    found = _poor(regimes, np.array(errors), np.array(size, dtype=float))
    assert found is None if why is None else found.startswith(why)


def test_each_operation_has_the_law_that_was_given_or_its_default():
    of = {"broadcast": "ring", "all_reduce": "gather-broadcast"}
    points = [
        *sweep(sizes(5), line(sizes(5)), op="reduce", world_size=3),
        *sweep(sizes(5), line(sizes(5)), op="broadcast", world_size=3),
        *sweep(sizes(4), line(sizes(4)), world_size=3),
    ]
    found = fit_links(points, of).fits
    assert [(fit.op, fit.law, fit.num_points) for fit in found] == [
        ("reduce", "tree", 5),
        ("broadcast", "ring", 5),
        ("all_reduce", "gather-broadcast", 4),
    ]
    for fit in found:
        steps, factor = law_terms(fit.op, fit.law, 3)
        assert fit.regimes[0].alpha_s == pytest.approx(2e-5 / steps)
        assert fit.regimes[0].bandwidth_byte_per_s == pytest.approx(1e9 * factor)


def test_what_was_refused_has_its_key_and_reason():
    short = sweep(sizes(5)[:2], line(sizes(5)[:2]), dtype="int8")
    found = fit_links([*short, *sweep(sizes(3), line(sizes(3)))])
    (refused,) = found.refused
    assert refused.key == SweepKey("", "all_reduce", "int8", 2, "backend", None)
    assert refused.reason == "all_reduce, 2 ranks, int8: 2 sizes given, 3 or more are needed."
    assert [fit.num_points for fit in found.fits] == [3]


def test_sizes_are_counted_once_and_two_ranks_are_enough():
    key = KEY._replace(world_size=2)
    two = [point(5, 1.0), point(5, 2.0), point(7, 1.0)]
    assert "2 sizes given" in _why_not(key, two, None)
    assert _why_not(key, [*two, point(9, 1.0)], None) is None
    assert "one rank sends nothing" in _why_not(KEY._replace(world_size=1), two, None)
    wrong = [*two, point(9_000, 1.0, num_wrong=1), point(8_000, 1.0, num_wrong=2)]
    assert "2 sizes with right results" in _why_not(key, wrong, None)


def test_points_of_several_kinds_are_named_three_at_most():
    points = [point(8, 1.0, link=name) for name in "abcd"]
    with pytest.raises(UsageError) as caught:
        fit_link(points)
    assert [f"float32, {name}" in str(caught.value) for name in "abcd"] == [True] * 3 + [False]
