"""The methods that scalebench carries out itself: name → codec, and which memory goes with it.

Random projection: k random linear combinations of a bucket, the same on every rank.

Sources: Johnson & Lindenstrauss 1984; the projection is the subsampled randomized Hadamard
transform (Ailon & Chazelle 2009, "The fast Johnson-Lindenstrauss transform"; Tropp 2011, "Improved
analysis of the subsampled randomized Hadamard transform"), by which Konečný et al. 2016 compress
updates ("Federated learning: strategies for improving communication efficiency"). A dense matrix
of k·d numbers would be larger than the model; this one needs signs and the drawn indices.

The bucket is cut into blocks of 1024 elements (a smaller bucket is one block: the next power of
two), and the last block is filled up with zeros. Each block is multiplied by random signs D, then
by the orthonormal Hadamard matrix H. Of the d rotated elements `RandomK` draws k, one of each
stratum. The transpose decodes.

Wire: k float32 values, all-reduced: the code is linear; k = ratio of d, at least one. Decoded is
PᵀP g, where P = (draw) H D has orthonormal rows. With error feedback it goes as it is: the squared
error is (1 − k/d) of the squared norm on average. Without (``scaled``), (d/k) PᵀP g is unbiased,
and its squared error is (d/k − 1) of the squared norm on average. Both hold exactly where k divides
d and nothing was filled up.
"""

from collections.abc import Callable
from typing import Any

import torch

from scalebench.worker.strategies.compression.codec import Codec, Draw, Memory, NoMemory, flat
from scalebench.worker.strategies.compression.hook import ErrorFeedback, MomentumCorrection
from scalebench.worker.strategies.compression.quantise import Cast, Qsgd, Quantise, Sign, TernGrad
from scalebench.worker.strategies.compression.sparse import (
    CountSketch,
    Dgc,
    RandomK,
    Threshold,
    TopK,
)

BLOCK = 1024
"""Elements that are mixed with one another at most, a power of two."""

SIGNS = -1
"""The stream of random numbers that the signs come from; the indices come from the usual one."""
Settings = dict[str, Any]
"""Name → what makes the codec of its parameters, all of which are given."""


class RandomProjection(RandomK):
    """Elements of the randomly rotated bucket, at indices that every rank draws alike."""

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return the combinations; an element that is not finite makes all of them NaN."""
        values = flat(gradient)
        rotated = values.new_zeros(_padded(values.numel()))
        rotated[: values.numel()] = values
        left, right, signs = _rotation(values.numel(), draw, values.device)
        blocks = rotated.view(-1, *signs.shape) * signs
        return super().encode(left @ blocks @ right, draw)

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add the transpose of the projection, multiplied by the combinations."""
        rotated = into.new_zeros(_padded(into.numel()))
        super().add_decoded(wire, rotated, weight, draw)
        left, right, signs = _rotation(into.numel(), draw, into.device)
        blocks = left @ rotated.view(-1, *signs.shape) @ right * signs
        into += blocks.view(-1)[: into.numel()]


def _block(numel: int) -> int:
    return min(BLOCK, 1 << max(0, numel - 1).bit_length())


def _padded(numel: int) -> int:
    return -(-numel // _block(numel)) * _block(numel)


def _rotation(
    numel: int, draw: Draw, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return two factors of H, and the signs D as a matrix, one element for each of a block.

    A Hadamard matrix is a Kronecker product of smaller ones, so a block is taken as a matrix,
    shape ``[rows, columns]``, and multiplied from both sides. The factors are symmetric, shapes
    ``[rows, rows]`` and ``[columns, columns]``.
    """
    exponent = _block(numel).bit_length() - 1
    left, right = (_hadamard(e, device) for e in (exponent - exponent // 2, exponent // 2))
    shape = (len(left), len(right))
    chance = torch.rand(shape, generator=draw.shared(device, SIGNS), device=device)
    return left, right, torch.where(chance < 0.5, -1.0, 1.0)


def _hadamard(exponent: int, device: torch.device) -> torch.Tensor:
    """Return Sylvester's Hadamard matrix of size 2^exponent, orthonormal."""
    matrix = torch.ones(1, 1, device=device)
    for _ in range(exponent):
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]], device=device)) / 2**0.5
    return matrix


CODECS: dict[str, Callable[[Settings], Codec]] = {
    "fp16": lambda s: Cast(torch.float16),
    "bf16": lambda s: Cast(torch.bfloat16),
    "quantise": lambda s: Quantise(s["bits"], s["chunk"], s["rounding"]),
    "sign": lambda s: Sign(s["chunk"]),
    "terngrad": lambda s: TernGrad(s["chunk"]),
    "qsgd": lambda s: Qsgd(s["bits"], s["chunk"]),
    "top-k": lambda s: TopK(s["ratio"]),
    "random-k": lambda s: RandomK(s["ratio"], scaled=not s["error_feedback"]),
    "random-projection": lambda s: RandomProjection(s["ratio"], scaled=not s["error_feedback"]),
    "threshold": lambda s: Threshold(s["threshold"]),
    "dgc": lambda s: Dgc(s["ratio"], s["warmup_steps"]),
    "count-sketch": lambda s: CountSketch(s["rows"], s["columns_per_kept"], s["ratio"]),
}


def new_memory(settings: Settings, world_size: int) -> Memory:
    """Return what a rank keeps between steps: momentum, error feedback, or nothing."""
    if "momentum" in settings:
        return MomentumCorrection(settings["momentum"], settings["clip_norm"], world_size)
    return ErrorFeedback() if settings["error_feedback"] else NoMemory()
