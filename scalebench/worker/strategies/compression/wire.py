"""Wire formats: typed parts of one byte buffer, so that a bucket takes one collective."""

import torch

ALIGNMENT = 8
"""Bytes to which every part is padded: the widest element of any wire format."""

Part = tuple[torch.dtype, int]
"""Element type and number of elements."""

MOST_32_BIT = 2**31 - 1


def index_dtype(numel: int) -> torch.dtype:
    """Return the narrowest integer that counts the elements of a bucket."""
    return torch.int32 if numel <= MOST_32_BIT else torch.int64


def num_bytes(*parts: Part) -> int:
    """Return the bytes of the buffer that holds these parts, padding included."""
    return sum(_padded(count * dtype.itemsize) for dtype, count in parts)


def new_wire(device: torch.device, *parts: Part) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a byte buffer, uninitialised, and the views of its parts.

    Padding is zero, so that two encodings of the same thing are the same bytes.
    """
    buffer = torch.empty(num_bytes(*parts), dtype=torch.uint8, device=device)
    start = 0
    for dtype, count in parts:
        used = count * dtype.itemsize
        buffer[start + used : start + _padded(used)] = 0
        start += _padded(used)
    return buffer, views(buffer, *parts)


def views(buffer: torch.Tensor, *parts: Part) -> list[torch.Tensor]:
    """Return the typed views of a buffer's parts, each of shape ``[count]``."""
    found, start = [], 0
    for dtype, count in parts:
        used = count * dtype.itemsize
        found.append(buffer[start : start + used].view(dtype))
        start += _padded(used)
    return found


def _padded(used: int) -> int:
    return -(-used // ALIGNMENT) * ALIGNMENT
