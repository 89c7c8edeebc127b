"""Uniform quantisation: b bits per element, evenly spaced between a chunk's extremes.

Source: Alistarh et al. 2017 ("QSGD", §1, on uniform quantisation); Suresh et al. 2017
("Distributed mean estimation with limited communication", §2: stochastic k-level quantisation),
whose stochastic form is unbiased.

Wire, per chunk: its minimum and the step, float32; per element: b bits, packed. Error of an
element: half a step (nearest) or one step (stochastic), step = (max − min)/(2ᵇ − 1) of its chunk.
The extremes are exact up to rounding, a chunk of equal values is exact. Steps below 3·10⁻³⁹
count as 0.

QSGD: every element as a fraction of its chunk's norm, rounded by chance and unbiased.

Source: Alistarh et al. 2017 ("QSGD"), with s = 2^(b−1) − 1 levels of each sign. The numbers are
packed in b bits each; the paper's Elias code, shorter where most are zero, is left out.

Wire, per chunk: its Euclidean norm, float32; per element: b bits, sign and level together. Error of
an element: below norm/s. The variance of a chunk of d elements is at most min(d/s², √d/s)·norm².

Signs: one bit per element, and one size per chunk.

Source: Seide et al. 2014 ("1-bit stochastic gradient descent"), who brought in error feedback for
it; the size is that of Karimireddy et al. 2019 ("Error feedback fixes SignSGD"): the mean of
abs(x), which makes the code shrink the error of every vector. Without error feedback it is biased.

Wire, per chunk: the size, float32; per element: 1 bit, packed. Error of an element:
abs(abs(x) − mean abs(x)). Zero counts as positive. A chunk in which all elements have the same
size is exact.

TernGrad: every element is minus the scale, zero or plus the scale, by chance and unbiased.

Source: Wen et al. 2017 ("TernGrad"). The scale is the largest absolute value, here of a chunk; the
paper's clipping of gradients, which makes it smaller and the result biased, is left out, and so is
its sharing of scales between ranks.

Wire, per chunk: the scale s, float32; per element: 2 bits (the paper's log2 3 = 1.58 packed in
whole bits). An element x becomes sign(x)·s with probability abs(x)/s, else 0: its error is below
s, and 0 and ±s are exact.
"""

import torch

from scalebench.worker.strategies.compression.grid import GridCode, Rounding


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
