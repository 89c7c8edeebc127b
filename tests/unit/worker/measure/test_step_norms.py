"""The gradient norms of a step: noted before the mean is taken, and the noise that they tell."""

import pytest
import torch

from scalebench.analysis.convergence.noise_scale import gradient_variance, squared_gradient
from scalebench.records.race import GradientNorms
from scalebench.worker.measure.step_norms import local_square


def test_what_is_noted_is_the_gradient_of_all_microbatches_before_it_is_averaged():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    model[0].bias.requires_grad_(False)
    with local_square(model.parameters()) as found:
        for batch in torch.randn(2, 5, 3):
            model(batch).square().mean().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        for parameter in model.parameters():
            parameter.grad = None if parameter.grad is None else parameter.grad / 7
    assert found.value == pytest.approx(float(sum(g.square().sum() for g in gradients)))
    before = found.value
    model(torch.ones(1, 3)).sum().backward()
    assert found.value == before, "the hooks are gone"


@pytest.mark.parametrize(("ranks", "rank_batch"), [(2, 1), (4, 4)])
def test_a_quadratic_gives_its_gradient_and_its_covariance(ranks, rank_batch):
    """The loss |w − x|²/2 of samples x has the gradient w − x: mean w, covariance that of x."""
    generator = torch.Generator().manual_seed(0)
    deviations = torch.tensor([2.0, 1.0, 3.0])
    weight = torch.tensor([1.0, -0.5, 0.25])
    gradients, variances = [], []
    for _ in range(300):
        squares, total = [], torch.zeros(3)
        for _ in range(ranks):
            own = torch.nn.Parameter(weight.clone())
            samples = torch.randn(rank_batch, 3, generator=generator) * deviations
            with local_square([own]) as found:
                ((own - samples).square().sum(1) / 2).mean().backward()
            squares.append(found.value)
            total += own.grad
        norms = GradientNorms(
            num_batches=ranks,
            batch_size=rank_batch,
            mean_square=sum(squares) / ranks,
            square_of_mean=float((total / ranks).square().sum()),
        )
        gradients.append(squared_gradient(norms))
        variances.append(gradient_variance(norms))
    known = (float(weight.square().sum()), float(deviations.square().sum()))
    for values, true in zip((gradients, variances), known, strict=True):
        sampled = torch.tensor(values, dtype=torch.float64)
        error = float(sampled.std()) / len(values) ** 0.5
        assert abs(float(sampled.mean()) - true) < 4 * error
