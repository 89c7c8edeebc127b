"""The gradient norms of a step: noted before the mean is taken, and the noise that they tell."""

import pytest
import torch

from scalebench.analysis.convergence.noise_scale import (
    gradient_variance,
    noise_scale,
    squared_gradient,
)
from scalebench.records.race import GradientNorms
from scalebench.spec.workload import Workload
from scalebench.worker.measure.race import gradient_norms, local_square


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


DEVIATIONS = torch.tensor([2.0, 1.0, 3.0])
"""Of the samples x of a quadratic, whose loss |w − x|²/2 has the gradient w − x."""


def quadratic(module, samples):
    return (module.weight - samples).square().sum(1).mean() / 2


def drawn(count, generator):
    return torch.randn(count, 3, generator=generator) * DEVIATIONS


def norms_of_a_step(module, batches):
    """What the ranks of a step note, each with one of the batches; and the mean gradient."""
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


def test_steps_and_held_out_samples_tell_the_same_noise_of_a_training():
    """SGD on the quadratic; both are taken at the same moments, whose true noise is known."""
    generator = torch.Generator().manual_seed(0)
    ratios = {"steps": [], "held out": []}
    variance = float(DEVIATIONS.square().sum())
    for _ in range(60):
        module = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(module.weight, 8.0)
        held_out = list(drawn(128, generator).split(8))
        workload = Workload(module, [], quadratic, evaluation=held_out)
        of_steps, of_held_out, true = [], [], []
        for _ in range(12):
            norms, gradient = norms_of_a_step(module, drawn(8, generator).split(4))
            of_steps.append(norms)
            of_held_out.append(gradient_norms(module, workload, held_out))
            true.append(float(module.weight.detach().square().sum()))
            module.weight.data -= 0.05 * gradient
        known = variance / (sum(true) / len(true))
        ratios["steps"].append(noise_scale(of_steps) / known)
        ratios["held out"].append(noise_scale(of_held_out) / known)
    for found in ratios.values():
        sampled = torch.tensor(found, dtype=torch.float64)
        error = float(sampled.std()) / len(found) ** 0.5
        assert float(sampled.mean()) == pytest.approx(1, abs=4 * error)
        assert error < 0.06
