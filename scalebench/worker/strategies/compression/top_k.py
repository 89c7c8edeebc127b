"""Top-k: the k elements of a bucket that are largest in size, with their indices.

Source: Aji & Heafield 2017 ("Sparse communication for distributed gradient descent"); Stich et al.
2018 ("Sparsified SGD with memory") prove convergence with error feedback.

Wire: k indices (int32 up to 2³¹ − 1 elements, else int64) and k float32 values; k = ratio of the
bucket, at least one. What is sent is exact, the rest 0: the squared error is at most (1 − k/d) of
the squared norm. NaN and infinity count as largest. Ranks choose differently, so the pairs are
all-gathered.
"""

import torch

from scalebench.worker.strategies.compression.codec import OneRound, flat, num_kept
from scalebench.worker.strategies.compression.draw import Draw
from scalebench.worker.strategies.compression.wire import (
    Part,
    index_dtype,
    new_wire,
    num_bytes,
    views,
)


class TopK(OneRound):
    """The largest elements."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def ratio_at(self, step: int) -> float:
        """Return what part is sent at a step."""
        return self.ratio

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return indices and values, uint8."""
        values = flat(gradient)
        count = num_kept(values.numel(), self.ratio_at(draw.step))
        wire, (indices, sent) = new_wire(values.device, *self._parts(values.numel(), count))
        chosen = values.abs().topk(count, sorted=False).indices
        indices.copy_(chosen)
        torch.gather(values, 0, chosen, out=sent)
        return wire

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add the values at their indices."""
        count = num_kept(into.numel(), self.ratio_at(draw.step))
        indices, sent = views(wire, *self._parts(into.numel(), count))
        into.index_add_(0, indices, sent, alpha=weight)

    def wire_bytes(self, numel: int) -> int:
        """Return the bytes handed over for a bucket, once any warm-up is over."""
        return num_bytes(*self._parts(numel, num_kept(numel, self.ratio)))

    def _parts(self, numel: int, count: int) -> tuple[Part, Part]:
        return (index_dtype(numel), count), (torch.float32, count)
