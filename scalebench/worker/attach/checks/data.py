"""What a rank trains on: prints of its first batches and samples, and the order of its epochs."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

MOST_BATCHES = 10
"""So many batches of the training are looked at, the first ones."""

MOST_BYTES = 65536
"""Of a tensor of a batch."""

MOST_SAMPLES = 256
"""Of a batch, and of all batches: those with the smallest prints, which are the same choice on all
ranks. Source: Bar-Yossef et al. 2002, "Counting distinct elements in a data stream", section 2."""

MOST_ELEMENTS = 1024
"""Of a tensor of a sample, at equal distances."""


def print_of(batch: Any, depth: int = 4) -> int:
    """Return a number that is the same for equal batches: a checksum of the tensors on the host."""
    found = 0
    for tensor in tensors_of(batch, depth):
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            found = zlib.crc32(_bytes(tensor), found)
    return found


def prints_of_samples(batch: Any, count: int | None) -> list[int]:
    """Return a number for each of a batch's first samples; empty: no tensor begins with them."""
    found = [0] * min(count or 0, MOST_SAMPLES)
    told = False
    for tensor in tensors_of(batch, 4) if found else ():
        on_host = tensor.device.type == "cpu" and tensor.layout == torch.strided
        if on_host and tensor.dim() and tensor.shape[0] == count:
            rows = tensor.detach()[: len(found)].reshape(len(found), -1)
            thin = rows[:, :: -(-rows.shape[1] // MOST_ELEMENTS)].contiguous()
            values = thin.view(torch.uint8).numpy()
            found = [zlib.crc32(row, one) for row, one in zip(values, found, strict=True)]
            told = True
    return found if told else []


def _bytes(tensor: Any) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat[:MOST_BYTES].numpy())


def tensors_of(value: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors of nested containers, but for empty and complex ones."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            yield from tensors_of(value.unbind(), depth)
        elif value.numel() and not value.is_complex():
            yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part, depth - 1)
    elif depth and hasattr(value, "__dict__"):
        yield from tensors_of(list(vars(value).values()), depth - 1)


class Prints(NamedTuple):
    """What a batch is recognised by, its samples, and how many rows it has; see `rows_of`."""

    batch: int
    samples: list[int]
    rows: Counter[tuple[int, ...]]


def rows_of(value: Any) -> Counter[tuple[int, ...]]:
    """Return by the shape of a row the most rows that a tensor has, of two dimensions or more.

    Tokens and what follows them have rows of one shape, and a model may be given the tokens alone.
    """
    found: Counter[tuple[int, ...]] = Counter()
    for tensor in tensors_of(value, 4):
        if tensor.dim() > 1:
            row = tuple(tensor.shape[1:])
            found[row] = max(found[row], tensor.shape[0])
    return found


class Fed:
    """Notes what was trained on first, and whether each epoch has an order of its own.

    Attributes:
        batches: Prints of the first ones.
        repeats: Epochs of a distributed sampler that had the order of the one before, because
            nothing called ``set_epoch``.
        rows: Shape without its first dimension → rows of such tensors in the batches.
    """

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.repeats = 0
        self.took_s = 0.0
        self.rows: Counter[tuple[int, ...]] = Counter()
        self._samples: list[list[int]] = []
        self._num_epochs = 0
        self._epochs: dict[int, Any] = {}
        self._untrained: set[int] = set()

    def prints_of(self, batch: Any, num_samples: int | None) -> Prints | None:
        """Return the prints of a batch; None: enough were trained on."""
        if len(self.batches) >= MOST_BATCHES:
            return None
        began_s = time.perf_counter()
        found = Prints(print_of(batch), prints_of_samples(batch, num_samples), rows_of(batch))
        self.took_s += time.perf_counter() - began_s
        return found

    def trained_on(self, prints: Prints) -> None:
        """Note the prints of a batch; of its samples only in the first epoch, where each is new."""
        self.batches.append(prints.batch)
        self.rows += prints.rows
        if self._num_epochs <= 1:
            self._samples.append(prints.samples)

    def noted(self) -> dict[str, Any]:
        """Return what is compared between ranks.

        Returns:
            ``batches``: prints. ``repeated_orders``: see `repeats`. ``samples``: the smallest
            ``prints`` of all but the last batch, which samplers fill up with samples of others, of
            how many ``distinct`` ones, and how many were ``repeated`` on this rank.
        """
        known = [one for batch in self._samples[:-1] for one in batch]
        distinct = sorted(set(known))
        repeated = len(known) - len(distinct)
        samples = {"prints": distinct[:MOST_SAMPLES], "distinct": len(distinct)}
        return {
            "batches": self.batches,
            "repeated_orders": self.repeats,
            "samples": {**samples, "repeated": repeated},
        }

    def begins(self, batches: Any) -> None:
        """Note that the first batch of an epoch is trained on: a look at one begins none.

        If no optimizer was called since it last began, that was a trial.
        """
        sampler = getattr(batches, "sampler", None)
        is_again = id(sampler) in self._untrained
        self._untrained.add(id(sampler))
        self._num_epochs += not is_again
        if not isinstance(sampler, torch.utils.data.DistributedSampler) or not sampler.shuffle:
            return
        order = sampler.seed, sampler.epoch
        self.repeats += self._epochs.get(id(sampler)) == order and not is_again
        self._epochs[id(sampler)] = order

    def stepped(self) -> None:
        """Note a call of an optimizer."""
        self._untrained.clear()
