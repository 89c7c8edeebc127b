"""What a rank trains on, and how it learns: prints of batches, losses, gradient, learning rate."""

from __future__ import annotations

import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from scalebench.worker.attach.checks.replicas import num_copies, square

MOST_BATCHES = 10
"""So many batches of the training are looked at, the first ones."""

MOST_BYTES = 65536
"""Of a tensor of a batch."""

MOST_SAMPLES = 256
"""Of a batch, and of all batches: those with the smallest prints, which are the same choice on all
ranks. Source: Bar-Yossef et al. 2002, "Counting distinct elements in a data stream", section 2."""

MOST_ELEMENTS = 1024
"""Of a tensor of a sample, at equal distances."""
MOST_LOSSES = 32
"""So many are kept, the first ones."""

LAST_STEP = 40
"""After so many steps nothing is noted of the losses any more."""

DEEPEST = 8
"""Operations between a loss and what it is the mean of."""

PASSES_OF = (1, 2, 3)
"""Steps whose backward passes are looked at."""

LOOKED_INTO = 8
"""Gradients that tell whether all were cleared."""


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


class Learning:
    """What is noted of the first steps.

    Attributes:
        last_step: After it there is no more to note.
    """

    def __init__(self) -> None:
        self.last_step = LAST_STEP
        self._losses: list[Any] = []
        self._passes: list[list[Any]] = []
        self._rates: list[list[float]] = []
        self._norms: list[float | None] = [None, None]
        self._cleared = False

    def backward(self, step: int, is_first: bool, roots: Any, optimizers: Sequence[Any]) -> None:
        """Note what a backward pass computes the gradients of."""
        loss = roots[0] if isinstance(roots, (tuple, list)) and len(roots) == 1 else roots
        if type(loss) is not torch.Tensor or loss.numel() != 1:
            loss = None
        if step <= self.last_step and len(self._losses) < MOST_LOSSES:
            self._losses.append([step, None if loss is None else loss.detach().clone()])
        if step in PASSES_OF:
            self._passes.append([step, *(divided_by(loss) if loss is not None else (None, None))])
            self._cleared = self._cleared or (not is_first and _are_cleared(optimizers))

    def gradients(self, optimizers: Sequence[Any]) -> None:
        """Note the gradient after a backward pass of the first step."""
        self._norms[0] = _squares(optimizers)

    def applied(self, optimizers: Sequence[Any]) -> None:
        """Note the gradient that an optimizer has applied."""
        self._norms[1] = _squares(optimizers)

    def rate(self, step: int, *optimizers: Any) -> None:
        """Note the largest learning rate of an optimizer."""
        rates = [float(g["lr"]) for one in optimizers for g in one.param_groups if "lr" in g]
        if rates:
            self._rates.append([step, max(rates)])

    def noted(self) -> dict[str, Any]:
        """Return what is compared between ranks, numbers of ranks, and launches.

        Returns:
            ``losses``: step and loss of the first backward passes (null: no number).
            ``loss_lost_from``: step from 1, from which on all of them are infinite or NaN; null:
            the last one is not. ``passes``: step, factor and kind, see `divided_by`. ``gradient``:
            squares of this rank's part of the gradient of the first step, after its last backward
            pass and when the optimizer had applied it. ``cleared``: whether a later pass of a step
            began without gradients.
            ``rates``: step and learning rate. ``seed``: of torch.
        """
        losses = [[step, None if one is None else float(one)] for step, one in self._losses]
        kept = [step for step, loss in losses if loss is None or math.isfinite(loss)]
        lost = [step + 1 for step, _ in losses if step > max(kept, default=-1)]
        return {
            "losses": losses,
            "loss_lost_from": min(lost, default=None),
            "passes": self._passes,
            "gradient": self._norms,
            "cleared": self._cleared,
            "rates": self._rates,
            "seed": torch.initial_seed(),
        }


def _with_gradients(optimizers: Sequence[Any]) -> list[Any]:
    found = {
        id(p): p
        for one in optimizers
        if one is not None
        for group in one.param_groups
        for p in group["params"]
        if p.grad is not None
    }
    return list(found.values())


def _own_part(gradient: Any) -> Any:
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def _are_cleared(optimizers: Sequence[Any]) -> bool:
    """Tell whether there are no gradients, or only zeros."""
    kept = _with_gradients(optimizers)[:LOOKED_INTO]
    return bool(optimizers) and not any(bool(_own_part(p.grad).any()) for p in kept)


def _squares(optimizers: Sequence[Any]) -> float | None:
    """Return this rank's part of the squared norm of all gradients; None: there are none."""
    total = 0.0
    for p in _with_gradients(optimizers):
        own = _own_part(p.grad)
        if own.layout is torch.strided and own.numel():
            total += square(own.detach()) / num_copies(p)
    return total or None


def divided_by(loss: Any) -> tuple[float | None, str | None]:
    """Return by what a loss is multiplied, and what it is: ``mean``, ``sum``; null: not known.

    Follows the operations that made it, from the last one back, as long as they are of one number.
    A gradient scaler's factor, a power of two above one, does not count.
    """
    factor, node = 1.0, loss.grad_fn
    for _ in range(DEEPEST):
        name = node.name() if node is not None else ""
        if name in ("MeanBackward0", "MeanBackward1"):
            return factor, "mean"
        if name in ("SumBackward0", "SumBackward1"):
            return factor, "sum"
        reduction = getattr(node, "_saved_reduction", None)
        if reduction is not None:
            return factor, {1: "mean", 2: "sum"}.get(reduction)
        if name in ("DivBackward0", "MulBackward0"):
            by = _number(node)
            if by is None:
                return factor, None
            scales = name == "MulBackward0" and by > 1 and by.as_integer_ratio()[1] == 1
            if name == "DivBackward0":
                factor /= by
            elif not (scales and int(by) & (int(by) - 1) == 0):
                factor *= by
        elif len(_inputs(node)) != 1 or name not in PASSED_ON:
            return factor, None
        node = _inputs(node)[0]
    return factor, None


def _number(node: Any) -> float | None:
    """Return the number that an operation takes besides its input; None: none, or infinite."""
    other = getattr(node, "_saved_other", None)
    if other is None or other.numel() != 1 or len(_inputs(node)) != 1:
        return None
    number = float(other)
    return number if math.isfinite(number) else None


PASSED_ON = ("ToCopyBackward0", "CloneBackward0", "ViewBackward0", "SqueezeBackward0")
"""Operations that leave a number as it is."""


def _inputs(node: Any) -> list[Any]:
    return [one for one, _ in getattr(node, "next_functions", ()) if one is not None]
