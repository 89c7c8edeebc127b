"""Samples that are never trained on, by whose mean loss a race is judged."""

from collections.abc import Callable, Iterator, Sequence

import torch

from scalebench.worker.workloads.order import Batch

NUM_BATCHES = 16
BATCH_SIZE = 8


class HeldOut:
    """``NUM_BATCHES`` batches of ``BATCH_SIZE`` samples; made when they are first asked for.

    Their samples are drawn without order, as those of a batch in training are: neighbours in a text
    are alike, and labels may go round. The noise of gradients would be that of such batches.

    Args:
        make: ``make(count)`` → inputs and targets of ``count`` samples that no training batch has.
    """

    def __init__(self, make: Callable[[int], Sequence[torch.Tensor]]) -> None:
        self._make = make
        self._batches: list[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            made = self._make(NUM_BATCHES * BATCH_SIZE)
            generator = torch.Generator(device="cpu").manual_seed(0)
            order = torch.randperm(len(made[0]), generator=generator, device="cpu")
            halves = [tensor[order.to(tensor.device)].split(BATCH_SIZE) for tensor in made]
            self._batches = list(zip(*halves, strict=True))
        return iter(self._batches)
