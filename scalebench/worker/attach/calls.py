"""Which calls of optimizers end a training step, and what a script does between two steps.

A step is a call of an optimizer after at least one backward pass. Calls without a backward pass
in between belong to the same step: inner and outer optimizers (ZeRO), one optimizer a parameter
group (DeepSpeed) or a parameter (optimizer in backward), several after one backward pass. Where
optimizers take turns, each after a backward pass of its own (a GAN), a step is one period of the
turns. Optimizers that were ever called after the same backward pass do not take turns: an outer one
that runs every few steps (DiLoCo) makes no longer step.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

LONGEST_PERIOD = 40
FEWEST_CALLS = 10
PATIENCE = 4 * LONGEST_PERIOD
"""Calls after which optimizers without a regular order are taken to make a step each."""


class OptimizerCalls:
    """Counts the calls that matter: the first of each optimizer after a backward pass.

    Attributes:
        order: Key of the optimizer of each call that matters, until they are no longer wanted.
    """

    def __init__(self) -> None:
        self.order: list[int] | None = []
        self._backward = False
        self._together: dict[int, int] = {}

    def backward(self) -> None:
        """Note that a backward pass has begun."""
        self._backward = True

    def matters(self, optimizer: int) -> bool:
        """Tell whether this call of an optimizer is the first after a backward pass."""
        if not self._backward:
            if self.order:
                one, same = self._first_of(optimizer), self._first_of(self.order[-1])
                if one != same:
                    self._together[one] = same
            return False
        self._backward = False
        if self.order is not None:
            self.order.append(optimizer)
        return True

    def period(self) -> int | None:
        """Return how many calls make a step; see `find_period`."""
        return find_period([self._first_of(one) for one in self.order or ()])

    def _first_of(self, optimizer: int) -> int:
        """Return what stands for all optimizers that were called after the same backward pass."""
        while optimizer in self._together:
            optimizer = self._together[optimizer]
        return optimizer


def find_period(order: Sequence[int]) -> int | None:
    """Return how many calls make a step; None: more calls are needed to tell.

    The smallest number with which the later half of the calls repeats: a script may begin in
    another way. It holds every optimizer that was ever called, unless one is not called again for
    long. Without such a number, every call is a step.
    """
    if len(order) < FEWEST_CALLS:
        return None
    last = order[-max(FEWEST_CALLS, len(order) // 2) :]
    for period in range(1, min(LONGEST_PERIOD, len(last) // 2) + 1):
        repeats = all(last[i] == last[i + period] for i in range(len(last) - period))
        if repeats and (len(order) >= PATIENCE or {*last} == {*order}):
            return period
    return 1 if len(order) >= PATIENCE else None


class GapTimes(NamedTuple):
    """Seconds between two steps, on the host."""

    evaluation_s: float
    checkpoint_s: float


class Between:
    """Notes what happens since the last step, in the thread that takes the steps.

    Evaluation is from ``module.eval()`` to ``module.train()``, or to the request for a batch to
    train on after others, as Lightning gives its modules their modes back without a call. Saving is
    ``torch.save``, ``torch.distributed.checkpoint``'s ``save`` and ``async_save``, and
    `hooks.SAVERS`. What a save writes in the background stops no step.
    """

    def __init__(self) -> None:
        self._evaluating_since: int | None = None
        self._saved_before_ns = 0
        self._evaluates = False
        self._evaluation_ns = 0
        self._saving_ns = 0
        self._depth = 0
        self._trains_in = threading.get_ident()

    def mode_changed(self, to_train: bool) -> None:
        """Note that a module is about to be evaluated, or trained again."""
        if not to_train:
            if self._evaluating_since is None:
                self._evaluating_since, self._evaluates = time.monotonic_ns(), False
                self._saved_before_ns = self._saving_ns
        elif self._evaluating_since is not None:
            saved_ns = self._saving_ns - self._saved_before_ns
            self._evaluation_ns += time.monotonic_ns() - self._evaluating_since - saved_ns
            self._evaluating_since = None

    def batch_asked(self, learns: bool) -> None:
        """Note that a batch is about to be read, with gradients on or off."""
        if learns and self._evaluates:
            self.mode_changed(to_train=True)
        self._evaluates = not learns and self.is_evaluating()

    def is_evaluating(self) -> bool:
        """Tell whether a module is evaluated."""
        return self._evaluating_since is not None

    def saving(self, save: Any) -> Any:
        """Return a function that saves and notes how long it took."""

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._trains_in:
                return save(*args, **kwargs)
            before = time.monotonic_ns()
            self._depth += 1
            try:
                return save(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._saving_ns += time.monotonic_ns() - before

        return timed

    def take(self) -> GapTimes | None:
        """Return what happened since the last call; None: nothing of the kind."""
        self._trains_in = threading.get_ident()
        told = GapTimes(self._evaluation_ns / 1e9, self._saving_ns / 1e9)
        self._evaluating_since = None  # a module left in that mode is not evaluated for ever
        self._evaluation_ns = self._saving_ns = 0
        return told if any(told) else None
