"""How often a checkpointed block is computed again: what the search counts for a schedule."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from scalebench.search.passes import WEIGHT_GROUPS
from scalebench.spec import STRATEGIES
from scalebench.worker.strategies import TRAININGS
from scalebench.worker.strategies.execution import PRODUCTS
from scalebench.worker.strategies.fsdp import group_elements
from scalebench.worker.workloads.gpt import Block

SELECTIVE = {"context_fn": partial(create_selective_checkpoint_contexts, list(PRODUCTS))}


def test_gradients_of_weights_by_themselves_compute_a_block_again_for_each_group() -> None:
    block, calls = Block(width=16, heads=2), []
    bare = block.forward

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return bare(x)

    block.forward = partial(checkpoint, counted, use_reentrant=False)  # type: ignore[method-assign]
    given = torch.randn(1, 8, 16, requires_grad=True)
    made = block(given * 1)
    calls.clear()
    _, groups = stage_backward_input([made], [torch.ones_like(made)], [given], block.parameters())
    assert len(calls) == 1
    stage_backward_weight(block.parameters(), groups)
    assert len(calls) == 1 + WEIGHT_GROUPS


class Collectives(TorchDispatchMode):
    """Counts collectives by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any("DTensor" in str(one) for one in types):
            return NotImplemented
        space, name, *_ = str(func).split(".")
        self.counts[name] += "c10d" in space
        return func(*args, **(kwargs or {}))


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A process group of two whose collectives do nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_a_tensor_group_gathers_again_with_selective_checkpointing_as_with_full() -> None:
    def gathers_of_backward(**options: Any) -> int:
        mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        plan = {
            "0": SequenceParallel(),
            "1": ColwiseParallel(input_layouts=Shard(1)),
            "3": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(mlp, init_device_mesh("cpu", (2,)), plan)
        if options:
            mlp.forward = partial(checkpoint, mlp.forward, use_reentrant=False, **options)  # type: ignore[method-assign]
        made = mlp(torch.randn(2, 8, 16, requires_grad=True))
        with Collectives() as sent:
            made.sum().backward()
        return sent.counts["all_gather_into_tensor"]

    assert gathers_of_backward() == 1
    assert gathers_of_backward(**SELECTIVE) == gathers_of_backward(preserve_rng_state=True) == 2


class Tied(nn.Module):
    """An embedding that is the output's matrix too, and two layers in a list."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 10)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 30), nn.Linear(30, 10)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(10)


def test_groups_are_counted_once_padded_and_the_root_last():
    model = Tied()
    layers = list(model.layers)
    assert group_elements(layers, model, shards=1) == [640, 640, 1020]
    # By 4 ranks: 30 rows become 32, 10 become 12, 100 stay.
    layer = 32 * 10 + 32 + 12 * 30 + 12
    assert group_elements(layers, model, shards=4) == [layer, layer, 1000 + 12 + 12]
    nested = group_elements([layers[0][0], layers[0]], model, shards=1)
    assert nested == [330, 310, 640 + 1020]
    assert sum(nested) == sum(p.numel() for p in model.parameters())


def test_every_strategy_that_can_be_specified_can_be_built():
    scripts_own = {"script"}  # which a script sets up itself
    assert {*STRATEGIES} == {*TRAININGS} | scripts_own
