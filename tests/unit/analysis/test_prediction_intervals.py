"""Intervals of predictions from few launches and few rows, on errors whose law is known.

The same at full size, for every setting: ``benchmarks/test_coverage.py``.
"""

import math

import pytest

from benchmarks.interval_coverage import LAUNCH_SD, Predictions, coverage, ratio_holds
from scalebench.analysis.prediction_intervals import (
    Compared,
    half_width,
    typical_error,
    variance_at_one_rank,
    variance_of_link,
)
from scalebench.stats import Variance

NOTHING = Variance(0.0, math.inf)
CALLS = 600
SLACK = 0.035
"""Nearly three standard errors of a share of 90 % in 600 calls; the normal quantile in place of
Student's t is off by 5 to 20 points."""


@pytest.mark.parametrize(
    "counts",
    [
        Predictions(2, 3 * LAUNCH_SD).row_holds,
        Predictions(4, 3 * LAUNCH_SD).row_holds,
        Predictions(4, 0.0).row_holds,
        Predictions(3, 3 * LAUNCH_SD, same_start=True).projection_holds,
    ],
    ids=["one other row", "three other rows", "launches alone", "projection"],
)
def test_ninety_percent_intervals_hold_the_truth_nine_times_in_ten(counts):
    for num_launches, share in coverage(counts, CALLS).items():
        assert share == pytest.approx(0.90, abs=SLACK), num_launches


def test_a_break_even_s_interval_holds_as_often_as_it_says():
    """Although rounds drift by five times what launches scatter."""
    for num_launches, share in coverage(ratio_holds, 200).items():
        assert share >= 0.91, num_launches


def row(log_error, spread=0.0, dof=0):
    return Compared(log_error, variance_at_one_rank(spread, dof))


def test_one_other_row_is_one_degree_of_freedom():
    """t at 95 % one-sided with one degree of freedom is tan(0.45·π) = 6.31."""
    assert half_width(NOTHING, [row(0.01)]) == pytest.approx(0.01 * math.tan(0.45 * math.pi))
    assert half_width(NOTHING, []) is None
    assert typical_error([]) is None


def test_what_the_other_rows_errors_hold_is_not_counted_twice():
    others = [row(0.01, 0.01, 4), row(-0.02, 0.01, 4)]
    alike = half_width(variance_at_one_rank(0.01, 4), others)
    assert alike == half_width(NOTHING, others)


def test_launches_that_scatter_far_more_than_the_others_count():
    others = [row(0.01, 0.01, 4), row(-0.02, 0.01, 4)]
    far = half_width(variance_at_one_rank(0.1, 4), others)
    assert far > 0.1 > half_width(NOTHING, others)


def test_a_link_without_freedom_does_not_count_and_few_degrees_are_not_many():
    assert variance_of_link(1.0, 1.0, None).value == 0
    few, many = variance_of_link(1.0, 2.0, 1), variance_of_link(1.0, 2.0, None)
    assert few.value < many.value / 40, "a t of 12.7 where the normal distribution has 1.96"


def test_the_variance_of_a_link_is_that_of_its_interval():
    """Four percent at the upper end of 95 %: the normal 1.96 times the standard error, t's 4.30."""
    many, few = variance_of_link(2.0, 2.08, None), variance_of_link(2.0, 2.08, 2)
    assert many.value == pytest.approx((math.log(1.04) / 1.959964) ** 2) and math.isinf(many.dof)
    assert few.value == pytest.approx((math.log(1.04) / 4.302653) ** 2) and few.dof == 2


def test_the_model_s_own_error_is_counted_for_every_doubling():
    once, twice = (half_width(NOTHING, [row(0.01)], doublings) for doublings in (1, 2))
    assert twice == pytest.approx(2 * once)
