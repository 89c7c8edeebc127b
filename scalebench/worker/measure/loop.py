"""The measured loop: warm up until steady, fill a clean window, all ranks in step.

Steps run in blocks. Inside a block nothing is synchronised, logged or asked; between blocks the
ranks exchange their step times and each works out, from the same numbers, how to go on. So all
ranks stop at the same step without anybody telling them.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from scalebench.records.measured.rank import Block, Phase
from scalebench.spec import StepPlan
from scalebench.worker.portable import StepClock, steady_start
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.workloads.batches import first_samples

WARMUP_BLOCK = 5
STEPS_TO_SEE_THE_LENGTH = 2
"""Where long steps are not warmed up: the first one pays for what is done once."""
FIRST_WARMUP_BLOCK = 10
WINDOW_SLACK = 0.1
FEWEST_STEPS_OF_TURN = 2

Steps = Callable[[int], list[torch.Tensor]]
"""Trains a number of steps, marks their ends on the loop's clock, returns their losses."""


@dataclass
class Measurement:
    """What one rank has seen so far; the fields are those of `RankRecord`.

    ``pace_s`` holds, for every step, how long it took the job: from one moment at which every rank
    had done a step to the next. It is the same on all ranks.
    """

    step_s: list[float] = field(default_factory=list)
    data_s: list[float] = field(default_factory=list)
    pace_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    steady: bool = False
    first_step_ns: int | None = None

    def forget_rounds(self) -> None:
        """Drop what came after the clean window: ranks may have come differently far."""
        self.blocks = [block for block in self.blocks if block.phase in ("warmup", "clean")]
        last = max(block.first + block.count for block in self.blocks)
        for series in (self.step_s, self.data_s, self.pace_s, self.loss):
            del series[last:]

    def clean_s(self) -> list[float]:
        """Return the job's clean steps so far, without the first of each block."""
        return [
            self.pace_s[i]
            for block in self.blocks
            if block.phase == "clean"
            for i in range(block.first + 1, block.first + block.count)
        ]

    def timed_clean_s(self) -> float:
        """Return the job's seconds in whole clean blocks; one cut out of the warm-up is none."""
        return sum(
            sum(self.pace_s[block.first : block.first + block.count])
            for block in self.blocks
            if block.phase == "clean" and block.start_ns is not None
        )


@dataclass
class Loop:
    """Trains block by block, and remembers what it has seen."""

    training: Training
    batches: Iterator[Any]
    context: RankContext
    clock: StepClock
    seen: Measurement = field(default_factory=Measurement)
    fetched_s: list[float] = field(default_factory=list)

    def warm_up(self, plan: StepPlan) -> None:
        """Run until the steady state is found or the plan's limits are reached.

        The steps after the transient are as clean as any that follow: they count, unless the plan
        asks for an exact number of steps, or other launches take turns with this one: then only
        steps count that have steps of the others next to them.
        """
        seen = self.seen
        settling = self.training.settling_steps
        if self.context.cell.loader is not None:
            settling = max(settling, self.context.cell.loader.num_prefetched)
        if plan.long_step_s is not None:
            self.run_block("warmup", max(settling, STEPS_TO_SEE_THE_LENGTH))
            if plan.is_long(seen.pace_s[-1], self.context.cell.world_size):
                return
        self.run_block("warmup", max(settling, min(FIRST_WARMUP_BLOCK, plan.max_warmup_steps)))
        while True:
            if self.training.scaler:
                settling = max(settling, self.training.scaler.stable_from)
            steps = seen.pace_s[settling:]
            first_steady = steady_start(steps)
            if first_steady is not None:
                seen.steady = True
                if plan.steps is None and self.context.time_slots is None:
                    seen.blocks = clean_from(settling + first_steady, seen.blocks)
                return
            if len(steps) >= plan.max_warmup_steps or sum(steps) >= plan.max_warmup_s:
                return
            self.run_block("warmup", min(WARMUP_BLOCK, plan.max_warmup_steps - len(steps)))

    def measure_clean(self, plan: StepPlan) -> None:
        """Run the clean blocks, in turns with other launches where there are any."""
        if self.context.time_slots is None:
            self.fill_clean_window(plan)
            return
        step_s = float(np.median(self.seen.pace_s[-WARMUP_BLOCK:]))
        for count in steps_of_slots(plan, step_s):
            with self.context.slot():
                self.run_block("clean", count + 1)

    def fill_clean_window(self, plan: StepPlan) -> None:
        """Run clean blocks until the plan is satisfied."""
        if plan.steps is not None:
            self.run_block("clean", plan.steps + 1)
            return
        while True:
            step_s = float(np.mean(self.seen.clean_s() or self.seen.pace_s[-WARMUP_BLOCK:]))
            wanted = steps_still_wanted(self.seen.clean_s(), plan, step_s)
            for_energy = energy_steps_still_wanted(self.seen.timed_clean_s(), plan, step_s)
            if wanted == for_energy == 0:
                return
            self.run_block("clean", max(wanted, for_energy) + 1)

    def run_block(
        self, phase: Phase, count: int, steps: Steps | None = None, num_samples: int | None = None
    ) -> None:
        """Run ``count`` steps without any synchronisation, then share their times.

        The first of ``count`` steps counts for nothing. ``steps`` trains them and marks their ends;
        None: one mark after each. ``num_samples``: of each step, if ``steps`` takes a part of the
        batch.
        """
        seen = self.seen
        first = len(seen.step_s)
        self.context.barrier()
        start_ns = time.monotonic_ns()
        if seen.first_step_ns is None:
            seen.first_step_ns = start_ns
        cpu_before_s = time.process_time()
        self.clock.mark()
        losses = (steps or self.marked_steps)(count)
        step_s = self.clock.resolve()
        end_ns = time.monotonic_ns()
        cpu_s = time.process_time() - cpu_before_s
        if len(step_s) < count:
            step_s = [step_s[0], *[step_s[1] / (count - 1)] * (count - 1)]
        seen.step_s += step_s
        seen.data_s += self.fetched_s if len(self.fetched_s) == count else [0.0] * count
        self.fetched_s.clear()
        latest_s = self.context.agree_max(list(accumulate(step_s)))
        seen.pace_s += np.diff(latest_s, prepend=0.0).tolist()
        seen.loss += self.training.share_losses(torch.stack(losses)).tolist()
        seen.blocks.append(
            Block(
                phase=phase,
                first=first,
                count=count,
                start_ns=start_ns,
                end_ns=end_ns,
                num_samples=num_samples,
                cpu_s=cpu_s,
            )
        )

    def marked_steps(self, count: int, num_samples: int | None = None) -> list[torch.Tensor]:
        """Train steps with a mark after each; return their losses.

        ``num_samples``: of each batch, so many of its samples; None: all.
        """
        losses = []
        for _ in range(count):
            before_ns = time.monotonic_ns()
            batch = next(self.batches)
            self.fetched_s.append((time.monotonic_ns() - before_ns) / 1e9)
            part = batch if num_samples is None else first_samples(batch, num_samples)
            losses.append(self.training.step(part))
            if len(losses) == count:
                self.training.finish_exchanges()
            self.clock.mark()
        return losses


def clean_from(first_steady: int, blocks: Sequence[Block]) -> list[Block]:
    """Call the steps from ``first_steady`` on clean; a block in which it lies is cut in two."""
    relabelled = []
    for block in blocks:
        cut = min(max(first_steady - block.first, 0), block.count)
        if cut:
            end_ns = block.end_ns if cut == block.count else None
            cpu_s = _part_of(block, cut)
            head = {"phase": "warmup", "count": cut, "end_ns": end_ns, "cpu_s": cpu_s}
            relabelled.append(block.model_copy(update=head))
        if block.count > cut:
            start_ns = block.start_ns if cut == 0 else None
            rest = {"first": block.first + cut, "count": block.count - cut, "start_ns": start_ns}
            cpu_s = _part_of(block, block.count - cut)
            clean = {"phase": "clean", **rest, "cpu_s": cpu_s}
            relabelled.append(block.model_copy(update=clean))
    return relabelled


def _part_of(block: Block, count: int) -> float | None:
    """Return the processor time of ``count`` of a block's steps, seconds; None: not noted."""
    return None if block.cpu_s is None else block.cpu_s * count / block.count


def steps_of_slots(plan: StepPlan, step_s: float) -> list[int]:
    """Return how many clean steps each turn of a launch has.

    Every launch of a round has the same number of turns, whatever its steps take.

    ``steps`` of the plan are divided over the turns; None: a turn lasts ``turn_s``.
    """
    num_turns = max(1, round(plan.window_s / plan.turn_s))
    if plan.steps is not None:
        num_turns = min(num_turns, max(1, plan.steps // FEWEST_STEPS_OF_TURN))
        return [
            plan.steps * (turn + 1) // num_turns - plan.steps * turn // num_turns
            for turn in range(num_turns)
        ]
    fewest = max(FEWEST_STEPS_OF_TURN, math.ceil(plan.min_steps / num_turns))
    counts = [max(fewest, math.ceil(plan.turn_s / step_s))] * num_turns
    for_energy = energy_steps_still_wanted(0.0, plan, step_s)
    return [max(counts[0], for_energy), *counts[1:]]


def steps_still_wanted(clean_s: list[float], plan: StepPlan, step_s: float) -> int:
    """Return how many more clean steps the plan asks for; 0: enough.

    ``clean_s``: the clean steps so far, seconds, the same on every rank. ``step_s``: what the next
    step will take. ``steps`` of the plan is not looked at.
    """
    missing = max(plan.min_steps - len(clean_s), 0)
    left_s = plan.window_s - sum(clean_s)
    if left_s < WINDOW_SLACK * plan.window_s:
        return missing
    return max(missing, math.ceil(left_s / step_s))


def energy_steps_still_wanted(timed_s: float, plan: StepPlan, step_s: float) -> int:
    """Return how many more clean steps energy needs; 0: enough, or it was not asked for.

    ``timed_s``: seconds in clean blocks so far whose start was noted, the same on every rank.
    ``step_s``: what the next step will take.
    """
    left_s = (plan.energy_s or 0.0) - timed_s
    return max(0, math.ceil(left_s / step_s))
