import numpy as np

from benchmarks.block_coverage import FEWEST_ROUNDS, MOST_ROUNDS, is_enough
from scalebench.analysis.rows.efficiency import CONFIDENCE_OF_LOOKS
from scalebench.analysis.timing.round_noise import RoundNoise
from scalebench.stats import Estimate
from tests.examples import cases

BASE, ROW = ("ddp", "plain", 1), ("ddp", "ddp", 2)


@cases("target", 0.7, 1.2, 2.0)
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
