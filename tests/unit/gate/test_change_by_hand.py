"""The change between two sides with every number worked out from its definition."""

import math

import pytest
from scipy import stats

from scalebench.gate.change import (
    FALSE_ALARM_RATE,
    FAR,
    MOST_LAUNCHES,
    POWER,
    RANK_LEVEL,
    TEST_LEVEL,
    Change,
    Side,
    change_between,
    further_launches,
    min_detectable,
    rank_p_value,
)
from scalebench.stats import Variance

T_90, T_95 = 2.131847, 2.776445  # Student's t with 4 degrees of freedom: 5 and 2.5 % lie above


def test_what_the_documentation_promises():
    assert (POWER, FALSE_ALARM_RATE, TEST_LEVEL, RANK_LEVEL) == (0.95, 0.01, 0.005, 0.05)
    assert (FAR, MOST_LAUNCHES) == (1000.0, 1000)


@pytest.mark.parametrize(("confidence", "t"), [(0.9, T_90), (0.95, T_95)])
def test_the_interval_is_t_times_the_error_to_either_side(confidence, t):
    low, high = Change(2.0, error=0.5, dof=4.0, confidence=confidence).interval
    assert low == pytest.approx(2.0 - 0.5 * t, abs=1e-6)
    assert high == pytest.approx(2.0 + 0.5 * t, abs=1e-6)
    assert Change(2.0, error=0.5, dof=4.0).interval[1] == pytest.approx(2 + 0.5 * T_95, abs=1e-6)
    assert Change(2.0, dof=4.0).interval is None


@pytest.mark.parametrize(
    ("sign", "allowance", "t"), [(1, 0.0, 2), (-1, 0.0, -2), (1, 1.5, 1), (-1, 1.5, -3)]
)
def test_the_p_value_is_the_tail_beyond_the_excess_over_its_error(sign, allowance, t):
    """With 2 degrees of freedom the tail above t is ``1/2 - t / (2 √(2 + t²))``."""
    found = Change(3.0, error=1.5, dof=2.0).p_value(sign, allowance)
    assert found == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)))
    assert Change(3.0, dof=2.0).p_value(sign, allowance) is None


@pytest.mark.parametrize(
    ("value", "sign", "allowance", "p"),
    [
        (0.5, 1, 0.0, 0.0),
        (0.5, 1, 0.25, 0.0),
        (0.5, 1, 0.5, 1.0),
        (0.5, 1, 0.75, 1.0),
        (0.5, -1, 0.0, 1.0),
        (-0.5, -1, 0.25, 0.0),
        (0.0, 1, 0.0, 1.0),
    ],
)
def test_without_any_error_a_difference_is_sure_or_none(value, sign, allowance, p):
    assert Change(value, error=0.0, dof=3.0).p_value(sign, allowance) == p


@pytest.mark.parametrize(
    ("of_base", "of_new", "squared", "dof"),
    [
        (Variance(6.0, 1.0), Variance(12.0, 2.0), 3 + 4, 49 / (9 / 1 + 16 / 2)),
        (None, Variance(12.0, 2.0), 6 + 4, 100 / (36 / 2 + 16 / 2)),
        (Variance(6.0, 1.0), None, 3 + 2, 25 / (9 / 1 + 4 / 1)),
    ],
)
def test_errors_of_two_and_of_three_launches_add_up(of_base, of_new, squared, dof):
    """A side without a variance has that of the other one."""
    found = change_between(Side(10.0, 2, of_base), Side(13.0, 3, of_new), 0.9)
    assert (found.value, found.confidence) == (3.0, 0.9)
    assert found.error == pytest.approx(math.sqrt(squared))
    assert found.dof == pytest.approx(dof)
    assert change_between(Side(10.0, 2, of_base), Side(13.0, 3, of_new)).confidence == 0.95


def test_two_sides_without_a_variance_have_a_change_and_no_error():
    assert change_between(Side(10.0, 2, None), Side(13.0, 3, None)) == Change(3.0)


@pytest.mark.parametrize(
    ("base", "new", "sign", "p"),
    [
        ([1, 2, 4], [3, 5, 6], 1, 2 / 20),  # ranks 3+5+6; only 4+5+6 is more
        ([1, 2, 4], [3, 5, 6], -1, 19 / 20),  # ranks 4+2+1 from above; only 3+2+1 is less
        ([1, 2, 2], [2, 3, 4], 1, 3 / 20),  # ranks 3+5+6 of 1, 3, 3, 3, 5, 6
        ([2, 3, 4], [1, 2, 2], -1, 3 / 20),
        ([2, 2, 2], [2, 2, 2], 1, 1.0),
        ([1] * 19, [2], 1, 1 / 20),
        ([2] + [1] * 18, [2], 1, 2 / 20),
    ],
)
def test_the_rank_test_counts_the_ways_that_are_as_good(base, new, sign, p):
    assert rank_p_value(base, new, sign) == pytest.approx(p)


def test_the_rank_test_counts_out_twenty_to_twenty_thousand_ways():
    assert rank_p_value([1.0] * 18, [2.0], 1) is None
    assert rank_p_value([1.0, 2.0], [3.0, 4.0, 5.0], 1) is None
    assert rank_p_value(range(19_999), [10.5], -1) == pytest.approx(12 / 20_000)
    assert rank_p_value(range(20_000), [10.5], -1) is None
    assert rank_p_value(list(range(30)), [], 1) is None and rank_p_value([], [1.0], 1) is None


def power(noncentrality, critical, dof):
    """The part of noncentral t above a critical value."""
    return float(stats.nct.sf(critical, dof, noncentrality))


@pytest.mark.parametrize(("dof", "confidence"), [(3.0, 0.95), (8.0, 0.975), (40.0, 0.95)])
def test_what_is_detectable_has_95_percent_power(dof, confidence):
    change = Change(0.7, error=0.02, dof=dof, confidence=confidence)
    found, critical = min_detectable(change, 0.0), stats.t.ppf((1 + confidence) / 2, dof)
    assert power(found / 0.02, critical, dof) == pytest.approx(0.95, abs=1e-6)
    assert min_detectable(change, 0.0, 0.5) == pytest.approx(found + 0.5)
    assert min_detectable(change, 5.0) == 5.0, "a smaller one is of no interest"
    assert min_detectable(Change(0.7, dof=dof), 0.1) is None


def test_far_out_the_power_is_that_of_the_denominator():
    """Beyond a quantile of 1000, with one degree of freedom: the 95 % point of |normal|."""
    above, below = (math.atan(1 / critical) / math.pi for critical in (1000.5, 999.5))

    def detectable(level):
        return min_detectable(Change(0.0, 2.0, 1.0, 1 - 2 * level), 0.0) / 2.0

    found = detectable(above)
    assert found == pytest.approx(1000.5 * stats.norm.ppf(0.975), rel=1e-9)
    near = detectable(below)
    assert near == pytest.approx(999.5 * stats.norm.ppf(0.975), rel=2e-3)
    assert near != pytest.approx(999.5 * stats.norm.ppf(0.975), rel=1e-9)


def two_sides(distance, variance=4.0):
    return Side(1.0, 5, Variance(variance, 4.0)), Side(1.0 + distance, 5, Variance(variance, 4.0))


def error(more):
    """The standard error with so many launches more than 5 a side, of a variance of 4."""
    return math.sqrt(2 * 4.0 / (5 + more))


def half_width(more, confidence=0.95):
    """Of the interval: each launch more on each side adds a degree of freedom to either."""
    return stats.t.ppf((1 + confidence) / 2, 2 * (4 + more)) * error(more)


@pytest.mark.parametrize("more", [1, 2, 7, 100, 999, 1000])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("confidence", [0.95, 0.975])
def test_so_many_launches_bring_the_interval_beyond_or_within_the_floor(more, sign, confidence):
    """Floors that the ends of the interval pass between one launch fewer and these."""
    reach = (half_width(more - 1, confidence) + half_width(more, confidence)) / 2
    for distance, floor in ((100.0, 100.0 - reach), (3.0, 3.0 + reach)):
        sides = two_sides(sign * distance)
        assert further_launches(*sides, floor, sign, confidence) == more


def test_more_than_a_thousand_launches_are_not_asked_for():
    reach = (half_width(1000) + half_width(1001)) / 2
    assert further_launches(*two_sides(100.0), 100.0 - reach, 1, 0.95) is None
    assert further_launches(*two_sides(3.0), 3.0 + reach, 1, 0.95) is None


def test_without_noise_a_change_is_beyond_the_floor_within_it_or_on_it():
    quiet = two_sides(0.5, variance=0.0)
    assert further_launches(*quiet, 0.25, 1, 0.99) == 1
    assert further_launches(*quiet, 0.75, 1, 0.99) == 1
    assert further_launches(*quiet, 0.5, 1, 0.99) is None
