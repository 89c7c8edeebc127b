"""Workloads of the self-test: stages of a fixed duration, and the fault of this launch."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket

from scalebench.spec.presets import PacedShape
from scalebench.spec.probes import SAMPLE_S, InjectedFault
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import injected_fault, written_down
from scalebench.worker.workloads.paced import Stage, build_paced

STAGES = 2
STAGE_PARAMETERS = 16384

Loss = Callable[[nn.Module, Any], torch.Tensor]


def paced(shard: Shard) -> Workload:
    """Stages of 20 ms a sample in all, and nothing injected."""
    return build_paced(_shape(), shard)


def late_rank(shard: Shard) -> Workload:
    """One rank comes later than the others, by the same time at every step."""
    what, workload = injected_fault(), paced(shard)
    if shard.rank != what.rank:
        return workload
    return replace(workload, loss=_after(_sleeping(what, shard.rank), workload.loss))


def slow_compute(shard: Shard) -> Workload:
    """The stages of every rank last longer by a factor."""
    return build_paced(_shape(injected_fault().factor), shard)


def late_batches(shard: Shard) -> Workload:
    """Every batch comes late, on every rank."""
    workload = paced(shard)
    sleep = _sleeping(injected_fault(), shard.rank)

    class Late:
        def __iter__(self) -> Iterator[Any]:
            for batch in workload.batches:
                sleep()
                yield batch

    batches: Iterable[Any] = Late()
    return replace(workload, batches=batches)


def late_bucket(shard: Shard) -> Workload:
    """One rank hands over the last bucket of each step later than the others.

    A thread of its own does so, over a group of its own: nothing else waits. What it took is noted
    as the time between the first rank's and the last rank's handing over.
    """
    workload = paced(shard)
    delay = _LateBucket(injected_fault(), shard)
    return replace(workload, loss=_once_before(delay.register, workload.loss))


def transfer_behind_compute(shard: Shard) -> Workload:
    """One large bucket that is ready when a known part of the backward pass is still to come."""
    what, workload = injected_fault(), paced(shard)
    quiet = torch.nn.Sequential(_stage(what.seconds, 16), _stage(0.0, what.count // 4))
    return replace(workload, module=quiet, blocks=())


class _LateBucket:
    """A communication hook for DDP."""

    def __init__(self, what: InjectedFault, shard: Shard) -> None:
        self.what, self.shard = what, shard
        self.group = dist.new_group()

    def register(self, module: nn.Module) -> None:
        register = getattr(module, "register_comm_hook", None)
        if register is not None:
            register(None, self.hook)

    def hook(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not bucket.is_last():
            return _averaged(bucket.buffer(), None)
        if self.shard.rank != self.what.rank:
            self.note()
            return _averaged(bucket.buffer(), self.group)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def hand_over() -> None:
            time.sleep(self.what.seconds)
            self.note()
            future.set_result(_averaged(bucket.buffer(), self.group).wait())

        threading.Thread(target=hand_over).start()
        return future

    def note(self) -> None:
        """Write down when the bucket was handed over: ranks of one machine share the clock."""
        with open(f"{self.what.log}.rank{self.shard.rank}", "a") as log:
            log.write(f"{time.perf_counter()}\n")


def _averaged(
    buffer: torch.Tensor, group: dist.ProcessGroup | None
) -> torch.futures.Future[torch.Tensor]:
    """Start an all-reduce; return the future of the mean over the ranks."""
    work = dist.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[Any] = work.get_future()
    return future.then(lambda done: done.value()[0].div_(dist.get_world_size()))


def _shape(factor: float = 1.0) -> PacedShape:
    return PacedShape(
        name="self-test",
        stages=STAGES,
        stage_parameters=STAGE_PARAMETERS,
        sample_s=SAMPLE_S * factor,
        batch_size=1,
    )


def _stage(backward_s: float, num_parameters: int) -> Stage:
    """Return a stage with that backward pass, and half of it forward."""
    shape = PacedShape(
        name="self-test",
        stages=1,
        stage_parameters=num_parameters,
        sample_s=max(1.5 * backward_s, 1e-6),
        batch_size=1,
    )
    return Stage(shape, torch.full((num_parameters,), 1.0 / num_parameters))


def _sleeping(what: InjectedFault, rank: int) -> Callable[[], None]:
    def sleep() -> None:
        with written_down(what, rank):
            time.sleep(what.seconds)

    return sleep


def _after(first: Callable[[], None], loss: Loss) -> Loss:
    def late(module: nn.Module, batch: Any) -> torch.Tensor:
        first()
        return loss(module, batch)

    return late


def _once_before(first: Callable[[nn.Module], None], loss: Loss) -> Loss:
    called: list[bool] = []

    def prepared(module: nn.Module, batch: Any) -> torch.Tensor:
        if not called:
            called.append(True)
            first(module)
        return loss(module, batch)

    return prepared
