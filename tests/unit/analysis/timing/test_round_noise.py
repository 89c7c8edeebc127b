import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import Kind, simulate
from scalebench.analysis.rows.round_noise import RoundNoise
from tests.examples import cases

pytestmark = pytest.mark.slow


def noise(rows, sizes):
    """Of rows of launches in order, at these numbers of ranks."""
    keys = [("suite", str(row), size) for row, size in enumerate(sizes)]
    logs = {one: dict(enumerate(row)) for one, row in zip(keys, rows, strict=True)}
    return keys, RoundNoise.of(logs, dict.fromkeys(keys, 0.0))


SIZES = (1, 1, 1, 2, 2, 4)


@given(st.integers(0, 1000), st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_what_a_round_does_to_all_rows_cancels_in_every_ratio(seed, drift):
    rows = np.random.default_rng(seed).normal(0, 0.01, (6, 3)).tolist()
    moved = [[log + d for log, d in zip(row, drift, strict=True)] for row in rows]
    (keys, still), (_, drifting) = noise(rows, SIZES), noise(moved, SIZES)
    for row in range(1, 6):
        before, after = still.ratio(keys[row], keys[0]), drifting.ratio(keys[row], keys[0])
        assert (after.value, after.low, after.high) == pytest.approx(
            (before.value, before.low, before.high), rel=1e-6
        )


@cases("num_launches, effect, narrower", (2, 0.01, 0.5), (3, 0.03, 0.8))
def test_intervals_hold_and_are_narrower(num_launches, effect, narrower):
    found = simulate(Kind("heavy-tailed", num_launches, [effect] * 7), runs=200)
    assert 0.93 < found.holds < 0.99
    assert found.worst > 0.90
    assert found.width < narrower


@cases("sizes", (1, 1, 1, 1, 2, 2, 2), (1, 1, 2))
def test_intervals_hold_where_a_round_slows_two_ranks_alone(sizes):
    kind = Kind("white", 3, [0.01] * len(sizes), sizes, {2: 0.03})
    found = simulate(kind, runs=200)
    assert 0.93 < found.apart < 0.98
