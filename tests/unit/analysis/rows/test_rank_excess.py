"""A rank that takes longer than the others: named with its size, and seldom by chance."""

import numpy as np
import pytest

from scalebench.analysis.rows.rank_excess import excesses
from tests.examples import cases

STEPS, STEP_S = 64, 0.1


def launches(own, others=0.0006, num_ranks=2, num_launches=3, steps=STEPS, noise=0.5, seed=0):
    """Seconds by rank and step: rank 1 has ``own``, a number or one for each step."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(num_launches):
        seconds = np.full((num_ranks, steps), others)
        seconds[1] = np.resize(own, steps)
        found.append(seconds * random.lognormal(0, noise, (num_ranks, steps)))
    return found


BURSTS = (0.140, 0.0, 0.0, 0.0)
"""Four workers deliver four batches at once."""


@cases(
    "seconds, longer_s",
    pytest.param(launches(0.035, noise=1.0), 0.035, id="fifty times as long"),
    pytest.param(launches(BURSTS, num_launches=1), 0.035, id="in bursts"),
    pytest.param(launches(0.035, num_ranks=8), 0.035, id="one of eight"),
    pytest.param(launches(0.035, steps=12, num_launches=1), 0.035, id="few steps"),
)
def test_one_rank_is_named_with_its_size(seconds, longer_s):
    (found,) = excesses("data_stall", seconds, STEP_S)
    assert (found.rank, found.part) == (1, "data_stall")
    of_rank = np.mean([one[1].mean() for one in seconds])
    assert found.own_s == pytest.approx(of_rank) and found.own_s > 0.6 * longer_s
    assert found.others_s < 0.002
    assert 0.9 * found.num_blocks <= found.num_longer <= found.num_blocks


TURNED = [*launches(0.02, 0.005), *(one[::-1] for one in launches(0.02, 0.005, num_launches=1))]


@cases(
    "seconds",
    pytest.param(launches(0.02, 0.02, noise=1.0), id="noise alone"),
    pytest.param(TURNED, id="another rank in one launch"),
    pytest.param(launches(0.035, steps=6, num_launches=1), id="too few steps"),
    pytest.param(launches(0.0008, 0.0001), id="less than a hundredth of a step"),
    pytest.param(launches(0.026, 0.02, noise=0.01), id="hardly longer"),
    pytest.param([], id="nothing recorded"),
)
def test_nobody_is_named(seconds):
    assert excesses("data_stall", seconds, STEP_S) == []


def test_equal_ranks_are_named_as_seldom_as_the_test_says():
    named = sum(
        bool(excesses("compute", launches(0.02, 0.02, num_ranks=4, noise=1.5, seed=seed), 1e-3))
        for seed in range(200)
    )
    assert named <= 2
