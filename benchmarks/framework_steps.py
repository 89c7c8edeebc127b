"""Do the steps of the suite frameworks do anything that a loop written by hand does not?

One rank trains one engine: a step through the suite, and two steps by the few lines of the
framework's documentation, so that the noise is known, in random order, again and again. Turns of
one step are so short that the machine hardly changes within a round. Processor time is compared,
which other programs disturb less than the clock. Beside it stands what the suite's lines take by
themselves, around an engine that does nothing: they hardly depend on noise.

Run it in the environment with the frameworks: ``.venv-frameworks/bin/python -m
benchmarks.framework_steps``. Two minutes; more on a machine that is not quiet.
"""

import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.cells import cpu_cell
from benchmarks.paired import judge, paired_difference
from scalebench.spec import Accelerate, DeepSpeed, FromFramework, StepPlan
from scalebench.worker.inspection.verify import fresh_workload
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import connected
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.feed import endless

TARGET = 0.01
SECONDS = 50.0
FEWEST_ROUNDS = 20
WARM_ROUNDS = 10
CALLS = 200
STRATEGIES: dict[str, FromFramework] = {
    "deepspeed": DeepSpeed(stage=2),
    "accelerate": Accelerate(),
}


def by_hand(name: str, training: Any) -> Callable[[Any], None]:
    """Return a step as the framework's documentation writes it."""

    def deepspeed(batch: Any) -> None:
        loss = training.loss(training.engine, batch)
        training.engine.backward(loss)
        training.engine.step()

    def accelerate(batch: Any) -> None:
        with training.accelerator.accumulate(training.module):
            loss = training.loss(training.module, batch)
            training.accelerator.backward(loss)
            training.prepared.step()
            training.prepared.zero_grad()

    return {"deepspeed": deepspeed, "accelerate": accelerate}[name]


class Idle:
    """An engine, an accelerator and an optimizer that do nothing."""

    def backward(self, loss: torch.Tensor) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""

    def zero_grad(self) -> None:
        """Do nothing."""

    def accumulate(self, module: Any) -> Any:
        """Return a block that does nothing."""
        return nullcontext()


def own_seconds(name: str, training: Any, batch: Any) -> float:
    """Return what the suite's step takes longer than one by hand where the engine does nothing."""
    loss = torch.zeros((), requires_grad=True)
    training.loss = lambda module, batch: loss
    training.engine = training.module = training.accelerator = training.prepared = Idle()
    steps = {"suite": training.step, "hand": by_hand(name, training)}
    seconds: dict[str, list[float]] = {arm: [] for arm in steps}
    for _ in range(CALLS):
        for arm, step in steps.items():
            start = time.process_time()
            for _ in range(CALLS):
                step(batch)
            seconds[arm].append((time.process_time() - start) / CALLS)
    return median(seconds["suite"]) - median(seconds["hand"])


def rounds_of(
    arms: dict[str, Callable[[Any], Any]], feed: Any, seconds: float
) -> dict[str, np.ndarray]:
    """Return the processor time of each arm's step in each round, seconds; warm."""
    order = random.Random(0)
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    end = time.monotonic() + seconds
    gc.collect()
    gc.disable()  # a collection would be one arm's bad luck
    try:
        while time.monotonic() < end or len(found["suite"]) < WARM_ROUNDS + FEWEST_ROUNDS:
            for arm in order.sample(sorted(arms), len(arms)):
                batch = next(feed)
                start = time.process_time()
                arms[arm](batch)
                found[arm].append(time.process_time() - start)
    finally:
        gc.enable()
    return {arm: np.array(times[WARM_ROUNDS:]) for arm, times in found.items()}


def compare(name: str, seconds: float) -> None:
    """Print how much longer the suite's step of a framework takes, with its interval."""
    cell = cpu_cell(1, StepPlan(), strategy=STRATEGIES[name])
    process.use_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        connected(cell, 0, Path(folder) / "store") as context,
    ):
        workload = fresh_workload(context)
        training = build_training(workload, context)
        feed = endless(workload.batches, context.device, cell.rank_batch)
        hand = by_hand(name, training)
        found = rounds_of({"suite": training.step, "hand": hand, "again": hand}, feed, seconds)
        own_s = own_seconds(name, training, next(feed))
    either = np.sqrt(found["hand"] * found["again"])  # both do the same: less noise
    ratio = paired_difference(found["suite"], either)
    same = paired_difference(found["again"], found["hand"])
    step_s = float(np.median(either))
    print(f"{name}: a step of the suite against one by hand {ratio}")
    print(f"  by hand against by hand {same}")
    print(f"  {judge(ratio, same, TARGET)}")
    print(
        f"  the suite's lines around an engine that does nothing: {1e6 * own_s:.1f} µs, "
        f"{100 * own_s / step_s:.3f} % of a step of {1e3 * step_s:.2f} ms"
    )


if __name__ == "__main__":
    for given in sys.argv[1:] or STRATEGIES:
        compare(given, SECONDS)
