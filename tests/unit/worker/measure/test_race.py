import re

import pytest
import torch

from scalebench.analysis.race import gradient_variance, squared_gradient
from scalebench.errors import UsageError
from scalebench.records.measured.rank import GradientNorms
from scalebench.spec.presets import PRESETS
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.measure.race import held_out_of, local_square
from scalebench.worker.workloads import build_workload
from tests.examples import cases

OTHER, GIVE = torch.zeros(3, 2), "Give Workload(evaluation=...)"


@cases(
    "evaluation, told",
    *((of, GIVE) for of in (None, [], [1, 2, 3])),  # samples that ranks cannot divide
    ([torch.zeros(8, 2), OTHER], "batches of 3 and of 8 samples. Give each the same number"),
    ([torch.zeros(0, 2), torch.zeros(8, 2)], "batches of 0 and of 8 samples"),
    (["x", "y"], "is no batch: its tensors have no samples along dimension 0."),
)
def test_held_out_batches_that_ranks_cannot_divide_are_refused(evaluation, told):
    given = {"evaluation": evaluation}
    workload = Workload(torch.nn.Identity(), [], lambda *_: torch.tensor(0.0), **given)
    with pytest.raises(UsageError, match=re.escape(told)):
        held_out_of(workload, 2, 2)


@cases("name", "gpt-tiny", "cnn-8", "mlp-tiny")
def test_what_is_held_out_is_the_same_on_all_ranks_and_never_trained_on(name):
    shards = [Shard(rank, 2, 64, 3, torch.device("cpu")) for rank in (0, 1)]
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


def norms_of_a_step(module, batches):
    squares, total = [], torch.zeros_like(module.weight)
    for samples in batches:
        module.weight.grad = None
        with local_square(module.parameters()) as found:
            ((module.weight - samples).square().sum(1).mean() / 2).backward()
        squares.append(found.value)
        total += module.weight.grad / len(batches)
    sizes = {"num_batches": len(batches), "batch_size": len(batches[0])}
    mean, square = sum(squares) / len(batches), float(total.square().sum())
    return GradientNorms(**sizes, mean_square=mean, square_of_mean=square)


@cases("ranks, rank_batch", (2, 1), (4, 4))
def test_a_quadratic_gives_its_gradient_and_its_covariance(ranks, rank_batch):
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.Linear(3, 1, bias=False)
    weight = torch.tensor([1.0, -0.5, 0.25])
    module.weight.data.copy_(weight)
    steps = [torch.randn(ranks, rank_batch, 3, generator=generator) for _ in range(300)]
    norms = [norms_of_a_step(module, step * DEVIATIONS) for step in steps]
    for of, known in ((squared_gradient, weight), (gradient_variance, DEVIATIONS)):
        sampled = torch.tensor([of(one) for one in norms], dtype=torch.float64)
        error = float(sampled.std()) / len(norms) ** 0.5
        assert abs(float(sampled.mean()) - float(known.square().sum())) < 4 * error
