"""The gradient norms of a step: noted before the mean is taken, and the noise that they tell."""

import pytest
import torch

from scalebench.analysis.convergence.projected import gradient_variance, squared_gradient
from scalebench.records.measured.rank import GradientNorms
from scalebench.worker.measure.race import local_square

DEVIATIONS = torch.tensor([2.0, 1.0, 3.0])
"""Of the samples x of a quadratic, whose loss |w − x|²/2 has the gradient w − x."""


def quadratic(module, samples):
    return (module.weight - samples).square().sum(1).mean() / 2


def drawn(count, generator):
    return torch.randn(count, 3, generator=generator) * DEVIATIONS


def norms_of_a_step(module, batches):
    squares, total = [], torch.zeros_like(module.weight)
    for samples in batches:
        module.weight.grad = None
        with local_square(module.parameters()) as found:
            quadratic(module, samples).backward()
        squares.append(found.value)
        total += module.weight.grad / len(batches)
    norms = GradientNorms(
        num_batches=len(batches),
        batch_size=len(batches[0]),
        mean_square=sum(squares) / len(batches),
        square_of_mean=float(total.square().sum()),
    )
    return norms, total


@pytest.mark.parametrize(("ranks", "rank_batch"), [(2, 1), (4, 4)])
def test_a_quadratic_gives_its_gradient_and_its_covariance(ranks, rank_batch):
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.Linear(3, 1, bias=False)
    weight = torch.tensor([1.0, -0.5, 0.25])
    torch.nn.init.constant_(module.weight, 0)
    module.weight.data += weight
    gradients, variances = [], []
    for _ in range(300):
        batches = [drawn(rank_batch, generator) for _ in range(ranks)]
        norms, _ = norms_of_a_step(module, batches)
        gradients.append(squared_gradient(norms))
        variances.append(gradient_variance(norms))
    known = (float(weight.square().sum()), float(DEVIATIONS.square().sum()))
    for values, true in zip((gradients, variances), known, strict=True):
        sampled = torch.tensor(values, dtype=torch.float64)
        error = float(sampled.std()) / len(values) ** 0.5
        assert abs(float(sampled.mean()) - true) < 4 * error
