"""What a race costs beside its steps and evaluations: ``python -m benchmarks.race_bookkeeping``.

A race sets the learning rate of each step, marks its end, shares the times between blocks and notes
a point for each evaluation. Races whose evaluation takes no time and bare loops of as many steps
take turns, on the same model in one process. CPU time is compared: all that is added is computed by
this process, and other load on the machine does not count. Target: the upper bound of the 95 %
interval of the difference below 1 % of the bare loop.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.cells import cpu_cell
from benchmarks.paired import paired_difference
from scalebench.spec import StepPlan
from scalebench.spec.race import Race, Recipe
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.measure.clock import step_clock
from scalebench.worker.measure.loop import Loop
from scalebench.worker.measure.race import RaceRun
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.feed import endless

TARGET = 0.01
BATCH = 8
EVALUATE_EVERY = 256
"""Samples, as in the suite ``asynchronous``: 32 steps of 8."""
NUM_EVALUATIONS = 4


class WithoutEvaluation(RaceRun):
    """A race whose evaluations take no time."""

    def _held_out_mean(self, batches: list[object]) -> float:
        return math.inf


def bare(training: Any, batches: Iterator[Any], num_steps: int) -> float:
    """Return the CPU seconds of steps without anything beside them."""
    began = time.process_time()
    for _ in range(num_steps):
        loss = training.step(next(batches))
    float(loss)
    return time.process_time() - began


def raced(loop: Loop, workload: Any, race: Race) -> float:
    """Return the CPU seconds of a race of as many steps."""
    began = time.process_time()
    WithoutEvaluation(loop, workload, race).run()
    return time.process_time() - began


def main() -> None:
    """Measure pairs in turn, and print the difference beside its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
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
    num_steps = race.samples // BATCH
    bare(training, batches, num_steps)
    race_s, bare_s = [], []
    for pair in range(given.pairs):
        for which in ("race", "bare") if pair % 2 else ("bare", "race"):
            if which == "bare":
                bare_s.append(bare(training, batches, num_steps))
            else:
                loop = Loop(training, batches, context, step_clock(context.device))
                race_s.append(raced(loop, workload, race))
    difference = paired_difference(race_s, bare_s)
    print(
        f"{num_steps} steps of {1e3 * sum(bare_s) / len(bare_s) / num_steps:.2f} ms of CPU, "
        f"{NUM_EVALUATIONS} evaluations that take no time, {given.pairs} pairs\n"
        f"  a race takes {difference} longer; target: less than {100 * TARGET:g} %"
    )


if __name__ == "__main__":
    main()
