"""Context parallel: every rank has the whole model and a part of the tokens of each sample.

Nearly all of a transformer works on each token by itself: norms, linear layers, the loss. These
need no communication; a rank does them for its part of the tokens. Attention sees other tokens, so
its module is replaced by one that gets at them over the ranks: `ulysses` (Jacobs et al. 2023) or
`ring` (Liu et al. 2023). An embedding of places is told which places the rank's tokens have.
Activations are divided by the number of ranks, which is what makes long sequences fit.

Every rank's loss is the mean over as many tokens, so the mean of the ranks' losses is that of the
batch, and its gradient the mean of theirs: after the backward pass one all-reduce over all ranks
averages the gradients.

With more ranks than ``size`` there are several groups, each with its part of the global batch.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

from scalebench.costmodel.context_layers import gradient_axis
from scalebench.spec import Context
from scalebench.spec.workload import ContextPlan, Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, on_axis
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_blocks
from scalebench.worker.strategies.long_context.ring import Ring, ring_attention
from scalebench.worker.strategies.long_context.ulysses import heads_for_tokens, tokens_for_heads
from scalebench.worker.strategies.long_context.zigzag import places_in_order, places_in_zigzag
from scalebench.worker.strategies.tensor import sum_together
from scalebench.worker.workloads.batches import map_tensors, num_samples

TOKENS = 1
"""Dimension of the sequence in a batch, ``[samples, tokens, ...]``."""


class ContextTraining(Training):
    """The model, its attention exchanged for one that reaches over the ranks."""

    def __init__(self, strategy: Context, workload: Workload, context: RankContext) -> None:
        self.strategy, self.device, self.loss = strategy, context.device, workload.loss
        self.mesh = device_mesh(strategy, context)
        group = self.mesh["context"].get_group()
        self.plan = checked_plan(workload, strategy, group.size())
        self.places = places(self.plan, strategy, group).to(context.device)
        self.module = prepare_blocks(workload, strategy).to(context.device)
        self.queries_bytes: list[int] = []  # of every call of attention in the first step
        self.ring = Ring(group)
        divide_attention(self.module, self.plan, strategy, self.ring, self.note_queries)
        tell_places(self.module, self.plan, self.places)
        self.axes, self.gradient_axis = axes_of(self.mesh, context)
        self.seen: dict[str, Any] = {}
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's tokens of the group's batch."""
        self.optimizer.zero_grad()
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, own_part(batch, self.places, self.plan))
        in_forward = len(self.queries_bytes)
        loss.backward()
        self.average_gradients()
        self.optimizer.step()
        if not self.seen:
            self.seen = self.seen_first(num_samples(batch), in_forward)
        return loss.detach()

    def note_queries(self, q: torch.Tensor) -> None:
        """Note what attention is called with, while the first step lasts."""
        if not self.seen:
            self.queries_bytes.append(q.nbytes)

    def average_gradients(self) -> None:
        """Average over all ranks: those of a group had different tokens, the groups samples."""
        if dist.get_world_size() == 1:
            return
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        with on_axis(self.gradient_axis):
            sum_together(gradients, None)
        for gradient in gradients:
            gradient /= dist.get_world_size()

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        """What predictions rest on: what the first step has shown, and the ring's turns so far."""
        if not self.seen:
            return {}
        turns = {name: median(took) for name, took in self.ring.turns_s.items() if took}
        return {"context": self.seen | ({"turns_s": turns} if turns else {})}

    def seen_first(self, samples: int, in_forward: int) -> dict[str, Any]:
        """Return what the first step has shown; see `scalebench.costmodel.context_layers`.

        Args:
            samples: Of the step.
            in_forward: Calls of attention before the backward pass; the others recomputed.
        """
        ranks = self.mesh["context"].size()
        whole = [ranks * size for size in self.queries_bytes]
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        return {
            "samples": samples,
            "attention_bytes": whole[:in_forward],
            "recomputed_bytes": whole[in_forward:],
            "gradient_bytes": sum(gradient.nbytes for gradient in gradients),
        }

    def share_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the losses of several steps, shape [steps], as means over the whole sequences."""
        shared = losses.to(self.device)
        group = self.mesh["context"].get_group()
        dist.all_reduce(shared, group=group)
        return shared / group.size()


class DividedAttention(nn.Module):
    """Causal self-attention over the tokens of all ranks of a group."""

    def __init__(self, strategy: Context, ring: Ring, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.method, self.ring, self.note = strategy.method, ring, note

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Map queries, keys and values ``[B, H, T/N, D]`` to ``[B, H, T/N, D]``."""
        self.note(q)
        if self.method == "ring":
            return ring_attention(q, k, v, self.ring)
        q, k, v = tokens_for_heads(torch.stack((q, k, v)), self.ring.group)  # each [B, H/N, T, D]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return heads_for_tokens(mixed, self.ring.group)


def device_mesh(strategy: Context, context: RankContext) -> DeviceMesh:
    """Return the ranks in rows: each row is a group that divides a sequence, neighbours in it."""
    world_size = context.cell.world_size
    size = strategy.ranks_per_group(world_size)
    shape = (world_size // size, size)
    return init_device_mesh(context.device.type, shape, mesh_dim_names=("data", "context"))


def axes_of(mesh: DeviceMesh, context: RankContext) -> tuple[dict[str, list[int]], str]:
    """Return dimension → ranks of this rank's group along it, and that of the gradients.

    Gradients go over all ranks: along both dimensions at once where there are two.
    """
    everyone = list(range(context.cell.world_size))
    ranks = dist.get_process_group_ranks(mesh["context"].get_group())
    along = gradient_axis(mesh["data"].size(), len(ranks))
    return ({"context": ranks} if len(ranks) > 1 else {}) | {along: everyone}, along


def checked_plan(workload: Workload, strategy: Context, ranks: int) -> ContextPlan:
    """Return the workload's plan.

    Raises:
        Unsupported: There is none, or the sequence or the heads cannot be divided.
    """
    plan = workload.context_plan
    if plan is None:
        raise Unsupported("context parallel training needs a workload with a context_plan")
    reason = strategy.why_not_plan(plan, ranks)
    if reason is not None:
        raise Unsupported(reason)
    return plan


def places(plan: ContextPlan, strategy: Context, group: dist.ProcessGroup) -> torch.Tensor:
    """Return where in the sequence this rank's tokens are, shape ``[T/N]``."""
    order = places_in_zigzag if strategy.method == "ring" else places_in_order
    return torch.tensor(order(plan.sequence, group.size(), group.rank()))


def divide_attention(
    module: nn.Module,
    plan: ContextPlan,
    strategy: Context,
    ring: Ring,
    note: Callable[[torch.Tensor], None],
) -> None:
    """Put an attention over the ranks in place of each that the plan names.

    Args:
        module: Changed in place.
        plan: Names the attentions.
        strategy: How they get at the other ranks' tokens.
        ring: The ranks.
        note: Called with the queries of every call.
    """
    for name in names_of(module, plan.attention):
        module.set_submodule(name, DividedAttention(strategy, ring, note))


def tell_places(module: nn.Module, plan: ContextPlan, places: torch.Tensor) -> None:
    """Have the embeddings of places look up where in the whole sequence the rank's tokens are."""

    def replace(_: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (places[given[0]], *given[1:])

    for name in names_of(module, plan.positions):
        module.get_submodule(name).register_forward_pre_hook(replace)


def names_of(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the names of the modules that a plan names.

    Raises:
        Unsupported: There is none of a name.
    """
    found = []
    for pattern in patterns:
        names = [name for name, _ in module.named_modules() if _matches(name, pattern)]
        if not names:
            raise Unsupported(f"context_plan: the module has no layer named {pattern}")
        found += names
    return found


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def own_part(batch: Any, places: torch.Tensor, plan: ContextPlan) -> Any:
    """Return this rank's tokens of every tensor of a batch.

    Raises:
        Unsupported: A tensor has no dimension of tokens.
    """

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim <= TOKENS or tensor.shape[TOKENS] != plan.sequence:
            raise Unsupported(
                f"context parallel training divides dimension {TOKENS} of a batch's tensors, and "
                f"one of shape {list(tensor.shape)} does not have {plan.sequence} tokens there"
            )
        return tensor.index_select(TOKENS, places)

    return map_tensors(part, batch)
