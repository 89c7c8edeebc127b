"""Rings of any length: who is next to whom, and how fast the models come together."""

import numpy as np
import pytest

from scalebench.worker.strategies.asynchronous.gossip import contraction, neighbours


@pytest.mark.parametrize("num_ranks", range(1, 12))
def test_models_come_together_by_the_second_eigenvalue_of_the_ring(num_ranks):
    weights = np.zeros((num_ranks, num_ranks))
    for rank in range(num_ranks):
        mixed = [rank, *neighbours(rank, num_ranks)]
        weights[rank, mixed] = 1 / len(mixed)
    assert weights.sum(0) == pytest.approx(np.ones(num_ranks)), "the mean is kept"
    values = sorted(abs(np.linalg.eigvalsh(weights)))
    assert values[-1] == pytest.approx(1)
    second = values[-2] if num_ranks > 1 else 0.0
    assert contraction(num_ranks) == pytest.approx(second, abs=1e-12)


def test_a_long_ring_is_slow():
    assert contraction(4) == pytest.approx(1 / 3)
    assert contraction(64) > 0.99
