"""The mean of steps that differ by design, robust against what the machine does to some of them.

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
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalebench.gate.observation import mean_variance
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
