"""Which samples a rank trains on, and batches of them without a copy from the host.

The order is that of ``torch.utils.data.DistributedSampler``. Rank r of N takes every N-th index
of one shuffled epoch, so the samples of step t over all ranks are the epoch's positions
t·B ... (t+1)·B - 1, B being the global batch: the same set at every N. That is what makes losses
and gradients comparable between world sizes.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from scalebench.errors import UsageError
from scalebench.spec.workload import Shard

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
        self,
        name: str,
        num_samples: int,
        shard: Shard,
        gather: Callable[[torch.Tensor], Batch],
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
            for index in self.epoch_order(epoch).to(self._shard.device).unbind():
                yield self.gather(index)
            epoch += 1

    def epoch_order(self, epoch: int) -> torch.Tensor:
        """Return this rank's sample indices, shape ``[steps_per_epoch, batch_size]``, on CPU."""
        shard = self._shard
        sampler: DistributedSampler[int] = DistributedSampler(
            cast(Any, range(self.num_samples)),  # only its length is asked for
            num_replicas=shard.world_size,
            rank=shard.rank,
            shuffle=True,
            seed=shard.seed,
            drop_last=True,
        )
        sampler.set_epoch(epoch)
        # The sampler shuffles with a CPU generator, which fails under another default device.
        with torch.device("cpu"):
            order = np.fromiter(sampler, dtype=np.int64, count=len(sampler))
        whole = self._steps_per_epoch * shard.batch_size
        return torch.from_numpy(order[:whole]).view(self._steps_per_epoch, shard.batch_size)
