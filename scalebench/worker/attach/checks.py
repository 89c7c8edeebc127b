"""What tells whether a script trains rightly: its parameters and the batches that it trains on.

Each rank notes its own; whether they agree is told where the records of all ranks are together.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

MOST_BATCHES = 10
"""So many batches of the training are looked at, the first ones."""

MOST_BYTES = 65536
"""Of a tensor of a batch."""

MOST_SUMS = 256
"""Parameters that follow each other share one where there are more."""

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → integers of that size."""


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


def of_rank(optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return what is compared between ranks; takes about as long as reading the parameters once.

    Called after the measurement, at the same step of each rank.

    Returns:
        ``replicas``: ``ranks`` that DDP keeps alike (null: all) and ``sums``: name, sum of the
        bits, sum of the values, and norm of some parameters; null: the script has no DDP, or
        divides its parameters among ranks. ``batch_norms``: modules that normalise by the batch of
        one rank.
    """
    kind: Any = torch.nn.parallel.DistributedDataParallel
    made = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    wrapped = [one for one in made if "_parameters" in vars(one)]
    inside = [one for module in wrapped for one in module.modules()]
    return {
        "replicas": _replicas(wrapped, optimizers) if wrapped else None,
        "batch_norms": sum(_normalises_alone(one) for one in inside),
    }


def _normalises_alone(module: Any) -> bool:
    kinds: Any = torch.nn.modules.batchnorm
    known = isinstance(module, kinds._BatchNorm) and not isinstance(module, torch.nn.SyncBatchNorm)
    return known and bool(module.training)


def _replicas(wrapped: Sequence[Any], optimizers: Sequence[Any]) -> dict[str, Any] | None:
    members = [_members(module) for module in wrapped]
    averages = any("SGD" in str(hook) for one in wrapped for hook in _hooks(one))
    late = any(type(one).__name__ == "ZeroRedundancyOptimizer" for one in optimizers)
    if averages or late or any(one != members[0] for one in members):
        return None  # alike only now and then, or not yet, or not all of them
    kept: dict[int, tuple[str, Any]] = {}
    ignored = set()
    for module in wrapped:
        for name, parameter in module.module.named_parameters():
            if name in getattr(module, "parameters_to_ignore", ()):
                ignored.add(id(parameter))
            else:
                kept[id(parameter)] = (name, parameter)
    groups = (group for one in optimizers for group in one.param_groups)
    others = [p for group in groups for p in group["params"] if id(p) not in ignored | kept.keys()]
    kept.update((id(p), ("a parameter outside of DDP", p)) for p in others)
    kept.update((id(p), (f"{name}, outside of DDP", p)) for name, p in _owned(others))
    if any(_is_divided(parameter) for _, parameter in kept.values()):
        return None
    return {"ranks": members[0], "sums": _sums(list(kept.values()))}


def _hooks(wrapped: Any) -> Any:
    return getattr(wrapped, "_comm_hooks", None) or ()


def _members(wrapped: Any) -> list[int] | None:
    try:
        return list(torch.distributed.get_process_group_ranks(wrapped.process_group))
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return None


def _owned(parameters: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Name parameters by the modules that have them."""
    wanted = {id(p) for p in parameters}
    for one in gc.get_objects() if wanted else ():
        if issubclass(type(one), torch.nn.Module):
            for name, parameter in vars(one).get("_parameters", {}).items():
                if id(parameter) in wanted:
                    yield f"{name} of {type(one).__name__}", parameter


def _is_divided(parameter: Any) -> bool:
    return hasattr(parameter, "device_mesh") or hasattr(parameter, "_is_flat_param")


def _sums(named: Sequence[tuple[str, Any]]) -> list[list[Any]]:
    """Return, for each parameter or several in a row, a name, bits, sum and norm."""
    known = [(name, p.detach()) for name, p in named if p.numel() and not p.is_complex()]
    each = -(-len(known) // MOST_SUMS) or 1
    found = []
    for first in range(0, len(known), each):
        some = known[first : first + each]
        flat = [p.reshape(-1) for _, p in some]
        bits = sum(int(p.view(INTEGERS[p.element_size()]).sum()) for p in flat)
        total = sum(float(p.sum(dtype=torch.float64)) for p in flat)
        norm = sum(float(torch.linalg.vector_norm(p, dtype=torch.float64)) ** 2 for p in flat)
        name = some[0][0] if len(some) == 1 else f"{some[0][0]} to {some[-1][0]}"
        found.append([name, bits, total, norm**0.5])
    return found
