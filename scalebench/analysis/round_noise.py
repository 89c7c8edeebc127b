"""Ratios between rows, with the noise of all rows of a suite behind their intervals.

Three launches of a row know their own variance with two degrees of freedom, and Student's t is then
4.3. But the rows of a suite were launched in the same rounds on the same machine, and much is known
of all of them together. The logarithm of a launch's step time is taken to be

    the row's own level + what the round did to all rows + what differs from launch to launch

and the variance of the last to be the sum of what one launch cannot know of its median step
(resampled from its steps, the circular block bootstrap of `scalebench.gate.bootstrap`) and an
effect of launching afresh, which is one for the suite. What a row varies by beyond or below that is
moderated over the rows (Smyth 2004, `scalebench.gate.variance`).

``make bench-coverage`` simulates how often the intervals hold. They are too narrow for a row whose
launches differ several times more than those of the other rows without its steps showing it, and
where a round does something to one number of ranks alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from scalebench.gate.variance import typical_variance
from scalebench.records.summary import RowKey
from scalebench.stats import (
    Estimate,
    Variance,
    estimate_over_launches,
    sum_variances,
    t_half_width,
)

SAME = 1e-20
"""Logarithms that differ by less than 1e-10 are equal as far as clocks tell."""

Floats = NDArray[np.float64]
Rounds = Mapping[int, float]
"""Number of the round → logarithm of the launch's step time."""


def launch_variances(
    rows: Mapping[RowKey, Rounds], within: Mapping[RowKey, float]
) -> dict[RowKey, Variance]:
    """Return the variance between a row's launches that their rounds do not share.

    Args:
        rows: Its launches, of every row of a suite.
        within: Of every row, the variance of the logarithm of a launch's median step, as its own
            steps tell it.

    Returns:
        Only of rows with two launches or more; empty where fewer than three rows have them:
        nothing is typical of so few.
    """
    repeated = {name: rounds for name, rounds in rows.items() if len(rounds) > 1}
    layout = _Layout.of(list(repeated.values()))
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
    typical = typical_variance([one for one in relative if one is not None])
    if typical.dof <= 0:
        return {}
    moderated = [typical.moderate(one) for one in relative]
    return {
        name: Variance(one.value * float(of_row), one.dof)
        for name, one, of_row in zip(repeated, moderated, scale, strict=True)
        if one is not None
    }


@dataclass(frozen=True)
class _Layout:
    """Launches of rows in rounds: one level for each row, one for each round.

    Attributes:
        logs: Logarithms of step times, shape ``[launches]``.
        owner: Index of each launch's row.
        design: Row and round of each launch as ones, shape ``[launches, rows + rounds]``.
    """

    logs: Floats
    owner: NDArray[np.intp]
    design: Floats

    @classmethod
    def of(cls, rows: Sequence[Rounds]) -> "_Layout":
        """Lay out the launches of rows."""
        numbers = sorted({number for rounds in rows for number in rounds})
        places = [(row, numbers.index(n)) for row, rounds in enumerate(rows) for n in rounds]
        logs = np.array([log for rounds in rows for log in rounds.values()])
        design = np.zeros((len(logs), len(rows) + len(numbers)))
        for line, (row, number) in enumerate(places):
            design[line, row] = design[line, len(rows) + number] = 1
        return cls(logs, np.array([row for row, _ in places], dtype=np.intp), design)

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

        Beside what launches cannot know of themselves. Source: Paule & Mandel 1982.

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


def ratio_over_rounds(
    logs: Mapping[int, float],
    base_logs: Mapping[int, float],
    variances: tuple[Variance, Variance] | None,
    factor: float = 1.0,
) -> Estimate | None:
    """Estimate ``factor · base / row`` over the rounds in which both were launched.

    Args:
        logs: The row's launches, logarithms of step times.
        base_logs: The baseline's.
        variances: Of both, by `launch_variances`; None: the rounds' own ratios have to do
            (Student's t of their logarithms).
        factor: How much more work the row's step does.

    Returns:
        None when there is no such round.
    """
    shared = [number for number in logs if number in base_logs]
    if not shared:
        return None
    ratios = [math.log(factor) + base_logs[number] - logs[number] for number in shared]
    own = estimate_over_launches([math.exp(ratio) for ratio in ratios])
    if variances is None or own.low is None:
        return own
    both = sum_variances(variances)
    dof = min(both.dof, max(one.dof for one in variances))  # both may rest on the same rows
    width = t_half_width(Variance(both.value / len(shared), dof))
    center = math.log(own.value)
    ends = {"low": math.exp(center - width), "high": math.exp(center + width)}
    return own.model_copy(update=ends)
