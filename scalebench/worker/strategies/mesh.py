"""Several divisions at once, on one mesh of ranks.

A ``DeviceMesh`` arranges the ranks in as many dimensions as there are divisions. Innermost are
neighbours on the machine: a tensor group divides every layer
(`scalebench.worker.strategies.tensor`) and talks most, in every layer, and waits for it. Around it
are ranks with other tokens of the same samples (`scalebench.worker.strategies.context`), shards by
FSDP2 (`scalebench.worker.strategies.fsdp`), replicas, and outermost the stages of a pipeline
(`scalebench.worker.strategies.mesh_pipeline`), which send least. The order is that of Narayanan et
al. 2021 (Megatron-LM), §3; it is a field of the strategy.

What comes first matters. Attention is exchanged for one over the context ranks, layers are divided
into `DTensor` parts, and ``fully_shard`` comes last, so that it divides these parts once more. Its
shards are those of the dimension ``shard``; ranks along ``data`` and ``context`` keep the same, and
average their gradients: of each block right after it is reduced, or, without shards, all at once
after backward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard

from scalebench.spec import Mesh
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import named_gradients, on_axis
from scalebench.worker.strategies.context import (
    checked_plan as checked_context_plan,
)
from scalebench.worker.strategies.context import (
    divide_attention,
    own_part,
    places,
    tell_places,
)
from scalebench.worker.strategies.divided_layers import LayerSizes, layers_of
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_blocks
from scalebench.worker.strategies.long_context.ring import Ring
from scalebench.worker.strategies.mesh_groups import Replicas, device_mesh, replicas_of
from scalebench.worker.strategies.tensor import (
    TensorTraining,
    alike,
    axes_of_mesh,
    checked_plan,
    complete_parts,
    divide,
    hand_on_logits,
    is_divided,
    local,
    whole,
)
from scalebench.worker.workloads.batches import num_samples


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


class MeshTraining(TensorTraining):
    """The model on a mesh without a pipeline: every rank has a part of every layer."""

    strategy: Mesh

    def __init__(self, strategy: Mesh, workload: Workload, context: RankContext) -> None:
        self.strategy, self.device, self.loss = strategy, context.device, workload.loss
        self.mesh = device_mesh(strategy, context)
        self.replicas = replicas_of(strategy, self.mesh, context)
        self.axes = axes_of_mesh(self.mesh)
        if self.replicas.axis not in self.axes and self.replicas.size > 1:
            self.axes[self.replicas.axis] = list(self.replicas.ranks)
        self.facts: dict[str, Any] = {}
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
        if strategy.context > 1:
            self.tokens = OwnTokens(strategy, workload, self.mesh["context"].get_group(), ranks)
        layers, self.divides_logits = {}, False
        if strategy.divides_layers:
            plan = checked_plan(workload, strategy, ranks)
            layers, self.divides_logits = layers_of(module, plan, ranks), plan.divides_logits
        self.sizes = LayerSizes(module, layers, ranks if strategy.sequence else 1)
        divide(module, layers, strategy, self.mesh["tensor"])

    def shard(
        self, blocks: Sequence[torch.nn.Module], root: torch.nn.Module, reshard: bool
    ) -> None:
        """Divide what this rank keeps of blocks and of the rest along ``shard``, if asked for."""
        if self.strategy.shard == 1:
            return
        if not blocks:
            raise Unsupported("sharding by block needs a workload that names its blocks")
        self.gathered += gathered_together(root, blocks)
        if self.size_of("shard") > 1:
            shard_together((*blocks, root), self.mesh["shard"], self.replicas, reshard)

    def size_of(self, axis: str) -> int:
        """Return the number of ranks along a dimension."""
        return self.mesh[axis].size() if axis in (self.mesh.mesh_dim_names or ()) else 1

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's part of the batch."""
        self.optimizer.zero_grad()
        mine = batch if self.tokens is None else self.tokens.of(batch)
        with self.dividing_the_loss():
            with precision(self.strategy, self.device):
                loss = self.loss(self.module, mine)
            in_forward = 0 if self.tokens is None else len(self.tokens.queries_bytes)
            loss.backward()
        self.complete_gradients()
        self.optimizer.step()
        if not self.facts:
            self.facts = self.first_facts(num_samples(batch), in_forward)
        return whole(loss.detach())

    def complete_gradients(self) -> None:
        """Average over the replicas; sharded gradients are complete when backward ends."""
        if self.size_of("shard") > 1:
            return
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        complete_parts(parameters, self.mesh["tensor"])
        self.replicas.average_together([local(p.grad) for p in parameters])

    def first_facts(self, samples: int, in_forward: int = 0) -> dict[str, Any]:
        """Return what a first step has shown of the layers.

        Args:
            samples: Of the step.
            in_forward: Calls of attention before the backward pass; the others recomputed.
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

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the gradients of the last step, one after the other, on every rank."""
        for name, gradient in named_gradients(self.module):
            yield name, whole(gradient)


class OwnTokens:
    """This rank's part of every sequence, and an attention that reaches the others'.

    Args:
        strategy: How.
        workload: Whose attention is exchanged.
        group: The ranks that share a sequence.
        tensor_ranks: Among which the heads are divided already.
    """

    def __init__(
        self, strategy: Mesh, workload: Workload, group: dist.ProcessGroup, tensor_ranks: int
    ) -> None:
        alone = strategy.as_context()
        plan = workload.context_plan and workload.context_plan.own_heads(tensor_ranks)
        self.plan = checked_context_plan(replace(workload, context_plan=plan), alone, group.size())
        self.ring, self.parts = Ring(group), group.size() * tensor_ranks
        self.queries_bytes: list[int] = []  # of every call of attention in the first step
        self.noting = True
        self.places = places(self.plan, alone, group).to(next(workload.module.parameters()).device)
        divide_attention(workload.module, self.plan, alone, self.ring, self.note_queries)
        tell_places(workload.module, self.plan, self.places)

    def of(self, batch: Any) -> Any:
        """Return this rank's tokens of a batch."""
        return own_part(batch, self.places, self.plan)

    def note_queries(self, q: torch.Tensor) -> None:
        """Note what attention is called with, until that is told."""
        if self.noting:
            self.queries_bytes.append(q.nbytes)

    def facts(self, samples: int, in_forward: int) -> dict[str, Any]:
        """Return what the calls have shown; see `scalebench.costmodel.context_layers`."""
        self.noting = False
        whole_bytes = [self.parts * size for size in self.queries_bytes]
        return {
            "samples": samples,
            "attention_bytes": whole_bytes[:in_forward],
            "recomputed_bytes": whole_bytes[in_forward:],
            "gradient_bytes": 0,  # the law of the mesh knows them
        }
