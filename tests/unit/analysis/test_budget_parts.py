"""The parts of a loss budget, one function after the other, by hand."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.budget import (
    _held_by_others,
    _mean,
    _part,
    _steady,
    closed_budget,
    drift,
    drift_of_round,
    loss_budget,
    losses,
    losses_by_axis,
    waits_most,
)
from scalebench.analysis.step_parts import StepParts
from scalebench.records.rows.budget import COPIES, WAIT
from scalebench.stats import Estimate
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result
from tests.unit.analysis.test_budget import pair, plain
from tests.unit.analysis.test_exposed_axes import DATA, TENSOR
from tests.unit.analysis.test_exposed_axes import pair as mesh_pair
from tests.unit.analysis.test_exposed_axes import plain as mesh_plain


def parts(*seconds):
    names = ("compute_s", "exposed_transfer_s", "wait_s", "codec_s", "data_stall_s",
             "other_idle_s", "bubble_s", "copies_s")  # fmt: skip
    return StepParts(**dict(zip(names, seconds, strict=True)))


def test_what_a_part_adds_is_what_it_is_beyond_the_ranks_share_of_the_baselines():
    """A rank has a quarter of the batch."""
    found = losses(parts(60, 7, 11, 3, 5, 13, 17, 19), parts(200, 1, 1, 1, 8, 16, 1, 40), 0.25)
    assert found == {
        "compute_inflation_s": 10,
        "exposed_transfer_s": 7,
        "wait_s": 11,
        "bubble_s": 17,
        "codec_s": 3,
        "copies_s": 9,
        "data_stall_s": 3,
        "other_idle_s": 9,
    }


FIELDS = {
    "compute_inflation_s": 10.0,
    "exposed_transfer_s": 7.0,
    "wait_s": 11.0,
    "bubble_s": 5.0,
    "codec_s": 3.0,
    "copies_s": 2.0,
    "data_stall_s": -1.0,
    "other_idle_s": 4.0,
}
"""Seconds; together 41."""


def closed(ideal_s=58.0, measured_s=100.0, left_out=(), **changes):
    known = {name: Estimate(value=s, n=2) for name, s in FIELDS.items() if name not in left_out}
    return closed_budget(ideal_s, measured_s, 3, known, **changes)


def test_the_residual_closes_the_sum_and_points_are_parts_of_the_step():
    found = closed(ideal_s=109.0, measured_s=200.0, not_apart="why", drift=0.125)
    assert {name: getattr(found, name) for name in FIELDS} == FIELDS
    assert (found.ideal_s, found.measured_s, found.residual_s) == (109.0, 200.0, 50.0)
    points = {name.removesuffix("_s"): s / 200 for name, s in FIELDS.items()}
    assert found.points == pytest.approx({**points, "residual": 0.25})
    assert (found.rank, found.not_apart, found.drift) == (3, "why", 0.125)
    assert found.closes is False
    assert found.estimates == {name: Estimate(value=s, n=2) for name, s in FIELDS.items()}


def test_a_part_that_is_not_known_is_null_and_has_no_points():
    found = closed(left_out=("wait_s", "copies_s"))
    assert (found.wait_s, found.copies_s) == (None, None)
    assert found.residual_s == 100 - 58 - 28
    assert {"wait", "copies"}.isdisjoint(found.points) and len(found.points) == 7
    assert (found.drift, found.not_apart) == (0.0, None), "unless told"


@pytest.mark.parametrize(
    ("ideal_s", "drift_of", "closes"),
    [
        (59.0, 0.0, True),
        (57.0, 0.0, True),  # a residual of 2 %
        (56.9, 0.0, False),
        (61.0, 0.0, True),
        (61.1, 0.0, False),
        (59.0, 0.25, True),
        (59.0, 0.26, False),
        (59.0, -0.25, True),
        (59.0, -0.26, False),
        (50.0, 0.5, False),
    ],
)
def test_a_budget_closes_with_two_percent_left_and_a_drift_of_a_quarter(ideal_s, drift_of, closes):
    assert closed(ideal_s, drift=drift_of).closes is closes


def test_a_part_has_the_mean_of_the_headlines_and_the_width_of_the_rounds():
    """Rounds of 1 and 5: the standard error of their mean is 2, t of one degree 12.706205."""
    found = _part([10.0, 14.0], [1.0, 5.0])
    assert (found.value, found.n) == (12.0, 2)
    assert (found.low, found.high) == pytest.approx((12 - 25.41241, 12 + 25.41241))
    assert _part([10.0], [3.0]) == Estimate(value=10.0, n=1)


def test_a_part_without_a_number_is_in_the_part_that_holds_it():
    found = _held_by_others(FIELDS, [WAIT, COPIES])
    expected = {**FIELDS, "exposed_transfer_s": 18.0, "other_idle_s": 6.0}
    assert found == {n: s for n, s in expected.items() if n not in ("wait_s", "copies_s")}
    assert _held_by_others(FIELDS, []) == FIELDS


def test_the_mean_of_ranks_is_that_of_each_part():
    found = _mean([parts(1, 2, 3, 4, 5, 6, 7, 8), parts(3, 6, 9, 12, 15, 18, 21, 24)])
    assert found == parts(2, 4, 6, 8, 10, 12, 14, 16)


def drifting(paired, clean=80.0):
    return LaunchAttribution(pair(clean, paired=paired))


def test_the_drift_of_a_round_is_the_larger_of_its_two_launches():
    assert drift(drifting(100)) == pytest.approx(0.25)
    assert drift_of_round((drifting(84), drifting(72))) == pytest.approx(-0.1)
    assert drift_of_round((drifting(90), drifting(76))) == pytest.approx(0.125)


def rounds_of(*paired):
    return [(drifting(ms), drifting(80)) for ms in paired]


@pytest.mark.parametrize(
    ("paired", "kept"),
    [
        ((80, 90, 120), (0, 1)),  # two of three
        ((80, 120, 90, 130), (0, 1, 2, 3)),  # two of four are not most
        ((80, 120, 90, 130, 82), (0, 2, 4)),
        ((80, 120, 130), (0, 1, 2)),
        ((120,), (0,)),
        ((80, 100, 101), (0, 1)),  # a quarter is not too much
        ((80, 61, 59), (0, 1)),
    ],
)
def test_rounds_are_left_out_where_most_others_were_traced_in_peace(paired, kept):
    rounds = rounds_of(*paired)
    assert list(_steady(rounds)) == [rounds[i] for i in kept]


def test_the_drift_of_a_budget_is_the_largest_of_the_rounds_that_it_rests_on():
    base = LaunchAttribution(plain())
    rounds = [(drifting(ms), base) for ms in (84, 68, 90, 120)]
    found = loss_budget(rounds, 0, (0.080, 0.100), 0.5)
    assert found.drift == pytest.approx(-0.15)
    assert found.rounds_left_out == 1
    assert found.estimates["wait_s"].n == 3


def with_compute(*milliseconds):
    """Ranks that compute for different times of a step of 80 ms, then reduce from 70 to 75."""
    records = [
        make_traced_record(
            rank, make_trace([make_operation(70, 75)], [(0, own)], steps=[(0, 80)]), 80
        )
        for rank, own in enumerate(milliseconds)
    ]
    return LaunchAttribution(make_traced_result(*records))


def test_ranks_with_different_work_have_the_baselines_together():
    """Of the baseline's 90 ms a third is 30: the ranks compute 20, 30 and 55, on average 35."""
    rounds = [(with_compute(20, 30, 55), LaunchAttribution(plain()))]
    together = loss_budget(rounds, 1, (0.080, 0.100), 1 / 3, over=(0, 1, 2))
    assert together.compute_inflation_s == pytest.approx(0.005)
    assert (together.rank, together.by_axis) == (1, None)
    alone = loss_budget(rounds, 2, (0.080, 0.100), 1 / 3)
    assert alone.compute_inflation_s == pytest.approx(0.025)
    assert alone.ideal_s == pytest.approx(0.1 / 3)
    assert alone.residual_s == pytest.approx(0.0, abs=1e-9)


def test_parts_are_proportions_of_the_headlines_step():
    """Of the launch's 80 ms 20 are waiting; the headline has 160."""
    rounds = [(LaunchAttribution(pair()), LaunchAttribution(plain()))]
    found = loss_budget(rounds, 0, (0.160, 0.100), 0.5)
    assert (found.wait_s, found.exposed_transfer_s) == pytest.approx((0.040, 0.010))
    assert found.compute_inflation_s == pytest.approx(0.090 - 0.045)
    assert (found.measured_s, found.ideal_s) == (0.160, 0.050)


def waiting(*milliseconds):
    """Ranks that come to a reduction so long before the last one does, at 60 ms."""
    records = [
        make_traced_record(
            rank, make_trace([make_operation(60 - early, 75, group_size=3)], steps=[(0, 80)]), 80
        )
        for rank, early in enumerate(milliseconds)
    ]
    return LaunchAttribution(make_traced_result(*records))


def test_who_waits_most_is_told_by_the_mean_over_all_launches():
    assert waits_most([waiting(5, 0, 20)]) == 2
    assert waits_most([waiting(5, 0, 20), waiting(30, 0, 10)]) == 0
    assert waits_most([waiting(0, 10, 10)]) == 1, "of equals the lowest"


def mesh_budget(*launches, apart=True):
    """Rounds of a mesh; the headline's step is 160 ms where a launch's is 80."""
    rounds = [(LaunchAttribution(one), LaunchAttribution(mesh_plain())) for one in launches]
    told = None if apart else "why"
    return rounds, loss_budget(rounds, 0, (0.160, 0.100), 0.5, told)


def test_an_axis_has_its_proportion_of_the_headlines_step_and_the_width_of_the_launches():
    """Along tensor 16 of 80 ms, and 8 in a second round; along data 4, and nothing there."""
    second = mesh_pair(("tensor", "all_reduce", (48, 50), 56))
    _, budget = mesh_budget(mesh_pair(TENSOR, DATA), second)
    tensor, data = budget.by_axis
    assert (tensor.axis, data.axis) == ("tensor", "data")
    assert tensor.exposed_transfer_s == pytest.approx(0.012)
    assert tensor.wait_s == pytest.approx((0.020 + 0.004) / 2)
    assert (data.exposed_transfer_s, data.wait_s) == pytest.approx((0.004, 0.0))
    assert tensor.exposed_s.value == pytest.approx(0.024)
    assert data.exposed_s.value == pytest.approx(0.004)
    # Standard errors over the launches: of 16 and 8 it is 4 ms, of 4 and 0 it is 2.
    assert tensor.exposed_s.half_width == pytest.approx(0.004 * 12.706205)
    assert data.exposed_s.half_width == pytest.approx(0.002 * 12.706205)
    assert tensor.efficiency_without == pytest.approx(0.050 / (0.160 - 0.024))
    assert data.efficiency_without == pytest.approx(0.050 / (0.160 - 0.004))


def test_where_transfer_and_wait_are_not_told_apart_an_axis_has_both_as_transfer():
    rounds, budget = mesh_budget(mesh_pair(TENSOR, DATA), apart=False)
    tensor, data = losses_by_axis(rounds, 0, budget, apart=False)
    assert (tensor.exposed_transfer_s, tensor.wait_s) == (pytest.approx(0.032), None)
    assert (data.exposed_transfer_s, data.wait_s) == (pytest.approx(0.008), None)
    assert tensor.exposed_s.value == pytest.approx(0.032)


def test_an_axis_along_which_nothing_is_exposed_costs_nothing():
    _, budget = mesh_budget(mesh_pair(TENSOR, DATA, compute=(0, 70)))
    for axis in budget.by_axis:
        assert (axis.exposed_transfer_s, axis.wait_s, axis.exposed_s.value) == (0, 0, 0)
        assert axis.efficiency_without == pytest.approx(50 / 160)


def test_a_step_that_does_nothing_but_communicate_has_no_efficiency_without():
    _, budget = mesh_budget(mesh_pair(("tensor", "all_reduce", (0, 0), 80), compute=(0, 0)))
    (tensor,) = budget.by_axis
    assert tensor.exposed_s.value == pytest.approx(0.160)
    assert tensor.efficiency_without is None
