"""Ring attention: keys and values pass from rank to rank while each computes with what it has.

Each rank keeps its queries. In N−1 turns it hands the keys and values that it has to the next rank
and gets those of the one before; while they are on the way it computes with the ones at hand (Liu
et al. 2023). What comes out is merged by log-sum-exp. In backward keys and values go around once
more, and with them the sum of their gradients, which after N−1 turns reaches the rank they belong
to.

Messages of a layer, b samples of s tokens, width h: N−1 in forward and 2(N−1) in backward, each of
2·b·s·h/N elements.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist

from scalebench.worker.strategies.base import on_axis
from scalebench.worker.strategies.long_context.partial_attention import (
    Merging,
    Partial,
    attend,
    attend_backward,
)
from scalebench.worker.strategies.long_context.zigzag import block


class Ring:
    """The ranks of a group in a circle.

    Attributes:
        size: N.
        rank: This rank's place.
        group: The ranks.
        turns_s: What the last turns took to compute in ``forward`` and in ``backward``, seconds by
            the host's clock.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.size, self.rank = group.size(), group.rank()
        self.turns_s = {name: deque[float](maxlen=256) for name in ("forward", "backward")}
        self.group = group
        self._next = dist.get_global_rank(group, (self.rank + 1) % self.size)
        self._before = dist.get_global_rank(group, (self.rank - 1) % self.size)

    def source(self, turn: int) -> int:
        """Return whose keys and values a rank has in a turn."""
        return (self.rank - turn) % self.size

    @contextmanager
    def computing(self, name: Literal["forward", "backward"]) -> Iterator[None]:
        """Note how long a turn computes; messages are on the way meanwhile."""
        began = time.perf_counter()
        yield
        self.turns_s[name].append(time.perf_counter() - began)

    def hand_on(self, tensor: torch.Tensor) -> "OnTheWay":
        """Begin to send a tensor to the next rank, and to receive one from the rank before."""
        coming = torch.empty_like(tensor)
        both = [
            dist.P2POp(dist.isend, tensor, self._next, self.group),
            dist.P2POp(dist.irecv, coming, self._before, self.group),
        ]
        with on_axis("context"):
            return OnTheWay(tensor, coming, dist.batch_isend_irecv(both))


class OnTheWay:
    """A tensor that leaves, and one that comes; until it is here, neither may be touched."""

    def __init__(
        self, leaving: torch.Tensor, coming: torch.Tensor, requests: Sequence[dist.Work]
    ) -> None:
        self._leaving, self._coming, self._requests = leaving, coming, requests

    def arrived(self) -> torch.Tensor:
        """Wait for both; return what came."""
        for request in self._requests:
            request.wait()
        return self._coming


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring) -> torch.Tensor:
    """Return the causal attention of this rank's queries to the keys of all ranks.

    Args:
        q: ``[B, H, T/N, D]``, tokens in zigzag order.
        k: The same.
        v: The same.
        ring: The ranks.
    """
    return RingAttention.apply(q, k, v, ring)  # type: ignore[no-any-return, no-untyped-call]


class RingAttention(torch.autograd.Function):
    """Causal attention of a sequence that is divided in zigzag order."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring
    ) -> torch.Tensor:
        """Attend to the keys of one rank after another; see `ring_attention`."""
        here = torch.stack((k, v))  # [2, B, H, T/N, D]
        kept: list[tuple[Any, ...]] = []
        merging: Merging | None = None
        for turn in range(ring.size):
            on_the_way = ring.hand_on(here) if turn + 1 < ring.size else None
            queries, keys, causal = block(ring.rank, ring.source(turn), q.shape[2])
            with ring.computing("forward"):
                seen_k, seen_v = here[:, :, :, keys]
                part = attend(q[:, :, queries], seen_k, seen_v, causal)
                kept.append(part.kept)
                if merging is None:
                    merging = Merging(part)
                else:
                    merging.add(part, queries)
            if on_the_way is not None:
                here = on_the_way.arrived()
        assert merging is not None
        output = merging.output.to(q.dtype)
        ctx.save_for_backward(q, k, v, output, merging.log_sum_exp)
        ctx.ring, ctx.kept = ring, kept
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of this rank's queries, keys and values."""
        q, k, v, output, log_sum_exp = ctx.saved_tensors
        ring: Ring = ctx.ring
        (gradient,) = gradients
        here = torch.stack((k, v))
        of_q = torch.zeros_like(q, dtype=torch.float32)
        own = torch.empty(0)
        returning: OnTheWay | None = None  # gradients of keys and values, summed up so far
        for turn in range(ring.size):
            on_the_way = ring.hand_on(here) if turn + 1 < ring.size else None
            queries, keys, causal = block(ring.rank, ring.source(turn), q.shape[2])
            merged = Partial(output[:, :, queries], log_sum_exp[:, :, queries], ctx.kept[turn])
            with ring.computing("backward"):
                seen_k, seen_v = here[:, :, :, keys]
                of_queries, *of_keys = attend_backward(
                    gradient[:, :, queries], q[:, :, queries], seen_k, seen_v, merged, causal
                )
                of_q[:, :, queries] += of_queries
            if turn == 0:
                own = torch.stack(of_keys)
            else:
                total = torch.zeros_like(here) if returning is None else returning.arrived()
                total[:, :, :, keys] += torch.stack(of_keys)
                returning = ring.hand_on(total)
            if on_the_way is not None:
                here = on_the_way.arrived()
        if returning is not None:
            own += returning.arrived()
        return of_q.to(q.dtype), own[0], own[1], None
