"""The stream of batches that a rank trains on: endless, and on its device."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from scalebench.errors import UsageError
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.workloads.batches import num_samples, to_device


def check_size(batch: Any, batch_size: int) -> None:
    """Raise UsageError unless a batch holds the samples that the rank was asked for.

    Throughput counts those: a loader that ignores ``shard.batch_size`` would make it wrong.
    """
    try:
        found = num_samples(batch)
    except ValueError as error:
        raise UsageError(
            f"The workload's batches cannot be counted: {error}. Give tensors whose dimension 0 "
            "counts the samples."
        ) from error
    if found != batch_size:
        raise UsageError(
            f"The workload's batches contain {found} samples, but {batch_size} were requested. Use "
            "shard.batch_size for the loader's batch size, and drop the last, smaller batch."
        )


def refuse_prefetching(batches: Iterable[Any]) -> None:
    """Raise Unsupported where worker processes make batches in advance.

    They go on while the rank waits for its turn, and its next steps would find more batches ready
    than in a job of its own.
    """
    num_workers = getattr(batches, "num_workers", 0)
    if num_workers:
        raise Unsupported(
            f"the {num_workers} workers of its DataLoader do not wait while another row is measured"
        )


def endless(batches: Iterable[Any], device: torch.device, batch_size: int) -> Iterator[Any]:
    """Yield batches for ever, on ``device``: when they end they are iterated again.

    Raises:
        UsageError: There is not a single batch, or it has not ``batch_size`` samples.
    """
    while True:
        empty = True
        for batch in batches:
            if empty:
                check_size(batch, batch_size)
            empty = False
            yield to_device(batch, device)
        if empty:
            raise UsageError(
                "The workload's batches ended without a single batch. Give batches that can be "
                "iterated more than once (a list, a DataLoader), with at least one batch for "
                "every rank."
            )
