"""Verdicts on rows that are judged together: levels, corrections and boundaries by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from scalebench.gate.change import Change, min_detectable
from scalebench.gate.family import Judgement, Pair, _finding, judge, paired
from scalebench.gate.measured import Measured, measured
from scalebench.stats import Variance

NOTHING = Measured(0.0, 1)


def pair(**changes):
    return replace(Pair("step_s", NOTHING, NOTHING, floor=0.5, floor_down=0.25), **changes)


def test_rounds_are_the_differences_within_them():
    base, new = measured([1.0, 2.0, 4.0], within=0.1), measured([2.0, 5.0, 6.0], within=0.2)
    half = Variance(0.5, 1.0)  # the differences 1, 3, 2 have variance 1 with 2 degrees of freedom
    assert paired(base, new) == (
        Measured(base.center, 3, half, 0.1),
        Measured(new.center, 3, half, 0.2),
    )
    two = paired(measured([1.0, 2.0]), measured([2.0, 5.0]))
    assert [side.variance for side in two] == [Variance(1.0, 0.5)] * 2


@pytest.mark.parametrize(("base", "new"), [([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0, 4.0])])
def test_what_is_no_rounds_is_left_as_it_is(base, new):
    sides = measured(base), measured(new)
    assert paired(*sides) == sides


@pytest.mark.parametrize(
    ("value", "half_width", "hosts", "finding", "turned"),
    [
        (0.49, 0.0, 0.0, "unchanged", "unchanged"),
        (-0.24, 0.0, 0.0, "unchanged", "unchanged"),
        (0.5, 0.0, 0.0, "probably regressed", "not worse"),
        (-0.25, 0.0, 0.0, "not worse", "probably regressed"),
        (0.51, 0.0, 0.0, "regressed", "improved"),
        (-0.26, 0.0, 0.0, "improved", "regressed"),
        (0.0, 0.0, 0.0, "unchanged", "unchanged"),
        (0.4, 0.13, 0.0, "probably regressed", "not worse"),
        (-0.2, 0.13, 0.0, "not worse", "probably regressed"),
        (0.4, 0.41, 0.0, "no change seen", "not worse"),
        (-0.2, 0.8, 0.0, "no change seen", "no change seen"),
        (0.75, 0.0, 0.75, "no change seen", "not worse"),
        (0.76, 0.0, 0.75, "probably regressed", "not worse"),
        (1.26, 0.0, 0.75, "regressed", "improved"),
    ],
)
def test_the_verdict_follows_from_the_interval(value, half_width, hosts, finding, turned):
    """Tolerances: 0.5 upwards, 0.25 downwards; ``turned``: where less is worse."""
    change = Change(value, error=half_width / 2.776445, dof=4.0)
    found, objection = _finding(pair(hosts=hosts), change, None)
    assert found == finding
    assert bool(objection) == (value == hosts > 0)
    assert not objection or objection.startswith(
        "a host that is 1.1e+02 % slower explains it; --int"
    )
    assert _finding(pair(worse=-1, hosts=hosts), change, None)[0] == turned


@pytest.mark.parametrize(("rank", "counts"), [(None, True), (0.05, True), (0.0501, False)])
def test_the_rank_test_has_to_agree_where_there_is_one(rank, counts):
    found, objection = _finding(pair(), Change(1.0, 0.0, 4.0), rank)
    assert found == ("regressed" if counts else "no change seen")
    assert ("rank test over all does not confirm it (p = 0.05)" in objection) == (not counts)
    better = _finding(pair(), Change(-1.0, 0.0, 4.0), rank)[0]
    assert better == ("improved" if counts else "not worse")


def test_without_an_interval_nothing_is_found():
    assert _finding(pair(), Change(1.0), None) == ("inconclusive", "")


def three(center, variance=0.01):
    """Three launches whose variance is known, without their values."""
    return Measured(center, 3, Variance(variance, 2.0))


def t_tail(t, dof):
    return float(stats.t.sf(t, dof))


def test_every_field_of_a_judgement():
    """Two rows that decide and one that does not; too few to lend noise to one another."""
    rising = pair(base=three(1.0), new=three(1.3))
    falling = pair(base=three(1.0), new=three(0.6), worse=-1, hosts=0.05)
    shown = pair(kind="shown", base=three(1.0), new=three(1.0), decides=False)
    found = judge([rising, falling, shown])
    error = math.sqrt(0.02 / 3)
    for one, value, confidence in zip(found, (0.3, -0.4, 0.0), (0.995, 0.995, 0.99), strict=True):
        assert one.change.value == pytest.approx(value)
        assert one.change.error == pytest.approx(error)
        assert one.change.dof == pytest.approx(4.0)
        assert one.change.confidence == pytest.approx(confidence)
        assert (one.rank_p_value, one.run_sd) == (None, None)
    p_values = [2 * t_tail(0.3 / error, 4), 2 * t_tail(0.35 / error, 4), t_tail(0.0, 4)]
    assert [one.p_value for one in found] == pytest.approx(p_values)
    assert [one.finding for one in found] == ["no change seen", "no change seen", "not worse"]
    expected = [min_detectable(found[i].change, *of) for i, of in enumerate([(0.5,), (0.25, 0.05)])]
    assert [one.min_detectable for one in found[:2]] == pytest.approx(expected)
    assert found[2].further_launches is None
    assert found[0].further_launches == fewest(0.3, 0.5, 0.995)
    assert found[1].further_launches == fewest(0.4, 0.25, 0.995)


def fewest(distance, floor, confidence):
    """The first number of further launches that decides: three a side, a variance of 0.01."""
    for more in range(1, 1001):
        error, dof = math.sqrt(0.02 / (3 + more)), 2 * (2 + more)
        half_width = error * stats.t.ppf((1 + confidence) / 2, dof)
        if distance + half_width < floor or distance - half_width > floor:
            return more
    return None


def test_an_analysis_with_half_the_error_budget_has_a_wider_interval():
    row = pair(base=three(1.0), new=three(1.3))
    (found,) = judge([row], error_budget=0.5)
    assert found.change.confidence == pytest.approx(0.995)
    assert found.min_detectable == pytest.approx(min_detectable(found.change, 0.5))
    assert found.further_launches == fewest(0.3, 0.5, 0.995)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_rank_test_looks_in_the_direction_of_the_change(sign):
    base = [0.0, 0.02, 0.04, 0.06, 0.08]
    row = pair(base=measured(base), new=measured([sign * 0.5 + value for value in base]))
    (found,) = judge([row])
    assert found.rank_p_value == pytest.approx(1 / 252)
    assert found.finding == ("probably regressed" if sign > 0 else "improved")


def test_several_accepted_runs_say_how_runs_differ_and_launches_do_not_help():
    """The runs' centres 1.0 and 1.2 have a variance of 0.02; launches add 0.01 / 3 to it."""
    runs = (three(1.0), three(1.2))
    base = Measured(1.1, 6, Variance(0.01, 4.0))
    (found,) = judge([pair(base=base, new=three(1.3), runs=runs)])
    assert found.run_sd == pytest.approx(math.sqrt(0.02 - 0.01 / 3))
    assert (found.change.dof, found.further_launches) == (1, None)
    assert found.change.error == pytest.approx(math.sqrt(0.02 * 1.5))


def test_a_launch_that_knows_itself_badly_widens_its_row_and_no_other():
    """Two rows lend nothing; ``within`` is the least variance of the row's launches."""
    loose = Measured(1.0, 3, Variance(0.01, 2.0), within=0.04)
    equal = Measured(1.0, 3, Variance(0.01, 2.0), within=0.01)
    found = judge([pair(base=loose, new=equal), pair(base=three(1.0), new=three(1.0))])
    assert found[0].change.error == pytest.approx(math.sqrt(0.04 / 3 + 0.01 / 3))
    assert found[1].change.error == pytest.approx(math.sqrt(0.02 / 3))


def test_only_rows_of_a_kind_that_rest_on_launches_of_their_own_lend_noise():
    """Three rows of a kind, equal in their noise: each has the degrees of freedom of all."""
    rows = [pair(base=three(1.0), new=three(1.0)) for _ in range(3)]
    other = pair(kind="efficiency", base=three(1.0), new=three(1.0))
    together = judge([*rows, other])
    assert [one.change.dof > 4.5 for one in together] == [True, True, True, False]
    apart = judge([*rows[:2], replace(rows[2], shared=True)])
    assert [one.change.dof for one in apart] == pytest.approx([4.0, 4.0, 4.0])


def test_one_launch_and_no_row_to_borrow_from_has_no_interval():
    (found,) = judge([pair(base=Measured(1.0, 1), new=Measured(1.4, 1))])
    assert found == Judgement("inconclusive", Change(found.change.value), None, None, None, None)
    assert found.change.value == pytest.approx(0.4)
    assert judge([]) == []
    lone = pair(base=three(1.0), new=Measured(1.4, 2))
    assert np.isfinite(judge([lone])[0].change.error)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_only_the_rows_that_decide_widen_one_another(number):
    shown = [pair(kind=f"shown {i}", base=three(1.0), new=three(1.3), decides=False)
             for i in range(5)]  # fmt: skip
    rows = [pair(kind=str(i), base=three(1.0), new=three(1.3)) for i in range(number)]
    found = judge([*shown, *rows])
    assert [one.change.confidence for one in found[:5]] == pytest.approx([0.99] * 5)
    assert [one.change.confidence for one in found[5:]] == pytest.approx(
        [1 - 0.01 / number] * number
    )


def test_runs_differ_beyond_the_launches_of_the_baseline():
    runs = (three(1.0), three(1.2))
    base = Measured(1.1, 6, Variance(0.03, 4.0))
    (found,) = judge([pair(base=base, new=three(1.3, variance=0.001), runs=runs)])
    assert found.run_sd == pytest.approx(math.sqrt(0.02 - 0.03 / 3))
