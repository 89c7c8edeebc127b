"""What memory is made of: sizes worked out by hand, on an allocator told and on the real one."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalebench.worker.inspection.allocations import CATEGORIES
from scalebench.worker.inspection.memory import watch_memory

CPU = torch.device("cpu")
WIDTH, BATCH = 256, 64
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
PARAMETER_BYTES = 3 * LAYER_BYTES
"""Three linear layers with bias, float32."""
SMALL = 2_000
"""Bytes of scalars (losses, step counters, indices), generously; a layer has 263,168."""


def by_category(memory):
    return {name: getattr(memory, f"{name}_bytes") for name in CATEGORIES}


def perceptron():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "foreach adam": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
}


@pytest.fixture(scope="module")
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def watched(optimizer, wrap=None, batch=BATCH):
    x = torch.randn(batch, WIDTH)
    with watch_memory(CPU) as watch:
        rest = "activations" if wrap is None else "communication"
        with watch.stretch(rest, "build"):
            module = perceptron() if wrap is None else wrap(perceptron())
            watch.module, watch.optimizer = module, OPTIMIZERS[optimizer](module.parameters())
        for _ in range(3):
            with watch.stretch(rest):
                watch.optimizer.zero_grad()
                module(x).square().sum().backward()
                watch.optimizer.step()
    return watch.memory


@pytest.mark.parametrize("view", [True, False])
def test_buckets_of_ddp_are_gradients_if_gradients_are_views_and_else_communication(
    view, process_group
):
    def wrap(module):
        return DistributedDataParallel(module, gradient_as_bucket_view=view)

    memory = watched("fused adamw", wrap, batch=1)
    parts = by_category(memory)
    assert sum(parts.values()) == memory.allocated_bytes
    assert parts["parameters"] == parts["gradients"] == PARAMETER_BYTES
    assert parts["optimizer"] == pytest.approx(2 * PARAMETER_BYTES, abs=SMALL)
    buckets = 0 if view else PARAMETER_BYTES
    assert parts["communication"] == pytest.approx(buckets, abs=SMALL)
