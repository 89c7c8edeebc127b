"""Codes on a grid: every chunk of a bucket has its own grid, every element a place on it.

An element is the whole number c in ``value = offset + step·c``, c from 0 to ``top``. What tells
the methods apart is how a chunk's grid is chosen and how an element is rounded to it. The sum of
codes on different grids is no code, so they are all-gathered.

Wire: float32 scales of all chunks, then the numbers, packed; see
`scalebench.worker.strategies.compression.grid`. Chunks are a multiple of 8 long, so that only
the bucket's end is padded.

Packing of small whole numbers: b bits each, as many to a byte as fit.

A block of numbers of 4, 2 or 1 bits is cut into as many pieces as a byte holds numbers, and byte i
holds the i-th number of every piece: whole pieces are shifted and joined, no strided access. Other
widths are the sum of such planes: 7 bits are 4 and 2 and 1.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import torch

from scalebench.worker.strategies.compression.codec import OneRound, flat
from scalebench.worker.strategies.compression.draw import Draw
from scalebench.worker.strategies.compression.wire import Part, new_wire, num_bytes, views

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

    def wire_bytes(self, numel: int) -> int:
        """Return the bytes handed over for a bucket."""
        return num_bytes(*self._parts(numel))

    def _parts(self, numel: int) -> tuple[Part, Part]:
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
