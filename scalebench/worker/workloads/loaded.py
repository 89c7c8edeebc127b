"""Workloads as others need them: from a DataLoader, of fixed duration, with an injected fault.

Stages of a fixed duration instead of arithmetic: communication without a compute load.

A rank of this workload waits where another would compute. Its parameters and gradients are real
and so is what is done with them: they are reduced between ranks, checked against the reference and
applied by the optimizer. So many ranks share a few cores without disturbing one another, as ranks
do whose computation runs on a device.

Stages sleep. They do not keep a core busy, because a core, or a rank's share of one, is what moves
the bytes meanwhile; on a GPU the computation would leave it free, too.

A stage multiplies what passes through it by ``1 + w·d``, with d a fixed pattern: every one of the
parameters w has a gradient of its own, which depends on the batch, at the price of one pass over
them. The model learns to double its input.

The built-in workloads' batches through a DataLoader: from host memory, sample by sample.

The samples and their order are those of `ResidentBatches`; only the way to the device differs.
What this way costs beyond a step's own work is the rank's data stall.

Samples that are never trained on, by whose mean loss a race is judged.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.profiler import record_function
from torch.utils.data import DataLoader, Dataset, Sampler

from scalebench.spec import Loader
from scalebench.spec.presets import PacedShape
from scalebench.spec.probes import SAMPLE_S, InjectedFault
from scalebench.spec.workload import Shard, Workload
from scalebench.trace.operations.communication_kernels import STAGE
from scalebench.worker.process import setup as process
from scalebench.worker.process.failure import injected_fault, written_down
from scalebench.worker.workloads.batches import Batch, ResidentBatches, num_synthetic_samples

WIDTH = 16
FACTOR = 2.0
STAGES = 2
STAGE_PARAMETERS = 16384

Loss = Callable[[nn.Module, Any], torch.Tensor]
NUM_BATCHES = 16
BATCH_SIZE = 8


def wait(seconds: float) -> None:
    """Let ``seconds`` pass; a trace shows it as computation."""
    with record_function(STAGE):
        time.sleep(seconds)


class _Paced(torch.autograd.Function):
    """A stage's arithmetic, and the waiting before it in both directions."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        pattern: torch.Tensor,
        forward_s: float,
        backward_s: float,
    ) -> torch.Tensor:
        """Map ``[B, WIDTH]`` to the same shape; durations are those of one sample, seconds."""
        wait(forward_s * len(x))
        factor = 1 + torch.dot(weight, pattern)
        ctx.save_for_backward(x, pattern, factor)
        ctx.backward_s = backward_s
        ctx.has_both = ctx.needs_input_grad[0] and ctx.needs_input_grad[1]
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients of x and weight; the others have none."""
        x, pattern, factor = ctx.saved_tensors
        for_x, for_weight = ctx.needs_input_grad[:2]
        # A pipeline may ask for one gradient after the other: each is half of the work.
        is_half = ctx.has_both and not (for_x and for_weight)
        wait(ctx.backward_s * len(x) * (0.5 if is_half else 1))
        of_x = gradient * factor if for_x else None
        of_weight = pattern * (gradient * x).sum() if for_weight else None
        return of_x, of_weight, None, None, None


class Stage(nn.Module):
    """``shape.stage_parameters`` parameters, and a time for each sample in each direction."""

    def __init__(self, shape: PacedShape, pattern: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape.stage_parameters))
        self.pattern = pattern  # no buffer: DDP would send it at every step
        self.forward_s, self.backward_s = shape.stage_s

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, WIDTH]`` to the same shape."""
        return _Paced.apply(  # type: ignore[no-any-return, no-untyped-call]
            x, self.weight, self.pattern, self.forward_s, self.backward_s
        )


class Paced(nn.Sequential):
    """The stages, one after the other; they share a pattern, which depends on nothing."""

    def __init__(self, shape: PacedShape) -> None:
        generator = torch.Generator(device="cpu").manual_seed(0)
        pattern = torch.randn(shape.stage_parameters, generator=generator, device="cpu")
        pattern /= shape.stage_parameters
        super().__init__(*(Stage(shape, pattern) for _ in range(shape.stages)))


def mean_square_error(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean over samples and features of the squared error."""
    inputs, targets = batch
    return nn.functional.mse_loss(module(inputs), targets)


def build_paced(spec: PacedShape, shard: Shard) -> Workload:
    """Return the stages and their samples.

    Batches are (inputs, targets), both ``[B, WIDTH]`` float32.

    Raises:
        UsageError: Too few samples for a global batch.
    """
    num_samples = num_synthetic_samples(spec.batch_size)
    generator = torch.Generator(device="cpu").manual_seed(shard.seed)
    inputs = torch.randn(num_samples, WIDTH, generator=generator, device="cpu").to(shard.device)

    def gather(index: torch.Tensor) -> Batch:
        chosen = inputs.index_select(0, index)
        return chosen, FACTOR * chosen

    module = Paced(spec)
    return Workload(
        module=module,
        batches=ResidentBatches(spec.name, num_samples, shard, gather),
        loss=mean_square_error,
        blocks=tuple(module),
        layers=tuple(module),
    )


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
