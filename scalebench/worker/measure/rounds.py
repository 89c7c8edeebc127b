"""Rounds after the clean window: the same steps clean, traced, without synchronisation, bare.

Each round runs one short block of each kind, so that what drifts on a shared machine hits all
kinds alike, and they are compared within a round. What comes of it: what was going on inside the
steps (traced), what tracing costs (traced against paired), how much of a step only exists because
ranks synchronise (paired against local), and what the clean loop's own marks cost (paired against
bare). At N=1 there are also steps on parts of the batch, such as a rank has at the other sizes:
predictions start from them. The headline numbers rest on none of these blocks.

After a step without synchronisation the replicas differ. Nothing is measured afterwards that
would mind: times do not depend on the values.
"""

import traceback
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.trace.operations.names import DATA
from scalebench.worker.measure.alignment import combine, measure_offset
from scalebench.worker.measure.loop import Loop
from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import Capture, only_group, traced
from scalebench.worker.portable import MIN_STEPS, how_many
from scalebench.worker.process.failure import classify
from scalebench.worker.strategies.base import Training

NUM_KINDS = len(("paired", "traced", "local", "bare"))

ANOTHER_RANK = "another rank exited while steps were traced"

LARGEST_SHARE_OF_LIMIT = 0.25
"""A cell that runs out of its time is a failed one: the rounds may not take more of it."""


@dataclass(frozen=True)
class RoundsResult:
    """What a rank takes home from the rounds; most fields are those of `RankRecord`.

    Attributes:
        gave_up: This rank did not do all of them: the others may wait for it, or have left.
    """

    trace: Trace | None = None
    trace_unavailable: str | None = None
    another_rank_left: bool = False
    clock: ClockAlignment | None = None
    gave_up: bool = False


@dataclass
class Rounds:
    """Runs the rounds of a loop, and keeps what was captured."""

    loop: Loop
    captures: list[Capture] = field(default_factory=list)

    def run(self) -> RoundsResult:
        """Run as many rounds as the plan has seconds for, at least one.

        Whatever goes wrong here costs the rounds and nothing else: the clean window is kept. A
        rank that gives up leaves the job, so the others do not wait for it.
        """
        cell = self.loop.context.cell
        if not cell.steps.trace:
            return RoundsResult(
                trace_unavailable="tracing was turned off (--no-trace, or the suite itself)"
            )
        if cell.strategy.untraced_because is not None:
            return RoundsResult(trace_unavailable=cell.strategy.untraced_because)
        step_s = float(np.mean(self.loop.seen.clean_s()))
        if cell.steps.is_long(step_s, cell.world_size):
            return RoundsResult(
                trace_unavailable=f"steps longer than {cell.steps.long_step_s:g} s are not traced "
                "in a short measurement"
            )
        if step_s * NUM_KINDS * (MIN_STEPS + 1) > LARGEST_SHARE_OF_LIMIT * cell.limit_s:
            return RoundsResult(
                trace_unavailable="the steps are too long for the cell's time limit"
            )
        try:
            num_rounds, num_steps = how_many(cell.steps.rounds_s, step_s, NUM_KINDS)
            return self._run(min(num_rounds, cell.steps.max_rounds), num_steps)
        except (Exception, SystemExit) as error:
            self.loop.seen.forget_rounds()
            traceback.print_exc()
            by_peer = classify(error) == "peer"
            reason = ANOTHER_RANK if by_peer else f"tracing the steps failed: {error}"
            return RoundsResult(trace_unavailable=reason, another_rank_left=by_peer, gave_up=True)

    def _run(self, num_rounds: int, num_steps: int) -> RoundsResult:
        with traced(self.loop.context.device):
            pass  # the profiler's first start is slower than any other
        before = measure_offset(self.loop.context)
        for _ in range(num_rounds):
            self.run_one(num_steps + 1)
        clock = combine(before, measure_offset(self.loop.context))
        self.loop.context.barrier()  # past this point all ranks have all the rounds
        training = self.loop.training
        try:
            on_gpu = self.loop.context.device.type == "cuda"
            trace = trace_record(self.captures, training.groups, training.axes, on_gpu)
        except Exception as error:  # the steps are done: the other ranks need not know
            return RoundsResult(trace_unavailable=str(error), clock=clock)
        return RoundsResult(trace, clock=clock)

    def run_one(self, count: int) -> None:
        """Run one round, each of its blocks ``count`` steps long."""
        cell = self.loop.context.cell
        self.loop.run_block("paired", count)
        training = self.loop.training
        groups = collective_group(training, cell.world_size)
        with training.marked_actions(), traced(self.loop.context.device, groups) as capture:
            self.loop.run_block("traced", count, lambda n: self.traced_steps(n, capture))
        self.captures.append(capture)
        alone = None
        if cell.strategy.always_communicates is None:
            alone = training.without_synchronisation()
        if alone is not None:
            with alone:
                self.loop.run_block("local", count)
        self.loop.run_block("bare", count, self.bare_steps)
        for num_samples in self.loop.context.cell.part_batches:
            train = partial(self.loop.marked_steps, num_samples=num_samples)
            self.loop.run_block("part", count, train, num_samples)

    def traced_steps(self, count: int, capture: Capture) -> list[torch.Tensor]:
        """Train steps, each under a mark in the profiler, the wait for its batch as well."""
        losses = []
        for _ in range(count):
            with capture.step():
                with record_function(DATA):
                    batch = next(self.loop.batches)
                losses.append(self.loop.training.step(batch))
            self.loop.clock.mark()
        return losses

    def bare_steps(self, count: int) -> list[torch.Tensor]:
        """Train steps as an unmeasured loop does: only the first and the last marked."""
        training, batches = self.loop.training, self.loop.batches
        loss = training.step(next(batches))
        self.loop.clock.mark()
        for _ in range(count - 1):
            loss = training.step(next(batches))
        self.loop.clock.mark()
        return [loss] * count


def collective_group(training: Training, world_size: int) -> dict[str, int]:
    """Return name and size of the process group of a training's collectives, if it is but one."""
    own = training.collective_groups()
    return only_group(world_size) if own is None else own


def logged_exposed_s(training: Any) -> float | None:
    """Return what DDP's own logger says of exposed communication per step, seconds.

    A cross-check only: the logger is private, samples the first ten and then every hundredth step,
    and starts its clock of the backward pass at the first gradient that is ready. None: the
    training is not DDP's, or this torch has no such logger.
    """
    module = getattr(training, "module", None)
    if not isinstance(module, DistributedDataParallel):
        return None
    try:
        logged = module._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return None
    communication_ns = logged.get("avg_backward_comm_time", 0)
    overlap_ns = logged.get("avg_backward_compute_comm_overlap_time", 0)
    if not communication_ns:
        return None
    return float(max(communication_ns - overlap_ns, 0)) / 1e9
