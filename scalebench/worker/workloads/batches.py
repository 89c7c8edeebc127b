"""Batches of any structure: tensors inside tuples, lists and dicts, samples along dimension 0.

The stream that a rank trains on is endless, on its device, and copies nothing from the host. Its
order is that of ``torch.utils.data.DistributedSampler``. Rank r of N takes every N-th index
of one shuffled epoch, so the samples of step t over all ranks are the epoch's positions
t·B ... (t+1)·B - 1, B being the global batch: the same set at every N. That is what makes losses
and gradients comparable between world sizes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from scalebench.errors import UsageError
from scalebench.spec.workload import Shard
from scalebench.worker.process.failure import Unsupported


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


Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets; the first dimension of both is the sample."""


def num_synthetic_samples(batch_size: int) -> int:
    """Return how many samples to make up for a workload whose default batch is ``batch_size``.

    Enough for weak scaling over 16 ranks, and never so few that they are learnt by heart at once.
    """
    return max(4096, 16 * batch_size)


class ResidentBatches:
    """Endless batches of a dataset that already lives on the device.

    Every iteration starts at the first epoch; epochs follow one another without end, each in an
    order of its own. An epoch has whole global batches only; the samples it leaves out differ
    from epoch to epoch. A step costs one gather: the order of an epoch is moved to the device
    once, so that no step waits for the host or copies from it.

    Args:
        name: Of the workload, for the error.
        num_samples: Size of the dataset, over all ranks.
        shard: The rank's part.
        gather: ``gather(index)`` → batch; ``index`` has shape ``[batch_size]``, int64, and is on
            ``shard.device``.

    Raises:
        UsageError: The dataset is smaller than one global batch.
    """

    def __init__(
        self, name: str, num_samples: int, shard: Shard, gather: Callable[[torch.Tensor], Batch]
    ) -> None:
        global_batch = shard.batch_size * shard.world_size
        if num_samples < global_batch:
            raise UsageError(
                f"{name} has {num_samples} samples, fewer than one global batch of {global_batch} "
                f"({shard.world_size} ranks with {shard.batch_size} each). Choose a --batch-size "
                f"of which the ranks together take at most {num_samples}."
            )
        self.num_samples = num_samples
        self._steps_per_epoch = num_samples // global_batch
        self._shard = shard
        self.gather = gather

    def __iter__(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            order = self.epoch_order(epoch).to(self._shard.device)
            for step in range(self._steps_per_epoch):
                yield self.gather(order[step])
            epoch += 1

    def epoch_order(self, epoch: int) -> torch.Tensor:
        """Return this rank's sample indices, shape ``[steps_per_epoch, batch_size]``, on CPU.

        They are those of torch's DistributedSampler with ``drop_last``, whose lists take longer.
        """
        shard, per_step = self._shard, self._shard.batch_size
        generator = torch.Generator().manual_seed(shard.seed + epoch)
        shuffled = torch.randperm(self.num_samples, generator=generator, device="cpu")
        own = shuffled[shard.rank :: shard.world_size]
        whole = own[: self._steps_per_epoch * per_step].contiguous()
        return whole.view(self._steps_per_epoch, per_step)


def map_tensors(
    function: Callable[..., Any], *batches: Any, other: Callable[[Any], Any] = lambda part: part
) -> Any:
    """Apply ``function`` to the tensors that stand at the same place of each batch.

    What is not a tensor is taken from the first batch as ``other`` returns it: by itself, as it is.
    """
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return function(*batches)
    if isinstance(first, dict):
        return {k: map_tensors(function, *(b[k] for b in batches), other=other) for k in first}
    if isinstance(first, tuple | list):
        zipped = zip(*batches, strict=True)
        parts = [map_tensors(function, *of_all, other=other) for of_all in zipped]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return type(first)(parts)
    return other(first)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to ``device``; a batch that is there already is returned untouched."""
    return map_tensors(lambda t: t.to(device, non_blocking=True), batch)


def num_samples(batch: Any) -> int:
    """Return the length of dimension 0, the same for every tensor of the batch.

    Raises:
        ValueError: The tensors disagree, or there is none.
    """
    lengths: set[int] = set()
    map_tensors(lambda t: lengths.add(len(t) if t.ndim else 1), batch)
    if len(lengths) != 1:
        raise ValueError(f"its tensors have {sorted(lengths) or 'no'} samples along dimension 0")
    return lengths.pop()


def same(a: Any, b: Any) -> bool:
    """Tell whether two batches hold equal tensors."""
    equal: list[bool] = []
    map_tensors(lambda x, y: equal.append(torch.equal(x, y)), a, b)
    return all(equal)


def concatenate(batches: Sequence[Any]) -> Any:
    """Join batches of one structure along dimension 0."""
    return map_tensors(lambda *parts: torch.cat(parts), *batches)


def split(batch: Any, parts: int) -> list[Any]:
    """Cut a batch into ``parts`` equal microbatches along dimension 0.

    Raises:
        ValueError: The samples cannot be divided equally.
    """
    if parts == 1:
        return [batch]
    return [map_tensors(lambda t, i=i: _part(t, parts, i), batch) for i in range(parts)]


def _part(tensor: torch.Tensor, parts: int, index: int) -> torch.Tensor:
    size, left = divmod(len(tensor), parts)
    if left or size == 0:
        raise ValueError(f"{len(tensor)} samples cannot be split into {parts} equal microbatches")
    return tensor.narrow(0, index * size, size)


def first_samples(batch: Any, count: int) -> Any:
    """Return the first ``count`` samples of a batch, as views of it.

    Raises:
        ValueError: The batch has fewer.
    """
    there = num_samples(batch)
    if not 1 <= count <= there:
        raise ValueError(f"{count} samples cannot be taken of {there}")
    return map_tensors(lambda t: t.narrow(0, 0, count), batch)


def mean_cross_entropy(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy in nats, the mean over samples (and over their tokens).

    Args:
        module: Maps inputs to logits of shape ``[samples, classes]`` or
            ``[samples, tokens, classes]``.
        batch: Inputs, and int64 targets of the logits' shape without its last dimension.
    """
    inputs, targets = batch
    logits = module(inputs)
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
