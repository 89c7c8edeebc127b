"""Fully sharded data parallel (FSDP2): every rank keeps a part, and gathers what it computes with.

The parameters are divided into groups: one for each block of the model, and the root for what is
left. Between steps a rank holds its shard of each parameter, as a DTensor over the device mesh, and
the optimizer's state for that shard alone.

A group's forward is preceded by an all-gather of its parameters and followed by giving them up
(``reshard_after_forward``; the root keeps its own, since backward begins with it). In backward the
group is gathered once more, and as soon as its gradients are there they are reduce-scattered, so
that each rank receives the mean gradient of its own shard. That makes three times (N−1)/N of the
parameters on the wire in a step where DDP's all-reduce makes two, for 1/N of the memory
(Rajbhandari et al. 2020; Zhao et al. 2023).

With a mesh of replicas × shards the shards are divided over the second dimension only, and the
reduced gradients are all-reduced over the first (HSDP).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from scalebench.spec import Fsdp
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, named_gradients
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_blocks
from scalebench.worker.strategies.wrapping import group_elements, modules_of_at_least


class FsdpTraining(Training):
    """The model, each of its groups wrapped by ``fully_shard``."""

    keeps_buffers = False

    def __init__(self, strategy: Fsdp, workload: Workload, context: RankContext) -> None:
        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        self.module = prepare_blocks(workload, strategy)
        self.mesh = device_mesh(strategy, context)
        self.groups = self._groups()
        groups = choose_groups(strategy, workload)
        shards = strategy.shards(context.cell.world_size)
        self.facts = {"group_elements": group_elements(groups, self.module, shards)}
        options: dict[str, Any] = {
            "mesh": self.mesh,
            "offload_policy": CPUOffloadPolicy() if strategy.cpu_offload else OffloadPolicy(),
        }
        for group in groups:
            fully_shard(
                group,
                reshard_after_forward=strategy.reshard_after_forward,
                mp_policy=mixed_precision(strategy),
                **options,
            )
        fully_shard(
            self.module,
            reshard_after_forward=None if strategy.reshard_after_forward else False,
            mp_policy=mixed_precision(strategy, output_dtype=torch.float32),
            **options,
        )
        if strategy.prefetch is not None:
            prefetch(groups, strategy.prefetch)
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch; gathering and reducing happen in hooks of the groups."""
        self.optimizer.zero_grad()
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _groups(self) -> dict[str, list[int]]:
        """Return which ranks each kind of operation goes between."""
        of = {name: process_group_ranks(self.mesh, name) for name in self.mesh.mesh_dim_names or ()}
        kinds = {"all_gather": "shard", "reduce_scatter": "shard", "all_reduce": "replicate"}
        return {kind: of[name] for kind, name in kinds.items() if name in of}

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients of the last step, one after the other, on every rank."""
        for name, gradient in named_gradients(self.module):
            yield name, whole(gradient, self.device)


def device_mesh(strategy: Fsdp, context: RankContext) -> DeviceMesh:
    """Return the ranks in rows: each row holds all shards, each column replicas of one."""
    world_size = context.cell.world_size
    shards = strategy.shards(world_size)
    if strategy.shard_size is None:
        return init_device_mesh(context.device.type, (world_size,), mesh_dim_names=("shard",))
    shape = (world_size // shards, shards)
    return init_device_mesh(context.device.type, shape, mesh_dim_names=("replicate", "shard"))


def process_group_ranks(mesh: DeviceMesh, dim: str) -> list[int]:
    """Return the ranks with which this one communicates along a dimension of the mesh."""
    return dist.get_process_group_ranks(mesh.get_group(dim))


def mixed_precision(
    strategy: Fsdp, output_dtype: torch.dtype | None = None
) -> MixedPrecisionPolicy:
    """Return how parameters are gathered and gradients reduced; the shards stay float32."""
    if strategy.param_dtype == strategy.reduce_dtype == "float32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, strategy.param_dtype),
        reduce_dtype=getattr(torch, strategy.reduce_dtype),
        output_dtype=output_dtype,
    )


def choose_groups(strategy: Fsdp, workload: Workload) -> list[torch.nn.Module]:
    """Return the modules that become separate groups, in the order of the model.

    Raises:
        Unsupported: By block was asked for and the workload names none, or no module is as large
            as asked.
    """
    if strategy.min_num_params is None:
        if not workload.blocks:
            raise Unsupported(
                "sharding by block needs a workload that names its blocks; "
                "min_num_params divides any module by its number of parameters"
            )
        return list(workload.blocks)
    found = modules_of_at_least(strategy.min_num_params, workload.module)
    if not found:
        raise Unsupported(
            f"no module of the workload has {strategy.min_num_params} parameters; "
            "give a smaller min_num_params"
        )
    return found


def prefetch(groups: Sequence[torch.nn.Module], depth: int) -> None:
    """Have each group gather the next ``depth`` groups ahead, in forward and in backward."""
    in_order: list[Any] = [group for group in groups if isinstance(group, FSDPModule)]
    for position, group in enumerate(in_order):
        after = in_order[position + 1 : position + 1 + depth]
        before = in_order[max(0, position - depth) : position]
        group.set_modules_to_forward_prefetch(after)
        group.set_modules_to_backward_prefetch(before[::-1])


def whole(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the full tensor of a sharded one; every rank takes part in gathering it."""
    if not isinstance(tensor, DTensor):
        return tensor
    on_device: Any = tensor.to(device)
    full: torch.Tensor = on_device.full_tensor()
    return full
