"""Do the steps of the suite frameworks do anything that a loop written by hand does not?

One rank trains one engine in short blocks, in random order: through the suite's step, and by the
few lines of its documentation, twice, so that the noise is known. Processor time
is compared, which other programs on the machine disturb less than the clock. Run it in the
environment with the frameworks: ``.venv-frameworks/bin/python -m benchmarks.framework_steps``. A
minute; more on a machine that is not quiet.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cells import cpu_cell
from benchmarks.paired import judge, paired_difference
from scalebench.spec import Accelerate, DeepSpeed, FromFramework, StepPlan
from scalebench.worker.inspection.verify import fresh_workload
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import connected
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.feed import endless

TARGET = 0.01
BLOCK_STEPS = 3
SECONDS = 30.0
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


def compare(name: str) -> None:
    """Print how much longer the suite's step of a framework takes, with its interval."""
    cell = cpu_cell(1, StepPlan(), strategy=STRATEGIES[name])
    process.use_threads(1)
    order = random.Random(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        connected(cell, 0, Path(folder) / "store") as context,
    ):
        workload = fresh_workload(context)
        training = build_training(workload, context)
        feed = endless(workload.batches, context.device, cell.rank_batch)
        hand = by_hand(name, training)
        arms = {"suite": training.step, "hand": hand, "again": hand}
        blocks: dict[str, list[float]] = {arm: [] for arm in arms}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(blocks["suite"]) < 20:
            for arm in order.sample(sorted(arms), len(arms)):
                start = time.process_time()
                for _ in range(BLOCK_STEPS):
                    arms[arm](next(feed))
                blocks[arm].append(time.process_time() - start)
    kept = {arm: found[2:] for arm, found in blocks.items()}  # the first ones warm up
    ratio = paired_difference(kept["suite"], kept["hand"])
    same = paired_difference(kept["again"], kept["hand"])
    print(f"{name}: a step of the suite against one by hand {ratio}")
    print(f"  by hand against by hand {same}")
    print(f"  {judge(ratio, same, TARGET)}")


if __name__ == "__main__":
    for given in sys.argv[1:] or STRATEGIES:
        compare(given)
