"""What a row says of a metric, number by number."""

import math

import numpy as np
import pytest

from scalebench.gate.bootstrap import median_variance
from scalebench.gate.measured import Measured, measured
from scalebench.gate.metrics import METRICS
from scalebench.gate.observation import (
    Observation,
    collective_counts,
    from_estimate,
    have_peaks,
    number,
    observe,
)
from scalebench.records.summary import Estimate, StepSamples
from scalebench.stats import Variance
from tests.builders.gated import collectives
from tests.builders.summaries import make_pipeline, make_plain, make_row

NAMED = {metric.name: metric for metric in METRICS}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), (-2.5, -2.5), (0, 0.0), (0.99e300, 0.99e300), (-0.99e300, -0.99e300),
        (1e300, None), (-1e300, None), (10**301, None), (math.inf, None), (math.nan, None),
        (True, None), (False, None), ("3", None), (None, None), ([3], None),
    ],
)  # fmt: skip
def test_numbers(value, expected):
    assert number(value) == expected
    assert type(number(value)) in (float, type(None))


def launch(repeat, step_s, peak=None, pace_s=()):
    return StepSamples(repeat=repeat, step_s=step_s, pace_s=list(pace_s), peak_memory_bytes=peak)


def with_samples(*samples, row=None, **changes):
    return (row or make_row()).model_copy(update={"samples": list(samples), **changes})


def test_peaks_of_launches_count_where_every_launch_that_was_timed_has_one():
    two = with_samples(launch(0, [1.0], 5), launch(1, [1.0], 7))
    assert have_peaks(two) and have_peaks(two, two)
    untimed = with_samples(launch(0, [1.0], 5), launch(1, [1.0], 7), launch(2, [], None))
    assert have_peaks(untimed)
    for without in (
        with_samples(launch(0, [1.0], 5)),
        with_samples(launch(0, [1.0], 5), launch(1, [], 7)),
        with_samples(launch(0, [1.0], 5), launch(1, [1.0], None)),
        with_samples(launch(0, [1.0], 5), launch(1, [1.0], 0)),
        with_samples(),
    ):
        assert not have_peaks(without) and not have_peaks(two, without)


def test_the_peak_of_launches_is_their_geometric_mean():
    row = with_samples(
        launch(0, [1.0], 2), launch(1, [1.0], 32), launch(2, [], 1000), launch(3, [1.0]),
        peak_memory_bytes=99,
    )  # fmt: skip
    found = observe(row, NAMED["peak_memory_bytes"], [row], by_launch=True)
    assert found.value == pytest.approx(8.0)
    assert found.launches == measured(np.log([2, 32]))
    assert observe(row, NAMED["peak_memory_bytes"], [row]) == Observation(99.0)


def test_what_a_row_does_not_have_is_not_observed():
    row = make_row(wire_bytes=None)
    assert observe(row, NAMED["wire_bytes"], [row]) is None
    assert observe(row, NAMED["predicted_bubble_ratio"], [row]) is None
    assert observe(row, NAMED["time_to_target_s"], [row]) is None
    plain = make_plain()
    assert observe(plain, NAMED["efficiency"], [plain]) is None
    assert observe(plain, NAMED["step_s"], [plain]) is not None
    staged = row.model_copy(update={"pipeline": make_pipeline(bubble_equal_stages=0.25)})
    assert observe(staged, NAMED["predicted_bubble_ratio"], [staged]) == Observation(0.25)
    last = make_row(loss_last=5.5)
    assert observe(last, NAMED["loss_last"], [last]) == Observation(5.5)


PACES = ([1.0, 2.0, 4.0, 8.0, 3.0], [2.0, 5.0, 3.0])
STEPS = ([2.0, 3.0, 5.0, 9.0, 4.0], [3.0, 6.0, 4.0])
"""Medians 3 and 3, and 4 and 4 of the slowest rank."""


def paced(factor=1.0, **changes):
    samples = [
        launch(
            repeat, [factor * s for s in steps], pace_s=[factor * (1 + repeat) * p for p in paces]
        )
        for repeat, (steps, paces) in enumerate(zip(STEPS, PACES, strict=True))
    ]
    return with_samples(*samples, step_s=Estimate(value=4.25, low=3.0, high=6.0, n=2), **changes)


def test_a_step_is_the_median_of_the_paces_of_each_launch():
    row = paced()
    within = (median_variance(PACES[0]) + median_variance(PACES[1])) / 2
    expected = measured([math.log(3.0), math.log(6.0)], pytest.approx(within))
    for series in (None, "pace_s"):
        found = observe(row, NAMED["step_s"], [row], series)
        assert (found.value, found.launches) == (4.25, expected)


def test_beside_a_run_that_has_no_pace_a_step_is_that_of_the_slowest_rank():
    row = paced()
    found = observe(row, NAMED["step_s"], [row], "step_s")
    within = (median_variance(STEPS[0]) + median_variance(STEPS[1])) / 2
    assert found.value == pytest.approx(4.0)
    assert found.launches == measured([math.log(4.0)] * 2, pytest.approx(within))


def test_without_launches_a_step_is_what_its_interval_says():
    row = with_samples(step_s=Estimate(value=2.0, low=1.0, high=4.0, n=5))
    for series in (None, "step_s"):
        found = observe(row, NAMED["step_s"], [row], series)
        assert found.value == 2.0
        assert found.launches.center == pytest.approx(math.log(2.0))
        assert found.launches.values == () and found.launches.num_launches == 5


def test_an_efficiency_rests_on_the_rounds_of_two_rows():
    """The plain model's launches are slower by 8 and by 8: eight over two ranks and the ratio."""
    plain = paced(8.0, row=make_plain())
    row = paced(efficiency=Estimate(value=3.5, low=3.0, high=4.0, n=2))
    row = row.model_copy(update={"baseline": (plain.suite, plain.case, plain.world_size)})
    found = observe(row, NAMED["efficiency"], [plain, row])
    work = row.global_batch / plain.global_batch / row.world_size
    assert found.value == 3.5
    within = median_variance(PACES[0]) + median_variance(PACES[1])  # half of each, of two rows
    assert found.launches == Measured(
        center=pytest.approx(math.log(8 * work)),
        num_launches=2,
        variance=Variance(pytest.approx(0.0, abs=1e-12), 1),
        within=pytest.approx(within),
        values=(pytest.approx(math.log(8 * work)),) * 2,
    )
    alone = observe(row, NAMED["efficiency"], [row])
    assert alone.value == 3.5 and alone.launches.values == ()
    assert alone.launches.center == pytest.approx(math.log(3.5))


def test_counts_of_a_kind_are_added_up_and_repeated_ones_left_out():
    single = collectives(9.0).model_copy(update={"ordinal": 3})
    row = make_row().model_copy(
        update={
            "communication": [
                collectives(2.0), collectives(1.5, "broadcast"), single, collectives(0.5),
            ]
        }
    )  # fmt: skip
    assert collective_counts(row) == {"all_reduce": 2.5, "broadcast": 1.5}
    assert collective_counts(row.model_copy(update={"communication": None})) == {}


@pytest.mark.parametrize(("n", "t"), [(2, 12.706205), (5, 2.776445)])
def test_an_interval_gives_back_the_variance_it_was_made_of(n, t):
    signed = from_estimate(Estimate(value=5.0, low=-1.0, high=9.0, n=n), logarithmic=False)
    expected = Variance(pytest.approx((5 / t) ** 2 * n, rel=1e-6), n - 1)
    assert signed == Measured(5.0, n, expected)
    ratio = from_estimate(Estimate(value=3.0, low=1.0, high=math.e**2, n=n), logarithmic=True)
    expected = Variance(pytest.approx((1 / t) ** 2 * n, rel=1e-6), n - 1)
    assert ratio == Measured(pytest.approx(math.log(3.0)), n, expected)


@pytest.mark.parametrize(
    ("told", "signed"),
    [
        (Estimate(value=0.0, n=3), Measured(0.0, 3)),
        (Estimate(value=2.0, low=0.0, high=3.0, n=1), Measured(2.0, 1)),
        (Estimate(value=2.0, low=-1.0, n=3), Measured(2.0, 3)),
        (Estimate(value=-2.0, high=1.0, n=3), Measured(-2.0, 3)),
    ],
)
def test_half_an_interval_and_what_is_not_positive(told, signed):
    assert from_estimate(told, logarithmic=False) == signed
    assert from_estimate(told, logarithmic=True) is None


def test_an_interval_without_an_end_or_of_one_launch_says_nothing_of_noise():
    for told in (
        Estimate(value=2.0, high=3.0, n=3),
        Estimate(value=2.0, low=1.0, n=3),
        Estimate(value=2.0, n=3),
    ):
        assert from_estimate(told, logarithmic=True) == Measured(math.log(2.0), 3)
    one = Estimate(value=2.0, low=1.0, high=3.0, n=1)
    assert from_estimate(one, logarithmic=True) == Measured(math.log(2.0), 1)
