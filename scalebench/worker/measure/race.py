"""A race: train on a given number of samples, and evaluate between blocks of steps.

A block is as many steps as lie between two evaluations. The clock of the race runs in the blocks
only. The first step of a launch pays for what is done once (buffers, buckets, compilation): it
counts as long as a usual step of its block.

DDP adds a rank's gradients up in ``.grad`` and averages them there as soon as they are all in. A
hook on a parameter runs between the two. So the noise of gradients is known from a step itself,
without another backward pass (McCandlish et al. 2018, appendix A.1).
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from scalebench.errors import UsageError
from scalebench.records.measured.rank import GradientNorms, Phase, RacePoint
from scalebench.spec import Ddp, Plain
from scalebench.spec.recovery import Race
from scalebench.spec.workload import Workload
from scalebench.worker.measure.loop import Loop
from scalebench.worker.optimizers import set_rate
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.workloads.batches import num_samples


class LocalSquare:
    """The squared norm of this rank's own gradient in a step."""

    def __init__(self) -> None:
        self._of_parameters: dict[int, torch.Tensor] = {}

    def note(self, number: int, parameter: torch.Tensor) -> None:
        """Take a parameter's gradient as it is now; what was noted of it before is replaced."""
        assert parameter.grad is not None, "it was just accumulated"
        self._of_parameters[number] = parameter.grad.detach().float().square().sum()

    @property
    def value(self) -> float:
        """The sum over all parameters that have a gradient."""
        found = list(self._of_parameters.values())
        return float(torch.stack(found).sum()) if found else 0.0


@contextmanager
def local_square(parameters: Iterable[torch.nn.Parameter]) -> Iterator[LocalSquare]:
    """Note the norm of the gradient that backward passes in the block leave, before any exchange.

    Where several microbatches accumulate, it is that of their sum.
    """
    found = LocalSquare()
    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(found.note, number))
        for number, parameter in enumerate(parameters)
        if parameter.requires_grad
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def gradient_norms(
    module: torch.nn.Module, workload: Workload, batches: Sequence[Any]
) -> GradientNorms:
    """Return the norms of the gradients of equal batches at the module's parameters.

    Leaves ``.grad`` of the parameters as it is.

    ``module`` is bare, and whole in this process. At least two ``batches``, each of the same number
    of samples.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    squares = []
    for batch in batches:
        loss = workload.loss(module, batch)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        known = [g for g in gradients if g is not None]
        squares.append(_square(known))
        for held, gradient in zip(total, gradients, strict=True):
            if gradient is not None:
                held.add_(gradient, alpha=1 / len(batches))
    return GradientNorms(
        num_batches=len(batches),
        batch_size=num_samples(batches[0]),
        mean_square=float(torch.stack(squares).mean()),
        square_of_mean=float(_square(total)),
    )


def _square(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()


HOW_TO_GIVE_IT = (
    "Give Workload(evaluation=...) batches of samples that are never trained on, the same on "
    "every rank."
)


@dataclass
class RaceRun:
    """Trains a loop through a race, and notes the loss on the held-out samples.

    Attributes:
        points: One for each evaluation, the first before any training.
    """

    loop: Loop
    workload: Workload
    race: Race
    points: list[RacePoint] = field(default_factory=list)
    _local: LocalSquare | None = None

    def run(self) -> list[RacePoint]:
        """Train to the end of the race.

        Raises:
            UsageError: The workload has no held-out samples, or the ranks cannot divide them.
        """
        cell = self.loop.context.cell
        batches = held_out_of(self.workload, cell.world_size, cell.num_shards)
        num_steps = self.race.evaluate_every // cell.global_batch
        began, trained_s = time.monotonic(), 0.0
        self._note(0, 0.0, began, batches)
        for number in range(1, self.race.samples // self.race.evaluate_every + 1):
            first = len(self.loop.seen.step_s)
            phase: Phase = "warmup" if number == 1 else "clean"
            self.loop.run_block(phase, num_steps, self._steps)
            trained_s += trained_seconds(self.loop.seen.pace_s[first:], is_first=number == 1)
            self._note(number * self.race.evaluate_every, trained_s, began, batches)
        self.loop.seen.steady = True  # warm after the first block, however fast it learns
        return self.points

    def _steps(self, count: int) -> list[torch.Tensor]:
        """Train steps at the rates of the recipe, with a mark after each."""
        losses, cell = [], self.loop.context.cell
        done = len(self.loop.seen.step_s)
        for step in range(count):
            if cell.recipe is not None and cell.recipe.warmup_samples:
                samples = (done + step + 1) * cell.global_batch
                set_rate(self.loop.training.optimizer, cell.recipe.rate_after(samples))
            batch = next(self.loop.batches)
            losses.append(self._last_step(batch) if step == count - 1 else self._step(batch))
            self.loop.clock.mark()
        return losses

    def _step(self, batch: object) -> torch.Tensor:
        return self.loop.training.step(batch)

    def _last_step(self, batch: object) -> torch.Tensor:
        """Train the last step of a block; note the norm of this rank's gradient on the way."""
        cell, training = self.loop.context.cell, self.loop.training
        if isinstance(cell.strategy, Ddp) and cell.world_size > 1:
            with local_square(training.module.parameters()) as self._local:
                return self._step(batch)
        loss = self._step(batch)
        training.finish_exchanges()
        return loss

    def _note(self, samples: int, trained_s: float, began: float, batches: list[object]) -> None:
        context, training = self.loop.context, self.loop.training
        sent, counted = training.sent_bytes, training.num_samples
        mean = self._held_out_mean(batches)
        one_process = isinstance(context.cell.strategy, Plain) and math.isfinite(mean)
        norms = None
        if one_process and len(batches) > 1:
            norms = gradient_norms(training.module, self.workload, batches)
        own = [time.monotonic() - began, sent or 0.0, float(counted or 0)]
        elapsed_s, most_sent, most_counted = context.agree_max(own)
        self.points.append(
            RacePoint(
                samples=samples if counted is None else int(most_counted),
                trained_s=trained_s,
                elapsed_s=elapsed_s,
                loss=mean if math.isfinite(mean) else None,
                gradients=norms,
                step_gradients=self._norms_of_step(),
                sent_bytes=None if sent is None else most_sent,
            )
        )

    def _norms_of_step(self) -> GradientNorms | None:
        """Return the norms of the ranks' gradients in the last step; None: they were not noted."""
        if self._local is None:
            return None
        cell = self.loop.context.cell
        (squares,) = self.loop.context.agree_sum([self._local.value])
        averaged = [g.float().square().sum() for _, g in self.loop.training.gradients()]
        square = float(torch.stack(averaged).sum())
        if not (math.isfinite(squares) and math.isfinite(square)):
            return None
        return GradientNorms(
            num_batches=cell.world_size,
            batch_size=cell.rank_batch,
            mean_square=squares / cell.world_size,
            square_of_mean=square,
        )

    def _held_out_mean(self, batches: list[object]) -> float:
        """Return the mean loss over all held-out batches; infinite where it is not finite."""
        context = self.loop.context
        while True:
            with self.loop.training.evaluated_model():
                there = context.alive
                mine = own_part(batches, context)
                total, count = held_out_loss(self.loop.training, mine)
            sums = context.agree_sum([total, float(count)])
            if context.alive == there:  # else a rank was lost meanwhile, and its part with it
                return sums[0] / sums[1] if math.isfinite(sums[0]) else math.inf


def own_part(batches: list[object], context: RankContext) -> list[object]:
    """Return the held-out batches that this rank evaluates, in a job that may have lost others."""
    if context.star is None:
        return batches[context.shard.rank :: context.cell.num_shards]
    return batches[context.alive.index(context.rank) :: len(context.alive)]


def trained_seconds(pace_s: list[float], is_first: bool) -> float:
    """Return how long a block of steps took, seconds; the launch's first step as a usual one."""
    if not is_first or len(pace_s) < 2:
        return sum(pace_s)
    return sum(pace_s[1:]) + float(np.median(pace_s[1:]))


def held_out_of(workload: Workload, world_size: int, num_shards: int) -> list[object]:
    """Return all held-out batches of a workload.

    Raises:
        UsageError: There are none, the ranks cannot divide them equally, or their samples differ in
            number: the mean over batches would not be that over samples then, and the noise of
            gradients is that of one size.
    """
    if workload.evaluation is None:
        raise UsageError(f"The workload has no held-out samples for a race. {HOW_TO_GIVE_IT}")
    batches = list(workload.evaluation)
    if not batches or len(batches) % num_shards:
        raise UsageError(
            f"The workload's evaluation has {len(batches)} batches, which {world_size} ranks "
            f"cannot divide equally. {HOW_TO_GIVE_IT}"
        )
    try:
        sizes = sorted({num_samples(batch) for batch in batches})
    except ValueError as error:
        raise UsageError(f"A batch of the workload's evaluation is no batch: {error}.") from None
    if len(sizes) > 1:
        raise UsageError(
            f"The workload's evaluation has batches of {sizes[0]} and of {sizes[-1]} samples. Give "
            "each the same number; leave out a smaller last one."
        )
    return batches


def held_out_loss(training: Training, batches: list[object]) -> tuple[float, int]:
    """Return the sum of the mean losses of batches, and how many of them this rank knows.

    Every rank takes part, with as many batches: a sharded strategy has to gather.
    """
    with evaluating(training.module):
        every = [training.held_out_loss(batch) for batch in batches]
    losses = [loss.float() for loss in every if loss is not None]
    return float(torch.stack(losses).sum()) if losses else 0.0, len(losses)


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Turn off gradients, dropout and the like in the block."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)
