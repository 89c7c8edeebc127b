"""Two ranks in one process train with every method that feeds its error back."""

import pytest
import torch

from scalebench.spec import Compressed
from scalebench.spec.presets import MlpShape
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.compression.emulation import Emulation
from scalebench.worker.workloads.batches import endless, to_device
from tests.builders.runs import make_cell

CPU = torch.device("cpu")
MODEL = MlpShape(name="mlp-test", layers=2, width=48, features=40, batch_size=32)
NUM_STEPS = 60
PATIENCE = 3
"""Compressed training may take so many times as many steps as the exact one."""

FED_BACK = {
    "fp16": {"error_feedback": True},
    "bf16": {"error_feedback": True},
    "quantise": {"bits": 4, "error_feedback": True},
    "sign": {},
    "top-k": {"ratio": 0.05},
    "random-k": {"ratio": 0.2},
    "random-projection": {},
    "threshold": {"threshold": 0.01},
    "dgc": {"ratio": 0.05},
    "powersgd": {},
    "count-sketch": {"ratio": 0.05},
}


def contexts(strategy):
    cell = make_cell("c", 2, strategy=strategy, workload=MODEL, global_batch=32, rank_batch=16)
    return [RankContext(cell, rank, rank, CPU) for rank in range(2)]


def train(strategy, num_steps, target=None):
    """The loss after some steps, mean of the last five; stops at the target, if there is one."""
    ranks = contexts(strategy)
    feeds = [endless(fresh_workload(context).batches, CPU, 16) for context in ranks]
    emulation = Emulation(fresh_workload(ranks[0]), ranks[0])
    layout = (tuple(range(len(emulation.parameters))),)
    losses = []
    for _ in range(num_steps):
        losses.append(emulation.step([to_device(next(feed), CPU) for feed in feeds], layout))
        recent = sum(losses[-5:]) / len(losses[-5:])
        if target is not None and len(losses) >= 5 and recent <= target:
            break
    return recent


@pytest.fixture(scope="module")
def target():
    start = train(Compressed(method="none"), 5)
    exact = train(Compressed(method="none"), NUM_STEPS)
    assert exact < 0.9 * start, "the target has to be something that training reaches"
    return exact


@pytest.mark.parametrize("method", FED_BACK)
def test_error_feedback_reaches_the_loss_of_the_exact_gradient(method, target):
    reached = train(Compressed(method=method, **FED_BACK[method]), PATIENCE * NUM_STEPS, target)
    assert reached <= target
