"""Estimates with intervals, and the rule that says when a series of step times is steady.

Only numpy and ``scipy.special``: the worker imports this in every launch.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from scipy.special import bdtr, stdtrit

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
TRIMMED = 4
"""One in so many values is trimmed on either side."""
LARGEST_LOG = math.log(sys.float_info.max)


class Estimate(BaseModel):
    """A measured number: point, 95 % interval, and how many launches it rests on.

    Attributes:
        low: Lower end of the interval; null where one launch cannot give one.
        high: Upper end, likewise.
        n: Launches.
    """

    model_config = ConfigDict(frozen=True)

    value: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    n: int = Field(ge=1)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval; None: there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def reach(self) -> tuple[float, float]:
        """Both ends of the interval; a missing one is the value."""
        low, high = self.value if self.low is None else self.low, self.high
        return low, self.value if high is None else high

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, or None when there is none."""
        return (self.ends[1] - self.ends[0]) / 2 if self.ends else None

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and zero lies outside it."""
        return self.ends is not None and (self.ends[0] > 0 or self.ends[1] < 0)

    def scaled(self, factor: float) -> "Estimate":
        """Return this estimate in another unit, or of a quantity ``factor`` times as large."""
        return self._mapped(lambda x: x * factor)

    def inverted(self, numerator: float) -> "Estimate":
        """Return the estimate of ``numerator / x``; the ends of the interval change places."""
        inverse = self._mapped(lambda x: numerator / x)
        return inverse.model_copy(update={"low": inverse.high, "high": inverse.low})

    def _mapped(self, function: Callable[[float], float]) -> "Estimate":
        ends = [None if end is None else function(end) for end in (self.low, self.high)]
        return Estimate(value=function(self.value), low=ends[0], high=ends[1], n=self.n)


@dataclass(frozen=True)
class Variance:
    """A variance and the degrees of freedom that stand behind it."""

    value: float
    dof: float


def sum_variances(parts: Sequence[Variance]) -> Variance:
    """Return the variance of a sum of independent terms, from the estimate of each term's.

    ``Σvᵢ`` with ``(Σvᵢ)² / Σ(vᵢ²/dᵢ)`` degrees of freedom: by those, Student's t gives the interval
    of the sum. Source: Satterthwaite 1946; Welch 1947.

    Args:
        parts: At least one. Where all are 0, the fewest degrees of freedom stand.
    """
    total = sum(part.value for part in parts)
    below = sum(part.value**2 / part.dof for part in parts if part.value)
    if below == 0:
        return Variance(total, min(part.dof for part in parts))
    return Variance(total, total**2 / below)


def estimate_over_launches(values: Sequence[float]) -> Estimate:
    """Estimate a positive quantity from one value per launch.

    The geometric mean of the launches with Student's t interval of their logarithms. Launches are
    the unit of repetition: steps within one are autocorrelated, and what differs from launch to
    launch (placement, memory layout, clocks) is no smaller for having counted more steps. With
    the 3 to 5 launches that a run can afford, the percentile bootstrap over launches covers far
    less than it says (about 3 times in 4 at n = 3: it cannot leave the range of the sample); t
    holds its coverage at any n (``tests/unit/package/test_stats.py``). Logarithms, because speedup
    and efficiency are ratios: the geometric mean of ratios is the ratio of the geometric means.
    Source: Kalibera & Jones 2013 (launch as unit); Fleming & Wallace 1986 (ratios).

    Args:
        values: One positive number per launch. One alone gives an estimate without interval.
    """
    logs = np.log(np.asarray(values, dtype=float))
    n = len(logs)
    center = float(logs.mean())
    if n == 1:
        return Estimate(value=math.exp(center), n=1)
    spread = float(logs.std(ddof=1)) / math.sqrt(n)
    half_width = spread * float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return estimate_of_log(center, half_width, n)


def estimate_of_log(center: float, half_width: float, n: int) -> Estimate:
    """Return what the mean and the half width of an interval of logarithms say.

    ``center`` is at most `LARGEST_LOG`. An interval that ends beyond what a float holds is none.
    """
    if center + half_width > LARGEST_LOG:
        return Estimate(value=math.exp(center), n=n)
    low, high = math.exp(center - half_width), math.exp(center + half_width)
    return Estimate(value=math.exp(center), low=low, high=high, n=n)


def estimate_signed(values: Sequence[float]) -> Estimate:
    """Estimate a quantity that may be zero or negative from one value per launch.

    The mean of the launches with Student's t interval.

    Args:
        values: One number per launch. One alone gives an estimate without interval.
    """
    x = np.asarray(values, dtype=float)
    n = len(x)
    center = float(x.mean())
    if n == 1:
        return Estimate(value=center, n=1)
    half_width = float(x.std(ddof=1)) / math.sqrt(n) * float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return Estimate(value=center, low=center - half_width, high=center + half_width, n=n)


def median_with_noise(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of repeated measurements, and by how much it may be off (95 %).

    Distribution-free: the median of what is measured lies between two order statistics with a
    probability that only the binomial distribution decides (David & Nagaraja 2003, §7.1). The
    distance to the farther one is returned. With fewer than 6 values no two of them reach 95 %:
    then all of the range is taken, and that is less sure than it says.
    """
    x = np.sort(np.asarray(values, dtype=float))
    n = len(x)
    outside = (1 - CONFIDENCE) / 2
    k = 0  # of each end, as many values are left out as 95 % allow
    while bdtr(k + 1, n, 0.5) <= outside:
        k += 1
    center = float(np.median(x))
    return center, max(center - float(x[k]), float(x[n - 1 - k]) - center)


def trimmed_mean(values: Floats) -> tuple[float, float]:
    """Return the mean of the middle half of values, and its variance.

    With ``k`` of ``n`` values trimmed on either side, ``s²_w / ((1 - 2k/n)²·n)``, where s²_w is the
    variance of the values with the trimmed ones moved to the outermost that are left. Source:
    Tukey & McLaughlin 1963.

    Args:
        values: At least one; fewer than four are not trimmed, and of one the variance is 0.
    """
    x = np.sort(values)
    n = len(x)
    k = n // TRIMMED
    mean = float(x[k : n - k].mean())
    if n == 1:
        return mean, 0.0
    moved = np.clip(x, x[k], x[n - 1 - k])
    return mean, float(moved.var(ddof=1)) / ((1 - 2 * k / n) ** 2 * n)


def t_half_width(variance: Variance, confidence: float = CONFIDENCE) -> float:
    """Return half the width of Student's t interval of a value with this squared error."""
    return math.sqrt(variance.value) * float(stdtrit(variance.dof, (1 + confidence) / 2))


def quantile(dof: ArrayLike) -> Floats:
    """Return Student's t beyond which 2.5 % lie on either side; nan without dof."""
    dof = np.asarray(dof)
    known = np.where(dof > 0, dof, 1)
    return np.where(dof > 0, stdtrit(known, (1 + CONFIDENCE) / 2), np.nan)
