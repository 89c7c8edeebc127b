"""Workloads with known troubles, copied next to the run that is to meet them.

Each is a small perceptron on random data; what goes wrong is in the name. Troubles start at a
step that only measuring launches reach, unless the name says otherwise.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.utils.data
from torch import nn

from scalebench import Workload

LATE = 8
BATCH_S = 0.03


def healthy(shard, layers=()):
    module = nn.Sequential(nn.Linear(16, 32), *layers, nn.ReLU(), nn.Linear(32, 4))
    data = torch.Generator().manual_seed(100 + shard.rank)
    batches = [
        (
            torch.randn(shard.batch_size, 16, generator=data),
            torch.randint(4, (shard.batch_size,), generator=data),
        )
        for _ in range(8)
    ]
    return Workload(module=module, batches=batches, loss=mean_loss)


def mean_loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def with_trouble(shard, trouble, rank=1, step=LATE):
    calls = 0

    def loss(module, batch):
        nonlocal calls
        calls += 1
        value = mean_loss(module, batch)
        return trouble(value) if shard.rank == rank and calls > step else value

    return replace(healthy(shard), loss=loss)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.full((16,), index / 512), index % 4


def fed_by_workers(shard):
    """A DataLoader whose worker makes batches in advance."""
    loader = torch.utils.data.DataLoader(Samples(), shard.batch_size, num_workers=1)
    return replace(healthy(shard), batches=loader)


def raises_on_rank_1(shard):
    def trouble(value):
        raise ValueError("planted on rank 1")

    return with_trouble(shard, trouble)


def killed_on_rank_1(shard):
    return with_trouble(shard, lambda value: os.kill(os.getpid(), signal.SIGKILL))


def hangs_on_rank_1(shard):
    return with_trouble(shard, lambda value: time.sleep(600))


def nan_on_rank_1(shard):
    return with_trouble(shard, lambda value: value * float("nan"))


def out_of_memory(shard):
    return with_trouble(shard, lambda value: torch.empty(1 << 50), rank=0, step=LATE)


def too_large_for_one_process(shard):
    """Fit only under a wrapper: the reference runs out of memory."""

    def loss(module, batch):
        if shard.world_size > 1 and not hasattr(module, "no_sync"):
            raise torch.OutOfMemoryError("planted: the bare model does not fit")
        return mean_loss(module, batch)

    return replace(healthy(shard), loss=loss)


def slow(shard):
    def loss(module, batch):
        time.sleep(0.05)
        return mean_loss(module, batch)

    return replace(healthy(shard), loss=loss)


def busy(shard):
    """Keeps its core busy for a while in every step."""

    def loss(module, batch):
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:
            pass
        return mean_loss(module, batch)

    return replace(healthy(shard), loss=loss)


def segfault_on_rank_1(shard):
    def die(value):
        Path("died").write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGSEGV)

    return with_trouble(shard, die)


class TimedBatches:
    """Batches that each take ``BATCH_S`` to come."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        for batch in self.batches:
            time.sleep(BATCH_S)
            yield batch


def slow_batches(shard):
    workload = healthy(shard)
    return replace(workload, batches=TimedBatches(workload.batches))


def with_batchnorm(shard):
    return healthy(shard, (nn.BatchNorm1d(32),))


def late_on_rank_0(shard):
    """DDP sends the module's buffers from rank 0 before every forward pass."""

    def loss(module, batch):
        time.sleep(0 if shard.rank else BATCH_S)
        return mean_loss(module, batch)

    return replace(with_batchnorm(shard), loss=loss)


def with_dropout(shard):
    return healthy(shard, (nn.Dropout(0.5),))


def with_summed_loss(shard):
    def loss(module, batch):
        return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="sum")

    return replace(healthy(shard), loss=loss)


def bypasses_the_wrapper(shard):
    """Its loss calls the inner module, so that DDP never sees the backward pass."""

    def loss(module, batch):
        return mean_loss(getattr(module, "module", module), batch)

    return replace(healthy(shard), loss=loss)


def loss_is_a_float(shard):
    return replace(healthy(shard), loss=lambda module, batch: 1.0)


def loss_per_sample(shard):
    def loss(module, batch):
        return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")

    return replace(healthy(shard), loss=loss)


def raises_at_once(shard):
    raise RuntimeError("no data today")


def returns_a_module(shard):
    return nn.Linear(2, 2)


def feeds_all_ranks_alike(shard):
    return healthy(replace(shard, rank=0))


def works_the_second_time(shard):
    """Fails on rank 1 until the file `mended` is there."""

    def trouble(value):
        if not os.path.exists("mended"):
            raise ValueError("not mended yet")
        return value

    return with_trouble(shard, trouble, step=0)


def in_the_rounds(shard, trouble):
    """Rank 1 meets a trouble when it is profiled for the first time: after the clean window."""

    def when_traced(value):
        if torch.autograd.profiler._is_profiler_enabled:
            trouble()
        return value

    return with_trouble(shard, when_traced)


def raises_in_the_rounds(shard):
    def trouble():
        raise ValueError("planted while traced")

    return in_the_rounds(shard, trouble)


def dies_in_the_rounds(shard):
    """Rank 1 is gone without a word."""
    return in_the_rounds(shard, lambda: os._exit(7))


def hangs_in_the_rounds(shard):
    return in_the_rounds(shard, lambda: time.sleep(600))


class _SparseModel(nn.Module):
    """An embedding with sparse gradients, looked up by the signs of the input."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 4, sparse=True)

    def forward(self, x):
        return self.table((x > 0).long()).mean(dim=1)


def sparse_embedding(shard):
    return replace(
        healthy(shard),
        module=_SparseModel(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
