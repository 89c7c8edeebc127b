"""A race trains on what it says, at the rates it says, and evaluates on what is held out."""

import re

import pytest
import torch

from scalebench.analysis.convergence.projected import gradient_variance, squared_gradient
from scalebench.errors import UsageError
from scalebench.records.measured.rank import GradientNorms
from scalebench.spec.presets import PRESETS
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.measure.race import held_out_of, local_square
from scalebench.worker.workloads import build_workload
from tests.examples import cases

CPU = torch.device("cpu")


@cases("evaluation", None, [], [1, 2, 3])
def test_samples_that_ranks_cannot_divide_are_refused(evaluation):
    workload = Workload(
        torch.nn.Identity(), [], lambda *_: torch.tensor(0.0), evaluation=evaluation
    )
    with pytest.raises(UsageError, match=r"Give Workload\(evaluation=...\)"):
        held_out_of(workload, 2, 2)


@cases(
    "sizes, told",
    ([8, 8, 8, 3], "batches of 3 and of 8 samples. Give each the same number"),
    ([0, 8], "batches of 0 and of 8 samples"),
    (["x", "y"], "is no batch: its tensors have no samples along dimension 0."),
)
def test_held_out_batches_of_different_sizes_are_refused(sizes, told):
    batches = [torch.zeros(size, 2) if isinstance(size, int) else size for size in sizes]
    workload = Workload(torch.nn.Identity(), [], lambda *_: torch.tensor(0.0), evaluation=batches)
    with pytest.raises(UsageError, match=re.escape(told)):
        held_out_of(workload, 2, 2)


@cases("name", "gpt-tiny", "cnn-8", "mlp-tiny")
def test_what_is_held_out_is_the_same_on_all_ranks_and_never_trained_on(name):
    shards = [Shard(rank, 2, 64, 3, CPU) for rank in (0, 1)]
    workloads = [build_workload(PRESETS[name], shard) for shard in shards]
    first, again, other = ([*workloads[i].evaluation] for i in (0, 0, 1))
    assert len(first) == 16 and {len(x) for x, _ in first} == {8}
    for one, two, three in zip(first, again, other, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))
        assert all(torch.equal(*pair) for pair in zip(one, three, strict=True))
    held_out = {x.numpy().tobytes() for batch, _ in first for x in batch}
    assert len(held_out) == 128
    batches = iter(workloads[0].batches)
    trained = {x.numpy().tobytes() for _ in range(32) for x in next(batches)[0]}
    assert not held_out & trained
    with torch.no_grad():
        losses = [workloads[0].loss(workloads[0].module, batch).item() for batch in first]
    assert all(loss > 0 for loss in losses)


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


@cases("ranks, rank_batch", (2, 1), (4, 4))
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
