"""What tensor groups and meshes cost where they divide nothing: one rank, beside plain training.

``python -m benchmarks.mesh_wrappers``. Plain training, plain training once more, and each strategy
take turns in one process, a few steps each, in random order. Processor time is compared, which
other programs on the machine disturb less than the clock. The cost is that of torch's ``DTensor``
and of the hooks, and does not grow with the model: the larger of the two models shows how little is
left of it.
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cells import cpu_cell
from benchmarks.paired import paired_difference
from scalebench import units
from scalebench.spec import Mesh, Plain, StepPlan, Strategy, Tensor
from scalebench.spec.presets import PRESETS
from scalebench.worker.inspection.verify import fresh_workload
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import RankContext, connected
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.feed import endless

MODELS = ("gpt-tiny", "gpt-mini")
NUM_WARMUP = 2
PLAIN, AGAIN = "plain", "plain again"
STRATEGIES: dict[str, Strategy] = {
    PLAIN: Plain(),
    AGAIN: Plain(),
    "Tensor()": Tensor(),
    "Tensor(sequence, loss)": Tensor(sequence=True, loss=True),
    "Mesh()": Mesh(),
    "Mesh(sequence, loss)": Mesh(sequence=True, loss=True),
}


def steps_of(strategy: Strategy, context: RankContext) -> Any:
    """Return a function that trains one step with a strategy at one rank."""
    cell = context.cell.model_copy(update={"strategy": strategy})
    own = replace(context, job=cell)
    workload = fresh_workload(own)
    training = build_training(workload, own)
    feed = endless(workload.batches, own.device, cell.rank_batch)
    return lambda: training.step(next(feed))


def measure(context: RankContext, seconds: float, steps: int) -> dict[str, list[float]]:
    """Return the processor time of each block of steps of each strategy, seconds per step."""
    arms = {name: steps_of(strategy, context) for name, strategy in STRATEGIES.items()}
    found: dict[str, list[float]] = {name: [] for name in arms}
    order, end = random.Random(0), time.monotonic() + seconds
    while time.monotonic() < end or len(found[PLAIN]) < NUM_WARMUP + 8:
        for name in order.sample(sorted(arms), len(arms)):
            began = time.process_time()
            for _ in range(steps):
                arms[name]()
            found[name].append((time.process_time() - began) / steps)
    return {name: of_arm[NUM_WARMUP:] for name, of_arm in found.items()}


def compare(model: str, seconds: float, steps: int) -> None:
    """Print what each strategy costs at one rank, with its interval."""
    cell = cpu_cell(1, StepPlan(), strategy=Mesh()).model_copy(update={"workload": PRESETS[model]})
    process.use_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        connected(cell, 0, Path(folder) / "store") as context,
    ):
        found = measure(context, seconds, steps)
    plain_s = median(found[PLAIN])
    print(f"{model}: a plain step takes {units.seconds(plain_s)} of processor time", flush=True)
    for name in list(STRATEGIES)[1:]:
        ratio = paired_difference(found[name], found[PLAIN])
        added = units.seconds(abs(ratio.value) * plain_s)
        print(f"  {name:<24} {'+' if ratio.value > 0 else '-'}{added:<8} {ratio}", flush=True)


def main() -> None:
    """Compare on each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=PRESETS)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each model")
    parser.add_argument("--steps", type=int, default=3, help="of a block")
    given = parser.parse_args()
    for model in given.models:
        compare(model, given.seconds, given.steps)


if __name__ == "__main__":
    main()
