"""The built-in workloads' batches through a DataLoader: from host memory, sample by sample.

The samples and their order are those of `ResidentBatches`; only the way to the device differs.
What this way costs beyond a step's own work is the rank's data stall.
"""

import os
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import count

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from scalebench.spec import Loader
from scalebench.worker.process import setup as process
from scalebench.worker.workloads.order import Batch, ResidentBatches


class LoadedBatches:
    """Endless batches that a DataLoader puts together from single samples.

    Every iteration starts at the first epoch and has its own worker processes, which end with
    it. Epochs follow one another as in a training script: the loader is iterated again, so that
    what its workers need to start again is part of the measurement.

    Args:
        resident: The samples, in host memory, and their order.
        loader: How the DataLoader is set up.
        device: Where the batches will be used; they are pinned for a GPU only.
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
            worker_init_fn=partial(_settle_worker, os.getpid(), process.unpinned()),
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


def _settle_worker(rank: int, processors: set[int] | None, _: int) -> None:
    """Bring a loader's worker process into the state in which it serves a rank.

    It must not outlive the rank: it holds copies of the rank's sockets, and the other ranks would
    not see them close. It may use every processor, as in a job whose ranks are not pinned; the
    DataLoader itself has set it to one thread.

    Args:
        rank: The pid of the rank.
        processors: Those on which it may run; None: the platform cannot pin.
    """
    process.die_with_parent(rank)
    if processors is not None:
        os.sched_setaffinity(0, processors)
