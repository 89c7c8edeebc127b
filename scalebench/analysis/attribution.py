"""Attribution of one launch: what its ranks' steps were made of, and what looking cost.

Pure functions of what the ranks wrote. Steps of the rounds after the clean window are compared
within their round; see `Block`.

What a rank's clean step was made of: its traced steps without what tracing itself added.

How much tracing adds is known: traced steps against the clean ones next to them. Where it adds
depends on the device.

On CPU the host's work is the computation, and the profiler makes every operator longer: what it
adds is taken off computation, encoding and decoding, idle time and bubble in proportion.

On CUDA the profiler makes the host slower at asking for kernels. A kernel takes as long as before;
the gaps between kernels grow. What tracing adds is taken off idle time first (other idle time, then
waiting for the next batch, then the bubble), and only what is left after that off kernels.

Transfer, waiting for other ranks and copies are as long as they were. At last all parts are scaled
to the headline's step. How long a rank waits for its batches is known of every clean step, and
traced ones need not be like them: that is taken from there, and the rest is scaled to the rest.
Where steps differ by design otherwise, and the traced ones are not whole periods, parts are scaled
to the typical step, and what long steps take is left to the residual.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scalebench import units
from scalebench.analysis.pipeline_trace import PipelineTrace, pipelines_of
from scalebench.analysis.steps import (
    clean_pace,
    launch_step_s,
    middle_half,
    midmean,
    own_clean_steps,
    paired_over_bare,
    period_of,
    steps_of,
    steps_of_block,
)
from scalebench.records.measured.rank import Phase, RankRecord
from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.records.run import CellResult
from scalebench.spec import Pipeline
from scalebench.trace.breakdown import Breakdown, Partition, break_down, partition, within
from scalebench.trace.events import Intervals, intervals, length_s, none, union
from scalebench.trace.idle import ends_apart
from scalebench.trace.operations.matching import SYNCHRONISING, Matched, Root, match

Factors = Mapping[str, Callable[[int], float]]

WIRE_FACTORS: Factors = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
    "send_recv_ring": lambda n: 1.0,
    "recv": lambda n: 0.0,
    "barrier": lambda n: 0.0,
}
"""Bytes that a rank sends for each byte of the full size, by the ring's law.

Of a broadcast or a reduction to one rank the mean over the ranks: all but one of them receive, or
send, it once. Source: Thakur et al.
2005.
"""

LARGEST_CLOCK_ERROR_S = 1e-3
"""The profiler's clock follows the machine's within microseconds, unless that is set."""

LARGEST_DIFFERENCE = 1.1
"""A mean step of more typical ones has long steps, which the typical ones do not show."""

LARGEST_ROOTED_SHARE = 0.02
"""Of the step: beyond it, waits that are called transfer would be a false number."""

INPUT_FACTORS: Factors = {
    "all_gather": lambda n: 1 / n,
    "recv": lambda n: 0.0,
    "barrier": lambda n: 0.0,
}
"""Bytes that a rank hands over for each byte of the full size; 1 where not named."""
MOST_OF_WORK = 0.5
"""Tracing never makes up more than this of the host's time, or of a GPU's kernels: if traced steps
seem to say so, they were slower than the clean ones next to them for other reasons, which affect
all parts equally. A GPU's gaps may all be due to tracing: nothing else shows how long they were."""

HOST_WORK = ("compute", "codec", "other_idle", "bubble")
"""On CPU: what tracing makes longer. A bubble grows with what other ranks compute."""

GAPS = ("other_idle", "data_stall", "bubble")
"""On CUDA: what tracing makes longer, in the order in which it is taken off."""

KERNELS = ("compute", "codec")

StepParts = Mapping[str, float]
"""What a step of one rank is made of: activity of a part of the budget → seconds.

As far as traced steps tell; see `scalebench.records.rows.budget.Part`. ``compute`` is without
encoding and decoding, ``copies`` are copies alone.
"""


@dataclass(frozen=True)
class LaunchAttribution:
    """One launch, examined.

    Attributes:
        result: The launch; every rank of it has a trace.
    """

    result: CellResult

    @cached_property
    def traces(self) -> dict[int, Trace]:
        """Rank → trace."""
        return {r.rank: r.trace for r in self.result.ranks if r.trace is not None}

    @cached_property
    def matched(self) -> Matched:
        """The operations, matched over the ranks."""
        return match(self.traces, self.clocks, self.broadcast_root)

    @property
    def broadcast_root(self) -> Root:
        """From which rank broadcasts come; DDP sends the module's buffers from rank 0."""
        roots: dict[str, Root] = {"ddp": 0, "compressed": 0, "zero1": "in turn"}
        kind: str = self.result.cell.strategy.kind
        if kind == "script":
            known = {_replicates_by(rank) for rank in self.result.ranks}
            kind = known.pop() if len(known) == 1 else kind
        return roots.get(kind)

    @cached_property
    def clocks(self) -> dict[int, ClockAlignment]:
        """Rank → how its clock stands against rank 0's."""
        return {r.rank: r.clock for r in self.result.ranks if r.clock is not None}

    @property
    def _rooted_share(self) -> float:
        """The largest part of a rank's step that is exposed in operations of unknown root."""
        named = {*SYNCHRONISING, *(["broadcast"] if self.broadcast_root is not None else [])}
        if self.pipelines:
            named |= {"send", "recv"}  # their schedule tells who waits for whom
        return max(
            sum(f.exposed_s for f in b.by_kind if f.kind not in named) / b.step_s
            for b in self.breakdowns.values()
        )

    @property
    def knows_copies(self) -> bool:
        """Whether the traces tell when memory was copied; on CPU nothing counts as a copy."""
        on_cpu = self.result.cell.device == "cpu"
        return on_cpu or all(trace.copies is not None for trace in self.traces.values())

    @property
    def clock_bound_s(self) -> float:
        """How far a wait may be wrong because two ranks' clocks differ, seconds."""
        bounds = sorted(clock.bound_ns for clock in self.clocks.values())
        return sum(bounds[-2:]) / 1e9

    @cached_property
    def not_apart(self) -> str | None:
        """Why transfer and wait cannot be separated; None: they can."""
        if len(self.traces) == 1:
            return None
        if self.matched.mismatch:
            return f"the ranks' operations differ: {self.matched.mismatch}"
        if self.matched.num_alone:
            return f"{self.matched.num_alone} operations were not found on all ranks of their group"
        if self._rooted_share > LARGEST_ROOTED_SHARE:
            return (
                "operations with a root, or between two ranks, do not show which rank waited for "
                "which"
            )
        for rank, clock in self.clocks.items():
            if clock.stepped:
                return f"the clock of rank {rank} or of rank 0 jumped: {clock.stepped}"
        for rank, trace in self.traces.items():
            if trace.clock_error_s > LARGEST_CLOCK_ERROR_S:
                moved = units.seconds(trace.clock_error_s)
                return f"the profiler's clock of rank {rank} moved by {moved} within a block"
        return ends_apart(self.traces, self.clocks, self.clock_bound_s)

    @cached_property
    def breakdowns(self) -> dict[int, Breakdown]:
        """Rank → what its typical traced step was made of."""
        chosen, bubbles = self.typical_steps, dict.fromkeys(self.traces, 0.0)
        for pipeline in self.pipelines:
            bubbles |= {rank: pipeline.bubble_s(rank) for rank in pipeline.ranks}
        return {
            rank: break_down(rank, trace, chosen=chosen, shared=self.partitions[rank]).with_bubble(
                bubbles[rank]
            )
            for rank, trace in self.traces.items()
        }

    @cached_property
    def partitions(self) -> dict[int, Partition]:
        """Rank → when it did what in its typical traced steps."""
        return {
            rank: partition(trace, self.typical_steps, self.waiting.get(rank))
            for rank, trace in self.traces.items()
        }

    @cached_property
    def waiting(self) -> dict[int, Intervals]:
        """Rank → when it waited for others, on its own clock after its trace's origin; tidy."""
        waiting = dict(self.matched.waiting)
        for pipeline in self.pipelines:
            for rank in pipeline.ranks:
                waiting[rank] = union(waiting.get(rank, none()), pipeline.waiting(rank))
        return waiting

    @cached_property
    def pipelines(self) -> tuple[PipelineTrace, ...]:
        """The pipelines side by side; none for another strategy."""
        strategy = self.result.cell.strategy
        if not isinstance(strategy, Pipeline):
            return ()
        return pipelines_of(strategy, self.traces, self.clocks, self.typical_steps)

    @cached_property
    def typical_steps(self) -> list[int]:
        """The middle half of the traced steps, by the job's time.

        What explains the headline must not hang on a step in which the operating system took a
        rank off its core. Where steps differ by design and the traced ones are whole periods, all
        of them.
        """
        if self._has_whole_periods:
            return list(range(len(steps_of(self.result.ranks, "traced"))))
        order = np.argsort(steps_of(self.result.ranks, "traced"), kind="stable")
        return sorted(int(i) for i in middle_half(order))

    def own_traced_step_s(self, rank: int) -> float:
        """Return a rank's own typical traced step, by the loop's clock, seconds."""
        own = steps_of(self._record(rank), "traced")
        return float(own[self.typical_steps].mean())

    def skew(self, rank: int) -> float:
        """Return the job's typical traced step over this rank's own, minus 1."""
        together = steps_of(self.result.ranks, "traced")[self.typical_steps].mean()
        return float(together) / self.own_traced_step_s(rank) - 1

    @cached_property
    def trace_overhead(self) -> float:
        """The job's traced over its clean step next to it, minus 1."""
        return self._middle("traced") / self.paired_step_s - 1

    @cached_property
    def paired_step_s(self) -> float:
        """The job's clean step next to the traced ones, seconds."""
        return self._middle("paired")

    def _middle(self, phase: Phase) -> float:
        steps = steps_of(self.result.ranks, phase)
        return float(steps.mean()) if self._has_whole_periods else midmean(steps)

    @cached_property
    def _has_whole_periods(self) -> bool:
        """Whether clean steps, or exchanges, have a period, and every block whole ones."""
        period = self.result.ranks[0].facts.get("exchange_every") or 1
        if period == 1:
            period = period_of(np.array(clean_pace(self.result)))
        blocks = [b for b in self.result.ranks[0].blocks if b.phase in ("paired", "traced")]
        return period > 1 and all((block.count - 1) % period == 0 for block in blocks)

    @cached_property
    def typical_clean_s(self) -> float:
        """The job's clean step that those next to the traced ones are like, seconds."""
        return launch_step_s(self.result) * self._shown_share(np.array(clean_pace(self.result)))

    def shown_share(self, rank: int) -> float:
        """Return what part of a rank's clean steps its traced ones are like.

        Waiting for data aside. Where steps differ by design and only some were traced, it is that
        of the typical step.
        """
        step_s, data_s = own_clean_steps(self._record(rank)[0])
        return self._shown_share(step_s - data_s)

    def _shown_share(self, step_s: NDArray[np.float64]) -> float:
        typical, mean = float(np.median(step_s)), float(step_s.mean())
        alike = self._has_whole_periods or mean <= LARGEST_DIFFERENCE * typical
        if self.result.ranks[0].data_s is None:
            return 1.0  # neither a script's nor a loader's: steps are alike but for the machine
        return 1.0 if alike else typical / mean

    def stall_s(self, rank: int) -> float | None:
        """Return how long a rank waited for the batch of a clean step, in the mean, seconds.

        Less what it computed for it, as traced steps have it. None: not recorded.
        """
        record = self._record(rank)[0]
        if record.data_s is None:
            return None
        trace, steps = self.traces[rank], self.typical_steps
        spans = within(union(intervals([trace.steps[i] for i in steps])), intervals(trace.data))
        computed_s = length_s(spans) / len(steps) - self.breakdowns[rank].data_stall_s
        waited_s = float(own_clean_steps(record)[1].mean())
        return max(waited_s - max(computed_s, 0.0), 0.0)

    def _record(self, rank: int) -> list[RankRecord]:
        return [record for record in self.result.ranks if record.rank == rank]

    @cached_property
    def probe_effect(self) -> float:
        """Paired over bare step, minus 1: median over the rounds, which hold one block of each."""
        return float(np.median(paired_over_bare(self.result.ranks))) - 1

    def without_synchronisation_s(self, rank: int) -> float | None:
        """Return how much shorter a rank's step is without synchronisation, seconds.

        None: the strategy cannot do without.
        """
        paired, alone = (steps_of(self._record(rank), phase) for phase in ("paired", "local"))
        return midmean(paired) - midmean(alone) if len(alone) else None

    @cached_property
    def part_step_s(self) -> dict[int, float]:
        """Samples of the batch → the step on them, seconds, next to the clean steps."""
        ranks = self.result.ranks
        found: dict[int, list[float]] = {}
        for block in ranks[0].blocks:
            if block.phase == "part" and block.num_samples:
                found.setdefault(block.num_samples, []).extend(steps_of_block(ranks, block))
        return {samples: midmean(np.array(step_s)) for samples, step_s in found.items()}

    def logged_exposed_s(self, rank: int) -> float | None:
        """Return exposed communication as DDP's own logger has it, seconds per step."""
        return next(r.logged_exposed_s for r in self.result.ranks if r.rank == rank)

    def payload_bytes(self, rank: int) -> float | None:
        """Return the bytes that a rank handed to its operations per step; None: not known."""
        return self._volume(rank, INPUT_FACTORS, unnamed=1.0)

    def wire_bytes(self, rank: int) -> float | None:
        """Return the bytes that a rank sends per step by the ring's law; None: not known."""
        return self._volume(rank, WIRE_FACTORS, unnamed=None)

    def _volume(self, rank: int, factors: Factors, unnamed: float | None) -> float | None:
        trace, total = self.traces[rank], 0.0
        for op in trace.operations:
            size = op.group_size or self.result.cell.world_size
            factor = factors[op.kind](size) if op.kind in factors else unnamed
            if factor is None or (op.num_bytes is None and factor):
                return None
            total += factor * (op.num_bytes or 0)
        return total / len(trace.steps)


def _replicates_by(rank: RankRecord) -> str:
    """Return the strategy that a user's script has the broadcasts of, on this rank."""
    wrappers = rank.facts.get("wrappers") or ()
    kinds = {one.get("kind") for one in wrappers if isinstance(one, dict)}
    if kinds == {"DistributedDataParallel"}:
        return "ddp"
    if kinds == {"DistributedDataParallel", "ZeroRedundancyOptimizer"}:
        return "zero1"
    return "script"


def attribute(result: CellResult) -> LaunchAttribution | None:
    """Return the attribution of a launch; None: it cannot be attributed, see `why_not`."""
    return LaunchAttribution(result) if why_not(result) is None else None


def why_not(result: CellResult) -> str | None:
    """Say why a launch that succeeded cannot be attributed; None: it can."""
    ranks = result.ranks
    without = [rank for rank in ranks if rank.trace_unavailable]
    if without:  # what made the others leave comes before their leaving
        first = next((rank for rank in without if rank.has_own_reason), without[0])
        return first.trace_unavailable
    if not ranks or any(rank.trace is None or not rank.trace.steps for rank in ranks):
        return "no launch of this row was traced"
    lengths = {len(rank.step_s) for rank in ranks}
    counted = [len(steps_of([rank], "traced")) for rank in ranks] if len(lengths) == 1 else []
    if counted != [len(rank.trace.steps) for rank in ranks if rank.trace is not None]:
        return "the traces do not match the steps of the ranks"
    if not len(steps_of(ranks, "paired")) or not len(steps_of(ranks, "bare")):
        return "there are no clean steps next to the traced ones"
    has_no_operation = any(not rank.trace.operations for rank in ranks if rank.trace is not None)
    expected = result.cell.world_size > 1 and result.cell.strategy.communicates
    if expected and has_no_operation and not _mismatch(ranks):
        if (ranks[0].facts.get("exchange_every") or 1) > 1:
            return "ranks do not exchange something in every step, and none of those was traced"
        return "the traces of several ranks show no communication at all"
    return None


def _mismatch(ranks: Sequence[RankRecord]) -> bool:
    """Tell whether some ranks have operations where others have none."""
    return len({bool(rank.trace.operations) for rank in ranks if rank.trace is not None}) > 1


def clean_parts(
    launch: LaunchAttribution, rank: int, step_s: float, apart: bool = True
) -> StepParts:
    """Return what a rank's clean step was made of.

    ``launch`` tells the proportions, what tracing added, and the device; ``step_s`` is the clean
    step of the headline, seconds. Unless transfer and wait are ``apart``, all of it is transfer.
    """
    traced = dict(launch.breakdowns[rank].parts)
    if not apart:
        traced["exposed_transfer"] += traced["wait"]
        traced["wait"] = 0.0
    traced_s = launch.own_traced_step_s(rank)
    added_s = max(traced_s * (1 - 1 / (1 + launch.trace_overhead)), 0.0)
    on_cpu = launch.result.cell.device == "cpu"
    found, removed_s = (off_work if on_cpu else off_gaps)(traced, added_s)
    shown, stall_s = launch.shown_share(rank), launch.stall_s(rank)
    if stall_s is None:
        return _times(found, shown * step_s / (traced_s - removed_s), tuple(found))
    rest_s = traced_s - removed_s - found["data_stall"]
    if not on_cpu:  # the host waits for batches while the GPU still computes
        stall_s = min(stall_s, max(launch_step_s(launch.result) - rest_s, found["data_stall"]))
    stall_s *= step_s / launch_step_s(launch.result)
    others = tuple(name for name in found if name != "data_stall")
    scaled = _times(found, shown * (step_s - stall_s) / rest_s if rest_s > 0 else 0.0, others)
    return {**scaled, "data_stall": stall_s}


def off_work(
    parts: StepParts, added_s: float, names: tuple[str, ...] = HOST_WORK
) -> tuple[StepParts, float]:
    """Take what tracing added off some parts in proportion, at most half of them.

    Returns:
        The parts, and the seconds that were taken off.
    """
    whole_s = sum(parts[name] for name in names)
    removed_s = min(added_s, MOST_OF_WORK * whole_s)
    return _times(parts, 1 - removed_s / whole_s if whole_s > 0 else 1.0, names), removed_s


def off_gaps(parts: StepParts, added_s: float) -> tuple[StepParts, float]:
    """Take what tracing added off idle time, one kind after the other; the rest off kernels.

    Returns:
        The parts, and the seconds that were taken off.
    """
    left_s = added_s
    for name in GAPS:
        taken_s = min(left_s, parts[name])
        parts = {**parts, name: parts[name] - taken_s}
        left_s -= taken_s
    parts, off_kernels_s = off_work(parts, left_s, KERNELS)
    return parts, added_s - left_s + off_kernels_s


def _times(parts: StepParts, factor: float, names: tuple[str, ...]) -> StepParts:
    return {name: part * factor if name in names else part for name, part in parts.items()}
