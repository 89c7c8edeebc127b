"""FSDP2 as one division of a mesh: what it gathers and reduces is marked with its dimension."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard

from scalebench.worker.strategies.base import on_axis
from scalebench.worker.strategies.mesh_groups import Replicas


def shard_together(
    groups: Sequence[torch.nn.Module], mesh: DeviceMesh, replicas: Replicas, reshard: bool
) -> None:
    """Divide modules by ``fully_shard``, in place.

    Each group's gradients are averaged over the replicas as soon as they are reduced (hybrid
    sharding, Zhao et al. 2023, §3.2.2).

    Args:
        groups: Inner ones before outer ones; the last is the root.
        mesh: One dimension.
        replicas: The ranks that keep the same shards.
        reshard: Whether gathered parameters are given up after forward. The root keeps its own
            until backward.
    """
    for group in groups:
        sharded = fully_shard(group, mesh=mesh, reshard_after_forward=None if reshard else False)
        mark(sharded)
        if replicas.size > 1:
            sharded.set_all_reduce_hook(replicas.average)


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
