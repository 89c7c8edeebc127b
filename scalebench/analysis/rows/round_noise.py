"""How certain a ratio of two rows is, by all rows of a suite and by rounds that take turns.

What the blocks of a round say of a row, where rows take turns.

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

Ratios between rows, with the noise of all rows of a suite behind their intervals.

Three launches of a row know their own variance with two degrees of freedom, and Student's t is then
4.3. But the rows of a suite were launched in the same rounds on the same machine, and much is known
of all of them together. The logarithm of a launch's step time is taken to be

    the row's own level + what the round did to all rows at this number of ranks
    + what differs from launch to launch

and the variance of the last to be the sum of what one launch cannot know of its median step
(resampled from its steps, the circular block bootstrap of `scalebench.gate.observation`) and an
effect of launching afresh, which is one for the suite. What a row varies by beyond or below that is
moderated over the rows (Smyth 2004, `scalebench.gate.change`).

What a round does to all rows alike cancels in a ratio. What it does to one number of ranks alone
(load that takes one core of two) cancels only between rows at the same number of ranks. Between two
numbers of ranks, all rows at one against all rows at the other show it, with one degree of freedom
less than there are rounds. See `RoundNoise`.

``make bench-coverage`` simulates how often the intervals hold. They are too narrow for a row whose
launches differ several times more than those of the other rows without its steps showing it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from scalebench.gate.change import SMALLEST_FAMILY, typical_variance
from scalebench.records.summary import RowKey
from scalebench.stats import (
    CONFIDENCE,
    LARGEST_LOG,
    Estimate,
    Variance,
    estimate_of_log,
    sum_variances,
    t_half_width,
    trimmed_mean,
)

LEAST_KNOWN = 0.1
"""No row's own variance is taken to be less than so much of the mean of all rows'."""

Floats = NDArray[np.float64]
SAME = 1e-20
"""Logarithms that differ by less than 1e-10 are equal as far as clocks tell."""

ROUNDING = 1e-6
"""Of degrees of freedom, which are sums of fractions."""

Rounds = Mapping[int, float]
"""Number of the round → logarithm of the launch's step time."""


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


def launch_variances(
    rows: Mapping[RowKey, Rounds], within: Mapping[RowKey, float]
) -> dict[RowKey, Variance]:
    """Return the variance between a row's launches that no other row at its size shares.

    What a round does to all rows at one number of ranks is left out.

    Args:
        rows: Its launches, of every row of a suite.
        within: Of every row, the variance of the logarithm of a launch's median step, as its own
            steps tell it.

    Returns:
        Only of rows with two launches or more; empty where fewer than three rows have them, or
        where no two rows at one number of ranks do: nothing is typical of so few.
    """
    repeated = {name: rounds for name, rounds in rows.items() if len(rounds) > 1}
    if len(repeated) < SMALLEST_FAMILY:
        return {}
    layout = _Layout.of(repeated)
    own_scale = np.array([within[name] for name in repeated])
    fresh = layout.effect_of_launching(own_scale)
    if fresh is None:
        return {}
    scale = own_scale + fresh
    squares, freedom = layout.left_over(scale)
    relative = [
        Variance(float(square / dof), float(dof)) if dof > 0 else None
        for square, dof in zip(squares, freedom, strict=True)
    ]
    return {
        name: Variance(one.value * float(of_row), one.dof)
        for name, one, of_row in zip(repeated, _moderated(relative), scale, strict=True)
        if one is not None
    }


def _moderated(relative: Sequence[Variance | None]) -> Sequence[Variance | None]:
    """Move each row's variance towards what is typical; pool those of two rows."""
    known = [one for one in relative if one is not None]
    if len(known) < SMALLEST_FAMILY:
        dof = sum(one.dof for one in known)
        return [Variance(sum(one.value * one.dof for one in known) / dof, dof)] * len(relative)
    typical = typical_variance(known)
    return [typical.moderate(one) if typical.dof > 0 else None for one in relative]


@dataclass(frozen=True)
class _Layout:
    """Launches of rows in rounds: a level for each row, one for each size in each round.

    Attributes:
        logs: Logarithms of step times, shape ``[launches]``.
        owner: Index of each launch's row.
        design: Row, and size and round, of each launch as ones, shape
            ``[launches, rows + sizes and rounds]``.
    """

    logs: Floats
    owner: NDArray[np.intp]
    design: Floats

    @classmethod
    def of(cls, rows: Mapping[RowKey, Rounds]) -> "_Layout":
        """Lay out the launches of rows."""
        launches = [
            (owner, (world_size, number), log)
            for owner, ((_, _, world_size), rounds) in enumerate(rows.items())
            for number, log in rounds.items()
        ]
        shared = sorted({of_round for _, of_round, _ in launches})
        design = np.zeros((len(launches), len(rows) + len(shared)))
        for line, (owner, of_round, _) in enumerate(launches):
            design[line, owner] = design[line, len(rows) + shared.index(of_round)] = 1
        owners = np.array([owner for owner, _, _ in launches], dtype=np.intp)
        return cls(np.array([log for _, _, log in launches]), owners, design)

    def left_over(self, scale: Floats) -> tuple[Floats, Floats]:
        """Return what the fit leaves of each row: squares in units of ``scale``, and their dof.

        Args:
            scale: Variance of each row's launches, up to a factor: the weights of the fit.
        """
        weight = 1 / np.sqrt(scale[self.owner])
        basis, strength, _ = np.linalg.svd(self.design * weight[:, None], full_matrices=False)
        basis = basis[:, strength > 1e-9 * strength[0]]
        logs = self.logs * weight
        left = logs - basis @ (basis.T @ logs)
        squares, freedom = np.zeros(len(scale)), np.zeros(len(scale))
        np.add.at(squares, self.owner, left**2)
        np.add.at(freedom, self.owner, 1 - (basis**2).sum(axis=1))
        freedom[freedom < 1e-9] = 0  # a launch that a round of its own explains
        return squares, freedom

    def effect_of_launching(self, within: Floats) -> float | None:
        """Return the variance that makes the rows' squares what they should be on the average.

        In addition to what launches cannot know of themselves. Source: Paule & Mandel 1982.

        Returns:
            None: the launches do not differ at all, or nothing is left of them.
        """
        if len(self.logs) == 0:
            return None
        squares, freedom = self.left_over(np.ones(len(within)))
        if freedom.sum() <= 0 or squares.sum() <= SAME * len(self.logs):
            return None
        most = float(squares.sum() / freedom.sum())

        def excess(effect: float) -> float:
            found, dof = self.left_over(within + effect)
            return float(found.sum() - dof.sum())

        least = 1e-6 * most
        return 0.0 if within.all() and excess(least) <= 0 else _root(excess, least, most)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is zero; ``low`` where it is negative already."""
    if function(low) <= 0:
        return low
    return float(brentq(function, low, high * (1 + 1e-9), rtol=1e-6))


@dataclass(frozen=True)
class RoundNoise:
    """What is known of the noise of a suite's rows, and the ratios between them.

    Attributes:
        variances: Of the rows' launches, by `launch_variances`; rows of which it is known.
    """

    rows: Mapping[RowKey, Rounds]
    variances: Mapping[RowKey, Variance]

    @classmethod
    def of(cls, rows: Mapping[RowKey, Rounds], within: Mapping[RowKey, float]) -> "RoundNoise":
        """Estimate the noise of a suite's rows; the arguments are those of `launch_variances`."""
        return cls(rows, launch_variances(rows, within))

    def ratio(
        self, row: RowKey, base: RowKey, factor: float = 1.0, confidence: float = CONFIDENCE
    ) -> Estimate | None:
        """Estimate ``factor · base / row`` over the rounds in which both were launched.

        Where the variance of either is not known, or known with fewer degrees of freedom than the
        rounds have, the interval is Student's t of the logarithms of the rounds' own ratios.

        ``factor``: how much more work the row's step does. ``confidence``: see
        `interim.CONFIDENCE_OF_LOOKS`.

        Returns:
            None when there is no such round, or the ratio is more than a float holds.
        """
        logs, base_logs = self.rows[row], self.rows[base]
        shared = [number for number in logs if number in base_logs]
        if not shared:
            return None
        ratios = [math.log(factor) + base_logs[number] - logs[number] for number in shared]
        center, n = float(np.mean(ratios)), len(shared)
        if center > LARGEST_LOG:
            return None
        if n == 1:
            return Estimate(value=math.exp(center), n=1)
        if row == base or not self._known_better(row, base, n - 1):
            half_width = t_half_width(Variance(float(np.var(ratios, ddof=1)), n - 1), confidence)
        else:
            half_width = self._half_width(row, base, shared, confidence)
        return estimate_of_log(center, half_width / math.sqrt(n), n)

    def _known_better(self, row: RowKey, base: RowKey, dof: int) -> bool:
        known = [self.variances.get(key) for key in (row, base)]
        return all(one is not None and one.dof > dof - ROUNDING for one in known)

    def _half_width(
        self, row: RowKey, base: RowKey, shared: Sequence[int], confidence: float
    ) -> float:
        """Return half the width of the interval of one round's ratio, as a logarithm.

        Between two numbers of ranks the variance is the sum of three independent parts: what the
        mean of all rows at one number varies by against the mean of all at the other, over the
        rounds (the effect of a round on one number of ranks is in it), and what each of the two
        rows varies by around the mean at its own.
        """
        if row[2] == base[2]:
            return t_half_width(
                self._together([self.variances[row], self.variances[base]]), confidence
            )
        means, around = [], []
        for key in (row, base):
            weights = self._weights(key[2], shared)
            means.append(
                [sum(w * self.rows[k][number] for k, w in weights.items()) for number in shared]
            )
            own = self.variances[key]
            around.append(Variance(own.value * (1 - weights[key]), own.dof))
        between = np.array(means[0]) - np.array(means[1])
        of_sizes = Variance(float(between.var(ddof=1)), len(shared) - 1)
        return half_width_of_two(of_sizes, self._together(around), confidence)

    def _weights(self, world_size: int, shared: Sequence[int]) -> dict[RowKey, float]:
        """Return the weights, of sum 1, with which rows make the most precise mean at a size.

        The inverse of their variances: a row then differs from the mean by what the mean does not
        know, and ``v - 1/Σ(1/v) = v·(1 - weight)`` is the variance of that.
        """
        precision = {
            key: 1 / one.value
            for key, one in self.variances.items()
            if key[2] == world_size and all(number in self.rows[key] for number in shared)
        }
        total = sum(precision.values())
        return {key: one / total for key, one in precision.items()}

    @staticmethod
    def _together(parts: Sequence[Variance]) -> Variance:
        """Return the variance of a sum of two, which may rest on the same rows."""
        both = sum_variances(parts)
        return Variance(both.value, min(both.dof, max(one.dof for one in parts)))


def half_width_of_two(few: Variance, many: Variance, confidence: float = CONFIDENCE) -> float:
    """Return half the width of the interval of a sum whose first part few observations tell.

    Where the few happen to agree, Satterthwaite's degrees of freedom are those of the other part,
    and the interval is too narrow: if the first part is in truth much the larger, it holds in 88 %
    with one degree of freedom, in 93 % with two. The quantile of Cochran & Cox (1950, §4.14), the
    mean of both parts' quantiles weighted by their variances, holds in 94 % there and in 98 % where
    the first part is small. The quantile taken is Satterthwaite's, moved towards theirs by
    ``1/(2·dof)`` of the way, which simulation chose (``benchmarks/coverage.py``).

    ``few`` has one degree of freedom or a few; ``many`` is independent of it.
    """
    both = sum_variances([few, many])
    by_both = t_half_width(both, confidence)
    if both.value == 0:
        return by_both
    each = (math.sqrt(part.value) * t_half_width(part, confidence) for part in (few, many))
    by_each = sum(each) / math.sqrt(both.value)
    return by_both + (by_each - by_both) / (2 * few.dof)
