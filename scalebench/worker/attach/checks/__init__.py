"""What tells whether a script trains rightly: its models, its batches, its losses.

Each rank notes its own; whether they agree is told where the records of all ranks are together.
Nothing is noted in a step that counts: in the first ones, at the borders of blocks, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scalebench.worker.attach import facts
from scalebench.worker.attach.checks.learning import Learning
from scalebench.worker.attach.checks.replicas import Replicas

EARLY = (0, 1)
"""Steps before whose gradients the models are looked at: before any was made, and after one."""


class Checks:
    """What one rank notes.

    A check never costs a measurement: the first error ends all of them.

    Args:
        device: What the rank trains on.
        world_size: N.

    Attributes:
        is_due: Whether the models are looked at when the next gradients are about to be computed.
        wants_gradients: Whether to be told when a backward pass is over.
    """

    def __init__(self, device: str, world_size: int) -> None:
        self.is_due = False
        self.wants_gradients = True
        self._failed = False
        self._replicas = Replicas(device) if world_size > 1 else None
        self._learning = Learning()
        self._known: list[Any] = []
        self._named: list[str] = []

    def backward(self, step: int, is_first: bool, roots: Any) -> None:
        """Note that a backward pass is about to begin.

        Args:
            step: Calls of optimizers so far.
            is_first: Whether it is the first since the last of them.
            roots: What it computes the gradients of.
        """
        if self._failed or (step > self._learning.last_step and not (self.is_due and is_first)):
            return
        try:
            if is_first and (self.is_due or step in EARLY):
                self.is_due = False
                self._known = self._known or facts.optimizers()
                if self._replicas is not None:
                    self._replicas.look(step, [one() for one in self._known])
            self._learning.backward(step, is_first, roots, [one() for one in self._known])
        except Exception:
            self._failed, self.wants_gradients = True, False

    def gradients(self) -> None:
        """Note that a backward pass is over."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        try:
            self._learning.gradients([one() for one in self._known])
        except Exception:
            self._failed, self.wants_gradients = True, False

    def stepped(self, optimizer: Any) -> None:
        """Note that the first call of an optimizer is over."""
        if self._failed:
            return
        self.wants_gradients = False
        try:
            self._learning.applied([one() for one in self._known])
            self._learning.rate(0, optimizer)
        except Exception:
            self._failed = True

    def warned(self, message: Any) -> None:
        """Note an operation that torch says is not deterministic.

        It does so where the script calls ``use_deterministic_algorithms(True, warn_only=True)``.
        """
        operation, is_named, _ = str(message).partition(" does not have a deterministic")
        if is_named and operation not in self._named:
            self._named.append(operation)

    def end(self, step: int, optimizers: Sequence[Any]) -> dict[str, Any] | None:
        """Return all that was noted, once the models are looked at again; None: something failed.

        Returns:
            See `Replicas.noted` and `Learning.noted`; ``nondeterministic``: operations that torch
            has named.
        """
        if self._failed:
            return None
        try:
            self._learning.rate(step, *optimizers[:1])
            told = {**self._learning.noted(), "nondeterministic": self._named}
            if self._replicas is None:
                return told
            self._replicas.look_at_end(step, optimizers)
            return {**self._replicas.noted(), **told}
        except Exception:
            return None
