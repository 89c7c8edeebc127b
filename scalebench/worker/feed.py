"""The stream of batches that a rank trains on: endless, and on its device."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from scalebench.errors import UsageError
from scalebench.worker.batches import to_device


def endless(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches for ever, on ``device``: when they end they are iterated again.

    Raises:
        UsageError: There is not a single batch.
    """
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield to_device(batch, device)
        if empty:
            raise UsageError(
                "The workload's batches came to an end at once. Give batches that can be iterated "
                "more than once (a list, a DataLoader), with at least one batch for every rank."
            )
