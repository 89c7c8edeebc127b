"""Several divisions at once, on one mesh of ranks: replicas or shards of tensor groups.

A ``DeviceMesh`` arranges the ranks in rows. The ranks of a row, neighbours on the machine, divide
every layer (`scalebench.worker.strategies.tensor`): they talk most, in every layer, and wait for
it. The ranks of a column have the same part of every layer and different samples. Either they are
replicas, whose gradients are averaged once, after backward; or FSDP2 divides what they have once
more (`scalebench.worker.strategies.fsdp`): a block's part is gathered along the column before it is
used, and its gradients are reduce-scattered.

The order is that of Narayanan et al. 2021 (Megatron-LM), §3: tensor groups inside, data outside.
``fully_shard`` comes after the layers are divided, so that it divides `DTensor` parts.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard

from scalebench.spec import Mesh
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import on_axis
from scalebench.worker.strategies.tensor import TensorTraining


class MeshTraining(TensorTraining):
    """The model, its layers divided along the rows; what is left replicated or sharded."""

    def __init__(self, strategy: Mesh, workload: Workload, context: RankContext) -> None:
        self.shards = strategy.ranks_per_shard_group(context.cell.world_size)
        self.outer = "data" if strategy.shard == 1 else "shard"
        super().__init__(strategy, workload, context)

    def wrap(self, workload: Workload) -> None:
        """Divide the parts of each block, and of the rest, along the columns of the mesh."""
        if self.outer == "data":
            return
        if not workload.blocks:
            raise Unsupported("sharding by block needs a workload that names its blocks")
        self.gathered = gathered_together(self.module, workload.blocks)
        if self.shards > 1:
            for group in (*workload.blocks, self.module):
                mark(fully_shard(group, mesh=self.mesh["shard"]))

    def complete_gradients(self) -> None:
        """Average over the replicas; sharded gradients are complete when backward ends."""
        if self.shards == 1:
            super().complete_gradients()

    def first_facts(self, samples: int) -> dict[str, Any]:
        """Return what the first step has shown of the layers, and what is gathered together."""
        facts = super().first_facts(samples)
        return facts if self.outer == "data" else facts | {"gathered": self.gathered}


def gathered_together(
    module: torch.nn.Module, blocks: Sequence[torch.nn.Module]
) -> list[list[tuple[list[int], int | None]]]:
    """Return of each block, and last of the rest, the parameters before they are sharded.

    Each as its whole shape, and the dimension that the layers' division cuts; None: none.
    """
    groups = [list(block.parameters()) for block in blocks]
    in_blocks = {id(parameter) for group in groups for parameter in group}
    groups.append([p for p in module.parameters() if id(p) not in in_blocks])
    return [[(list(p.shape), divided_dimension(p)) for p in group] for group in groups]


def divided_dimension(parameter: torch.Tensor) -> int | None:
    """Return the dimension of a parameter that is divided over the tensor group; None: none."""
    if not isinstance(parameter, DTensor):
        return None
    return next((p.dim for p in parameter.placements if isinstance(p, Shard)), None)


def mark(group: FSDPModule) -> None:
    """Have what a group gathers and reduces marked as going along the columns."""
    group.set_custom_all_gather(AllGatherOnShards())
    group.set_custom_reduce_scatter(ReduceScatterOnShards())


class _Buffers:
    """Where results go: memory from torch's allocator, as without marks."""

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGatherOnShards(_Buffers, AllGather):
    """The all-gather that ``fully_shard`` uses anyway, marked."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather the shards of a group of parameters."""
        with on_axis("shard"):
            work: dist.Work | None = dist.all_gather_into_tensor(
                output_tensor, input_tensor, group, async_op
            )
        return work


class ReduceScatterOnShards(_Buffers, ReduceScatter):
    """The reduce-scatter that ``fully_shard`` uses anyway, marked."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce the gradients of a group of parameters."""
        with on_axis("shard"):
            work: dist.Work | None = dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op, group, async_op
            )
        return work
