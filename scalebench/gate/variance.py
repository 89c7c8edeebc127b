"""How much launches of a run differ from one another, when there are few of each.

Five launches know their own variance to a factor of two. The rows of one run were measured on one
machine by turns, so what is typical of them is known far better: each row's variance is moved
towards it, by as much as the rows agree among themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, fdtrc, polygamma

from scalebench.stats import Variance

OWN_WAY = 0.001
"""A row whose variance the others' makes less likely than this stands alone."""

SMALLEST_FAMILY = 3
"""Rows with two launches or more: of fewer, nothing typical can be said."""

_ALONE = 1e-9
"""All rows but one together weigh less than this: that one is what is typical."""

_NO_NOISE = 1e-20
"""Launches whose logarithms differ by less than 1e-10 are equal as far as clocks tell."""


@dataclass(frozen=True)
class Typical:
    """What is typical of the rows of a run: as good as ``dof`` further observations of a row.

    ``dof`` 0: nothing is.
    """

    value: float = 0.0
    dof: float = 0.0

    def moderate(self, own: Variance | None) -> Variance | None:
        """Return the variance to use for a row.

        The posterior ``(d₀·s₀² + d·s²)/(d₀ + d)`` with ``d₀ + d`` degrees of freedom (Smyth 2004,
        §5), with two precautions against calling noise a change, which simulation asked for. A
        row that varies more than the posterior says is moved half the way only. One that varies so
        much more that it is no member of the family (F test, 1 in 1000) stands alone.

        Args:
            own: Of the row's launches; None: it has fewer than two.

        Returns:
            None: nothing is known.
        """
        if self.dof <= 0:
            return own
        if own is None:
            return Variance(self.value, self.dof)
        together = own.dof + self.dof
        mixed = (self.dof * self.value + own.dof * own.value) / together
        if own.value <= mixed:
            return Variance(mixed, together)
        ratio = own.value / self.value
        stranger = float(fdtrc(own.dof, self.dof, ratio)) < OWN_WAY
        return own if stranger else Variance((own.value + mixed) / 2, together)


def typical_variance(own: Sequence[Variance]) -> Typical:
    """Estimate what is typical of the rows of a run.

    The moments of ``log s²`` under ``s² ~ s₀²·F(d, d₀)`` (Smyth 2004, §6.2): the less the rows
    differ beyond what few launches explain, the larger d₀. It is never taken to be larger than
    all rows' degrees of freedom together. Rows without any variance tell nothing of noise. A row
    counts by what it knows, the inverse of the variance of its ``log s²`` (DerSimonian & Laird
    1986): one with a hundredth of a degree of freedom would outweigh all others.

    Args:
        own: Of every row with two launches or more.
    """
    known = [v for v in own if v.value > _NO_NOISE and v.dof > 0]
    if len(known) < SMALLEST_FAMILY:
        return Typical()
    half = np.array([v.dof for v in known]) / 2
    centred = np.log([v.value for v in known]) - digamma(half) + np.log(half)
    noise = np.asarray(polygamma(1, half))
    weights = 1 / noise / (1 / noise).sum()
    center = float(weights @ centred)
    beyond = float(weights @ ((centred - center) ** 2 - (1 - weights) * noise))
    others = float(1 - weights @ weights)
    excess = beyond / others if others > _ALONE else 0.0
    most = 2 * float(half.sum())
    dof = min(most, 2 * _inverse_trigamma(excess)) if excess > 0 else most
    half_prior = dof / 2
    level = float(center + digamma(half_prior) - math.log(half_prior))
    return Typical(math.exp(level), dof)


def _inverse_trigamma(y: float) -> float:
    """Solve ``trigamma(x) = y`` for x by Newton's method on its reciprocal (Smyth 2004, app.)."""
    x = 0.5 + 1 / y
    for _ in range(50):
        value = float(polygamma(1, x))
        step = value * (1 - value / y) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


def sample_variance(values: NDArray[np.float64]) -> Variance | None:
    """Return the variance of one value per launch; None: fewer than two."""
    if len(values) < 2:
        return None
    return Variance(float(values.var(ddof=1)), len(values) - 1)
