"""A fitted link's predictions, by hand: one regime, two with a gap between them, and beyond."""

import math

import pytest

from scalebench.costmodel.links.fitted import LinkFit, Regime
from scalebench.costmodel.links.laws import Terms
from scalebench.errors import UsageError

T_5 = 2.5705818356363146
"""Student's t of 5 degrees of freedom, 97.5 %."""

TERMS = Terms(4, 4 / 3)
"""A ring's all-reduce among three."""


def regime(**changes):
    given = {
        "min_bytes": 100,
        "max_bytes": 1000,
        "num_sizes": 7,
        "alpha_s": 2e-6,
        "alpha_low_s": 1e-6,
        "alpha_high_s": 3e-6,
        "bandwidth_byte_per_s": 1e8,
        "bandwidth_low_byte_per_s": 0.9e8,
        "bandwidth_high_byte_per_s": 1.1e8,
        "error_ratio": 0.01,
        "worst_error_ratio": 0.02,
        "scale": 0.03,
        "freedom": 5,
        "covariance": (1e-14, 3e-18, 5e-20),
    }
    return Regime(**{**given, **changes})


def fit(*regimes):
    return LinkFit(
        link="",
        op="all_reduce",
        dtype="float32",
        world_size=3,
        algorithm="backend",
        in_place=None,
        law="ring",
        regimes=regimes,
        num_points=14,
        error_ratio=0.015,
    )


def interval(time_s, variance, scale=0.03, t=T_5):
    """The interval around a time whose line has this variance."""
    reach = t * math.sqrt(scale**2 + variance / time_s**2)
    return pytest.approx((time_s * math.exp(-reach), time_s * math.exp(reach)))


def test_a_regimes_time_is_by_the_law():
    assert regime().time_s(300, TERMS) == pytest.approx(4 * 2e-6 + 4 / 3 * 300 / 1e8)
    flat = regime(bandwidth_byte_per_s=None)
    assert flat.time_s(300, TERMS) == pytest.approx(8e-6)


def test_an_interval_has_the_scatter_and_the_lines_own_variance():
    """v11 + 2·v12·D + v22·D² at 300 bytes."""
    variance = 1e-14 + 2 * 3e-18 * 300 + 5e-20 * 90_000
    assert regime().interval_s(300, TERMS) == interval(12e-6, variance)


def test_rounding_below_zero_is_no_variance():
    found = regime(covariance=(1e-14, -1e-15, 0.0)).interval_s(300, TERMS)
    assert found == interval(12e-6, 0.0)


def test_an_interval_has_an_end_however_little_is_known():
    low, high = regime(scale=50.0).interval_s(300, TERMS)
    assert (low, high) == pytest.approx((12e-6 * math.exp(-100), 12e-6 * math.exp(100)))


SMALL = regime()
LARGE = regime(min_bytes=9000, max_bytes=50_000, alpha_s=7e-6, bandwidth_byte_per_s=3e9, scale=0.1)


@pytest.mark.parametrize(
    ("size", "its"), [(100, SMALL), (1000, SMALL), (9000, LARGE), (50_000, LARGE)]
)
def test_the_ends_of_a_regime_belong_to_it(size, its):
    found = fit(SMALL, LARGE).predict(size)
    assert found.outside is None
    assert found.time_s == pytest.approx(its.time_s(size, TERMS))
    assert (found.low_s, found.high_s) == pytest.approx(its.interval_s(size, TERMS))


@pytest.mark.parametrize(("size", "nearest"), [(1001, SMALL), (2999, SMALL), (3001, LARGE)])
def test_in_a_gap_the_nearer_regime_by_ratio_tells_the_time_and_both_the_interval(size, nearest):
    """The middle of 1000 and 9000 is 3000."""
    found = fit(SMALL, LARGE).predict(size)
    assert found.time_s == pytest.approx(nearest.time_s(size, TERMS))
    (low, high), (other_low, other_high) = (r.interval_s(size, TERMS) for r in (SMALL, LARGE))
    assert found.low_s == pytest.approx(min(low, other_low))
    assert found.high_s == pytest.approx(max(high, other_high))
    assert found.outside == (
        f"{size / 1000:.2f} kB lies between 1.00 kB and 9.00 kB, where the fit changes from one "
        "regime to the next"
    )


def test_of_three_regimes_the_gap_before_the_last_has_its_own_neighbours():
    last = regime(min_bytes=200_000, max_bytes=900_000, scale=0.5)
    found = fit(SMALL, LARGE, last).predict(60_000)
    assert "between 50.0 kB and 200 kB" in found.outside
    (low, high), (other_low, other_high) = (r.interval_s(60_000, TERMS) for r in (LARGE, last))
    assert (found.low_s, found.high_s) == (min(low, other_low), max(high, other_high))
    assert found.time_s == pytest.approx(LARGE.time_s(60_000, TERMS))


@pytest.mark.parametrize(("size", "its"), [(99, SMALL), (0.5, SMALL), (50_001, LARGE)])
def test_beyond_all_regimes_a_line_is_continued_without_an_interval(size, its):
    found = fit(SMALL, LARGE).predict(size)
    assert found.time_s == pytest.approx(its.time_s(size, TERMS))
    assert (found.low_s, found.high_s) == (None, None)
    assert found.outside.endswith("lies outside the fitted sizes, 100 B to 50.0 kB: measure it")


@pytest.mark.parametrize("size", [0, -1, -0.5, math.inf, math.nan])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(UsageError, match="give a positive size"):
        fit(SMALL).predict(size)


def test_rows_have_the_fit_and_one_regime_each():
    rows = fit(SMALL, LARGE).rows()
    assert [row["min_bytes"] for row in rows] == [100, 9000]
    assert all(row["num_points"] == 14 and row["law"] == "ring" for row in rows)
    assert [row["error_ratio"] for row in rows] == [0.01, 0.01]
    assert "regimes" not in rows[0]
    assert rows[0] | SMALL.model_dump(mode="json") == rows[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"bandwidth_byte_per_s": 0.0},
        {"bandwidth_low_byte_per_s": 0.0},
        {"bandwidth_high_byte_per_s": 0.0},
        {"alpha_s": -1e-9},
    ],
)
def test_a_regime_that_cannot_be_is_refused(changes):
    with pytest.raises(ValueError, match="greater than"):
        regime(**changes)


def test_a_slow_link_of_a_fraction_of_a_byte_per_second_is_one():
    slow = {f"bandwidth{end}_byte_per_s": 0.25 for end in ("", "_low", "_high")}
    assert regime(**slow).bandwidth_byte_per_s == 0.25


def test_a_fit_has_a_regime():
    with pytest.raises(ValueError, match="at least 1"):
        fit()
    assert fit(SMALL).terms == TERMS
