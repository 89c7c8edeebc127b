"""What a race costs beside its steps and evaluations: ``python -m benchmarks.race_bookkeeping``.

A race sets the learning rate of each step, marks its end, shares the times between blocks and notes
a point for each evaluation. A race whose steps and evaluations do nothing has only that; its CPU
time for a step is compared with that of a real step of the same model, in one process. Several
would wait for one another once more in each block. Other load on the machine does not count as CPU
time. Target: below 1 % of the step.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from statistics import median
from typing import Any

import torch

from benchmarks.cells import cpu_cell
from benchmarks.verdict import against_limit
from scalebench.spec import StepPlan
from scalebench.spec.race import Race, Recipe
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.measure.clock import step_clock
from scalebench.worker.measure.loop import Loop
from scalebench.worker.measure.race import RaceRun
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.feed import endless

TARGET_PERCENT = 1.0
BATCH = 8
EVALUATE_EVERY = 256
"""Samples, as in the suite ``asynchronous``: 32 steps of 8."""
NUM_EVALUATIONS = 16


class WithoutEvaluation(RaceRun):
    """A race whose evaluations take no time."""

    def _held_out_mean(self, batches: list[object]) -> float:
        return math.inf


class WithoutSteps:
    """A training whose steps do nothing; its optimizer is a real one, whose rate is set."""

    def __init__(self, training: Any) -> None:
        self.module, self.optimizer = training.module, training.optimizer
        self.loss = torch.zeros(())

    def step(self, _: Any) -> torch.Tensor:
        """Return a loss."""
        return self.loss

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield nothing: no gradient is looked at."""
        return iter(())


def cpu_seconds_of_steps(training: Any, batches: Iterator[Any], num_steps: int) -> list[float]:
    """Return the CPU seconds of real steps."""
    found = []
    for _ in range(num_steps):
        began = time.process_time()
        training.step(next(batches))
        found.append(time.process_time() - began)
    return found


def cpu_seconds_of_race(training: Any, context: RankContext, workload: Any, race: Race) -> float:
    """Return the CPU seconds of a race in which nothing is trained or evaluated."""
    loop = Loop(WithoutSteps(training), repeat(None), context, step_clock(context.device))
    began = time.process_time()
    WithoutEvaluation(loop, workload, race).run()
    return time.process_time() - began


def main() -> None:
    """Measure both, and print the ratio beside its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--races", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    race = Race(samples=NUM_EVALUATIONS * EVALUATE_EVERY, evaluate_every=EVALUATE_EVERY)
    recipe = Recipe(optimizer="adamw", learning_rate=1e-3, warmup_samples=10**6)
    cell = cpu_cell(1, StepPlan(), BATCH).model_copy(update={"race": race, "recipe": recipe})
    context = RankContext(cell, 0, 0, torch.device("cpu"))
    workload = fresh_workload(context)
    workload = replace(workload, evaluation=list(workload.evaluation or ()))
    training = build_training(workload, context)
    batches = endless(workload.batches, context.device, cell.rank_batch)
    step_s = median(cpu_seconds_of_steps(training, batches, given.steps)[10:])
    races = [cpu_seconds_of_race(training, context, workload, race) for _ in range(1 + given.races)]
    own_s = median(races[1:]) / (race.samples // BATCH)
    print(
        f"{cell.workload.name}: a step of {BATCH} samples {1e3 * step_s:.2f} ms, a race's own part"
        f" of it {1e6 * own_s:.1f} µs, CPU time, medians of {given.steps - 10} steps and "
        f"{given.races} races of {race.samples // BATCH} steps\n"
        f"  {against_limit(100 * own_s / step_s, TARGET_PERCENT, '% of a step')}"
    )


if __name__ == "__main__":
    main()
