"""What a rank trains on: prints of its first batches, and the order of its epochs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch

MOST_BATCHES = 10
"""So many batches of the training are looked at, the first ones."""

MOST_BYTES = 65536
"""Of a tensor of a batch."""


def print_of(batch: Any, depth: int = 4) -> int:
    """Return a number that is the same for equal batches: a checksum of the tensors on the host."""
    found = 0
    for tensor in _tensors(batch, depth):
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            found = zlib.crc32(_bytes(tensor), found)
    return found


def _bytes(tensor: Any) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat[:MOST_BYTES].numpy())


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.numel() and not value.is_complex():
            yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part, depth - 1)
    elif depth and hasattr(value, "__dict__"):
        yield from _tensors(list(vars(value).values()), depth - 1)


class Order:
    """Notes whether each epoch of a distributed sampler has an order of its own.

    Attributes:
        repeats: Epochs that had the order of the one before, because nothing called ``set_epoch``.
    """

    def __init__(self) -> None:
        self.repeats = 0
        self._epochs: dict[int, Any] = {}

    def begins(self, batches: Any) -> None:
        """Note that the first batch of an epoch is trained on: a look at one begins none."""
        sampler = getattr(batches, "sampler", None)
        if not isinstance(sampler, torch.utils.data.DistributedSampler) or not sampler.shuffle:
            return
        before = self._epochs.get(id(sampler))
        self._epochs[id(sampler)] = sampler.epoch
        self.repeats += before == sampler.epoch
