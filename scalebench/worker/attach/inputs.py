"""How much a script's modules are given in the first step: it tells how a rank's work depends on N.

Without a DataLoader nothing else does. Modules are looked at until the first call of an optimizer,
which is never a clean step, or until the script calls torch.compile, which would compile the hook.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

DEEPEST = 4


class Inputs:
    """Counts the elements of what the outermost modules are given while gradients are on.

    Attributes:
        elements: So far; None: it is not known.
    """

    def __init__(self) -> None:
        self.elements: int | None = 0
        self._undo: list[Callable[[], None]] = []
        self._inside = False

    def begin(self) -> None:
        """Look from now on."""
        self._replace(torch.nn.Module, "__call__", self._counting)
        self._replace(torch, "compile", self._giving_up)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(wrap(original)))
        self._undo.append(lambda: setattr(owner, name, original))

    def _counting(self, original: Any) -> Any:
        def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self.elements is None or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            self._inside = True
            try:
                self.elements += _elements([args, kwargs], DEEPEST)
                return original(module, *args, **kwargs)
            finally:
                self._inside = False

        return watched

    def _giving_up(self, original: Any) -> Any:
        def compiling(*args: Any, **kwargs: Any) -> Any:
            if self._undo:
                self.elements = None
            self.end()
            return original(*args, **kwargs)

        return compiling

    def end(self) -> None:
        """Leave torch as it was: a step is over."""
        while self._undo:
            self._undo.pop()()


def _elements(value: Any, depth: int) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if not depth or not isinstance(value, (list, tuple, dict)):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return sum(_elements(part, depth - 1) for part in parts)
