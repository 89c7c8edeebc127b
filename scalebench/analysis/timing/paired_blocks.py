"""What the blocks of a round say of a row, where rows take turns.

In a round the rows of a suite live at the same time and work one after the other, a block of steps
each, in a random order: a cycle visits every row once. What the machine does over seconds to all
rows then cancels within a cycle, and what it does to single blocks is trimmed away:

1. Of each two rows, the difference of the logarithms of their blocks, cycle by cycle; of these the
   mean of the middle half (a quarter is trimmed on either side), with the variance of a trimmed
   mean from Winsorized values (Tukey & McLaughlin 1963; Yuen 1974).
2. A row's level in the round is the mean of its differences from all rows. Differences of levels
   are those of the rows, whatever one takes for zero.
3. What a row's level cannot know of itself follows from the variances of its differences
   (Grubbs 1948).

Step times are means of blocks, whose ratios are the speedups of the table. `round_noise` takes
from here how much a single launch knows of its own, without the drift that rows share.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalebench.records.summary import RowKey
from scalebench.stats import trimmed_mean

LEAST_KNOWN = 0.1
"""No row's own variance is taken to be less than so much of the mean of all rows'."""

Floats = NDArray[np.float64]


class Block(NamedTuple):
    """Consecutive steps of a row between two turns of other rows.

    Attributes:
        start_ns: When its first step began; one clock for all rows of a round.
        step_s: Mean time of a step, seconds.
    """

    start_ns: int
    end_ns: int
    step_s: float


Blocks = Mapping[int, Sequence[Block]]
"""Number of the round → blocks of a row, in any order."""


def interleaved_variances(rows: Mapping[RowKey, Blocks]) -> dict[RowKey, float]:
    """Return what a launch that takes turns cannot know of its own step time.

    Args:
        rows: Blocks of every row; a row may be missing from rounds and from cycles.

    Returns:
        Variance of the logarithm of a launch's step time without what the machine did to all rows,
        mean over the rounds; of rows that shared a cycle with all others in one of them.

    Raises:
        ValueError: A block ends before it starts, or its step time is not positive.
    """
    own: dict[RowKey, list[float]] = {}
    for number in sorted({number for blocks in rows.values() for number in blocks}):
        present = {key: blocks[number] for key, blocks in rows.items() if blocks.get(number)}
        if len(present) < 2:
            continue
        for key, (_, variance) in levels_of_round(present).items():
            own.setdefault(key, []).append(variance)
    return {key: float(np.mean(found)) for key, found in own.items()}


def levels_of_round(rows: Mapping[RowKey, Sequence[Block]]) -> dict[RowKey, tuple[float, float]]:
    """Return each row's level in a round, and the variance with which its blocks tell it.

    Args:
        rows: Blocks of every row of the round; one at least for each.

    Returns:
        Logarithms of step times, of which only the differences between rows say something. A
        variance is 0 where no row has more than one block.
    """
    table = _by_cycle(rows)
    keys = list(rows)
    while len(keys) > 1:
        lonely = [one for one in keys if any(not _shared(table, one, other) for other in keys)]
        if not lonely:
            break
        keys.remove(min(lonely, key=lambda key: len(table[key])))
    differences, variances = np.zeros((2, len(keys), len(keys)))
    for (i, one), (j, other) in combinations(enumerate(keys), 2):
        cycles = _shared(table, one, other)
        pairs = np.array([table[one][cycle] - table[other][cycle] for cycle in cycles])
        mean, variance = trimmed_mean(pairs)
        differences[i, j], differences[j, i] = mean, -mean
        variances[i, j] = variances[j, i] = variance
    levels, own = differences.mean(axis=1), own_variances(variances)
    return {key: (float(levels[i]), float(own[i])) for i, key in enumerate(keys)}


def _by_cycle(rows: Mapping[RowKey, Sequence[Block]]) -> dict[RowKey, dict[int, float]]:
    """Return of every row: number of the cycle → logarithm of the step time.

    A cycle ends where a row would have a second block in it.
    """
    table: dict[RowKey, dict[int, float]] = {key: {} for key in rows}
    cycle = 0
    for key, block in sorted(
        ((key, block) for key, blocks in rows.items() for block in blocks),
        key=lambda one: one[1].start_ns,
    ):
        if block.end_ns <= block.start_ns or not 0 < block.step_s < np.inf:
            raise ValueError(
                f"block {tuple(block)} of {key}: it has to end after its start, and its step time"
                " has to be a positive number of seconds"
            )
        cycle += cycle in table[key]
        table[key][cycle] = float(np.log(block.step_s))
    return table


def _shared(table: Mapping[RowKey, Mapping[int, float]], one: RowKey, other: RowKey) -> list[int]:
    return [cycle for cycle in table[one] if cycle in table[other]]


def own_variances(of_differences: Floats) -> Floats:
    """Return the variance of each row from the variances of all rows' differences.

    With ``v_ij = v_i + v_j`` and n rows, ``v_i = (Σ_j v_ij - Σ_{j<k} v_jk / (n - 1)) / (n - 2)``.
    Source: Grubbs 1948. Of two rows each has half of it. None is taken to be less than
    `LEAST_KNOWN` of the mean.

    Args:
        of_differences: Shape ``[rows, rows]``, symmetric, 0 on the diagonal.
    """
    n = len(of_differences)
    of_rows = of_differences.sum(axis=1)
    if n < 3:
        return np.asarray(of_rows / 2)
    mean = of_rows.sum() / (2 * n * (n - 1))
    own = (of_rows - n * mean) / (n - 2)
    return np.asarray(np.maximum(own, LEAST_KNOWN * mean))
