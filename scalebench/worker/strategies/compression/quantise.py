"""Uniform quantisation: b bits per element, evenly spaced between a chunk's extremes.

Source: Alistarh et al. 2017 ("QSGD", §1, on uniform quantisation); Suresh et al. 2017
("Distributed mean estimation with limited communication", §2: stochastic k-level quantisation),
whose stochastic form is unbiased.

Wire, per chunk: its minimum and the step, float32; per element: b bits, packed. Error of an
element: half a step (nearest) or one step (stochastic), step = (max − min)/(2ᵇ − 1) of its chunk.
The extremes are exact up to rounding, a chunk of equal values is exact. Steps below 3·10⁻³⁹
count as 0.
"""

import torch

from scalebench.worker.strategies.compression.grid import GridCode, Rounding


class Quantise(GridCode):
    """A grid from the smallest to the largest element of each chunk."""

    num_scales = 2

    def __init__(self, bits: int, chunk: int, rounding: Rounding) -> None:
        super().__init__(bits, 2**bits - 1, chunk, rounding)

    def measure(self, chunks: torch.Tensor) -> list[torch.Tensor]:
        """Return minimum and step."""
        low = chunks.amin(dim=1, keepdim=True)
        high = chunks.amax(dim=1, keepdim=True)
        return [low, high / self.top - low / self.top]

    def grid(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return minimum and step as they are."""
        low, step = scales
        return low, step
