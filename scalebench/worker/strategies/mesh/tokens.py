"""Context parallel: every rank has the whole model and a part of the tokens of each sample.

Nearly all of a transformer works on each token by itself: norms, linear layers, the loss. These
need no communication; a rank does them for its part of the tokens. Attention sees other tokens, so
its module is replaced by one that gets at them over the ranks: `ulysses` (Jacobs et al. 2023) or
`ring` (Liu et al. 2023). An embedding of places is told which places the rank's tokens have.
Activations are divided by the number of ranks, which is what makes long sequences fit.

Ulysses: between the layers each rank has all heads of its tokens. Before attention an all-to-all
gives it all tokens for its part of the heads, attention is then the ordinary one, and a second
all-to-all gives the result back (Jacobs et al. 2023, DeepSpeed-Ulysses, §3.1). Queries, keys and
values go in one operation. What is sent: `scalebench.costmodel.layers.context_layers`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from scalebench.spec import Mesh
from scalebench.spec.workload import Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import on_axis
from scalebench.worker.strategies.mesh.layers import TOKENS, checked_plan, named
from scalebench.worker.strategies.mesh.ring import (
    Ring,
    places_in_order,
    places_in_zigzag,
    ring_attention,
)
from scalebench.worker.workloads.batches import map_tensors


class OwnTokens:
    """This rank's part of every sequence, and an attention that reaches the others'.

    Raises:
        Unsupported: The workload has no plan, or its sequence or heads cannot be divided.
    """

    def __init__(
        self, strategy: Mesh, workload: Workload, group: dist.ProcessGroup, tensor_ranks: int
    ) -> None:
        given = workload.context_plan and workload.context_plan.own_heads(tensor_ranks)
        self.plan = checked_plan(given, "context", strategy.as_context().why_not_plan, group.size())
        self.ring, self.parts = Ring(group), group.size() * tensor_ranks
        self.queries_bytes: list[int] = []  # of every call of attention in the first step
        self.noting = True
        order = places_in_zigzag if strategy.method == "ring" else places_in_order
        device = next(workload.module.parameters()).device
        self.places = torch.tensor(
            order(self.plan.sequence, group.size(), group.rank()), device=device
        )
        for pattern in self.plan.attention:
            for name in named(workload.module, pattern, "context_plan"):
                attention = DividedAttention(strategy.method, self.ring, self.note_queries)
                workload.module.set_submodule(name, attention)
        for pattern in self.plan.positions:
            for name in named(workload.module, pattern, "context_plan"):
                workload.module.get_submodule(name).register_forward_pre_hook(self._tell_places)

    def _tell_places(
        self, _: nn.Module, given: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        return (self.places[given[0]], *given[1:])

    def of(self, batch: Any) -> Any:
        """Return this rank's tokens of every tensor of a batch.

        Raises:
            Unsupported: A tensor has no dimension of tokens.
        """
        return map_tensors(self._own_part, batch)

    def _own_part(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim <= TOKENS or tensor.shape[TOKENS] != self.plan.sequence:
            raise Unsupported(
                f"context parallel training divides dimension {TOKENS} of a batch's tensors, and "
                f"one of shape {list(tensor.shape)} does not have {self.plan.sequence} tokens there"
            )
        return tensor.index_select(TOKENS, self.places)

    def note_queries(self, q: torch.Tensor) -> None:
        """Note what attention is called with, until that is told."""
        if self.noting:
            self.queries_bytes.append(q.nbytes)

    def facts(self, samples: int, in_forward: int) -> dict[str, Any]:
        """Return what the calls have shown; see `scalebench.costmodel.layers.context_layers`."""
        self.noting = False
        whole_bytes = [self.parts * size for size in self.queries_bytes]
        return {
            "samples": samples,
            "attention_bytes": whole_bytes[:in_forward],
            "recomputed_bytes": whole_bytes[in_forward:],
            "gradient_bytes": 0,  # the law of the mesh knows them
        }


class DividedAttention(nn.Module):
    """Causal self-attention over the tokens of all ranks of a group."""

    def __init__(self, method: str, ring: Ring, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.method, self.ring, self.note = method, ring, note

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Map queries, keys and values ``[B, H, T/N, D]`` to ``[B, H, T/N, D]``."""
        self.note(q)
        if self.method == "ring":
            return ring_attention(q, k, v, self.ring)
        exchange: Any = HeadsAndTokens.apply
        q, k, v = exchange(torch.stack((q, k, v)), self.ring.group, True)  # each [B, H/N, T, D]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        back: torch.Tensor = exchange(mixed, self.ring.group, False)
        return back


class HeadsAndTokens(torch.autograd.Function):
    """Exchange heads for tokens, or back; the gradient goes the other way."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, to_tokens: bool
    ) -> torch.Tensor:
        """Map ``[..., H, T/N, D]`` to ``[..., H/N, T, D]``, or back."""
        ctx.group, ctx.to_tokens = group, to_tokens
        return whole_sequence(x, group) if to_tokens else own_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Exchange the gradient back."""
        back = own_tokens if ctx.to_tokens else whole_sequence
        return back(gradients[0], ctx.group), None, None


def whole_sequence(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Map ``[..., H, T/N, D]`` on every rank to ``[..., H/N, T, D]``; rank r gets part r of H."""
    by_receiver = x.unflatten(-3, (group.size(), -1)).movedim(-4, 0)  # [N, ..., H/N, T/N, D]
    by_sender = exchanged(by_receiver, group)
    return by_sender.movedim(0, -3).flatten(-3, -2)  # a sender's tokens stand in one piece


def own_tokens(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Map ``[..., H/N, T, D]`` on every rank to ``[..., H, T/N, D]``; rank r gets part r of T."""
    by_receiver = x.unflatten(-2, (group.size(), -1)).movedim(-3, 0)  # [N, ..., H/N, T/N, D]
    by_sender = exchanged(by_receiver, group)
    return by_sender.movedim(0, -4).flatten(-4, -3)  # a sender's heads stand in one piece


def exchanged(by_receiver: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Send part i of the first dimension to rank i; return what came, part i from rank i."""
    if group.size() == 1:
        return by_receiver
    leaving = by_receiver.contiguous()
    coming = torch.empty_like(leaving)
    with on_axis("context"):
        dist.all_to_all_single(coming, leaving, group=group)
    return coming
