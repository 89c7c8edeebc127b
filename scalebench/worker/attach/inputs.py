"""How much a script's modules are given in the first step: it tells how a rank's work depends on N.

Without a DataLoader nothing else does. Modules are looked at until the first call of an optimizer,
which is never a clean step, or until the script compiles something: torch.compile would compile the
hook as well.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from scalebench.worker.attach.imports import after_import_of

DEEPEST = 4


class Inputs:
    """Counts the elements of what the outermost modules are given while gradients are on.

    Attributes:
        elements: So far; None: it is not known.
    """

    def __init__(self) -> None:
        self.elements: int | None = 0
        self._original: Any = None
        self._inside = False

    def begin(self) -> None:
        """Look from now on."""
        module: Any = torch.nn.Module
        self._original = original = module.__call__

        @functools.wraps(original)
        def watched(called: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._original is None or not torch.is_grad_enabled():
                return original(called, *args, **kwargs)
            self._inside = True
            try:
                self.elements = (self.elements or 0) + _elements([args, kwargs], DEEPEST)
                return original(called, *args, **kwargs)
            finally:
                self._inside = False

        module.__call__ = watched
        after_import_of("torch._dynamo", self._give_up)

    def end(self) -> None:
        """Leave torch as it was: a step is over."""
        if self._original is not None:
            torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]
            self._original = None

    def _give_up(self) -> None:
        if self._original is not None:
            self.end()
            self.elements = None


def _elements(value: Any, depth: int) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if not depth or not isinstance(value, (list, tuple, dict)):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return sum(_elements(part, depth - 1) for part in parts)
