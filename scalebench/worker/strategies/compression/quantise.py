"""Codes on a grid: every chunk of a bucket has its own grid, every element a place on it.

An element is the whole number c in ``value = offset + step·c``, c from 0 to ``top``. What tells
the methods apart is how a chunk's grid is chosen and how an element is rounded to it. The sum of
codes on different grids is no code, so they are all-gathered.

Wire: float32 scales of all chunks, then the numbers, packed. Chunks are a multiple of 8 long, so
that only the bucket's end is padded.

Packing of small whole numbers: b bits each, as many to a byte as fit.

A block of numbers of 4, 2 or 1 bits is cut into as many pieces as a byte holds numbers, and byte i
holds the i-th number of every piece: whole pieces are shifted and joined, no strided access. Other
widths are the sum of such planes: 7 bits are 4 and 2 and 1.

Uniform quantisation: b bits per element, evenly spaced between a chunk's extremes.

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

Half precision on the wire: fp16 or bf16 instead of float32.

Source: Micikevicius et al. 2018 (fp16 gradients); Kalamkar et al. 2019 (bf16). The code is linear
as far as rounding goes, so it is all-reduced: each rank's is divided by the number of ranks first,
which keeps the sum within fp16's range, as torch's own hooks do.

Wire: 2 bytes per element, nothing else. Error of an element of normal size: half a unit in the
last place, ``|x|·2⁻¹¹`` (fp16) or ``|x|·2⁻⁸`` (bf16); fp16 turns what exceeds 65504 into infinity
and rounds below 6·10⁻⁵ to multiples of 6·10⁻⁸. The ranks' sum rounds once more per rank.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import torch

from scalebench.worker.strategies.compression.codec import (
    Draw,
    OneRound,
    WireField,
    flat,
    new_wire,
    views,
)

PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""Bits of a number → widths of its planes, the most significant first."""


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes that ``count`` numbers of ``bits`` bits take."""
    return sum(-(-count * width // 8) for width in PLANES[bits])


def pack(codes: torch.Tensor, bits: int, out: torch.Tensor) -> None:
    """Write numbers to a buffer.

    Args:
        codes: uint8 below ``2**bits``, shape ``[count]``.
        bits: 1 to 8.
        out: uint8, shape ``[packed_bytes(count, bits)]``.
    """
    below, start = bits, 0
    for width in PLANES[bits]:
        below -= width
        length = packed_bytes(len(codes), width)
        plane = codes if width == bits else (codes >> below) & ((1 << width) - 1)
        _pack_plane(plane, width, out[start : start + length])
        start += length


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return the numbers that `pack` wrote: uint8, shape ``[count]``."""
    codes, start = None, 0
    for width in PLANES[bits]:
        length = packed_bytes(count, width)
        plane = _unpack_plane(packed[start : start + length], width, count)
        codes = plane if codes is None else (codes << width) | plane
        start += length
    assert codes is not None
    return codes


def _pack_plane(codes: torch.Tensor, width: int, out: torch.Tensor) -> None:
    length = len(out)
    out.copy_(codes[:length])
    for piece in range(1, 8 // width):
        part = codes[piece * length : (piece + 1) * length]
        out[: len(part)] |= part << (piece * width)


def _unpack_plane(packed: torch.Tensor, width: int, count: int) -> torch.Tensor:
    if width == 8:
        return packed
    mask = (1 << width) - 1
    pieces = [(packed >> (piece * width)) & mask for piece in range(8 // width)]
    return torch.cat(pieces)[:count]


BLOCK = 1 << 17
"""Elements that a CPU works on at a time: 512 KiB of float32 stay in a core's cache."""

Rounding = Literal["nearest", "stochastic"]


class GridCode(OneRound):
    """Each element as a place on its chunk's grid.

    Attributes:
        bits: Of a number on the wire.
        top: The largest number.
        chunk: Elements that share a grid; the last chunk of a bucket may be shorter.
        rounding: To the ``nearest`` place, or to one of the two neighbours by chance so that the
            mean is the element itself (``stochastic``).
        num_scales: Float32 numbers that describe a chunk's grid.
        covers: The grid reaches from the smallest to the largest element of its chunk.
    """

    num_scales = 1
    covers = True

    def __init__(self, bits: int, top: int, chunk: int, rounding: Rounding) -> None:
        self.bits = bits
        self.top = top
        self.chunk = chunk
        self.rounding = rounding

    @abstractmethod
    def measure(self, chunks: torch.Tensor) -> list[torch.Tensor]:
        """Return the ``num_scales`` scales of each chunk, shape ``[chunks, 1]`` each.

        Args:
            chunks: float32, shape ``[chunks, elements]``.
        """

    @abstractmethod
    def grid(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return offset and step of each chunk, from its scales."""

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return scales and packed numbers, uint8."""
        values = flat(gradient)
        wire, (scales, packed) = new_wire(values.device, *self._parts(values.numel()))
        by_chunk = scales.view(self.num_scales, -1)
        random = draw.own(values.device) if self.rounding == "stochastic" else None
        places = torch.empty(self._block_length(values), device=values.device)
        for start, stop in self._blocks(values):
            chunks = self._in_chunks(values[start:stop])
            of_chunks = slice(start // self.chunk, -(-stop // self.chunk))
            found = self.measure(chunks)
            for row, scale in zip(by_chunk, found, strict=True):
                row[of_chunks] = scale.view(-1)
            place = self._places(chunks, found, places[: stop - start], random)
            first = packed_bytes(start, self.bits)
            last = first + packed_bytes(stop - start, self.bits)
            if self.bits == 8:
                packed[first:last].copy_(place)
            else:
                pack(place.to(torch.uint8), self.bits, packed[first:last])
        return wire

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add ``weight·(offset + step·c)``."""
        scales, packed = views(wire, *self._parts(into.numel()))
        by_chunk = scales.view(self.num_scales, -1, 1)
        for start, stop in self._blocks(into):
            of_chunks = slice(start // self.chunk, -(-stop // self.chunk))
            offset, step = self.grid([row[of_chunks] for row in by_chunk])
            first = packed_bytes(start, self.bits)
            last = first + packed_bytes(stop - start, self.bits)
            numbers = unpack(packed[first:last], self.bits, stop - start)
            chunks = self._in_chunks(numbers.to(torch.float32))
            chunks.mul_(step * weight).add_(offset * weight)
            into[start:stop] += chunks.view(-1)

    def _parts(self, numel: int) -> tuple[WireField, WireField]:
        num_chunks = -(-numel // self.chunk)
        scales = (torch.float32, self.num_scales * num_chunks)
        return scales, (torch.uint8, packed_bytes(numel, self.bits))

    def _places(
        self,
        chunks: torch.Tensor,
        scales: list[torch.Tensor],
        out: torch.Tensor,
        random: torch.Generator | None,
    ) -> torch.Tensor:
        """Return the places, still float32: without their fractions they are the codes."""
        offset, step = self.grid(scales)
        # A chunk of equal values has a step of 0; one over the least float is infinite.
        inverse = step.reciprocal().nan_to_num_(math.nan, posinf=0.0)
        places = out.view(chunks.shape)
        torch.sub(chunks, offset, out=places)
        places.mul_(inverse)
        if random is None:
            places.add_(0.5)
        else:
            places.add_(torch.rand(chunks.shape, generator=random, device=chunks.device))
        if random is not None or not self.covers:
            places.clamp_(0, self.top + 0.5)
        return places.view(-1)

    def _block_length(self, values: torch.Tensor) -> int:
        if values.device.type == "cuda":
            return max(values.numel(), self.chunk)
        return max(1, BLOCK // self.chunk) * self.chunk

    def _blocks(self, values: torch.Tensor) -> Iterator[tuple[int, int]]:
        """Yield start and stop of blocks of whole chunks; a shorter last chunk is by itself."""
        length = self._block_length(values)
        whole = values.numel() // self.chunk * self.chunk
        for start in range(0, whole, length):
            yield start, min(whole, start + length)
        if whole < values.numel():
            yield whole, values.numel()

    def _in_chunks(self, block: torch.Tensor) -> torch.Tensor:
        return block.view(-1, min(self.chunk, block.numel()))


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


class Cast(OneRound):
    """Another floating-point type on the wire."""

    collective = "all_reduce"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return the gradient in the wire's type."""
        return gradient.reshape(-1).to(self.dtype, copy=True)

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add it in float32."""
        into.add_(wire.to(torch.float32), alpha=weight)
