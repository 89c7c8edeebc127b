"""When no further round is added, and that intervals that were looked at hold all the same."""

import numpy as np
import pytest

from benchmarks.block_coverage import FEWEST_ROUNDS, MOST_ROUNDS, is_enough
from scalebench.analysis.round_noise import RoundNoise
from scalebench.analysis.rows.efficiency import CONFIDENCE_OF_LOOKS
from scalebench.stats import Estimate

NARROW, WIDE = Estimate(value=0.9, low=0.88, high=0.92, n=3), Estimate(value=0.9, n=3)
BASE, ROW = ("ddp", "plain", 1), ("ddp", "ddp", 2)


def test_the_confidence_of_looks_widens_an_interval():
    noise = RoundNoise({BASE: {0: 0.0, 1: 0.1, 2: 0.0}, ROW: {0: 0.0, 1: 0.0, 2: 0.0}}, {})
    usual, wide = noise.ratio(ROW, BASE), noise.ratio(ROW, BASE, confidence=CONFIDENCE_OF_LOOKS)
    # Student's t of two degrees of freedom: 4.302653 and 5.642778.
    ratio = np.log(wide.high / wide.low) / np.log(usual.high / usual.low)
    assert ratio == pytest.approx(5.642778 / 4.302653, rel=1e-5)
    assert wide.value == usual.value


@pytest.mark.parametrize("target", [0.7, 1.2, 2.0])
def test_an_interval_that_was_looked_at_after_every_round_holds(target):
    """One row and its baseline: the hardest case, the variance is known from the rounds alone."""
    generator = np.random.default_rng(11)
    held = []
    for drawn in generator.standard_normal((1500, MOST_ROUNDS)):
        for num in range(FEWEST_ROUNDS, MOST_ROUNDS + 1):
            rows = {
                BASE: dict(enumerate(drawn[:num].tolist())),
                ROW: dict.fromkeys(range(num), 0.0),
            }
            found = RoundNoise(rows, {}).ratio(ROW, BASE, confidence=CONFIDENCE_OF_LOOKS)
            logs = np.log([found.low, found.high])
            of_log = Estimate(value=0, low=logs[0], high=logs[1], n=num)
            if is_enough(num, [of_log], target):
                held.append(logs[0] <= 0 <= logs[1])
                break
    assert len(held) == 1500
    assert 0.935 < np.mean(held) < 0.98
