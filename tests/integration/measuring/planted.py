"""Workloads in which a known time is lost to a known cause, copied next to the run.

How long it really took is written down, because a sleep on a busy machine lasts longer than it was
told to. So is when each rank reaches the collective that makes the others wait: ranks are not at
the same place of a step at the same time, and a rank that wakes up computes more slowly than one
that never slept.
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

from scalebench import Workload

FOLDER = Path(os.environ["PLANTED_LOGS"])


class Loss:
    """A time that is lost in a workload: how long is asked for, and notes of what happened."""

    def __init__(self, workload, shard, asked_s=0.06):
        self.workload, self.rank, self.asked_s = workload, shard.rank, asked_s

    def noted(self, what, value=None):
        """Note when something happened, nanoseconds of the clock that both ranks share."""
        with (FOLDER / f"{self.workload}.{what}.rank{self.rank}").open("a") as log:
            log.write(f"{time.perf_counter_ns() if value is None else value}\n")

    @contextmanager
    def written_down(self):
        """Note how long the block took, seconds."""
        began = time.perf_counter()
        yield
        self.noted("took", time.perf_counter() - began)

    def sleep(self):
        time.sleep(self.asked_s)


def layered(shard, width=256, depth=6):
    """A perceptron whose every layer is a bucket of its own when buckets are small."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    data = torch.Generator().manual_seed(100 + shard.rank)
    batches = [torch.randn(shard.batch_size, width, generator=data) for _ in range(8)]
    return Workload(module=nn.Sequential(*layers), batches=batches, loss=mean_square)


def mean_square(module, batch):
    return module(batch).square().mean()


def sleeps_on_rank_1(shard):
    """Rank 1 comes later than the others, by the same time at every step."""

    workload, lost = layered(shard), Loss("sleeps_on_rank_1", shard)

    def loss(module, batch):
        if shard.rank == 1:
            lost.sleep()
        return mean_square(module, batch)

    def last_gradient_is_there(_):
        if shard.world_size > 1:
            lost.noted("arrives")

    next(workload.module.parameters()).register_hook(last_gradient_is_there)
    return replace(workload, loss=loss)


def computes_longer(shard):
    """Every rank of several spends the time on matrix products that one rank alone leaves out."""
    matrix, lost = torch.randn(512, 512), Loss("computes_longer", shard)

    def loss(module, batch):
        if shard.world_size > 1:
            with lost.written_down():
                until = time.perf_counter() + lost.asked_s
                while time.perf_counter() < until:
                    torch.mm(matrix, matrix)
        return mean_square(module, batch)

    return replace(layered(shard), loss=loss)


def waits_for_batches(shard):
    """Every batch comes late, on every rank."""
    workload, lost = layered(shard), Loss("waits_for_batches", shard)

    class Late:
        def __iter__(self):
            for batch in workload.batches:
                if shard.world_size > 1:
                    with lost.written_down():
                        lost.sleep()
                yield batch

    return replace(workload, batches=Late())


class DelayedBucket:
    """A communication hook: rank 1 hands over one of the buckets later than the others.

    Its own thread does so, over a group of its own, so that neither computation nor the other
    buckets wait.
    """

    def __init__(self, lost, is_late):
        self.lost, self.is_late, self.group = lost, is_late, dist.new_group()

    def hook(self, state, bucket):
        if bucket.is_last():
            self.lost.noted("last-handed-over")
        if not self.is_late(bucket):
            return averaged(bucket.buffer(), None)
        if self.lost.rank != 1:
            self.lost.noted("late-handed-over")
            return averaged(bucket.buffer(), self.group)
        future = torch.futures.Future()

        def send():
            with self.lost.written_down():
                self.lost.sleep()
            self.lost.noted("late-handed-over")
            mean = averaged(bucket.buffer(), self.group).wait()
            self.lost.noted("late-arrived")
            future.set_result(mean)

        threading.Thread(target=send).start()
        return future


def averaged(buffer, group):
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size()))


def with_delayed_bucket(shard, lost, is_late):
    """A model with a long backward pass behind its first bucket."""
    hooked = []

    def loss(module, batch):
        if hasattr(module, "register_comm_hook") and not hooked and shard.world_size > 1:
            delay = DelayedBucket(lost, is_late)
            module.register_comm_hook(None, delay.hook)
            hooked.append(delay)
        return mean_square(module, batch)

    return replace(layered(shard, width=512, depth=8), loss=loss)


def last_bucket_late(shard):
    lost = Loss("last_bucket_late", shard, 0.15)
    return with_delayed_bucket(shard, lost, lambda bucket: bucket.is_last())


def first_bucket_late(shard):
    lost = Loss("first_bucket_late", shard)
    return with_delayed_bucket(shard, lost, lambda bucket: bucket.index() == 0)


def sleeps_on_rank_0_with_buffers(shard):
    """Rank 0 comes late; DDP sends the module's buffers from it before every forward pass."""
    workload, lost = layered(shard), Loss("sleeps_on_rank_0_with_buffers", shard)
    module = nn.Sequential(nn.BatchNorm1d(256), workload.module)

    def loss(module, batch):
        if shard.world_size > 1:
            if shard.rank == 0:
                lost.sleep()
            lost.noted("arrives")
        return mean_square(module, batch)

    return replace(workload, module=module, loss=loss)
