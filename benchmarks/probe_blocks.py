"""One rank that trains in blocks: in scalebench's loop, by hand, by hand again, and traced.

All arms drive the same module, the same optimizer and the same data in the same process, so that
nothing but the loop around the step differs. Their order is drawn anew for every round, from a
seed that all ranks share. Run as ``python -m benchmarks.probe_blocks PLAN_JSON RANK``.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.cells import cpu_cell
from scalebench.spec import StepPlan
from scalebench.worker.inspection.verify import fresh_workload
from scalebench.worker.measure.loop import Loop, Measurement
from scalebench.worker.portable import step_clock
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import RankContext, connected
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import Training
from scalebench.worker.workloads.batches import endless

LEAD_STEPS = 3
"""Steps at the head of each block that count for nothing, in every arm: scalebench's loop takes
two to warm up, the least it accepts, and leaves out the first of the clean block."""
GLOBAL_BATCH = 4
"""Small: steps of a few milliseconds give many pairs, and what the loop adds weighs more."""
ROUNDS_AT_ONCE = 4
MIN_ROUNDS = 8
BARE_STEPS = 20_000

Blocks = dict[str, list[float]]
"""Arm → seconds per step of each of its blocks. ``<arm> cpu``: of the processor, the uncounted
steps and what scalebench does between blocks included."""


def measured(training: Training, feed: Iterator[Any], context: RankContext) -> Measurement:
    """Warm up and measure as the cell's plan says; return what was seen."""
    loop = Loop(training, feed, context, step_clock(context.device.type))
    loop.warm_up(context.cell.steps)
    loop.measure_clean(context.cell.steps)
    return loop.seen


@dataclass(frozen=True)
class BlockPlan:
    """What the ranks do.

    Attributes:
        folder: For the rendezvous, and for each rank's record.
        seconds: How long to go on with the rounds of the comparison; a quarter of it more is
            spent on the traced arm.
        block_steps: Steps of a block that count.
    """

    folder: str
    world_size: int
    seconds: float
    block_steps: int
    seed: int

    def record(self, rank: int) -> Path:
        """Return the file that a rank leaves."""
        return Path(self.folder) / f"rank{rank}.json"

    @property
    def steps(self) -> StepPlan:
        """The plan of steps that makes one call of scalebench's loop one block."""
        return StepPlan(steps=self.block_steps, max_warmup_steps=LEAD_STEPS - 1)


class Arms:
    """The ways to run a block; each returns seconds per step by name.

    The processor's time stands beside the wall clock's because other processes do not count in
    it; the loop's own work does, all of it.
    """

    def __init__(self, plan: BlockPlan, context: RankContext) -> None:
        workload = fresh_workload(context)
        self.count = plan.block_steps
        self.context = context
        self.training: Any = build_training(workload, context)
        self.loss = workload.loss
        self.feed = endless(workload.batches, context.device, context.cell.rank_batch)
        self.batches = iter(workload.batches)

    def scalebench(self) -> Blocks:
        """The loop that is judged; it times every step by itself."""
        cpu_began_ns = time.process_time_ns()
        seen = measured(self.training, self.feed, self.context)
        return {
            "scalebench": [_mean(seen.step_s[-self.count :])],
            "aligned": [_mean(seen.slowest_s[-self.count :])],
            "scalebench cpu": [self._cpu_s(cpu_began_ns)],
        }

    def _cpu_s(self, began_ns: int) -> float:
        return (time.process_time_ns() - began_ns) / 1e9 / (LEAD_STEPS + self.count)

    def by_hand(self, name: str) -> Blocks:
        """Nothing around the steps, and the clock read twice in a block."""
        module, optimizer = self.training.module, self.training.optimizer
        loss_of = self.loss
        cpu_began_ns = time.process_time_ns()
        for number, batch in enumerate(islice(self.batches, LEAD_STEPS + self.count)):
            if number == LEAD_STEPS:
                began_ns = time.perf_counter_ns()
            optimizer.zero_grad()
            loss = loss_of(module, batch)
            loss.backward()
            optimizer.step()
        step_s = (time.perf_counter_ns() - began_ns) / 1e9 / self.count
        return {name: [step_s], f"{name} cpu": [self._cpu_s(cpu_began_ns)]}

    def traced(self) -> Blocks:
        """The same under torch.profiler; starting and stopping it is not counted."""
        with profile(activities=[ProfilerActivity.CPU]):
            return self.by_hand("traced")


def _mean(step_s: list[float]) -> float:
    return sum(step_s) / len(step_s)


def run_rounds(arms: list[Callable[[], Blocks]], count: int, order: random.Random) -> Blocks:
    """Run every arm once a round, in an order drawn for the round; collect by name."""
    collected: Blocks = {}
    for _ in range(count):
        for arm in order.sample(arms, len(arms)):
            for name, values in arm().items():
                collected.setdefault(name, []).extend(values)
    return collected


def run_for(
    seconds: float, arms: list[Callable[[], Blocks]], order: random.Random, context: RankContext
) -> Blocks:
    """Run rounds until ``seconds`` are over, after one to settle; all ranks do the same number."""
    run_rounds(arms, 1, order)
    collected: Blocks = {}
    began = time.perf_counter()
    elapsed_s = 0.0
    while elapsed_s < seconds or len(collected["hand"]) < MIN_ROUNDS:
        for name, values in run_rounds(arms, ROUNDS_AT_ONCE, order).items():
            collected.setdefault(name, []).extend(values)
        [elapsed_s] = context.agree_max([time.perf_counter() - began])
    return collected


class _NoModel:
    """A training without a model: what is left is the loop."""

    def __init__(self) -> None:
        self.loss = torch.zeros(())

    def step(self, batch: Any) -> torch.Tensor:
        return self.loss

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())


def bare_loop_s(context: RankContext) -> float:
    """Return what scalebench's loop adds to a step by itself, seconds, without any model."""
    training: Training = _NoModel()
    steps = StepPlan(steps=BARE_STEPS, max_warmup_steps=2)
    cell = context.cell.model_copy(update={"steps": steps})
    batch = torch.zeros(1)
    feed = endless([batch] * BARE_STEPS, context.device, 1)
    seen = measured(training, feed, replace(context, cell=cell))
    batches = iter([batch] * BARE_STEPS)
    began_ns = time.perf_counter_ns()
    for each in batches:
        training.step(each)
    by_hand_s = (time.perf_counter_ns() - began_ns) / 1e9 / BARE_STEPS
    return _mean(seen.step_s[-BARE_STEPS:]) - by_hand_s


def train_in_blocks(plan: BlockPlan, rank: int) -> None:
    """Run one rank, in the state in which scalebench measures, and write its record."""
    cell = cpu_cell(plan.world_size, plan.steps, GLOBAL_BATCH)
    process.pin(rank, cell.threads, "cpu")
    process.schedule_as_batch()
    process.use_threads(cell.threads)
    order = random.Random(plan.seed)
    with connected(cell, rank, Path(plan.folder) / "store") as context:
        arms = Arms(plan, context)
        compared = [arms.scalebench, lambda: arms.by_hand("hand"), lambda: arms.by_hand("again")]
        blocks = run_for(plan.seconds, compared, order, context)
        with_profiler = [arms.traced, lambda: arms.by_hand("hand")]
        beside = run_for(plan.seconds / 4, with_profiler, order, context)
        blocks |= {"traced": beside["traced"], "untraced": beside["hand"]}
        record = {"blocks": blocks, "bare_loop_s": bare_loop_s(context)}
    plan.record(rank).write_text(json.dumps(record))


def arguments_for(plan: BlockPlan, rank: int) -> list[str]:
    """Return the command line that runs one rank."""
    return [sys.executable, "-m", "benchmarks.probe_blocks", json.dumps(asdict(plan)), str(rank)]


if __name__ == "__main__":
    train_in_blocks(BlockPlan(**json.loads(sys.argv[1])), int(sys.argv[2]))
