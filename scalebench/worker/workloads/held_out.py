"""Samples that are never trained on, by whose mean loss a race is judged."""

from collections.abc import Callable, Iterator, Sequence

import torch

from scalebench.worker.workloads.order import Batch

NUM_BATCHES = 16
BATCH_SIZE = 8


class HeldOut:
    """``NUM_BATCHES`` batches of ``BATCH_SIZE`` samples; made when they are first asked for.

    Args:
        make: ``make(count)`` → inputs and targets of ``count`` samples that no training batch has.
    """

    def __init__(self, make: Callable[[int], Sequence[torch.Tensor]]) -> None:
        self._make = make
        self._batches: list[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            inputs, targets = self._make(NUM_BATCHES * BATCH_SIZE)
            halves = inputs.split(BATCH_SIZE), targets.split(BATCH_SIZE)
            self._batches = list(zip(*halves, strict=True))
        return iter(self._batches)
