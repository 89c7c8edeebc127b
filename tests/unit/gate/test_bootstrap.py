"""Blocks of steps that are drawn again, one by one."""

import numpy as np
import pytest

from scalebench.gate.bootstrap import _picks, median_variance, resampled_log_medians


@pytest.mark.parametrize(
    ("num_steps", "length"), [(1, 1), (2, 1), (3, 2), (7, 3), (10, 3), (12, 3), (13, 4)]
)
def test_picks_are_circular_blocks_of_the_root_of_the_steps(num_steps, length):
    """The last block is cut off where all steps are drawn; every step can begin a block."""
    picks = _picks(num_steps, 200)
    assert picks.shape == (200, num_steps)
    for start in range(0, num_steps, length):
        block = picks[:, start : start + length]
        assert np.array_equal(block, (block[:, :1] + np.arange(block.shape[1])) % num_steps)
        assert set(block[:, 0]) == set(range(num_steps))
    if length < num_steps:
        followed = (picks[:, length - 1] + 1) % num_steps == picks[:, length]
        assert not followed.all(), "the next block begins anywhere"


def test_a_verdict_can_be_had_again():
    """The seed is a part of it."""
    starts = np.random.default_rng((20040212, 5, 4)).integers(0, 5, (4, 3, 1))
    expected = ((starts + np.arange(2)) % 5).reshape(4, 6)[:, :5]
    assert np.array_equal(_picks(5, 4), expected)


def test_the_medians_of_what_is_drawn():
    steps = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    expected = [np.log(np.median([steps[i] for i in row])) for row in _picks(7, 100)]
    assert resampled_log_medians(steps) == pytest.approx(np.array(expected))
    assert resampled_log_medians(steps, 30).shape == (30,)
    mean = sum(expected) / 100
    squares = sum((value - mean) ** 2 for value in expected)
    assert median_variance(steps) == pytest.approx(squares / 99)
    assert median_variance([3.0] * 9) == pytest.approx(0.0, abs=1e-30)
