"""A race trains on what it says, at the rates it says, and evaluates on what is held out."""

import re
from itertools import cycle, pairwise

import pytest
import torch

from scalebench.errors import UsageError
from scalebench.spec.presets import PRESETS
from scalebench.spec.race import Race, Recipe
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.measure.loop import Loop
from scalebench.worker.measure.race import (
    RaceRun,
    held_out_of,
)
from scalebench.worker.optimizers import optimizer_of
from scalebench.worker.portable import step_clock
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import base
from scalebench.worker.workloads import build_workload
from tests.builders.runs import make_cell

CPU = torch.device("cpu")


class Training(base.Training):
    """One weight that is trained; writes down with which rate."""

    def __init__(self, recipe):
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = optimizer_of(recipe, self.module.parameters())
        self.rates = []
        self.loss = lambda module, batch: module(batch).square().mean()

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.module(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        return loss.detach()


def raced(recipe, race, batch=10):
    training = Training(recipe)
    cell = make_cell("plain", 1, recipe=recipe, race=race, global_batch=batch, rank_batch=batch)
    loop = Loop(
        training, cycle([torch.ones(batch, 1)]), RankContext(cell, 0, 0, CPU), step_clock("cpu")
    )
    held_out = [torch.full((2, 1), 2.0)] * 4
    workload = Workload(
        training.module, [], lambda module, x: module(x).square().mean(), evaluation=held_out
    )
    return RaceRun(loop, workload, race).run(), training, loop


def test_a_race_trains_on_its_samples_and_evaluates_between_blocks():
    recipe = Recipe(optimizer="sgd", learning_rate=0.01, momentum=0)
    points, training, loop = raced(recipe, Race(samples=200, evaluate_every=50))
    assert len(training.rates) == 20
    assert [point.samples for point in points] == [0, 50, 100, 150, 200]
    assert [(block.phase, block.count) for block in loop.seen.blocks] == [
        ("warmup", 5),
        *[("clean", 5)] * 3,
    ]
    losses = [point.loss for point in points]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(4 * training.module.weight.item() ** 2, rel=1e-6)
    assert all(a.trained_s < b.trained_s <= b.elapsed_s for a, b in pairwise(points))


def test_a_loss_that_is_not_finite_is_noted_as_such():
    recipe = Recipe(optimizer="sgd", learning_rate=1e30)
    points, _, _ = raced(recipe, Race(samples=400, evaluate_every=50))
    assert points[0].loss is not None and points[-1].loss is None


@pytest.mark.parametrize("evaluation", [None, [], [1, 2, 3]])
def test_samples_that_ranks_cannot_divide_are_refused(evaluation):
    workload = Workload(
        torch.nn.Identity(), [], lambda *_: torch.tensor(0.0), evaluation=evaluation
    )
    with pytest.raises(UsageError, match=r"Give Workload\(evaluation=...\)"):
        held_out_of(workload, 2, 2)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([8, 8, 8, 3], "batches of 3 and of 8 samples. Give each the same number"),
        ([0, 8], "batches of 0 and of 8 samples"),
        (["x", "y"], "is no batch: its tensors have no samples along dimension 0."),
    ],
)
def test_held_out_batches_of_different_sizes_are_refused(sizes, told):
    batches = [torch.zeros(size, 2) if isinstance(size, int) else size for size in sizes]
    workload = Workload(torch.nn.Identity(), [], lambda *_: torch.tensor(0.0), evaluation=batches)
    with pytest.raises(UsageError, match=re.escape(told)):
        held_out_of(workload, 2, 2)


@pytest.mark.parametrize("name", ["gpt-tiny", "cnn-8", "mlp-tiny"])
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
