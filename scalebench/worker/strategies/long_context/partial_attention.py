"""Attention to a part of the keys, and how such parts become attention to all of them.

Shape legend: B samples, H heads, T queries, S keys, D width of a head.

``softmax(q·kᵀ)·v`` over some of the keys is a mean of their values, weighted by exp(score). With
the logarithm of the sum of the weights, its log-sum-exp, two such means merge into that over both
sets of keys (Milakov & Gimelshein 2018; Dao et al. 2022, FlashAttention, §3.1). In backward, a
key's weight is exp(score − log-sum-exp): with the merged output and log-sum-exp, attention to a
part of the keys gives that part's summand of the gradients (Dao et al. 2022, §B.2).

The operators are those behind ``scaled_dot_product_attention``, which returns no log-sum-exp.
"""

from typing import Any, NamedTuple

import torch

aten: Any = torch.ops.aten


class Partial(NamedTuple):
    """Attention to some of the keys.

    Attributes:
        output: ``[B, H, T, D]``.
        log_sum_exp: ``[B, H, T]``, float32.
        kept: What the device's backward asks for besides.
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor
    kept: tuple[Any, ...] = ()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Partial:
    """Return the attention of queries to keys.

    Args:
        q: ``[B, H, T, D]``.
        k: ``[B, H, S, D]``.
        v: ``[B, H, S, D]``.
        causal: Whether a query sees only the keys up to its own index.
    """
    if is_on_gpu(q):
        found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        output, log_sum_exp, *rest = found
        return Partial(output, log_sum_exp, tuple(rest[:6]))
    output, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return Partial(output, log_sum_exp)


def attend_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    merged: Partial,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of queries, keys and values, as far as they come from these keys.

    Args:
        gradient: Of the merged output, ``[B, H, T, D]``.
        q: ``[B, H, T, D]``.
        k: ``[B, H, S, D]``.
        v: ``[B, H, S, D]``.
        merged: Output and log-sum-exp over all keys, and what `attend` kept for these.
        causal: As `attend` had it.
    """
    output, log_sum_exp = merged.output, merged.log_sum_exp
    if is_on_gpu(q):
        first_q, first_k, max_q, max_k, seed, offset = merged.kept
        found = aten._scaled_dot_product_flash_attention_backward(
            *(gradient, q, k, v, output, log_sum_exp),
            *(first_q, first_k, max_q, max_k, 0.0, causal, seed, offset),
        )
    else:
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, q, k, v, output, log_sum_exp, 0.0, causal
        )
    of_q, of_k, of_v = found
    return of_q, of_k, of_v


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is on a CUDA device."""
    return tensor.device.type == "cuda"


class Merging:
    """Attention that grows by the keys of one rank after another.

    Attributes:
        output: Merged so far, ``[B, H, T, D]``, float32.
        log_sum_exp: ``[B, H, T]``, float32.

    Args:
        first: Attention of all queries to the first keys; it is copied, as recomputation may keep
            it.
    """

    def __init__(self, first: Partial) -> None:
        self.output = first.output.to(torch.float32, copy=True)
        self.log_sum_exp = first.log_sum_exp.clone()

    def add(self, part: Partial, queries: slice) -> None:
        """Merge the attention of some of the queries to further keys."""
        output, before = self.output[:, :, queries], self.log_sum_exp[:, :, queries]
        # exp(a)/(exp(a)+exp(b)) is a sigmoid: no exponential that could overflow.
        share = torch.sigmoid(part.log_sum_exp - before)
        output.lerp_(part.output.float(), share.unsqueeze(-1))
        before.copy_(torch.logaddexp(before, part.log_sum_exp))
