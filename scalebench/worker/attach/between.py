"""What a script does between two training steps: evaluating and saving, as far as torch sees it.

Evaluation is from ``module.eval()`` to ``module.train()``, saving is ``torch.save`` and
``torch.distributed.checkpoint``'s ``save`` and ``async_save``. All are rare: what watches them
costs a step nothing. Only the thread that trains counts: what a save writes in the background stops
no step.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, NamedTuple


class Doings(NamedTuple):
    """Seconds between two steps, on the host."""

    evaluation_s: float
    checkpoint_s: float


class Between:
    """Notes what happens since the last step, in the thread that takes the steps."""

    def __init__(self) -> None:
        self._evaluating_since: int | None = None
        self._evaluation_ns = 0
        self._saving_ns = 0
        self._depth = 0
        self._trains_in = threading.get_ident()

    def mode_changed(self, to_train: bool) -> None:
        """Note that a module is about to be evaluated, or trained again."""
        if not to_train:
            if self._evaluating_since is None:
                self._evaluating_since = time.monotonic_ns()
        elif self._evaluating_since is not None:
            self._evaluation_ns += time.monotonic_ns() - self._evaluating_since
            self._evaluating_since = None

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

    def take(self) -> Doings | None:
        """Return what happened since the last call; None: nothing of the kind."""
        self._trains_in = threading.get_ident()
        told = Doings(self._evaluation_ns / 1e9, self._saving_ns / 1e9)
        self._evaluating_since = (
            None  # a module that is left in that mode is not evaluated for ever
        )
        self._evaluation_ns = self._saving_ns = 0
        return told if any(told) else None
