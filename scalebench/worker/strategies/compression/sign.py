"""Signs: one bit per element, and one size per chunk.

Source: Seide et al. 2014 ("1-bit stochastic gradient descent"), who brought in error feedback for
it; the size is that of Karimireddy et al. 2019 ("Error feedback fixes SignSGD"): the mean of
abs(x), which makes the code shrink the error of every vector. Without error feedback it is biased.

Wire, per chunk: the size, float32; per element: 1 bit, packed. Error of an element:
abs(abs(x) − mean abs(x)). Zero counts as positive. A chunk in which all elements have the same
size is exact.
"""

import torch

from scalebench.worker.strategies.compression.grid import GridCode


class Sign(GridCode):
    """A grid of two places, minus and plus the mean size."""

    covers = False

    def __init__(self, chunk: int) -> None:
        super().__init__(1, 1, chunk, "nearest")

    def measure(self, chunks: torch.Tensor) -> list[torch.Tensor]:
        """Return the mean of the absolute values."""
        return [chunks.abs().mean(dim=1, keepdim=True)]

    def grid(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two places, as the lower one and their distance."""
        (size,) = scales
        return -size, 2 * size
