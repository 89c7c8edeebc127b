"""The built-in workloads' batches through a DataLoader: from host memory, sample by sample.

The samples and their order are those of `ResidentBatches`; only the way to the device differs.
What this way costs beyond a step's own work is the rank's data stall.

Samples that are never trained on, by whose mean loss a race is judged.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from scalebench.spec import Loader
from scalebench.worker.process import setup as process
from scalebench.worker.workloads.batches import Batch, ResidentBatches

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


class LoadedBatches:
    """Endless batches that a DataLoader puts together from single samples.

    Every iteration starts at the first epoch and has its own worker processes, which end with
    it. Epochs follow one another as in a training script: the loader is iterated again, so that
    what its workers need to start again is part of the measurement.

    The samples of ``resident`` are in host memory; they are pinned for a GPU only.
    """

    def __init__(self, resident: ResidentBatches, loader: Loader, device: torch.device) -> None:
        self._resident = resident
        self._settings = loader.model_dump()
        self._settings["pin_memory"] = loader.pin_memory and device.type == "cuda"
        if loader.num_workers:
            # The ranks are forks, and what is gathered here is a closure, which cannot be pickled.
            self._settings["multiprocessing_context"] = "fork"
        # It counts the processors of the rank, which is pinned, and the workers are not.
        warnings.filterwarnings("ignore", "This DataLoader will create .* worker processes")

    def __iter__(self) -> Iterator[Batch]:
        order = _EpochOrder(self._resident)
        loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(
            _Samples(self._resident),
            batch_sampler=order,
            worker_init_fn=partial(_prepare_worker, os.getpid(), process.unpinned()),
            generator=torch.Generator(),  # else it draws from the model's random numbers
            **self._settings,
        )
        for order.epoch in count():
            yield from loader


class _Samples(Dataset[tuple[torch.Tensor, ...]]):
    """The resident samples one by one, as most datasets give them."""

    def __init__(self, resident: ResidentBatches) -> None:
        self._resident = resident

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(part[0] for part in self._resident.gather(torch.tensor([index])))


class _EpochOrder(Sampler[list[int]]):
    """The sample indices of each batch of one epoch."""

    def __init__(self, resident: ResidentBatches) -> None:
        self._resident = resident
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._resident.epoch_order(self.epoch).tolist()


def _prepare_worker(rank: int, processors: set[int] | None, _: int) -> None:
    """Bring a loader's worker process into the state in which it serves a rank.

    It must not outlive the rank: it holds copies of the rank's sockets, and the other ranks would
    not see them close. It may use every processor, as in a job whose ranks are not pinned; the
    DataLoader itself has set it to one thread.

    ``rank`` is a pid. ``processors``: those on which it may run; None: the platform cannot pin.
    """
    process.die_with_parent(rank)
    if processors is not None:
        os.sched_setaffinity(0, processors)
