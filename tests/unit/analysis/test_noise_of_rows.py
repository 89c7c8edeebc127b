"""The noise of rows in rounds, against a second way to work it out, and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.round_noise import (
    RoundNoise,
    _Layout,
    _moderated,
    _root,
    half_width_of_two,
    launch_variances,
)
from scalebench.gate.variance import typical_variance
from scalebench.stats import Variance, estimate_over_launches


def key(row, size=1):
    return ("suite", str(row), size)


def rows_of(*logs, sizes=None):
    """Rows by the logarithms of their rounds; None: not launched in that round."""
    sizes = sizes or [1] * len(logs)
    return {
        key(row, size): {number: log for number, log in enumerate(of_row) if log is not None}
        for row, (of_row, size) in enumerate(zip(logs, sizes, strict=True))
    }


UNEVEN = rows_of(
    [0.1, 0.3, 0.2, None],
    [1.0, None, 1.3, 1.1],
    [0.0, 0.1, None, 0.4],
    [2.0, 2.2, 2.1, 2.5],
    [3.0, 3.1, 3.5, None],
    sizes=[1, 1, 1, 2, 2],
)


def by_least_squares(rows, scale):
    """Squares that weighted least squares leave of each row, and its degrees of freedom."""
    launches = [(k, n, log) for k, rounds in rows.items() for n, log in rounds.items()]
    names = list(rows)
    columns = sorted({(k[2], n) for k, n, _ in launches})
    design = np.zeros((len(launches), len(names) + len(columns)))
    for line, (k, n, _) in enumerate(launches):
        design[line, names.index(k)] = 1
        design[line, len(names) + columns.index((k[2], n))] = 1
    owner = np.array([names.index(k) for k, _, _ in launches])
    weight = 1 / np.sqrt(np.array(scale)[owner])
    weighted = design * weight[:, None]
    hat = weighted @ np.linalg.pinv(weighted)
    logs = np.array([log for *_, log in launches]) * weight
    left = logs - hat @ logs
    return (
        [float((left[owner == i] ** 2).sum()) for i in range(len(names))],
        [float((1 - np.diag(hat))[owner == i].sum()) for i in range(len(names))],
    )


@given(st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
def test_what_the_fit_leaves_is_what_weighted_least_squares_leave(scale):
    squares, freedom = _Layout.of(UNEVEN).left_over(np.array(scale))
    expected, dof = by_least_squares(UNEVEN, scale)
    assert squares == pytest.approx(expected, abs=1e-9)
    assert freedom == pytest.approx(dof, abs=1e-9)


def test_a_launch_that_has_its_round_to_itself_tells_nothing():
    rows = rows_of([0.1, 0.7], [0.3, None], [None, None, 0.5])
    squares, freedom = _Layout.of(rows).left_over(np.ones(3))
    assert squares == pytest.approx([0, 0, 0], abs=1e-20)
    assert freedom.tolist() == [0, 0, 0]


def test_a_layout_by_hand():
    layout = _Layout.of(rows_of([0.1, 0.2], [0.3, None], [None, 0.5], sizes=[1, 2, 1]))
    assert layout.logs.tolist() == [0.1, 0.2, 0.3, 0.5]
    assert layout.owner.tolist() == [0, 0, 1, 2]
    assert layout.design.tolist() == [  # three rows; one rank in two rounds, two ranks in one
        [1, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [0, 1, 0, 0, 0, 1],
        [0, 0, 1, 0, 1, 0],
    ]


def effect(rows, within):
    return _Layout.of(rows).effect_of_launching(np.array(within))


EVEN = rows_of([0.0, 0.3], [0.0, 0.0], [0.0, 0.0])
"""Without row and round, the rows are left with 2·0.1² and twice 2·0.05²: 0.03 of two degrees."""


def test_the_effect_of_launching_is_all_that_differs_where_launches_know_themselves():
    assert effect(EVEN, [0.0, 0.0, 0.0]) == pytest.approx(0.015)


@pytest.mark.parametrize("within", [1e-4, 1e-3, 0.01])
def test_the_effect_is_what_differs_beyond_what_launches_cannot_know(within):
    assert effect(EVEN, [within] * 3) == pytest.approx(0.015 - within, rel=1e-4)


@pytest.mark.parametrize("within", [0.0151, 0.1])
def test_there_is_none_where_launches_know_less_than_they_differ_by(within):
    assert effect(EVEN, [within] * 3) == 0.0


def test_of_rows_that_know_themselves_differently_the_weighted_squares_are_what_they_should_be():
    within = np.array([0.001, 0.002, 0.004, 0.0005, 0.003])
    found = effect(UNEVEN, within)
    squares, freedom = by_least_squares(UNEVEN, within + found)
    assert found > 0
    assert sum(squares) == pytest.approx(sum(freedom), rel=1e-4)
    assert effect(UNEVEN, [0.0, *within[1:]]) > found


@pytest.mark.parametrize(("differ_by", "known"), [(1e-8, True), (1.22e-10, False), (0.0, False)])
def test_launches_that_differ_by_less_than_a_clock_tells_do_not_differ(differ_by, known):
    """The squares sum to 4/3 of the squared difference; the limit is 6e-20 for six launches."""
    rows = rows_of([0.0, 0.0], [0.0, 0.0], [differ_by, -differ_by])
    assert (effect(rows, [0.0] * 3) is not None) is known


def test_rows_of_which_none_shares_a_round_have_no_effect():
    rows = rows_of([0.1, 0.2], [0.3, 0.5], [0.2, 0.1], sizes=[1, 2, 4])
    assert effect(rows, [0.0] * 3) is None
    assert launch_variances(rows, dict.fromkeys(rows, 0.0)) == {}


def test_the_root_of_a_falling_function_or_the_lower_end():
    assert _root(lambda x: 2 - x, 0.5, 5.0) == pytest.approx(2)
    assert _root(lambda x: 3 - x, 0.5, 3.0) == pytest.approx(3)
    assert _root(lambda x: 1 - x, 0.5, 3.0) == pytest.approx(1)
    assert _root(lambda x: 0.25 - x, 0.5, 3.0) == 0.5


def test_variances_are_moderated_and_each_rows_own_scale_stays():
    """Five rows, three of them alike; the launches of the last two know less of themselves."""
    within = dict(zip(UNEVEN, (0.001, 0.001, 0.001, 0.01, 0.02), strict=True))
    found = launch_variances(UNEVEN, within)
    scale = np.array(list(within.values()))
    scale = scale + effect(UNEVEN, scale)
    squares, freedom = by_least_squares(UNEVEN, scale)
    own = [Variance(s / d, d) for s, d in zip(squares, freedom, strict=True)]
    typical = typical_variance(own)
    for name, one, of_row in zip(UNEVEN, own, scale, strict=True):
        moderate = typical.moderate(one)
        assert found[name].value == pytest.approx(moderate.value * of_row, rel=1e-5)
        assert found[name].dof == pytest.approx(moderate.dof, rel=1e-5)


def test_a_row_with_one_launch_is_left_out_and_three_with_two_are_needed():
    rows = rows_of([0.0, 0.3], [0.0, 0.0], [0.0, 0.0], [0.7, None])
    found = launch_variances(rows, dict.fromkeys(rows, 0.0))
    assert list(found) == [key(0), key(1), key(2)]
    few = rows_of([0.0, 0.3], [0.0, 0.0], [0.7, None])
    assert launch_variances(few, dict.fromkeys(few, 0.0)) == {}


def test_two_rows_have_their_variance_together_and_lend_it_to_those_without():
    own = [Variance(1.0, 2.0), None, Variance(4.0, 4.0)]
    assert _moderated(own) == [Variance(3.0, 6.0)] * 3


def test_three_rows_are_moderated_and_who_is_not_known_is_told_what_is_typical():
    own = [Variance(1.0, 2.0), None, Variance(4.0, 4.0), Variance(2.0, 3.0)]
    typical = typical_variance([one for one in own if one])
    assert _moderated(own) == [typical.moderate(one) for one in own]
    still = [Variance(0.0, 2.0)] * 3
    assert _moderated(still) == [None] * 3, "nothing is typical of rows that do not vary"


T_1, T_2 = 12.706205, 4.302653


def test_a_ratio_without_variances_is_students_t_of_the_rounds_that_both_have():
    rows = rows_of([1.0, 1.2, 1.7, None], [0.5, 0.9, 1.0, 0.1])
    suite = RoundNoise(rows, {})
    found = suite.ratio(key(1), key(0), factor=3.0)
    expected = estimate_over_launches([3 * math.exp(x) for x in (0.5, 0.3, 0.7)])
    assert (found.value, found.low, found.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )
    assert found.n == 3
    assert math.log(found.high / found.value) == pytest.approx(T_2 * 0.2 / math.sqrt(3))


def test_a_row_to_itself_is_one_whatever_is_known():
    rows = rows_of([1.0, 1.2], [0.5, 0.9])
    suite = RoundNoise(rows, {key(0): Variance(1.0, 9.0)})
    found = suite.ratio(key(0), key(0))
    assert (found.value, found.low, found.high, found.n) == (1.0, 1.0, 1.0, 2)


def test_one_round_gives_no_interval():
    suite = RoundNoise(rows_of([1.0, 1.2], [None, 0.9]), {})
    found = suite.ratio(key(1), key(0), factor=2.0)
    assert (found.value, found.low, found.high, found.n) == (
        pytest.approx(2 * math.exp(0.3)), None, None, 1,
    )  # fmt: skip


@pytest.mark.parametrize("known", [(9.0, None), (None, 9.0), (0.5, 9.0), (9.0, 0.5)])
def test_both_rows_have_to_be_known_better_than_the_rounds(known):
    rows = rows_of([1.0, 1.2], [0.5, 0.9])
    variances = {key(i): Variance(1e-6, dof) for i, dof in enumerate(known) if dof is not None}
    found = RoundNoise(rows, variances).ratio(key(1), key(0))
    assert found == RoundNoise(rows, {}).ratio(key(1), key(0))
    assert math.log(found.high / found.value) == pytest.approx(T_1 * 0.1)


def test_of_rows_at_one_size_the_sum_has_the_degrees_of_the_better_known_at_most():
    """Variances of 1e-4 and 3e-4; Satterthwaite of 4 and 30 degrees: 16/(1/4 + 9/30) = 29.1."""
    rows = rows_of([1.0, 1.0, 1.0], [0.0, 0.1, 0.2])
    for dofs, quantile in (((4.0, 30.0), 2.045), ((4.0, 4.0), 2.776445)):
        variances = {key(0): Variance(1e-4, dofs[0]), key(1): Variance(3e-4, dofs[1])}
        found = RoundNoise(rows, variances).ratio(key(1), key(0))
        half = math.log(found.high / found.value)
        assert half == pytest.approx(quantile * math.sqrt(4e-4 / 3), rel=1e-3)


def test_between_two_sizes_by_hand_with_a_row_that_was_not_there_in_one_of_the_rounds():
    rows = rows_of(
        [1.0, 1.1, 1.4],
        [2.0, 2.2, 2.2],
        [5.0, 5.0, None],
        [0.0, 0.5, 0.7],
        sizes=[1, 1, 1, 2],
    )
    variances = {
        key(0): Variance(1e-2, 5.0),
        key(1): Variance(3e-2, 7.0),
        key(2): Variance(1e-6, 9.0),
        key(3, 2): Variance(2e-2, 6.0),
    }
    found = RoundNoise(rows, variances).ratio(key(3, 2), key(1))
    means = [0.75 * a + 0.25 * b for a, b in ((1.0, 2.0), (1.1, 2.2), (1.4, 2.2))]
    between = Variance(float(np.var(np.array([0.0, 0.5, 0.7]) - means, ddof=1)), 2)
    around = Variance(3e-2 * 0.75, 7.0)  # the other row is alone at its size: it is the mean
    half = half_width_of_two(between, around) / math.sqrt(3)
    assert found.value == pytest.approx(math.exp((2.0 + 1.7 + 1.5) / 3))
    assert math.log(found.high / found.value) == pytest.approx(half)
    assert math.log(found.value / found.low) == pytest.approx(half)
