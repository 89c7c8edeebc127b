"""Intervals of ratios that rest on all rows of a suite: what they know, and that they hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import Kind, simulate
from scalebench.analysis.round_noise import RoundNoise, launch_variances
from scalebench.analysis.summarise import summarise
from scalebench.stats import estimate_over_launches
from tests.builders.runs import make_cell, make_result, make_run

pytestmark = pytest.mark.slow


def key(row, size=1):
    return ("suite", str(row), size)


def noise(rows, sizes, within=0.0):
    """Of rows of launches in order, at these numbers of ranks."""
    keys = [key(row, size) for row, size in enumerate(sizes)]
    logs = {one: dict(enumerate(row)) for one, row in zip(keys, rows, strict=True)}
    return keys, RoundNoise.of(logs, dict.fromkeys(keys, within))


def width(estimate):
    return math.log(estimate.high / estimate.low)


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


def test_a_launch_that_is_missing_is_no_problem():
    rows = [dict(enumerate(row)) for row in drawn(5)]
    del rows[2][1], rows[4][0], rows[6][0], rows[6][1]  # the last has one launch left
    found = launch_variances(
        {key(row): one for row, one in enumerate(rows)}, {key(row): 0.0 for row in range(7)}
    )
    assert found.keys() == {key(row) for row in range(6)}
    suite = RoundNoise({key(row): one for row, one in enumerate(rows)} | {key(9): {0: 1.0}}, found)
    shared = suite.ratio(key(2), key(4))
    assert shared.n == 1 and shared.low is None
    assert suite.ratio(key(6), key(9)) is None


def test_without_the_others_the_rounds_own_ratios_have_to_do():
    own, base = {0: math.log(0.5), 1: math.log(0.6)}, {0: math.log(1.0), 1: math.log(1.1)}
    expected = estimate_over_launches([1.0 / 0.5 * 1.5, 1.1 / 0.6 * 1.5])
    found = RoundNoise({key(0): base, key(1): own}, {}).ratio(key(1), key(0), factor=1.5)
    assert (found.value, found.low, found.high, found.n) == pytest.approx(
        (expected.value, expected.low, expected.high, 2)
    )


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
        if place[1] > 1:  # of ddp at N=1, the ratio to the plain model is all that is known
            assert found.low != pytest.approx(alone.low, rel=1e-6)
        assert found.low < found.value < found.high


SIZES = (1, 1, 1, 2, 2, 4)


@given(st.integers(0, 1000), st.lists(st.floats(-1, 1), min_size=9, max_size=9))
def test_what_a_round_does_to_one_number_of_ranks_is_no_noise_of_launches(seed, effects):
    rows = drawn(seed, num_rows=6)
    of_size = dict(zip((1, 2, 4), np.reshape(effects, (3, 3)), strict=True))
    moved = [
        (np.array(row) + of_size[size]).tolist() for row, size in zip(rows, SIZES, strict=True)
    ]
    (keys, still), (_, slowed) = noise(rows, SIZES), noise(moved, SIZES)
    for one in keys:
        assert still.variances[one].value == pytest.approx(slowed.variances[one].value, rel=1e-5)
        assert still.variances[one].dof == pytest.approx(slowed.variances[one].dof)
    for row, base in ((1, 0), (2, 0), (4, 3)):  # at the same number of ranks: it cancels
        before, after = (suite.ratio(keys[row], keys[base]) for suite in (still, slowed))
        assert width(after) == pytest.approx(width(before), rel=1e-5)


@given(st.integers(0, 1000), st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_what_a_round_does_to_all_rows_cancels_in_every_ratio(seed, drift):
    rows = drawn(seed, num_rows=6)
    moved = [[log + d for log, d in zip(row, drift, strict=True)] for row in rows]
    (keys, still), (_, drifting) = noise(rows, SIZES), noise(moved, SIZES)
    for row in range(1, 6):
        before, after = still.ratio(keys[row], keys[0]), drifting.ratio(keys[row], keys[0])
        assert (after.value, after.low, after.high) == pytest.approx(
            (before.value, before.low, before.high), rel=1e-6
        )


@given(st.integers(0, 1000))
def test_a_round_that_slows_one_number_of_ranks_widens_its_ratios_to_those_of_the_rounds(seed):
    """With nothing else left, the rounds' own ratios are all that is known."""
    rows = drawn(seed, num_rows=6)
    slow = np.array([0.0, 3.0, -1.0])
    moved = [
        (np.array(row) + slow * (size == 2)).tolist() for row, size in zip(rows, SIZES, strict=True)
    ]
    keys, slowed = noise(moved, SIZES)
    alone = RoundNoise(slowed.rows, {})
    for row in (3, 4):
        found, own = slowed.ratio(keys[row], keys[0]), alone.ratio(keys[row], keys[0])
        assert width(found) == pytest.approx(width(own), rel=0.05)
    found, own = slowed.ratio(keys[5], keys[0]), alone.ratio(keys[5], keys[0])
    assert width(found) < 1


@pytest.mark.parametrize("row", [1, 4, 5])
def test_more_confidence_is_a_wider_interval(row):
    keys, suite = noise(drawn(2, num_rows=6), SIZES)
    widths = [width(suite.ratio(keys[row], keys[0], confidence=c)) for c in (0.5, 0.9, 0.95, 0.97)]
    assert widths == sorted(set(widths))
    assert widths[2] == width(suite.ratio(keys[row], keys[0]))


@pytest.mark.parametrize(("num_launches", "effect", "narrower"), [(2, 0.01, 0.5), (3, 0.03, 0.8)])
def test_intervals_hold_and_are_narrower(num_launches, effect, narrower):
    found = simulate(Kind("heavy-tailed", num_launches, [effect] * 7), runs=200)
    assert 0.93 < found.holds < 0.99
    assert found.worst > 0.90
    assert found.width < narrower


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 2, 2, 2), (1, 1, 2)])
def test_intervals_hold_where_a_round_slows_two_ranks_alone(sizes):
    kind = Kind("white", 3, [0.01] * len(sizes), sizes, {2: 0.03})
    found = simulate(kind, runs=200)
    assert 0.93 < found.apart < 0.98
