"""What one launch says by itself: its clean steps, their mean, throughput and losses.

The mean of steps that differ by design, robust against what the machine does to some of them.

A job pays for all of its steps: three short ones and a long one, where a loader's four workers
deliver their batches at once; the one in 64 that averages parameters. So the mean is what counts,
and no step is left out for what it takes. What the machine does for a moment is trimmed by blocks:

1. Steps that repeat with a period are cut into whole periods, so that the mean does not depend on
   where the window begins. A period, or else a step, is a unit.
2. Units are put together to at most ten blocks. The mean of the middle half of their means is
   taken, a quarter of the blocks being trimmed on either side.
3. Blocks of few units that differ in one direction have means that do, too, and trimming would take
   away what the job pays for. Of means of n units with variance v and third central moment m the
   median lies about ``m / 6vn`` below their mean (Cornish & Fisher 1938). Where that is more than
   1 % of it, or there are fewer than four blocks, all units count alike.

The pace of the job is what its step time and throughput are: in a block, the ranks' times are
added up, the job has done a step when its latest rank has, and a step took the job as long as lies
between two of those moments. Where ranks end a step early or late by turns, taking the slowest
rank of each step would count every lateness, although the next synchronisation absorbs it; a
single rank has nothing of the kind, so efficiency would fall with every rank added.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.counted_batch import work_of_step
from scalebench.gate.observation import mean_variance
from scalebench.records.measured.rank import Block, Phase, RankRecord
from scalebench.records.run import CellResult
from scalebench.spec import WithoutLockstep
from scalebench.stats import trimmed_mean

MOST_BLOCKS = 10
FEWEST_BLOCKS = 4
"""Of fewer no quarter can be trimmed."""
FEWEST_STEPS = 10
"""Of a block, where the steps themselves do not tell where blocks end."""
LARGEST_BIAS = 0.01
LONGEST_PERIOD = 512
FEWEST_PERIODS = 4
EXPLAINED = 0.5
"""Of the variance, by the place in the period: less is no period."""
NEARLY_AS_LITTLE = 1.4
"""A multiple of the period leaves no more unexplained: the shortest that leaves not much more than
the least is it. Where steps repeat exactly, only what leaves nothing does."""
ROUNDING = 1e-9

SHORTEST_S = 1e-9
"""What clocks tell."""

Floats = NDArray[np.float64]


class MeanStep(NamedTuple):
    """What a launch says of its steps.

    Attributes:
        variance: Of its logarithm, as the launch itself tells.
        period: Steps after which they repeat; 1: they do not.
    """

    seconds: float
    variance: float
    period: int = 1


def mean_of_steps(step_s: Floats) -> MeanStep:
    """Return the mean of the steps of one window, in order, seconds; at least one step."""
    period = period_of(step_s)
    units = step_s[: len(step_s) // period * period].reshape(-1, period).mean(axis=1)
    fewest = max(2 if period > 1 else FEWEST_STEPS, _fewest_units(units))
    num_blocks = min(MOST_BLOCKS, int(len(units) / fewest))
    blocks = np.array_split(units, num_blocks) if num_blocks >= FEWEST_BLOCKS else []
    return _mean(units, blocks)._replace(period=period)


def mean_of_blocks(blocks: Sequence[Floats]) -> MeanStep:
    """Return the mean of steps whose blocks are given: other launches had their turn in between."""
    units = np.concatenate(blocks)
    are_long = min(len(block) for block in blocks) >= _fewest_units(units)
    return _mean(units, blocks if are_long and len(blocks) >= FEWEST_BLOCKS else [])


def mean_of_means(means: Floats) -> MeanStep:
    """Return the mean of blocks of which only the means are known, each as long as its work."""
    return _mean(means, means.reshape(-1, 1) if len(means) >= FEWEST_BLOCKS else [])


def _mean(units: Floats, blocks: Sequence[Floats] | Floats) -> MeanStep:
    if not len(blocks):
        return MeanStep(float(units.mean()), mean_variance(units))
    mean, variance = trimmed_mean(np.array([block.mean() for block in blocks]))
    return MeanStep(mean, variance / mean**2)


def _fewest_units(units: Floats) -> float:
    """Return of how many units blocks have to be, so that trimming them takes little away."""
    around = units - units.mean()
    variance = float((around**2).mean())
    if variance <= 0:
        return 1
    return abs(float((around**3).mean())) / variance / (6 * LARGEST_BIAS * float(units.mean()))


def period_of(step_s: Floats) -> int:
    """Return after how many steps they repeat; 1: they do not, or it is not to be seen.

    The shortest period whose places explain at least half of what the logarithms of steps vary by,
    and nearly as much as any (the adjusted R² of an analysis of variance by place).
    """
    return _period(np.asarray(step_s, dtype=float).tobytes())


@lru_cache(maxsize=256)
def _period(step_s: bytes) -> int:
    """Return the period of the same steps: a launch is asked for its step many times."""
    logs = np.log(np.maximum(np.frombuffer(step_s), SHORTEST_S))
    n, total = len(logs), float(logs.var(ddof=1)) if len(logs) > 1 else 0.0
    if total <= 0:
        return 1
    found = {}
    for period in range(2, min(LONGEST_PERIOD, n // FEWEST_PERIODS) + 1):
        whole = logs[: n // period * period].reshape(-1, period)
        within = float(((whole - whole.mean(axis=0)) ** 2).sum()) / (whole.size - period)
        found[period] = within / total
    least = min(found.values(), default=1.0)
    most = min(1 - EXPLAINED, NEARLY_AS_LITTLE * least + ROUNDING)
    return next((period for period, left in found.items() if left <= most), 1)


def slowest_rank_steps(result: CellResult) -> list[float]:
    """Return the time of the slowest rank for every step, aligned by number; seconds."""
    steps = np.array([rank.times_s for rank in result.ranks])
    return [float(s) for s in steps.max(axis=0)]


def clean_steps(result: CellResult) -> list[float]:
    """Return the clean steps of a launch: the slowest rank's, first of each block left out."""
    slowest = np.array(slowest_rank_steps(result))
    parts = [
        _training_part(result.ranks, block, slowest[block.first + 1 : block.first + block.count])
        for block in clean_stretches(result.ranks)
    ]
    return [s for part in parts for s in part.tolist()]


def clean_pace(result: CellResult) -> list[float]:
    """Return the clean steps of a launch as the job went, first of each block left out."""
    return [s for part in _clean_parts(result.ranks) for s in part.tolist()]


def clean_stretches(ranks: Sequence[RankRecord]) -> list[Block]:
    """Return the clean blocks; of a script those without a break between them are one.

    Version 0.1 began a new one after whatever a script did between its steps.
    """
    blocks = [block for block in ranks[0].blocks if block.phase == "clean"]
    if any(rank.gaps is None for rank in ranks):
        return blocks
    whole: list[Block] = []
    for block in blocks:
        if whole and whole[-1].first + whole[-1].count == block.first:
            longer = {"count": whole[-1].count + block.count, "end_ns": block.end_ns}
            whole[-1] = whole[-1].model_copy(update=longer)
        else:
            whole.append(block)
    return whole


def _clean_parts(ranks: Sequence[RankRecord]) -> list[NDArray[np.float64]]:
    """Return the clean steps that count of every stretch, as these ranks went together.

    A step that was skipped in float16 is no progress: its time is added to the others', in equal
    parts.
    """
    parts = [
        _training_part(ranks, block, steps_of_block(ranks, block))
        for block in clean_stretches(ranks)
    ]
    num_steps, num_skipped = sum(map(len, parts)), len(skipped_steps(ranks))
    longer = num_steps / max(num_steps - num_skipped, 1) if num_skipped else 1.0
    return [part * longer for part in parts if len(part)]


def skipped_steps(ranks: Sequence[RankRecord]) -> set[int]:
    """Return the clean steps that count and that float16 skipped, the same on every rank."""
    clean = clean_stretches(ranks)
    counted = {step for b in clean for step in range(b.first + 1, b.first + b.count)}
    return counted & ranks[0].skipped


def _training_part(
    ranks: Sequence[RankRecord], block: Block, step_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return steps of a block without the time in which a script evaluated or saved.

    The job is held up by the rank that takes longest for it. What other ranks did meanwhile may
    hide that: no step is made shorter than half of them are.
    """
    gaps = [gap for rank in ranks for gap in rank.gaps or ()]
    if not gaps or not len(step_s):
        return step_s
    outside = np.zeros(len(step_s))
    for gap in gaps:
        place = gap.step - block.first - 1
        if 0 <= place < len(outside):
            outside[place] = max(outside[place], gap.outside_s)
    beyond = np.minimum(outside, step_s - np.median(step_s))
    return np.asarray(step_s - np.clip(beyond, 0, None))


def own_clean_steps(rank: RankRecord) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a rank's own clean steps and how long it waited for their batches, seconds."""
    data_s = np.zeros(len(rank.step_s)) if rank.data_s is None else np.array(rank.data_s)
    places = [range(b.first + 1, b.first + b.count) for b in clean_stretches([rank])]
    waited = [data_s[place.start : place.stop] for place in places]
    return np.concatenate(_clean_parts([rank])), np.concatenate(waited)


def mean_step(result: CellResult) -> MeanStep:
    """Return what a step takes a launch in the mean, all clean steps counted.

    Where other launches had their turn in between, each turn is a block. Of independent ranks,
    which have no job, the mean over them. Without lockstep a block is a whole number of exchanges,
    with its first step.
    """
    if isinstance(result.cell.strategy, WithoutLockstep):
        return mean_of_means(np.array(_clean_block_means(result)))
    if result.cell.purpose == "independent":
        of_ranks = [_mean_of_job([rank], bool(result.shared_with)) for rank in result.ranks]
        return MeanStep(
            float(np.mean([one.seconds for one in of_ranks])),
            float(np.mean([one.variance for one in of_ranks])),
        )
    return _mean_of_job(result.ranks, bool(result.shared_with))


def _mean_of_job(ranks: Sequence[RankRecord], interleaved: bool) -> MeanStep:
    parts = _clean_parts(ranks)
    return mean_of_blocks(parts) if interleaved else mean_of_steps(np.concatenate(parts))


def launch_step_s(result: CellResult) -> float:
    """Return a launch's step time, seconds; see `mean_step`."""
    return mean_step(result).seconds


def _clean_block_means(result: CellResult) -> list[float]:
    """Return the job's mean step of every clean block, the first step included; seconds."""
    return [
        max(rank.times_s[block.first : block.first + block.count].mean() for rank in result.ranks)
        for block in result.ranks[0].blocks
        if block.phase == "clean"
    ]


def launch_throughput(result: CellResult) -> float:
    """Return a launch's throughput: samples per second of the whole job."""
    return work_of_step(result) / launch_step_s(result)


def mean_losses(result: CellResult) -> list[float]:
    """Return the loss of the global batch, the mean over the ranks, up to the last clean step.

    In the rounds that follow, some steps are trained without synchronisation.
    """
    losses = np.array([rank.loss for rank in result.ranks], dtype=float)
    return [float(x) for x in losses.mean(axis=0)[: result.ranks[0].num_trained]]


def steps_of(ranks: Sequence[RankRecord], phase: Phase) -> NDArray[np.float64]:
    """Return every step of a phase that counts, as these ranks went together; seconds."""
    parts = [steps_of_block(ranks, block) for block in ranks[0].blocks if block.phase == phase]
    return np.concatenate(parts) if parts else np.empty(0)


def steps_of_block(ranks: Sequence[RankRecord], block: Block) -> NDArray[np.float64]:
    """Return the steps of a block as these ranks went together, without the first; seconds.

    They sum to the time from the moment at which all had done the first to that at which all had
    done the last.
    """
    of_ranks = [rank.times_s[block.first : block.first + block.count] for rank in ranks]
    if len(of_ranks) == 1:
        return of_ranks[0][1:]
    return np.diff(np.cumsum(of_ranks, axis=1).max(axis=0))


def busy_part(ranks: Sequence[RankRecord], num_samples: int) -> float | None:
    """Return the processor seconds of a second of these ranks' steps; None: not noted.

    From the steps on ``num_samples`` where there are some on a part of the batch, or else from
    the clean ones.
    """
    blocks = [(rank, block) for rank in ranks for block in rank.blocks if block.cpu_s is not None]
    of_part = [pair for pair in blocks if pair[1].num_samples == num_samples]
    chosen = of_part or [pair for pair in blocks if pair[1].phase == "clean"]
    whole_s = sum(rank.times_s[b.first : b.first + b.count].sum() for rank, b in chosen)
    return sum(b.cpu_s or 0.0 for _, b in chosen) / whole_s if whole_s else None


def paired_over_bare(ranks: Sequence[RankRecord]) -> list[float]:
    """Return, for every round, how much longer a step takes with a time noted after each.

    Each rank's mean step of the paired block is divided by its own of the bare block; a round's
    value is the mean over the ranks. A bare block has nothing but means: the slowest rank of each
    paired step, compared with the slowest mean, would count jitter between ranks as a cost.
    """
    pairs = [zip(_block_means(r, "paired"), _block_means(r, "bare"), strict=True) for r in ranks]
    ratios = [[paired / bare for paired, bare in of_rank] for of_rank in pairs]
    return [float(of_round) for of_round in np.mean(ratios, axis=0)]


def _block_means(rank: RankRecord, phase: Phase) -> list[float]:
    """Return a rank's mean step of every block of a phase, seconds."""
    return [float(rank.times_s[_counted(b)].mean()) for b in rank.blocks if b.phase == phase]


def midmean(values: NDArray[np.float64]) -> float:
    """Return the mean of the middle half: nearly as robust as the median, and a mean."""
    return float(middle_half(np.sort(values)).mean())


def middle_half(ordered: NDArray[Any]) -> NDArray[Any]:
    """Return what is left of an ordered series without its first and its last quarter."""
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def _counted(block: Block) -> slice:
    """Return the steps of a block without the first, which counts for nothing."""
    return slice(block.first + 1, block.first + block.count)
