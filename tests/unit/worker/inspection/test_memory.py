"""What memory is made of: sizes worked out by hand, on an allocator told and on the real one."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalebench.records.rank import Memory
from scalebench.worker.inspection.allocations import (
    CATEGORIES,
    AllocatorEvent,
    Interval,
    Storage,
    composition_at_peak,
)
from scalebench.worker.inspection.memory import (
    owned_storages,
    watch_memory,
)

CPU = torch.device("cpu")
WIDTH, BATCH = 256, 64
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
PARAMETER_BYTES = 3 * LAYER_BYTES
"""Three linear layers with bias, float32."""
SMALL = 2_000
"""Bytes of scalars (losses, step counters, indices), generously; a layer has 263,168."""


def by_category(memory: Memory) -> dict[str, int]:
    return {name: getattr(memory, f"{name}_bytes") for name in CATEGORIES}


def event(time_ns: int, address: int, size: int) -> AllocatorEvent:
    return AllocatorEvent(time_ns, address, size)


def test_each_category_is_what_its_owner_held_at_the_peak():
    events = [
        event(1, 0xA, 100),  # parameters
        event(11, 0xB, 40),  # activations of the step
        event(12, 0xC, 7),
        event(13, 0xB, -40),
        event(14, 0xD, 30),  # a gradient: at its birth the peak is over
        event(15, 0xC, -7),
    ]
    parameters = {0xA: Storage(100, "parameters")}
    after = parameters | {0xD: Storage(30, "gradients")}
    found = composition_at_peak(
        events,
        [
            Interval(0, 5, parameters, "communication", "build"),
            Interval(10, 20, after, "communication"),
        ],
    )
    assert found.allocated_bytes == 147
    assert by_category(found) == dict.fromkeys(CATEGORIES, 0) | {
        "parameters": 100,
        "activations": 47,
    }


def perceptron() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "foreach adam": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
}
STATE = {"sgd": 0, "momentum": 1, "fused adamw": 2, "foreach adam": 2}
"""State tensors of each parameter's own size."""


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def watched(optimizer: str, wrap=None, batch: int = BATCH) -> Memory:
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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_category_of_a_known_model(optimizer):
    memory = watched(optimizer)
    parts = by_category(memory)
    assert sum(parts.values()) == memory.allocated_bytes
    assert parts["parameters"] == PARAMETER_BYTES
    assert parts["optimizer"] == pytest.approx(STATE[optimizer] * PARAMETER_BYTES, abs=SMALL)
    assert parts["communication"] == parts["data"] == 0


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


def test_shared_storages_count_once_and_buffers_with_the_parameters():
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    module[1].weight = module[0].weight
    module.register_buffer("mask", torch.ones(10))
    module.register_buffer("same_mask", module.mask[:5])
    owned = owned_storages(module, None, CPU)
    assert sorted(storage.bytes for storage in owned.values()) == [40, 256]
    assert {storage.category for storage in owned.values()} == {"parameters"}


def test_shards_beside_an_emptied_module_are_parameters():
    """As ZeRO-3 keeps them: the module is empty, and the optimizer's groups are between steps."""
    module = nn.Linear(8, 8, bias=False)
    shard, updated = torch.ones(32), torch.ones(16)
    optimizer = torch.optim.SGD([updated], momentum=0.9)
    updated.grad = torch.ones(16)
    optimizer.step()
    module.weight.data = torch.empty(0)
    optimizer.param_groups[0]["params"] = []
    owned = owned_storages(module, optimizer, CPU, [shard[:8]])
    found = sorted((storage.bytes, storage.category) for storage in owned.values())
    assert found == [(64, "optimizer"), (64, "parameters"), (128, "parameters")]
    assert owned_storages(module, None, CPU) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_peak_is_the_allocators_own():
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    x = torch.randn(BATCH, WIDTH, device=device)
    perceptron().to(device)(x).sum().backward()  # workspaces of the libraries
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with watch_memory(device) as watch:
        with watch.stretch("activations", "build"):
            watch.module = perceptron().to(device)
            watch.optimizer = OPTIMIZERS["fused adamw"](watch.module.parameters())
        for _ in range(3):
            with watch.stretch("activations"):
                watch.optimizer.zero_grad()
                watch.module(x).square().sum().backward()
                watch.optimizer.step()
    assert watch.memory.parameters_bytes == pytest.approx(PARAMETER_BYTES, rel=0.01)
    assert watch.memory.optimizer_bytes == pytest.approx(2 * PARAMETER_BYTES, rel=0.01)
    assert watch.memory.allocated_bytes == torch.cuda.max_memory_allocated(device) - before
