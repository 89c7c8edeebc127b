"""Fully sharded data parallel: FSDP2, and the first FSDP for comparison.

The parameters are divided into groups: one for each block of the model, and the root for what is
left. A group's forward is preceded by an all-gather of its parameters and followed by giving them
up (``reshard_after_forward``; the root keeps its own, since backward begins with it). In backward
it is gathered once more, and as soon as its gradients are there they are reduce-scattered: three
times (N−1)/N of the parameters on the wire in a step where DDP's all-reduce makes two (Rajbhandari
et al. 2020; Zhao et al. 2023). With a mesh of replicas × shards the shards are divided over the
second dimension only, and the reduced gradients are all-reduced over the first (HSDP).

``FullyShardedDataParallel`` lays a group's parameters end to end in one padded tensor and divides
that, where FSDP2 divides every parameter by its first dimension.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from scalebench.spec import Fsdp, Fsdp1
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, named_gradients
from scalebench.worker.strategies.execution import make_optimizer, prepare_blocks


class FsdpTraining(Training):
    """The model, each of its groups wrapped by ``fully_shard``."""

    keeps_buffers = False

    def __init__(self, strategy: Fsdp, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
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

    def _groups(self) -> dict[str, list[int]]:
        """Return which ranks each kind of operation goes between."""
        of = {
            name: dist.get_process_group_ranks(self.mesh.get_group(name))
            for name in self.mesh.mesh_dim_names or ()
        }
        kinds = {"all_gather": "shard", "reduce_scatter": "shard", "all_reduce": "replicate"}
        if self.scaler and "replicate" not in of:
            kinds["all_reduce"] = "shard"  # whether a gradient is infinite
        return {kind: of[name] for kind, name in kinds.items() if name in of}


class Fsdp1Training(Training):
    """The model wrapped in ``FullyShardedDataParallel``, and in it each of its blocks."""

    keeps_buffers = False

    def __init__(self, strategy: Fsdp1, workload: Workload, context: RankContext) -> None:
        if not workload.blocks:
            raise Unsupported("sharding by block needs a workload that names its blocks")
        super().__init__(strategy, workload, context)
        blocks = set(workload.blocks)
        sharding = ShardingStrategy.FULL_SHARD
        if not strategy.reshard_after_forward:
            sharding = ShardingStrategy.SHARD_GRAD_OP
        self.facts = {"group_elements": group_elements(workload.blocks, workload.module, shards=1)}
        self.module = FullyShardedDataParallel(
            prepare_blocks(workload, strategy),
            sharding_strategy=sharding,
            auto_wrap_policy=CustomPolicy(lambda module: module in blocks),
            device_id=context.device,
            use_orig_params=True,
        )
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients of the last step on every rank."""
        with FullyShardedDataParallel.summon_full_params(self.module, with_grads=True):
            yield from named_gradients(self.module)


def device_mesh(strategy: Fsdp, context: RankContext) -> DeviceMesh:
    """Return the ranks in rows: each row holds all shards, each column replicas of one."""
    world_size = context.cell.world_size
    shards = strategy.shards(world_size)
    if strategy.shard_size is None:
        return init_device_mesh(context.device.type, (world_size,), mesh_dim_names=("shard",))
    shape = (world_size // shards, shards)
    return init_device_mesh(context.device.type, shape, mesh_dim_names=("replicate", "shard"))


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


def modules_of_at_least(min_num_params: int, module: nn.Module) -> list[nn.Module]:
    """Return the smallest modules with so many parameters, those of inner ones not counted.

    Inner modules come before outer ones, otherwise they stand in the order of the model; the
    module itself is never among them. A group is gathered when its own forward runs, so what may
    be read from outside of it belongs to its reader: embeddings, whose matrix often is the
    output's too, containers, which have no forward, and modules that share a parameter with
    another.
    """
    shared = _shared_parameters(module)
    found: list[nn.Module] = []
    _collect(module, min_num_params, shared, found)
    return [one for one in found if one is not module]


def _collect(
    module: nn.Module, least: int, shared: set[nn.Parameter], found: list[nn.Module]
) -> set[nn.Parameter]:
    """Add the groups in a module to ``found``; return its parameters that are in none."""
    left = set(module.parameters(recurse=False))
    for child in module.children():
        left |= _collect(child, least, shared, found)
    no_group = isinstance(module, nn.Embedding | nn.ModuleList | nn.ModuleDict)
    if sum(p.numel() for p in left) < least or no_group or left & shared:
        return left
    found.append(module)
    return set()


def _shared_parameters(module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that more than one module holds as its own."""
    seen: set[nn.Parameter] = set()
    shared: set[nn.Parameter] = set()
    for part in module.modules():
        own = set(part.parameters(recurse=False))
        shared |= own & seen
        seen |= own
    return shared


def group_elements(groups: Sequence[nn.Module], root: nn.Module, shards: int) -> list[int]:
    """Return the elements that each group gathers, the root's last.

    Inner ``groups`` come before outer ones; what belongs to one is not counted in the next. The
    first dimension of each parameter is padded to a multiple of ``shards``.
    """
    sizes = []
    counted: set[nn.Parameter] = set()
    for group in (*groups, root):
        own = [p for p in dict.fromkeys(group.parameters()) if p not in counted]
        sizes.append(sum(_padded(p, shards) for p in own))
        counted.update(own)
    return sizes


def _padded(parameter: nn.Parameter, shards: int) -> int:
    if parameter.ndim == 0 or parameter.numel() == 0:
        return parameter.numel()
    rows = parameter.shape[0]
    return -(-rows // shards) * shards * (parameter.numel() // rows)
