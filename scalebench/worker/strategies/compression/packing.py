"""Packing of small whole numbers: b bits each, as many to a byte as fit.

A block of numbers of 4, 2 or 1 bits is cut into as many pieces as a byte holds numbers, and byte i
holds the i-th number of every piece: whole pieces are shifted and joined, no strided access. Other
widths are the sum of such planes: 7 bits are 4 and 2 and 1.
"""

import torch

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
