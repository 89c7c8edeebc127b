"""TernGrad: every element is minus the scale, zero or plus the scale, by chance and unbiased.

Source: Wen et al. 2017 ("TernGrad"). The scale is the largest absolute value, here of a chunk; the
paper's clipping of gradients, which makes it smaller and the result biased, is left out, and so is
its sharing of scales between ranks.

Wire, per chunk: the scale s, float32; per element: 2 bits (the paper's log2 3 = 1.58 packed in
whole bits). An element x becomes sign(x)·s with probability abs(x)/s, else 0: its error is below
s, and 0 and ±s are exact.
"""

import torch

from scalebench.worker.strategies.compression.grid import GridCode


class TernGrad(GridCode):
    """A grid of three places, rounded to by chance."""

    def __init__(self, chunk: int) -> None:
        super().__init__(2, 2, chunk, "stochastic")

    def measure(self, chunks: torch.Tensor) -> list[torch.Tensor]:
        """Return the largest absolute value."""
        return [torch.maximum(chunks.amax(1, keepdim=True), -chunks.amin(1, keepdim=True))]

    def grid(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lowest place and the scale."""
        (scale,) = scales
        return -scale, scale
