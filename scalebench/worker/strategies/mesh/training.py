"""Several divisions at once, on one mesh of ranks; a single division is a mesh of one dimension.

A ``DeviceMesh`` arranges the ranks in as many dimensions as there are divisions. Innermost are
neighbours on the machine: a tensor group divides every layer (`layers`) and talks most, in every
layer, and waits for it. Around it are ranks with other tokens of the same samples (`ring`),
shards by FSDP2 (`scalebench.worker.strategies.fsdp`), replicas, and outermost the stages of a
pipeline (`pipeline`), which send least. The order is that of Narayanan et al. 2021 (Megatron-LM),
§3; it is a field of the strategy.

What comes first matters. Attention is exchanged for one over the context ranks, layers are divided
into `DTensor` parts, and ``fully_shard`` comes last, so that it divides these parts once more. Its
shards are those of the dimension ``shard``; ranks along ``data`` and ``context`` keep the same, and
average their gradients: of each block right after it is reduced, or, without shards, all at once
after backward.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from scalebench.spec import AXES, Context, Execution, Mesh, Tensor
from scalebench.spec.strategies.mesh import Axis
from scalebench.spec.workload import Split, Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, on_axis, whole
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_blocks
from scalebench.worker.strategies.mesh.layers import (
    LayerSizes,
    alike,
    checked_plan,
    complete_parts,
    divide,
    hand_on_logits,
    is_divided,
    layers_of,
    local,
    sum_together,
)
from scalebench.worker.strategies.mesh.ring import OwnTokens
from scalebench.worker.workloads.batches import num_samples


def device_mesh(strategy: Mesh, context: RankContext, shown: Sequence[Axis]) -> DeviceMesh:
    """Return the mesh; of dimensions of a single rank there are those that are to be shown.

    The dimensions stand in the order of `AXES`, whatever their order on the machine is.
    """
    world_size = context.cell.world_size
    sizes = strategy.axis_sizes(world_size)
    on_machine = torch.arange(world_size).view([sizes[axis] for axis in strategy.order])
    names = tuple(axis for axis in AXES if sizes[axis] > 1 or axis in shown)
    places = on_machine.permute([strategy.order.index(axis) for axis in AXES])
    shape = [sizes[axis] for axis in names]
    return DeviceMesh(context.device.type, places.reshape(shape), mesh_dim_names=names)


def axes_of_mesh(mesh: DeviceMesh) -> dict[str, list[int]]:
    """Return dimension → ranks of this rank's group along it; the tensor dimension first.

    That one is there with a single rank, too: `DTensor` asks for operations along it all the same.
    """
    inside_out = reversed(mesh.mesh_dim_names or ())
    groups = {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in inside_out}
    return {axis: ranks for axis, ranks in groups.items() if len(ranks) > 1 or axis == "tensor"}


@dataclass(frozen=True)
class Replicas:
    """The ranks that keep the same, and have other samples or tokens.

    Attributes:
        axis: Along which they are: ``data``, ``context``, or ``data_context`` for both at once.
        ranks: Of the group; of one there is no group.
        group: None: there is one rank.
    """

    axis: str
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, strategy: Mesh, mesh: DeviceMesh, context: RankContext) -> "Replicas":
        """Return the replicas of this rank; all ranks have to call it alike."""
        world_size = context.cell.world_size
        sizes = strategy.axis_sizes(world_size)
        axes: tuple[Axis, ...] = ("data", "context")
        names = [axis for axis in axes if sizes[axis] > 1]
        if not names:
            return cls("data", (context.rank,))
        lines = strategy.groups_along(world_size, *names)
        own = next(line for line in lines if context.rank in line)
        if len(names) == 1:
            return cls(names[0], own, mesh.get_group(names[0]))
        groups = {line: dist.new_group(list(line)) for line in lines}
        return cls("data_context", own, groups[own])

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def average(self, *gradients: torch.Tensor) -> None:
        """Average gradients, in place, in one all-reduce."""
        if self.size == 1:
            return
        with on_axis(self.axis):
            sum_together(gradients, self.group)
        for gradient in gradients:
            gradient /= self.size


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


class MeshTraining(Training):
    """The model on a mesh without a pipeline: every rank has a part of every layer.

    ``also``: a division that is made even if a single rank has all of it.
    """

    def __init__(
        self, strategy: Mesh, workload: Workload, context: RankContext, also: Axis | None = None
    ) -> None:
        super().__init__(strategy, workload, context)
        self.divides_tokens = strategy.context > 1 or also == "context"
        self.divides_layers = strategy.divides_layers or also == "tensor"
        shown: list[Axis] = ["tensor", "context"] if self.divides_tokens else ["tensor"]
        self.mesh = device_mesh(strategy, context, shown)
        self.replicas = Replicas.of(strategy, self.mesh, context)
        self.axes = axes_of_mesh(self.mesh)
        if self.replicas.axis not in self.axes and self.replicas.size > 1:
            self.axes[self.replicas.axis] = list(self.replicas.ranks)
        self.seen: dict[str, Any] = {}
        self.gathered: list[Any] = []
        self.tokens: OwnTokens | None = None
        self.module = self.build(strategy, workload, context)
        self.optimizer = make_optimizer(workload, alike(self.module))

    def build(self, strategy: Mesh, workload: Workload, context: RankContext) -> torch.nn.Module:
        """Return this rank's part of the model, divided."""
        # The module as a whole cannot be compiled: the hooks of its own result are no graph.
        module = prepare_blocks(workload, strategy).to(context.device)
        self.divide_layers(strategy, workload)
        self.shard(workload.blocks, module, reshard=True)
        if self.divides_logits:
            hand_on_logits(module, strategy, self.mesh["tensor"])
        return module

    def divide_layers(self, strategy: Mesh, workload: Workload) -> None:
        """Divide tokens, then matrices."""
        module, ranks = workload.module, self.mesh["tensor"].size()
        if self.divides_tokens:
            self.tokens = OwnTokens(strategy, workload, self.mesh["context"].get_group(), ranks)
        layers: dict[str, Split] = {}
        self.divides_logits = False
        if self.divides_layers:
            plan = checked_plan(workload.tensor_plan, "tensor", strategy.why_not_plan, ranks)
            layers, self.divides_logits = layers_of(module, plan, ranks), plan.divides_logits
        self.sizes = LayerSizes(module, layers, ranks if strategy.sequence else 1)
        divide(module, layers, strategy, self.mesh["tensor"])

    def shard(
        self, blocks: Sequence[torch.nn.Module], root: torch.nn.Module, reshard: bool
    ) -> None:
        """Divide what this rank keeps of blocks and of the rest along ``shard``, if asked for.

        Each group's gradients are averaged over the replicas as soon as they are reduced (hybrid
        sharding, Zhao et al. 2023, §3.2.2).

        Inner ``blocks`` come before outer ones. ``reshard``: gathered parameters are given up after
        forward; the root keeps its own until backward.
        """
        if self.strategy.shard == 1:
            return
        if not blocks:
            raise Unsupported("sharding by block needs a workload that names its blocks")
        self.gathered += gathered_together(root, blocks)
        if self.size_of("shard") == 1:
            return
        kept = None if reshard else False
        for group in (*blocks, root):
            sharded: FSDPModule = fully_shard(
                group, mesh=self.mesh["shard"], reshard_after_forward=kept
            )
            sharded.set_custom_all_gather(AllGatherOnShards())
            sharded.set_custom_reduce_scatter(ReduceScatterOnShards())
            if self.replicas.size > 1:
                sharded.set_all_reduce_hook(self.replicas.average)

    def size_of(self, axis: str) -> int:
        """Return the number of ranks along a dimension."""
        return self.mesh[axis].size() if axis in (self.mesh.mesh_dim_names or ()) else 1

    def dividing_the_loss(self) -> AbstractContextManager[None]:
        """Return the context in which cross entropy works on divided logits."""
        return loss_parallel() if self.strategy.loss else nullcontext()

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's part of the batch."""
        loss = super().step(batch)
        if not self.seen:
            self.seen = self.first_facts(num_samples(batch), self.calls_in_forward)
        return whole(loss)

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        """What predictions rest on: what a first step has shown; empty before."""
        return self.seen

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Add the gradient of this rank's tokens; exchanges happen in hooks of the layers."""
        mine = batch if self.tokens is None else self.tokens.of(batch)
        with self.dividing_the_loss():
            with precision(self.strategy, self.device):
                loss = self.loss(self.module, mine)
            self.calls_in_forward = 0 if self.tokens is None else len(self.tokens.queries_bytes)
            loss.backward()
        return loss.detach()

    def complete_gradients(self) -> None:
        """Average over the replicas; sharded gradients are complete when backward ends."""
        if self.size_of("shard") > 1:
            return
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        complete_parts(parameters, self.mesh["tensor"])
        self.replicas.average(*(local(p.grad) for p in parameters))

    def first_facts(self, samples: int, in_forward: int) -> dict[str, Any]:
        """Return what a first step has shown of the layers.

        ``in_forward``: calls of attention before the backward pass; the others recomputed.
        """
        self.sizes.stop()
        facts: dict[str, Any] = {
            "divided_layers": self.sizes.facts,
            "divided_samples": samples,
            "divided_logits": self.divides_logits,
            "parameters": [[p.numel(), is_divided(p)] for p in self.module.parameters()],
        }
        if self.gathered:
            facts["gathered"] = self.gathered
        if self.tokens is not None:
            facts["context"] = self.tokens.facts(samples, in_forward)
        return facts

    def share_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the losses of several steps, shape [steps], as means over whole sequences."""
        if self.tokens is None:
            return losses
        shared, group = losses.to(self.device), self.mesh["context"].get_group()
        dist.all_reduce(shared, group=group)
        return shared / group.size()

    def collective_groups(self) -> dict[str, int] | None:
        """Return name and size of the groups that gather: those along the tensor dimension."""
        return {"tensor": self.mesh["tensor"].size()}


def _arithmetic(strategy: Execution) -> dict[str, Any]:
    return {name: getattr(strategy, name) for name in Execution.model_fields}


class TensorTraining(MeshTraining):
    """Groups that divide layers, each with its part of the global batch: data × tensor."""

    def __init__(self, strategy: Tensor, workload: Workload, context: RankContext) -> None:
        mesh = Mesh(
            tensor=strategy.ranks_per_group(context.cell.world_size),
            sequence=strategy.sequence,
            loss=strategy.loss,
            **_arithmetic(strategy),
        )
        super().__init__(mesh, workload, context, also="tensor")


class ContextTraining(MeshTraining):
    """Groups that divide sequences, each with its part of the global batch: data × context.

    Every rank's loss is the mean over as many tokens, so the mean of the ranks' losses is that of
    the batch, and its gradient the mean of theirs.
    """

    def __init__(self, strategy: Context, workload: Workload, context: RankContext) -> None:
        size = strategy.ranks_per_group(context.cell.world_size)
        mesh = Mesh(context=size, method=strategy.method, **_arithmetic(strategy))
        super().__init__(mesh, workload, context, also="context")
        along = ("context", self.replicas.axis)
        self.axes = {axis: self.axes[axis] for axis in along if axis in self.axes}
        self.axes = self.axes or {"context": [context.rank]}

    def first_facts(self, samples: int, in_forward: int) -> dict[str, Any]:
        """Return what the first step has shown of attention, and the bytes of all gradients."""
        assert self.tokens is not None, "they are divided"
        gradients = [p.grad.nbytes for p in self.module.parameters() if p.grad is not None]
        seen = self.tokens.facts(samples, in_forward)
        return {"context": seen | {"gradient_bytes": sum(gradients)}}

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        """What the first step has shown, and the median of the ring's turns so far."""
        assert self.tokens is not None, "they are divided"
        turns = {name: median(took) for name, took in self.tokens.ring.turns_s.items() if took}
        if not self.seen or not turns:
            return self.seen
        return {"context": self.seen["context"] | {"turns_s": turns}}

    def collective_groups(self) -> None:
        """Return None: gradients go over all ranks."""
