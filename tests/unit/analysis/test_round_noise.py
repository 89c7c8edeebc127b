"""Intervals of ratios that rest on all rows of a suite: what they know, and that they hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import Kind, simulate
from scalebench.analysis.timing.round_noise import RoundNoise, launch_variances

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


def drawn(seed, num_rows=7, num_launches=3, spread=0.01):
    return np.random.default_rng(seed).normal(0, spread, (num_rows, num_launches)).tolist()


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


SIZES = (1, 1, 1, 2, 2, 4)


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
