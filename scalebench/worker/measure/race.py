"""A race: train on a given number of samples, and evaluate between blocks of steps.

A block is as many steps as lie between two evaluations. The clock of the race runs in the blocks
only. The first step of a launch pays for what is done once (buffers, buckets, compilation): it
counts as long as a usual step of its block.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from scalebench.errors import UsageError
from scalebench.records.race import RacePoint
from scalebench.records.rank import Phase
from scalebench.spec import Plain
from scalebench.spec.race import Race
from scalebench.spec.workload import Workload
from scalebench.worker.measure.gradient_norms import gradient_norms
from scalebench.worker.measure.loop import Loop
from scalebench.worker.optimizers import set_rate
from scalebench.worker.strategies.base import Training, judged, sent_bytes_of

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

    def run(self) -> list[RacePoint]:
        """Train to the end of the race.

        Raises:
            UsageError: The workload has no held-out samples, or the ranks cannot divide them.
        """
        cell = self.loop.context.cell
        batches = held_out_of(self.workload, cell.world_size, cell.num_shards)
        mine = batches[self.loop.context.shard.rank :: cell.num_shards]
        num_steps = self.race.evaluate_every // cell.global_batch
        began, trained_s = time.monotonic(), 0.0
        self._note(0, 0.0, began, mine)
        for number in range(1, self.race.samples // self.race.evaluate_every + 1):
            first = len(self.loop.seen.step_s)
            phase: Phase = "warmup" if number == 1 else "clean"
            self.loop.run_block(phase, num_steps, self._steps)
            trained_s += trained_seconds(self.loop.seen.pace_s[first:], is_first=number == 1)
            self._note(number * self.race.evaluate_every, trained_s, began, mine)
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
            losses.append(self.loop.training.step(next(self.loop.batches)))
            self.loop.clock.mark()
        return losses

    def _note(self, samples: int, trained_s: float, began: float, mine: list[object]) -> None:
        context = self.loop.context
        sent = sent_bytes_of(self.loop.training)
        with judged(self.loop.training):
            total, count = held_out_loss(self.loop.training, self.workload, mine)
        loss = context.agree_sum([total, float(count)])
        mean = loss[0] / loss[1] if math.isfinite(loss[0]) else math.inf
        one_process = isinstance(context.cell.strategy, Plain) and math.isfinite(mean)
        norms = None
        if one_process and len(mine) > 1:
            norms = gradient_norms(self.loop.training.module, self.workload, mine)
        elapsed_s, most_sent = context.agree_max([time.monotonic() - began, sent or 0.0])
        self.points.append(
            RacePoint(
                samples=samples,
                trained_s=trained_s,
                elapsed_s=elapsed_s,
                loss=mean if math.isfinite(mean) else None,
                gradients=norms,
                sent_bytes=None if sent is None else most_sent,
            )
        )


def trained_seconds(pace_s: list[float], is_first: bool) -> float:
    """Return how long a block of steps took, seconds; the launch's first step as a usual one."""
    if not is_first or len(pace_s) < 2:
        return sum(pace_s)
    return sum(pace_s[1:]) + float(np.median(pace_s[1:]))


def held_out_of(workload: Workload, world_size: int, num_shards: int) -> list[object]:
    """Return all held-out batches of a workload.

    Raises:
        UsageError: There are none, or the ranks cannot divide them equally.
    """
    if workload.evaluation is None:
        raise UsageError(f"The workload has no held-out samples for a race. {HOW_TO_GIVE_IT}")
    batches = list(workload.evaluation)
    if not batches or len(batches) % num_shards:
        raise UsageError(
            f"The workload's evaluation has {len(batches)} batches, which {world_size} ranks "
            f"cannot divide equally. {HOW_TO_GIVE_IT}"
        )
    return batches


def held_out_loss(
    training: Training, workload: Workload, batches: list[object]
) -> tuple[float, int]:
    """Return the sum of the mean losses of batches, and how many they are.

    Every rank takes part, with as many batches: a sharded strategy has to gather.
    """
    with evaluating(training.module):
        losses = [workload.loss(training.module, batch).float() for batch in batches]
    return float(torch.stack(losses).sum()), len(losses)


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
