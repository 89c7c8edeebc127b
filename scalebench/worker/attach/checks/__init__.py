"""What tells whether a script trains rightly: its models, its batches, its losses.

Each rank notes its own; whether they agree is told where the records of all ranks are together.
Nothing is noted in a step that counts: in the first ones, at the borders of blocks, at the end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scalebench.worker.attach.checks.data import Learning
from scalebench.worker.attach.checks.replicas import Made, Replicas

EARLY = (0, 1)
"""Steps before whose gradients the models are looked at: before any was made, and after one."""


def _harmless(check: Any) -> Any:
    """Have a check never cost a measurement: the first error ends all of them."""

    @functools.wraps(check)
    def checked(self: Checks, *given: Any) -> Any:
        if self.failed:
            return None
        began_s = time.perf_counter()
        try:
            return check(self, *given)
        except Exception:
            self.failed, self.wants_gradients = True, False
        finally:
            self.took_s += time.perf_counter() - began_s
        return None

    return checked


class Checks:
    """What one rank notes.

    Attributes:
        is_due: Whether the models are looked at when the next gradients are about to be computed.
        wants_gradients: Whether to be told when a backward pass is over.
        took_s: Seconds that all of this took so far; on a GPU with the wait for queued work.
    """

    def __init__(self, device: str, world_size: int, made: Made) -> None:
        self.is_due = False
        self.wants_gradients = True
        self.failed = False
        self.took_s = 0.0
        self._replicas = Replicas(device) if world_size > 1 else None
        self._learning = Learning()
        self._made = made
        self._known: list[Any] = []
        self._named: list[str] = []

    def backward(self, step: int, is_first: bool, roots: Any) -> None:
        """Note that a backward pass is about to begin.

        ``step``: calls of optimizers so far; ``is_first``: since the last of them.
        """
        if step <= self._learning.last_step or (self.is_due and is_first):
            self._look(step, is_first, roots)

    @_harmless
    def _look(self, step: int, is_first: bool, roots: Any) -> None:
        if is_first and (self.is_due or step in EARLY):
            self.is_due = False
            self._known = self._known or self._made.optimizers()
            if self._replicas is not None:
                self._replicas.look(step, [one() for one in self._known], self._made.wrappers())
        self._learning.backward(step, is_first, roots, [one() for one in self._known])

    @_harmless
    def gradients(self) -> None:
        """Note that a backward pass is over."""
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            self._learning.gradients([one() for one in self._known])

    @_harmless
    def stepped(self, optimizer: Any, reduced: Mapping[int, Any] | None) -> None:
        """Note that the first call of an optimizer is over.

        ``reduced``: address of what the script itself had all-reduced for it → the group.
        """
        self.wants_gradients = False
        if self._replicas is not None:
            self._replicas.confirm([one() for one in self._known], reduced or {})
        self._learning.applied([one() for one in self._known])
        self._learning.rate(0, optimizer)

    def warned(self, message: Any) -> None:
        """Note an operation that torch says is not deterministic.

        It does so where the script calls ``use_deterministic_algorithms(True, warn_only=True)``.
        """
        operation, is_named, _ = str(message).partition(" does not have a deterministic")
        if is_named and operation not in self._named:
            self._named.append(operation)

    @_harmless
    def end(self, step: int, optimizers: Sequence[Any]) -> dict[str, Any] | None:
        """Return all that was noted, once the models are looked at again; None: something failed.

        Returns:
            See `Replicas.noted` and `Learning.noted`; ``nondeterministic``: operations that torch
            has named.
        """
        self._learning.rate(step, *optimizers[:1])
        told = {**self._learning.noted(), "nondeterministic": self._named}
        if self._replicas is None:
            return told
        self._replicas.look_at_end(step, optimizers, self._made.wrappers())
        return {**self._replicas.noted(), **told}
