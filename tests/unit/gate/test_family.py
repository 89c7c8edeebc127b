"""Verdicts on rows that are judged together: levels, corrections and boundaries by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from scalebench.gate.change import Change, min_detectable
from scalebench.gate.family import Judgement, Pair, _corrected, _finding, judge, paired
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
    ("value", "finding"),
    [
        (0.49, "unchanged"),
        (-0.24, "unchanged"),
        (0.5, "inconclusive"),
        (-0.25, "inconclusive"),
        (0.51, "regressed"),
        (-0.26, "improved"),
        (0.0, "unchanged"),
    ],
)
def test_a_change_that_is_known_exactly_is_held_to_either_floor(value, finding):
    change = Change(value, error=0.0, dof=4.0)
    assert _finding(pair(), change, 0.0, None, 0.005) == (finding, "")
    turned = {"regressed": "improved", "improved": "regressed"}.get(finding, finding)
    assert _finding(pair(worse=-1), change, 0.0, None, 0.005) == (turned, "")


@pytest.mark.parametrize("value", [0.4, -0.2])
def test_an_interval_that_crosses_a_floor_is_open(value):
    """The half width is 0.13, with the floors 0.5 and 0.25."""
    change = Change(value, error=0.13 / 2.776445, dof=4.0)
    assert _finding(pair(), change, 0.0, None, 0.005) == ("inconclusive", "")


@pytest.mark.parametrize(("value", "sign"), [(0.75, 1), (-0.5, -1)])
def test_beyond_the_floor_by_what_a_host_explains_is_no_change(value, sign):
    """0.25 beyond the floors of 0.5 upwards and 0.25 downwards."""
    allowing = pair(hosts=0.25)
    finding, objection = _finding(allowing, Change(value, 0.0, 4.0), 0.0, None, 0.005)
    assert finding == "inconclusive"
    assert objection.startswith("a host that differs by 28 % explains it; --interleave")
    further = Change(value + sign * 0.01, 0.0, 4.0)
    assert _finding(allowing, further, 0.0, None, 0.005)[0] in ("regressed", "improved")


@pytest.mark.parametrize(
    ("p", "rank", "objection"),
    [
        (0.005, None, ""),
        (0.005, 0.05, ""),
        (0.0051, None, "chance alone can explain it (p = 0.0051)"),
        (0.005, 0.0501, "rank test over launches does not confirm it (p = 0.05)"),
    ],
)
def test_p_values_at_their_levels_still_count(p, rank, objection):
    found = _finding(pair(), Change(1.0, 0.0, 4.0), p, rank, 0.005)
    assert found[0] == ("inconclusive" if objection else "regressed")
    assert objection in found[1] and bool(found[1]) == bool(objection)


def test_without_an_interval_or_a_p_value_nothing_is_found():
    assert _finding(pair(), Change(1.0), 0.0, None, 0.005) == ("inconclusive", "")
    assert _finding(pair(), Change(1.0, 0.0, 4.0), None, None, 0.005) == ("inconclusive", "")


def tail(t):
    return float(stats.t.sf(t, 10))


def test_p_values_are_corrected_within_a_direction_and_what_decides():
    """Two rows are worse, one better, one has no error, two others do not decide."""
    up, down, better = pair(), pair(worse=-1), pair()
    shown = pair(decides=False)
    pairs = [up, down, better, pair(), shown, shown]
    changes = [
        Change(3.0, 1.0, 10.0),
        Change(-2.0, 1.0, 10.0),
        Change(-1.0, 1.0, 10.0),
        Change(5.0),
        Change(2.5, 1.0, 10.0),
        Change(-1.5, 1.0, 10.0),
    ]
    expected = [3 * tail(3), 2 * tail(2), 3 * tail(1), None, 2 * tail(2.5), 2 * tail(1.5)]
    assert _corrected(pairs, changes) == [None if p is None else pytest.approx(p) for p in expected]


def test_what_a_host_may_change_is_taken_from_the_excess():
    allowing = [pair(hosts=0.75), pair(hosts=0.75, worse=-1)]
    changes = [Change(3.0, 1.0, 10.0), Change(3.0, 1.0, 10.0)]
    up, down = 2 * tail(2.25), 2 * tail(2.25)
    assert _corrected(allowing, changes) == [pytest.approx(up), pytest.approx(down)]


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
    for one, value in zip(found, (0.3, -0.4, 0.0), strict=True):
        assert one.change.value == pytest.approx(value)
        assert one.change.error == pytest.approx(error)
        assert (one.change.dof, one.change.confidence) == (pytest.approx(4.0), 0.95)
        assert (one.rank_p_value, one.run_sd) == (None, None)
    p_up, p_down = t_tail(0.3 / error, 4), t_tail(0.35 / error, 4)
    assert found[1].p_value == pytest.approx(2 * p_down)
    assert found[0].p_value == pytest.approx(max(2 * p_down, p_up))
    assert [one.finding for one in found] == ["inconclusive", "inconclusive", "unchanged"]
    change = found[0].change
    assert found[0].min_detectable == pytest.approx(min_detectable(change, 0.5, 0.0025))
    assert found[1].min_detectable == pytest.approx(min_detectable(change, 0.25, 0.0025) + 0.05)
    assert found[2].min_detectable == pytest.approx(min_detectable(change, 0.5, 0.005))
    assert found[2].further_launches is None
    assert found[0].further_launches == fewest(0.3, 0.5, 0.0025)
    assert found[1].further_launches == fewest(0.4, 0.25, 0.0025)


def fewest(distance, floor, level, confidence=0.95):
    """The first number of further launches that decides: three a side, a variance of 0.01."""
    for more in range(1, 1001):
        error, dof = math.sqrt(0.02 / (3 + more)), 2 * (2 + more)
        half_width = error * stats.t.ppf((1 + confidence) / 2, dof)
        if distance + half_width < floor:
            return more
        if distance - half_width > floor and t_tail(distance / error, dof) <= level:
            return more
    return None


def test_an_analysis_with_half_the_error_budget_has_half_the_level_and_a_wider_interval():
    row = pair(base=three(1.0), new=three(1.3))
    (found,) = judge([row], error_budget=0.5)
    assert found.change.confidence == pytest.approx(0.975)
    assert found.min_detectable == pytest.approx(min_detectable(found.change, 0.5, 0.0025))
    assert found.further_launches == fewest(0.3, 0.5, 0.0025, 0.975)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_rank_test_looks_in_the_direction_of_the_change(sign):
    base = [0.0, 0.02, 0.04, 0.06, 0.08]
    row = pair(base=measured(base), new=measured([sign * 0.5 + value for value in base]))
    (found,) = judge([row])
    assert found.rank_p_value == pytest.approx(1 / 252)
    assert found.finding == ("inconclusive" if sign > 0 else "improved")


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
def test_without_a_floor_what_is_detectable_rests_on_the_level_of_one_row_of_all(number):
    """Each kind has its own noise; the p-value decides, not the interval."""
    rows = [
        pair(kind=str(i), base=three(1.0), new=three(1.3), floor=0.0, floor_down=0.0)
        for i in range(number)
    ]
    for one in judge(rows):
        expected = min_detectable(one.change, 0.0, 0.005 / number)
        assert one.min_detectable == pytest.approx(expected)
    assert judge(rows)[0].min_detectable == pytest.approx(
        judge(rows, error_budget=1.0)[0].min_detectable
    )


def test_runs_differ_beyond_the_launches_of_the_baseline():
    runs = (three(1.0), three(1.2))
    base = Measured(1.1, 6, Variance(0.03, 4.0))
    (found,) = judge([pair(base=base, new=three(1.3, variance=0.001), runs=runs)])
    assert found.run_sd == pytest.approx(math.sqrt(0.02 - 0.03 / 3))
