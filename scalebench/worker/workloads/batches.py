"""Batches of any structure: tensors inside tuples, lists and dicts, samples along dimension 0."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def map_tensors(
    function: Callable[..., Any], *batches: Any, other: Callable[[Any], Any] = lambda part: part
) -> Any:
    """Apply ``function`` to the tensors that stand at the same place of each batch.

    What is not a tensor is taken from the first batch as ``other`` returns it: by itself, as it is.
    """
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return function(*batches)
    if isinstance(first, dict):
        return {k: map_tensors(function, *(b[k] for b in batches), other=other) for k in first}
    if isinstance(first, tuple | list):
        zipped = zip(*batches, strict=True)
        parts = [map_tensors(function, *of_all, other=other) for of_all in zipped]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return type(first)(parts)
    return other(first)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to ``device``; a batch that is there already is returned untouched."""
    return map_tensors(lambda t: t.to(device, non_blocking=True), batch)


def num_samples(batch: Any) -> int:
    """Return the length of dimension 0, the same for every tensor of the batch.

    Raises:
        ValueError: The tensors disagree, or there is none.
    """
    lengths: set[int] = set()
    map_tensors(lambda t: lengths.add(len(t) if t.ndim else 1), batch)
    if len(lengths) != 1:
        raise ValueError(f"its tensors have {sorted(lengths) or 'no'} samples along dimension 0")
    return lengths.pop()


def same(a: Any, b: Any) -> bool:
    """Tell whether two batches hold equal tensors."""
    equal: list[bool] = []
    map_tensors(lambda x, y: equal.append(torch.equal(x, y)), a, b)
    return all(equal)


def concatenate(batches: Sequence[Any]) -> Any:
    """Join batches of one structure along dimension 0."""
    return map_tensors(lambda *parts: torch.cat(parts), *batches)


def split(batch: Any, parts: int) -> list[Any]:
    """Cut a batch into ``parts`` equal microbatches along dimension 0.

    Raises:
        ValueError: The samples cannot be divided equally.
    """
    if parts == 1:
        return [batch]
    return [map_tensors(lambda t, i=i: _part(t, parts, i), batch) for i in range(parts)]


def _part(tensor: torch.Tensor, parts: int, index: int) -> torch.Tensor:
    size, left = divmod(len(tensor), parts)
    if left or size == 0:
        raise ValueError(f"{len(tensor)} samples cannot be split into {parts} equal microbatches")
    return tensor.narrow(0, index * size, size)


def first_samples(batch: Any, count: int) -> Any:
    """Return the first ``count`` samples of a batch, as views of it.

    Raises:
        ValueError: The batch has fewer.
    """
    there = num_samples(batch)
    if not 1 <= count <= there:
        raise ValueError(f"{count} samples cannot be taken of {there}")
    return map_tensors(lambda t: t.narrow(0, 0, count), batch)
