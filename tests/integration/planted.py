"""Workloads in which a known time is lost to a known cause, copied next to the run.

How long is asked for in the environment; how long it then really took is written down, because
a sleep on a busy machine lasts longer than it was told to. So is when each rank reaches the
collective that makes the others wait: ranks are not at the same place of a step at the same time,
and a rank that wakes up computes more slowly than one that never slept.
"""

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from scalebench import Shard, Workload

ASKED_S = float(os.environ["PLANTED_S"])
LOG = Path(os.environ["PLANTED_LOG"])


@contextmanager
def written_down(shard: Shard):
    """Note how long the block took, one line of seconds in the rank's own file."""
    began = time.perf_counter()
    yield
    with LOG.with_suffix(f".rank{shard.rank}").open("a") as log:
        log.write(f"{time.perf_counter() - began}\n")


def noted(shard: Shard, what: str) -> None:
    """Note when something happened, nanoseconds of the clock that both ranks share."""
    with LOG.with_suffix(f".{what}.rank{shard.rank}").open("a") as log:
        log.write(f"{time.perf_counter_ns()}\n")


def layered(shard: Shard, width: int = 256, depth: int = 6) -> Workload:
    """A perceptron whose every layer is a bucket of its own when buckets are small."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    data = torch.Generator().manual_seed(100 + shard.rank)
    batches = [torch.randn(shard.batch_size, width, generator=data) for _ in range(8)]
    return Workload(module=nn.Sequential(*layers), batches=batches, loss=mean_square)


def mean_square(module, batch):
    return module(batch).square().mean()


def sleeps_on_rank_1(shard: Shard) -> Workload:
    """Rank 1 comes later than the others, by the same time at every step."""

    workload = layered(shard)

    def loss(module, batch):
        if shard.rank == 1:
            time.sleep(ASKED_S)
        return mean_square(module, batch)

    def last_gradient_is_there(_):
        if shard.world_size > 1:
            noted(shard, "arrives")

    next(workload.module.parameters()).register_hook(last_gradient_is_there)
    return replace(workload, loss=loss)


def computes_longer(shard: Shard) -> Workload:
    """Every rank of several spends the time on matrix products that one rank alone leaves out."""
    matrix = torch.randn(512, 512)

    def loss(module, batch):
        if shard.world_size > 1:
            with written_down(shard):
                until = time.perf_counter() + ASKED_S
                while time.perf_counter() < until:
                    torch.mm(matrix, matrix)
        return mean_square(module, batch)

    return replace(layered(shard), loss=loss)


def waits_for_batches(shard: Shard) -> Workload:
    """Every batch comes late, on every rank."""
    workload = layered(shard)

    class Late:
        def __iter__(self):
            for batch in workload.batches:
                if shard.world_size > 1:
                    with written_down(shard):
                        time.sleep(ASKED_S)
                yield batch

    return replace(workload, batches=Late())


class DelayedBucket:
    """A communication hook: rank 1 hands over one of the buckets later than the others.

    Its own thread does so, over a group of its own, so that neither computation nor the other
    buckets wait.
    """

    def __init__(self, shard: Shard, is_late) -> None:
        self.shard, self.is_late, self.group = shard, is_late, dist.new_group()

    def hook(self, state, bucket):
        if bucket.is_last():
            noted(self.shard, "last-handed-over")
        if not self.is_late(bucket):
            return averaged(bucket.buffer(), None)
        if self.shard.rank != 1:
            noted(self.shard, "late-handed-over")
            return averaged(bucket.buffer(), self.group)
        future = torch.futures.Future()

        def send() -> None:
            with written_down(self.shard):
                time.sleep(ASKED_S)
            noted(self.shard, "late-handed-over")
            mean = averaged(bucket.buffer(), self.group).wait()
            noted(self.shard, "late-arrived")
            future.set_result(mean)

        threading.Thread(target=send).start()
        return future


def averaged(buffer, group):
    """Start an all-reduce; return the future of the mean over the ranks."""
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size()))


def with_delayed_bucket(shard: Shard, is_late) -> Workload:
    """A model with a long backward pass behind its first bucket."""
    hooked = []

    def loss(module, batch):
        if hasattr(module, "register_comm_hook") and not hooked and shard.world_size > 1:
            delay = DelayedBucket(shard, is_late)
            module.register_comm_hook(None, delay.hook)
            hooked.append(delay)
        return mean_square(module, batch)

    return replace(layered(shard, width=512, depth=8), loss=loss)


def last_bucket_late(shard: Shard) -> Workload:
    return with_delayed_bucket(shard, lambda bucket: bucket.is_last())


def first_bucket_late(shard: Shard) -> Workload:
    return with_delayed_bucket(shard, lambda bucket: bucket.index() == 0)


def sleeps_on_rank_0_with_buffers(shard: Shard) -> Workload:
    """Rank 0 comes late; DDP sends the module's buffers from it before every forward pass."""
    workload = layered(shard)
    module = nn.Sequential(nn.BatchNorm1d(256), workload.module)

    def loss(module, batch):
        if shard.world_size > 1:
            if shard.rank == 0:
                time.sleep(ASKED_S)
            noted(shard, "arrives")
        return mean_square(module, batch)

    return replace(workload, module=module, loss=loss)
