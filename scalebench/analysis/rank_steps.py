"""Steps of a launch by rank and number, and one traced step as its ranks went through it.

Steps of a launch by rank and number.

What is drawn is smaller than what was measured: a field of the grid stands for several steps, and
shows the one that is furthest from the median, so that nothing that sticks out is lost.

One traced step as its ranks went through it, all on rank 0's clock.

Every moment of a step belongs to one activity, by the same rules as the loss budget
(`scalebench.trace.breakdown`); communication that runs during computation is separate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.strategies import counted_steps, load_of, tokens_of
from scalebench.analysis.steps import steps_of
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import Trace
from scalebench.records.run import CellResult
from scalebench.trace.breakdown import PRECEDENCE, closed, partition
from scalebench.trace.events import Intervals, intersect
from scalebench.trace.operations.matching import shown_on_rank_0

MOST_ROWS = 160
MOST_COLUMNS = 400
MOST_RANKS = 16
VISIBLE = 1 / 2000
"""Of the step: shorter gaps between spans of one kind are closed, they are too short to be seen."""

ACTIVITIES = ("compute", *(name for name in PRECEDENCE if name != "compute"))
"""What a rank does at any moment; they share out the step."""

HIDDEN = "hidden_comm"
"""Communication during computation: not part of the sum."""


@dataclass(frozen=True)
class RankGrid:
    """Step times over rank and step, warm-up and clean window.

    Attributes:
        deviation: Step over the median of the clean steps, minus 1; shape (rows, columns);
            NaN: the first step of a block, which counts for nothing.
        ranks: First rank of each row.
        steps: First step of each column.
        median_s: Of all clean steps of all ranks, seconds.
        steady_from: First step of the clean window.
        num_ranks: All ranks; more than rows where several share one.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    deviation: NDArray[np.float32]
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    median_s: float
    steady_from: int
    num_ranks: int
    num_steps: int


def rank_grid(result: CellResult) -> RankGrid:
    """Return the grid of a launch that succeeded."""
    cell, ranks = result.cell, sorted(result.ranks, key=lambda rank: rank.rank)
    until = ranks[0].num_trained
    times = np.array([rank.times_s[:until] for rank in ranks])
    counted, steady_from = _clean(ranks[0], until)
    middle = float(np.median(times[:, counted]))
    deviation = times / middle - 1
    deviation[:, _firsts(ranks[0], until)] = np.nan
    drawn, rows, columns = shrunk(deviation, MOST_ROWS, MOST_COLUMNS)
    return RankGrid(
        suite=cell.suite,
        case=cell.case,
        world_size=cell.world_size,
        repeat=cell.repeat,
        deviation=drawn.astype(np.float32),
        ranks=tuple(ranks[int(i)].rank for i in rows),
        steps=tuple(int(i) for i in columns),
        median_s=middle,
        steady_from=steady_from,
        num_ranks=len(ranks),
        num_steps=until,
    )


def extremes(series: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Return the indices of the smallest and largest value of each of ``most`` stretches.

    A series of at most ``2 · most`` values keeps all of them.
    """
    if len(series) <= 2 * most:
        return np.arange(len(series))
    kept = set()
    for stretch in np.array_split(np.arange(len(series)), most):
        kept |= {int(stretch[series[stretch].argmin()]), int(stretch[series[stretch].argmax()])}
    return np.array(sorted(kept | {0, len(series) - 1}))


def shrunk(
    grid: NDArray[np.float64], most_rows: int, most_columns: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the grid with at most so many rows and columns, keeping what is furthest from 0.

    Args:
        grid: Shape (rows, columns); NaN counts for nothing.
        most_rows: Rows of the answer.
        most_columns: Columns of the answer.

    Returns:
        The smaller grid, and the first row and first column of each of its fields.
    """
    rows = _starts(grid.shape[0], most_rows)
    columns = _starts(grid.shape[1], most_columns)
    if len(rows) == grid.shape[0] and len(columns) == grid.shape[1]:
        return grid, rows, columns
    known = np.where(np.isnan(grid), 0.0, grid)
    high = _reduced(np.maximum, known, rows, columns)
    low = _reduced(np.minimum, known, rows, columns)
    furthest = np.where(high > -low, high, low)
    unknown = np.logical_and.reduceat(
        np.logical_and.reduceat(np.isnan(grid), rows, axis=0), columns, axis=1
    )
    return np.where(unknown, np.nan, furthest), rows, columns


def _reduced(
    function: np.ufunc,
    grid: NDArray[np.float64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> NDArray[np.float64]:
    reduced: NDArray[np.float64] = function.reduceat(
        function.reduceat(grid, rows, axis=0), columns, axis=1
    )
    return reduced


def _starts(size: int, most: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, size, min(size, most), endpoint=False).astype(np.int64))


def _clean(rank: RankRecord, until: int) -> tuple[NDArray[np.bool_], int]:
    """Return which steps are clean and count, and the first step of the clean window."""
    counted = np.zeros(until, dtype=bool)
    blocks = [block for block in rank.blocks if block.phase == "clean"]
    for block in blocks:
        counted[block.first + 1 : block.first + block.count] = True
    return counted, min((block.first for block in blocks), default=until)


def _firsts(rank: RankRecord, until: int) -> list[int]:
    """Return the first step of every block but the very first one, which is the start-up."""
    return [block.first for block in rank.blocks if 0 < block.first < until]


@dataclass(frozen=True)
class ExpertLoad:
    """Tokens by expert and step, warm-up included.

    Attributes:
        times_even: Tokens over the even share of the step; shape (layers · experts, steps).
        experts: Layer and number of each row.
        steps: Number of each column.
        steady_from: First step of the clean window.
    """

    suite: str
    case: str
    world_size: int
    times_even: NDArray[np.float32]
    experts: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    steady_from: int


def expert_load_of(result: CellResult) -> ExpertLoad | None:
    """Return the load of a launch up to its last clean step; None: it recorded none."""
    first = result.ranks[0]
    load = load_of(first)
    if not load:
        return None
    tokens = tokens_of(result, "kept", clean=False)  # [steps, layers, experts]
    until = max(counted_steps(result, clean=True)) + 1
    tokens = tokens[:until]
    times = tokens / np.maximum(tokens.mean(axis=2, keepdims=True), 1e-12)
    _, layers, experts = tokens.shape
    clean = [block.first for block in first.blocks if block.phase == "clean"]
    return ExpertLoad(
        suite=result.cell.suite,
        case=result.cell.case,
        world_size=result.cell.world_size,
        times_even=times.reshape(len(times), -1).T.astype(np.float32),
        experts=tuple((layer, expert) for layer in range(layers) for expert in range(experts)),
        steps=tuple(load["steps"][:until]),
        steady_from=min(clean, default=0),
    )


@dataclass(frozen=True)
class ShownOperation:
    """A communication as one rank had it; seconds after the step began on the first rank."""

    kind: str
    ordinal: int
    num_bytes: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankStep:
    """One rank's step.

    Attributes:
        spans: Activity, or `HIDDEN` → (start, end) in seconds after the step began on the first
            rank, in order.
    """

    rank: int
    spans: Mapping[str, Sequence[tuple[float, float]]]
    operations: tuple[ShownOperation, ...]

    def total_s(self, kind: str) -> float:
        """Return how long the rank did one thing."""
        return sum(end - start for start, end in self.spans.get(kind, ()))


@dataclass(frozen=True)
class StepTimeline:
    """One step of a row.

    Attributes:
        step_s: From the first rank's beginning to the last one's end.
        ranks: At most `MOST_RANKS`, evenly chosen where there are more.
        not_apart: Why wait is part of transfer; None: it is separate.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    step: int
    step_s: float
    ranks: tuple[RankStep, ...]
    num_ranks: int
    not_apart: str | None


def step_timeline(launch: LaunchAttribution) -> StepTimeline:
    """Return the median traced step of a launch."""
    cell, step = launch.result.cell, median_step(launch)
    clocks = launch.clocks
    shown = evenly(sorted(launch.traces), MOST_RANKS)
    shifts = {rank: shown_on_rank_0(launch.traces[rank].origin_ns, rank, clocks) for rank in shown}
    begin = min(launch.traces[rank].steps[step][0] + shifts[rank] for rank in shown)
    end = max(launch.traces[rank].steps[step][1] + shifts[rank] for rank in shown)
    waiting = {} if launch.not_apart else launch.waiting
    return StepTimeline(
        suite=cell.suite,
        case=cell.case,
        world_size=cell.world_size,
        repeat=cell.repeat,
        step=step,
        step_s=(end - begin) / 1e9,
        ranks=tuple(
            _rank_step(rank, launch.traces[rank], step, begin - shifts[rank], waiting.get(rank))
            for rank in shown
        ),
        num_ranks=len(launch.traces),
        not_apart=launch.not_apart,
    )


def median_step(launch: LaunchAttribution) -> int:
    """Return the typical traced step whose length is in the middle."""
    lengths = steps_of(launch.result.ranks, "traced")
    typical = sorted(launch.typical_steps, key=lambda index: float(lengths[index]))
    return typical[len(typical) // 2]


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the items, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[int(i)] for i in np.linspace(0, len(items) - 1, most).round()]


def _rank_step(
    rank: int, trace: Trace, step: int, begin_ns: int, waiting: Intervals | None
) -> RankStep:
    start, end = trace.steps[step]
    gap_ns = int((end - start) * VISIBLE)
    found = partition(trace, [step], waiting, gap_ns)
    operations = [op for op in trace.operations if op.step == step]
    sets = found.parts | {HIDDEN: intersect(found.communication, found.compute)}
    return RankStep(
        rank=rank,
        spans={k: _seconds(closed(sets[k], gap_ns), begin_ns) for k in (*ACTIVITIES, HIDDEN)},
        operations=tuple(
            ShownOperation(
                op.kind,
                op.ordinal,
                op.num_bytes,
                (op.start_ns - begin_ns) / 1e9,
                (op.end_ns - begin_ns) / 1e9,
            )
            for op in sorted(operations, key=lambda op: op.start_ns)
        ),
    )


def _seconds(spans: Intervals, begin_ns: int) -> tuple[tuple[float, float], ...]:
    return tuple((float(a), float(b)) for a, b in (spans - begin_ns) / 1e9)
