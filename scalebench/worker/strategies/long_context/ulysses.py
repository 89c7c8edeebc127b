"""Ulysses: before attention the ranks exchange heads for tokens, and back after it.

Between the layers each rank has all heads of its tokens. An all-to-all gives it all tokens for its
part of the heads, attention is then the ordinary one, and a second all-to-all gives the result back
(Jacobs et al. 2023, DeepSpeed-Ulysses, §3.1). Queries, keys and values go in one operation.

Bytes of a layer, b samples of s tokens, width h: all-to-alls of 3·b·s·h/N and of b·s·h/N elements
on each rank in forward, and the same in backward: the volume of four, and four again.
"""

from typing import Any

import torch
import torch.distributed as dist

from scalebench.worker.strategies.base import on_axis


def tokens_for_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Exchange heads for tokens: map ``[..., H, T/N, D]`` to ``[..., H/N, T, D]``."""
    return TokensForHeads.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def heads_for_tokens(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Exchange tokens for heads: map ``[..., H/N, T, D]`` to ``[..., H, T/N, D]``."""
    return HeadsForTokens.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


class TokensForHeads(torch.autograd.Function):
    """`tokens_for_heads`, whose gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Exchange."""
        ctx.group = group
        return whole_sequence(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Exchange the gradient back."""
        return own_tokens(gradients[0], ctx.group), None


class HeadsForTokens(torch.autograd.Function):
    """`heads_for_tokens`, whose gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Exchange."""
        ctx.group = group
        return own_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Exchange the gradient back."""
        return whole_sequence(gradients[0], ctx.group), None


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
