"""Intervals of ratios that rest on all rows of a suite: what they know, and that they hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import simulate
from scalebench.analysis.round_noise import launch_variances, ratio_over_rounds
from scalebench.analysis.summarise import summarise
from scalebench.stats import Variance, estimate_over_launches
from tests.builders.runs import make_cell, make_result, make_run


def key(row):
    return ("suite", str(row), 1)


def variances(rows, within=0.0):
    return launch_variances(
        {key(row): dict(enumerate(logs)) for row, logs in enumerate(rows)},
        {key(row): within for row in range(len(rows))},
    )


def drawn(seed, num_rows=7, num_launches=3, spread=0.01):
    return np.random.default_rng(seed).normal(0, spread, (num_rows, num_launches)).tolist()


@given(st.integers(0, 1000), st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_what_a_round_does_to_all_rows_is_no_noise(seed, drift):
    rows = drawn(seed)
    moved = [[log + d for log, d in zip(row, drift, strict=True)] for row in rows]
    still, drifting = variances(rows), variances(moved)
    assert still.keys() == drifting.keys() == {key(row) for row in range(7)}
    for row, one in still.items():
        assert one.value == pytest.approx(drifting[row].value, rel=1e-6)
        assert one.dof == pytest.approx(drifting[row].dof)


def test_equal_rows_lend_each_other_their_degrees_of_freedom():
    found = variances(drawn(3)).values()
    assert all(one.dof > 2 for one in found)
    typical = np.mean([one.value for one in found]) ** 0.5
    assert typical == pytest.approx(0.01, rel=0.35)


def test_a_row_whose_steps_scatter_more_is_not_taken_for_the_others():
    spreads = [0.002] * 4 + [0.02] * 3
    logs = np.random.default_rng(1).standard_normal((7, 5)) * np.array(spreads)[:, None]
    rows = {key(row): dict(enumerate(one)) for row, one in enumerate(logs.tolist())}
    found = launch_variances(rows, {key(row): s**2 for row, s in enumerate(spreads)})
    for row, spread in enumerate(spreads):
        assert found[key(row)].value ** 0.5 == pytest.approx(spread, rel=0.6)


def test_a_launch_that_is_missing_is_no_problem():
    rows = [dict(enumerate(row)) for row in drawn(5)]
    del rows[2][1], rows[4][0], rows[6][0], rows[6][1]  # the last has one launch left
    found = launch_variances(
        {key(row): one for row, one in enumerate(rows)}, {key(row): 0.0 for row in range(7)}
    )
    assert found.keys() == {key(row) for row in range(6)}
    shared = ratio_over_rounds(rows[2], rows[4], (found[key(2)], found[key(4)]))
    assert shared.n == 1 and shared.low is None
    assert ratio_over_rounds(rows[6], {0: 1.0}, None) is None


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[0.1, 0.2, 0.3]],
        [[0.1, 0.2, 0.3], [0.2, 0.1, 0.3]],
        [[0.1], [0.2], [0.3], [0.4]],
        [[0.5, 0.5, 0.5]] * 4,
    ],
)
def test_nothing_is_lent_where_nothing_is_typical(rows):
    assert variances(rows) == {}


def test_without_the_others_the_rounds_own_ratios_have_to_do():
    own, base = {0: math.log(0.5), 1: math.log(0.6)}, {0: math.log(1.0), 1: math.log(1.1)}
    expected = estimate_over_launches([1.0 / 0.5 * 1.5, 1.1 / 0.6 * 1.5])
    found = ratio_over_rounds(own, base, None, factor=1.5)
    assert (found.value, found.low, found.high, found.n) == pytest.approx(
        (expected.value, expected.low, expected.high, 2)
    )


def test_the_width_by_hand():
    own, base = {0: 0.0, 1: 0.2}, {0: 1.0, 1: 1.0}
    found = ratio_over_rounds(own, base, (Variance(3e-4, 10.0), Variance(1e-4, 10.0)))
    # t of 10 degrees of freedom (Satterthwaite would say 16, of the same rows) times √(4e-4 / 2).
    width = 2.228139 * math.sqrt(2e-4)
    assert math.log(found.high / found.low) == pytest.approx(2 * width, rel=1e-5)
    assert found.value == pytest.approx(math.exp(0.9)) and found.n == 2


def test_a_summary_s_efficiencies_rest_on_all_rows_and_the_baseline_is_exactly_one():
    generator = np.random.default_rng(2)
    cells = [make_cell(case, n) for case, n in (("plain", 1), ("ddp", 1), ("ddp", 2), ("ddp", 4))]
    results = [
        make_result(
            cell.model_copy(update={"repeat": repeat}), 0.4 * math.exp(generator.normal(0, 0.01))
        )
        for repeat in range(3)
        for cell in cells
    ]
    rows = {(row.case, row.world_size): row for row in summarise(make_run(results)).rows}
    plain = rows["plain", 1].efficiency
    assert (plain.value, plain.low, plain.high) == pytest.approx((1, 1, 1))
    for place in (("ddp", 1), ("ddp", 2), ("ddp", 4)):
        steps = [
            result.ranks[0].step_s[-1]
            for result in results
            if (result.cell.case, result.cell.world_size) == place
        ]
        base = [r.ranks[0].step_s[-1] for r in results if r.cell.case == "plain"]
        alone = estimate_over_launches([b / s / place[1] for s, b in zip(steps, base, strict=True)])
        found = rows[place].efficiency
        assert found.value == pytest.approx(alone.value)
        assert found.low != pytest.approx(alone.low, rel=1e-6)
        assert found.low < found.value < found.high


@pytest.mark.parametrize(("num_launches", "effect", "narrower"), [(2, 0.01, 0.5), (3, 0.03, 0.8)])
def test_intervals_hold_and_are_narrower(num_launches, effect, narrower):
    found = simulate("heavy-tailed", num_launches, [effect] * 7, runs=300)
    assert 0.93 < found.holds < 0.99
    assert found.worst > 0.90
    assert found.width < narrower
