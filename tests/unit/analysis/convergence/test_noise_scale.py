"""The noise scale of gradients whose mean and covariance are known."""

import numpy as np
import pytest

from scalebench.analysis.convergence.noise_scale import (
    gradient_variance,
    noise_scale,
    squared_gradient,
)
from scalebench.records.race import GradientNorms


def norms_of(gradients, batch_size):
    """What a rank would write of batches with these gradients, shape [batches, parameters]."""
    return GradientNorms(
        num_batches=len(gradients),
        batch_size=batch_size,
        mean_square=float((gradients**2).sum(1).mean()),
        square_of_mean=float((gradients.mean(0) ** 2).sum()),
    )


def drawn(generator, true, deviations, batches, batch_size):
    """Mean gradients of batches whose samples scatter by ``deviations`` in each direction."""
    noise = generator.normal(size=(batches, len(true))) * deviations / np.sqrt(batch_size)
    return true + noise


@pytest.mark.parametrize(("batches", "batch_size"), [(2, 1), (4, 8), (16, 8)])
def test_both_parts_are_unbiased(batches, batch_size):
    generator = np.random.default_rng(0)
    true, deviations = np.array([1.0, -0.5, 0.25]), np.array([2.0, 1.0, 3.0])
    found = [
        norms_of(drawn(generator, true, deviations, batches, batch_size), batch_size)
        for _ in range(4000)
    ]
    gradients = np.array([squared_gradient(norms) for norms in found])
    variances = np.array([gradient_variance(norms) for norms in found])
    for values, known in ((gradients, (true**2).sum()), (variances, (deviations**2).sum())):
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - known) < 4 * error
    pooled = noise_scale(found)
    assert pooled == pytest.approx((deviations**2).sum() / (true**2).sum(), rel=0.2)


def test_gradients_that_cancel_have_no_noise_scale():
    assert noise_scale([norms_of(np.array([[1.0, 0.0], [-1.0, 0.0]]), 4)]) is None
    assert noise_scale([]) is None
