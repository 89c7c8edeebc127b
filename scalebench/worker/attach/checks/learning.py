"""How a rank learns: its losses, what they are divided by, its gradient, its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scalebench.worker.attach.checks.replicas import num_copies, square

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
