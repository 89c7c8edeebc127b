"""What one rank does longer than the others, as certain as its own steps make it.

The interval of an efficiency compares launches; this compares ranks in the same steps, so that what
the machine does to all of them at once does not matter. Consecutive steps are put together to at
most 16 blocks of a launch. In each, a rank's mean is compared with the median of the other ranks.
Blocks in which it is longer are counted: a sign test, in which no distribution is assumed.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.launches import Context, Fields, Launches, known, null
from scalebench.analysis.steps import launch_step_s
from scalebench.grouping import totals
from scalebench.records.measured.rank import RankRecord
from scalebench.records.rows.steps import RankExcess, RankPart
from scalebench.records.run import CellResult
from scalebench.spec import Mesh, Pipeline
from scalebench.trace.breakdown import partition
from scalebench.trace.events import clip, length_s

SIGNIFICANT = 0.001
"""Chance of as many blocks among equal ranks, for each rank that is tested."""

LEAST_FACTOR = 1.5
LEAST_SHARE = 0.01
"""Of the step: less is not worth a word."""

LEAST_LATE = 0.1
"""Of the step, in every traced one: so late, a rank is named although too few were traced."""

MOST_BLOCKS = 16
"""Of a launch. Steps that differ by design (a loader's bursts) are alike as blocks."""

NO_RANK = "no rank takes certainly longer than the others for anything"

Floats = NDArray[np.float64]


def rank_excess_of_row(row: Launches, _: Context) -> Fields:
    """Return what single ranks take certainly longer for than the others, the largest first."""
    if row.cell.world_size == 1 or not row.good or _work_differs(row):
        return null(["rank_excess"], "there are no ranks that do the same work")
    step_s = float(np.median([launch_step_s(result) for result in row.good.values()]))
    attributed = list(row.attributed.values())
    sources: Mapping[RankPart, Sequence[Floats | None]] = {
        "data_stall": [stalls_of(result) for result in row.good.values()],
        "compute": [_traced(launch, _computing) for launch in attributed],
        "lateness": [_traced(launch, _lateness) for launch in attributed],
    }
    found = [
        excess
        for part, launches in sources.items()
        for excess in excesses(part, [one for one in launches if one is not None], step_s)
    ]
    if not any(one.part == "lateness" for one in found):
        found += probable(sources["lateness"], step_s)
    found.sort(key=lambda one: one.others_s - one.own_s)
    return {"rank_excess": known(found or None, NO_RANK)}


def _work_differs(row: Launches) -> bool:
    """Tell whether ranks do different work by design: stages, servers."""
    strategy = row.cell.strategy
    if row.cell.race is not None or isinstance(strategy, Pipeline):
        return True
    if isinstance(strategy, Mesh) and strategy.axis_sizes(row.cell.world_size)["pipeline"] > 1:
        return True
    wrappers = next(iter(row.good.values())).ranks[0].facts.get("wrappers") or ()
    return any(str(one.get("kind")).startswith("_Pipeline") for one in wrappers)


def excesses(part: RankPart, launches: Sequence[Floats], step_s: float) -> list[RankExcess]:
    """Return the ranks that certainly take longer for a part in every launch.

    ``launches``: of each launch the seconds by rank and step.
    """
    found = []
    blocks = [np.array([_blocks(of_rank) for of_rank in seconds]) for seconds in launches]
    for rank in range(len(blocks[0]) if blocks else 0):
        own = [one[rank] for one in blocks]
        others = [np.median(np.delete(one, rank, axis=0), axis=0) for one in blocks]
        longer = [float(np.mean(a) - np.mean(b)) for a, b in zip(own, others, strict=True)]
        wins = sum(int(np.sum(a > b)) for a, b in zip(own, others, strict=True))
        num_blocks = sum(map(len, own))
        by_chance = float(bdtrc(wins - 1, num_blocks, 0.5)) if wins else 1.0
        own_s, others_s = (float(np.mean([m.mean() for m in side])) for side in (own, others))
        certain = by_chance < SIGNIFICANT / len(blocks[0]) and min(longer) > 0
        if certain and own_s >= LEAST_FACTOR * others_s and own_s - others_s > LEAST_SHARE * step_s:
            found.append(
                RankExcess(
                    part=part,
                    rank=rank,
                    own_s=own_s,
                    others_s=others_s,
                    num_blocks=num_blocks,
                    num_longer=wins,
                )
            )
    return found


def probable(launches: Sequence[Floats | None], step_s: float) -> list[RankExcess]:
    """Return the rank that the others waited long for in every one of two traced steps or more.

    ``launches``: of each launch the seconds of lateness by rank and traced step.
    """
    traced = [one for one in launches if one is not None]
    steps = np.concatenate(traced, axis=1) if traced else np.zeros((0, 0))
    found = []
    for rank, own in enumerate(steps if steps.shape[1] > 1 else []):
        others = np.max(np.delete(steps, rank, axis=0), axis=0)
        if np.min(own - others) > LEAST_LATE * step_s:
            num = len(own)
            found.append(
                RankExcess(
                    part="lateness",
                    rank=rank,
                    own_s=float(own.mean()),
                    others_s=float(others.mean()),
                    num_blocks=num,
                    num_longer=num,
                    certain=False,
                )
            )
    return found


def stalls_of(result: CellResult) -> Floats | None:
    """Return how long each rank waited for the batches of each clean step; None: not recorded."""
    found = [rank.data_s for rank in result.ranks]
    if any(one is None for one in found):
        return None
    return np.array([np.asarray(one)[_clean(result.ranks[0])] for one in found if one is not None])


def _clean(rank: RankRecord) -> list[int]:
    blocks = [block for block in rank.blocks if block.phase == "clean"]
    return [i for b in blocks for i in range(b.first + 1, b.first + b.count)]


def _traced(
    launch: LaunchAttribution, read: Callable[[LaunchAttribution, int, range], list[float]]
) -> Floats:
    steps = range(min(len(trace.steps) for trace in launch.traces.values()))
    return np.array([read(launch, rank, steps) for rank in sorted(launch.traces)])


def _computing(launch: LaunchAttribution, rank: int, steps: range) -> list[float]:
    trace = launch.traces[rank]
    computed = partition(trace, steps).parts["compute"]
    return [length_s(clip(computed, *trace.steps[step])) for step in steps]


def _lateness(launch: LaunchAttribution, rank: int, steps: range) -> list[float]:
    arrivals = launch.matched.arrivals
    late_s = totals((one.step, one.late_s) for one in arrivals if one.rank == rank)
    return [late_s.get(step, 0.0) for step in steps]


def _blocks(seconds: Floats) -> Floats:
    parts = np.array_split(seconds, min(MOST_BLOCKS, len(seconds)) or 1)
    return np.array([part.mean() for part in parts if len(part)])
