"""Rounds after the clean window, and what a rank's clock shows when rank 0's shows something else.

What a rank's clock shows when rank 0's shows something else: offset, drift, and their error.

Monotonic clocks of different machines have nothing in common but roughly their rate. A rank asks
rank 0 for its time, several times, and notes on its own clock when it asked and when the answer
came. Rank 0 has read its clock somewhere in between: the offset is known within half of the
shortest round trip (Cristian 1989, "Probabilistic clock synchronization"). Done before and after
a window, this tells the drift as well, and whether one of the clocks jumped.

Ranks on one machine read one clock, and need no messages.

Rounds after the clean window: the same steps clean, traced, without synchronisation, bare.

Each round runs one short block of each kind, so that what drifts on a shared machine hits all
kinds alike, and they are compared within a round. What comes of it: what was going on inside the
steps (traced), what tracing costs (traced against paired), how much of a step only exists because
ranks synchronise (paired against local), and what the clean loop's own marks cost (paired against
bare). At N=1 there are also steps on parts of the batch, such as a rank has at the other sizes:
predictions start from them. The headline numbers rest on none of these blocks.

After a step without synchronisation the replicas differ. Nothing is measured afterwards that
would mind: times do not depend on the values.
"""

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.spec import Job
from scalebench.trace.operations.communication_kernels import DATA
from scalebench.worker.measure.loop import Loop
from scalebench.worker.measure.tracing import Capture, only_group, trace_record, traced
from scalebench.worker.portable import MIN_STEPS, how_many
from scalebench.worker.process.context import JobContext
from scalebench.worker.process.failure import classify
from scalebench.worker.strategies.base import Training

ROUND_TRIPS = 16
"""The first of them also makes the connection; the shortest is the one that counts."""

MAX_DRIFT = 200e-6
"""Two quartz oscillators differ by less: each is within 100 ppm of its rate."""

Clock = Callable[[], int]
NUM_KINDS = len(("paired", "traced", "local", "bare"))

ANOTHER_RANK = "another rank exited while steps were traced"

LARGEST_SHARE_OF_LIMIT = 0.25
"""A cell that runs out of its time is a failed one: the rounds may not take more of it."""


@dataclass(frozen=True)
class ClockOffset:
    """This rank's clock minus rank 0's at one time.

    Attributes:
        bound_ns: The true offset is at most this far from it.
        at_ns: When, on this rank's clock.
    """

    offset_ns: int
    bound_ns: int
    at_ns: int
    method: Literal["shared clock", "ping-pong"]


@dataclass(frozen=True)
class Exchange:
    """One question to rank 0 and its answer.

    Attributes:
        sent_ns: When the question was sent, on this rank's clock.
        there_ns: What rank 0's clock showed in between.
        received_ns: When the answer had come, on this rank's clock.
    """

    sent_ns: int
    there_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        """From question to answer, on this rank's clock."""
        return self.received_ns - self.sent_ns


def offset_of(exchanges: Sequence[Exchange]) -> ClockOffset:
    """Return the offset that the exchange with the shortest round trip tells.

    Rank 0 read its clock between question and answer. Taking the middle is wrong by at most half
    of the round trip, and half a nanosecond of rounding.
    """
    best = min(exchanges, key=lambda exchange: exchange.round_trip_ns)
    middle = (best.sent_ns + best.received_ns) // 2
    bound = best.round_trip_ns // 2 + 1
    return ClockOffset(middle - best.there_ns, bound, middle, "ping-pong")


def measure_offset(
    context: JobContext[Job], clock: Clock = time.monotonic_ns, force: bool = False
) -> ClockOffset:
    """Compare this rank's clock with rank 0's; every rank has to call this at the same time.

    Costs `ROUND_TRIPS` small messages there and back per rank on another machine, one rank after
    the other, and two small collectives in any case.

    ``clock`` tells nanoseconds and never goes backwards. ``force``: exchange messages even between
    ranks that share a clock.
    """
    alike = {0} if force else _ranks_with_the_clock_of_rank_0(context, clock)
    if context.rank == 0:
        for rank in range(1, context.job.world_size):
            if rank not in alike:
                _answer(rank, context, clock)
    if context.rank in alike:
        return ClockOffset(0, 0, clock(), "shared clock")
    return offset_of([_ask(context, clock) for _ in range(ROUND_TRIPS)])


def combine(before: ClockOffset, after: ClockOffset) -> ClockAlignment:
    """Return how the clocks stood between two measurements.

    The offset is taken to grow linearly from the one to the other. A straight line between two
    values that are wrong by at most b is nowhere wrong by more than b.

    When the offset changed by more than both errors and `MAX_DRIFT` explain, a clock has jumped
    at an unknown time: then the offset is the middle of both, and the bound reaches to either.

    Raises:
        ValueError: ``after`` was not measured later than ``before``.
    """
    elapsed_ns = after.at_ns - before.at_ns
    if elapsed_ns <= 0:
        raise ValueError(f"measured {-elapsed_ns} ns before the first measurement")
    change_ns = after.offset_ns - before.offset_ns
    bound_ns = max(before.bound_ns, after.bound_ns)
    explained_ns = before.bound_ns + after.bound_ns + MAX_DRIFT * elapsed_ns
    alignment = ClockAlignment(
        method="shared clock" if before.method == after.method == "shared clock" else "ping-pong",
        at_ns=before.at_ns,
        offset_ns=before.offset_ns,
        drift=change_ns / elapsed_ns,
        bound_ns=bound_ns,
    )
    if abs(change_ns) <= explained_ns:
        return alignment
    jump = {
        "offset_ns": before.offset_ns + change_ns // 2,
        "drift": 0.0,
        "bound_ns": bound_ns + abs(change_ns) // 2 + 1,
        "stepped": (
            f"this rank's clock and rank 0's moved by {change_ns / 1e6:+.3f} ms against each other "
            f"within {elapsed_ns / 1e9:.1f} s; drift and measurement error explain at most "
            f"{explained_ns / 1e6:.3f} ms"
        ),
    }
    return alignment.model_copy(update=jump)


def _ranks_with_the_clock_of_rank_0(context: JobContext[Job], clock: Clock) -> set[int]:
    """Return the ranks whose clock is the one that rank 0 reads; the same set on every rank.

    Machines that were restored from one snapshot have the same name and separate clocks.
    So the readings have to be in order, too: none that was taken before the ranks exchanged them
    may be later than one taken after.
    """
    if context.control is None:
        return {0}
    stated = context.gather((clock_name(), clock()))
    now = clock()
    name_of_0, _ = stated[0]
    alike = {rank for rank, (name, _) in enumerate(stated) if rank == 0 or name == name_of_0 != ""}
    out_of_order = context.rank in alike and any(stated[rank][1] > now for rank in alike)
    (disproved,) = context.agree_max([float(out_of_order)])
    return {0} if disproved else alike


def clock_name() -> str:
    """Return what names the monotonic clock of this process; empty where nothing does.

    The kernel's boot, and the time namespace, whose offset is added to the clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except FileNotFoundError:  # a kernel before 5.6: there are no time namespaces
        return boot
    except OSError:
        return ""


def _ask(context: JobContext[Job], clock: Clock) -> Exchange:
    message = torch.zeros(1, dtype=torch.int64)
    sent = clock()
    dist.send(message, dst=0, group=context.control)
    dist.recv(message, src=0, group=context.control)
    received = clock()
    return Exchange(sent, int(message.item()), received)


def _answer(rank: int, context: JobContext[Job], clock: Clock) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUND_TRIPS):
        dist.recv(message, src=rank, group=context.control)
        message.fill_(clock())
        dist.send(message, dst=rank, group=context.control)


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
