"""QSGD: every element as a fraction of its chunk's norm, rounded by chance and unbiased.

Source: Alistarh et al. 2017 ("QSGD"), with s = 2^(b−1) − 1 levels of each sign. The numbers are
packed in b bits each; the paper's Elias code, shorter where most are zero, is left out.

Wire, per chunk: its Euclidean norm, float32; per element: b bits, sign and level together. Error of
an element: below norm/s. The variance of a chunk of d elements is at most min(d/s², √d/s)·norm².
"""

import torch

from scalebench.worker.strategies.compression.grid import GridCode


class Qsgd(GridCode):
    """A grid from minus to plus the norm, with 0 in its middle."""

    def __init__(self, bits: int, chunk: int) -> None:
        self.levels = 2 ** (bits - 1) - 1
        super().__init__(bits, 2 * self.levels, chunk, "stochastic")

    def measure(self, chunks: torch.Tensor) -> list[torch.Tensor]:
        """Return the Euclidean norm."""
        return [torch.linalg.vector_norm(chunks, dim=1, keepdim=True)]

    def grid(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return minus the norm and the distance of two levels."""
        (norm,) = scales
        return -norm, norm / self.levels
