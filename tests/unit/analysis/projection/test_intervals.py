"""Intervals of predictions from few launches and few rows, on errors whose law is known.

The same at full size, for every setting: ``python -m benchmarks.interval_coverage``.
"""

import pytest

from benchmarks.interval_coverage import LAUNCH_SD, Predictions, coverage, ratio_holds

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
