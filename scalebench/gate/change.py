"""The change from one run's launches to another's, and how much launches and runs differ anyway.

How much launches of a run differ from one another, and runs from runs.

Five launches know their own variance to a factor of two. The rows of one run were measured on one
machine by turns, so what is typical of them is known far better: each row's variance is moved
towards it, by as much as the rows agree among themselves.

Launches of one job share a host, its clocks and its neighbours; another job has others. Several
accepted runs of one machine show how much that makes, and it enters the interval of the change.

The change from one run's launches to another's: interval, tests, what could have been seen.

Everything here is a difference between two sides: of logarithms where the metric is positive, so
that it is the logarithm of a ratio, otherwise of the metric itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, digamma, fdtrc, nctdtrinc, polygamma, stdtr, stdtrit

from scalebench.gate.observation import Measured
from scalebench.stats import CONFIDENCE, Variance, sum_variances

POWER = 0.95
"""How sure a change of the size ``min_detectable`` is to be found."""

FALSE_ALARM_RATE = 0.01
"""Of calls of the gate in which nothing changed."""

TEST_LEVEL = 0.4 * FALSE_ALARM_RATE
"""How often the interval of any row that decides may lie above its change. Less than half of what
is promised: a variance that is partly taken from other rows is not quite known as well as its
degrees of freedom say, least where there are many rows, or rows whose noise is unlike."""

JOB_LEVEL = 0.5 * FALSE_ALARM_RATE
"""The same of whole jobs whose variance is not taken from other rows."""

UNLIKE = 0.1
"""Sides whose variances chance makes so unlike less often than this have unlike noise."""

RANK_LEVEL = 0.05
"""What the rank test has to confirm, where so many launches can reach it at all."""

FAR = 1000.0
"""Quantiles of t beyond it are far out."""

MOST_LAUNCHES = 1000
_MOST_SPLITS = 20_000
_OWN_WAY = 0.001
"""A row whose variance the others' makes less likely than this stands alone."""

SMALLEST_FAMILY = 3
"""Rows with two launches or more: of fewer, nothing typical can be said."""

_ALONE = 1e-9
"""All rows but one together weigh less than this: that one is what is typical."""

_NO_NOISE = 1e-20
"""Launches whose logarithms differ by less than 1e-10 are equal as far as clocks tell."""


@dataclass(frozen=True)
class Change:
    """The difference new minus base, and how well it is known.

    Attributes:
        error: Its standard error; None: unknown, because nothing tells how launches differ.
        dof: Degrees of freedom behind ``error``.
    """

    value: float
    error: float | None = None
    dof: float = 0.0
    confidence: float = CONFIDENCE

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference, by Student's t."""
        if self.error is None:
            return None
        half_width = self.error * quantile((1 + self.confidence) / 2, self.dof)
        return self.value - half_width, self.value + half_width

    def p_value(self, sign: int, allowance: float = 0.0) -> float | None:
        """Return how likely so large a difference is where there is none, in one direction.

        ``sign``: 1: up, -1: down. A difference as large as ``allowance`` is none yet.
        """
        if self.error is None:
            return None
        excess = sign * self.value - allowance
        if self.error == 0:
            return 0.0 if excess > 0 else 1.0
        return float(stdtr(self.dof, -excess / self.error))


def quantile(probability: float, dof: float) -> float:
    """Return a quantile of Student's t."""
    return float(stdtrit(dof, probability))


def change_between(
    base: Measured, new: Measured, confidence: float = CONFIDENCE, jobs: bool = False
) -> Change:
    """Estimate the change between two sides.

    Welch's t: each side has its own variance, the degrees of freedom are Satterthwaite's (Welch
    1947). The percentile bootstrap over launches is no substitute: with 5 a side its 95 % interval
    covers 9 times in 10, and the far tails that a family of rows needs do not exist in it.
    Where one side has no variance, the other's is taken for both.

    Of whole jobs, as many a side, the error is the same and the degrees of freedom are those of
    both sides (Student's pooled t): a job of minutes is no noisier for what the machine did in a
    moment, so that sides between which nothing changed have the same noise. Where an F test says
    that they do not (1 in 10), Welch's stay: sides of which one is up to five times as noisy then
    raise at most 1.3 % false alarms.
    """
    of_base, of_new = base.variance or new.variance, new.variance or base.variance
    value = new.center - base.center
    if of_base is None or of_new is None:
        return Change(value)
    squared = sum_variances(
        [
            Variance(of_base.value / base.num_launches, of_base.dof),
            Variance(of_new.value / new.num_launches, of_new.dof),
        ]
    )
    dof = squared.dof
    if jobs and base.num_launches == new.num_launches and not _unlike(of_base, of_new):
        dof = of_base.dof + of_new.dof
    return Change(value, math.sqrt(squared.value), dof, confidence)


def _unlike(one: Variance, other: Variance) -> bool:
    """Tell whether two variances differ by more than chance mostly makes them (F test)."""
    less, more = sorted((one, other), key=lambda variance: variance.value)
    if less.value <= 0:
        return more.value > 0
    return 2 * float(fdtrc(more.dof, less.dof, more.value / less.value)) < UNLIKE


def rank_p_value(base: Sequence[float], new: Sequence[float], sign: int) -> float | None:
    """Return the exact one-sided p-value of the rank test of Mann and Whitney (1947).

    Every way of dealing the launches to the two sides is counted, so that ties are exact, too: the
    exact p-value of ``scipy.stats.mannwhitneyu`` takes them for none, and its import alone takes
    longer than a gate. Steps are no unit: they are autocorrelated.

    One value per launch. ``sign``: 1: the new ones are larger, -1: smaller.

    Returns:
        None where it could not reach 5 % at all, or the launches are too many to count out (then
        the t test needs no check).
    """
    ways = math.comb(len(base) + len(new), len(new))
    if not base or not new or not 1 / RANK_LEVEL <= ways <= _MOST_SPLITS:
        return None
    x = np.array([*base, *new]) * sign
    ranks = (x[:, None] > x).sum(axis=1) + (x[:, None] == x).sum(axis=1) / 2
    splits = _splits(len(x), len(new))
    return float(np.mean(ranks[splits].sum(axis=1) >= ranks[len(base) :].sum() - 1e-9))


@cache
def _splits(num_launches: int, num_new: int) -> NDArray[np.intp]:
    """Return every choice of the new launches among all, shape ``[ways, num_new]``."""
    return np.array(list(combinations(range(num_launches), num_new)), dtype=np.intp)


def min_detectable(change: Change, floor: float, hosts: float = 0.0) -> float | None:
    """Return the smallest difference that would have been called for the worse 95 times in 100.

    The interval then excludes ``hosts``, and reaches beyond the floor. Noncentral t.

    ``floor`` is a difference, positive; ``hosts``: by how much another host alone may change it.
    """
    if change.error is None:
        return None
    seen = _detectable((1 + change.confidence) / 2, change.dof)
    return max(floor, hosts + seen * change.error)


def _detectable(probability: float, dof: float) -> float:
    """Return the noncentrality at which t exceeds this quantile with the wanted power.

    Far out the search for it takes time in proportion to the quantile, minutes with few degrees of
    freedom. There the numerator of t is the noncentrality alone, to a thousandth, and the wanted
    power is that of its denominator.
    """
    critical = quantile(probability, dof)
    if critical > FAR:
        return critical * math.sqrt(float(chdtri(dof, 1 - POWER)) / dof)
    found = float(nctdtrinc(dof, 1 - POWER, critical))
    plain = critical + quantile(POWER, dof)
    return found if math.isfinite(found) and found > 0 else plain


def further_launches(
    base: Measured, new: Measured, floor: float, worse: int, confidence: float, jobs: bool = False
) -> int | None:
    """Return how many more launches on each side would decide, if nothing else changes.

    Decided is: the interval wholly worse than the floor, or wholly better. The point and the
    variance are taken as they are.

    ``floor`` is a positive difference in the direction of what is worse: up for 1, down for -1.

    Returns:
        None: no number up to 1000 would, or nothing is known of the noise.
    """

    def decided(more: int) -> bool:
        change = change_between(_grown(base, more), _grown(new, more), confidence, jobs)
        if change.interval is None:
            return False
        low, high = sorted(worse * end for end in change.interval)
        return low > floor or high < floor

    if not decided(MOST_LAUNCHES):
        return None
    low, high = 0, MOST_LAUNCHES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


def _grown(side: Measured, more: int) -> Measured:
    variance = side.variance and Variance(side.variance.value, side.variance.dof + more)
    return Measured(side.center, side.num_launches + more, variance)


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
        stranger = float(fdtrc(own.dof, self.dof, ratio)) < _OWN_WAY
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


def pooled_runs(runs: Sequence[Measured]) -> Measured:
    """Return the accepted runs of a row as one side.

    Its centre is the mean over the runs, its variance that between launches within them, pooled.
    Launches of different runs are no exchangeable values: there are none for the rank test.
    """
    known = [run.variance for run in runs if run.variance is not None]
    dof = sum(variance.dof for variance in known)
    squares = sum(variance.value * variance.dof for variance in known)
    return Measured(
        center=float(np.mean([run.center for run in runs])),
        num_launches=sum(run.num_launches for run in runs),
        variance=Variance(squares / dof, dof) if dof else None,
        within=float(np.mean([run.within for run in runs])),
    )


def change_over_runs(
    change: Change, runs: Sequence[Measured], sides: tuple[Measured, Measured]
) -> Change:
    """Return the change with the noise between runs in its error.

    Runs r = 1 … R of the baseline have the centres ``c_r = μ + u_r + e_r`` (``u``: the run's own
    effect, variance τ²; ``e``: its launches', variance σ²/n_r), the new run ``c = μ + δ + u + e``.
    The variance of ``c − mean(c_r)`` is then ``B·(1 + 1/R) + (σ²/n − mean(σ²/n_r))`` with
    ``B = s²(c_r)``, which estimates ``τ² + mean(σ²/n_r)``. With runs of as many launches each the
    last term is 0 and the difference over its error is Student's t with R − 1 degrees of freedom:
    the prediction interval of one further observation (Hahn & Meeker 1991, §4.7), a run for an
    observation. The last term counts where the new run knows itself less well, and the error is
    never less than that of the launches alone; both only make it larger. The degrees of freedom
    stay R − 1: Satterthwaite's, which weigh the terms by their estimates, let the launches' many
    degrees vouch for a ``B`` that is small by chance (2 to 5 % false alarms with three runs).

    ``change`` is by the launches alone. With fewer than two ``runs`` nothing is known of how runs
    differ. ``sides`` have the variance between launches that is used.
    """
    if len(runs) < 2:
        return change
    base, new = sides
    squared = _between(runs) * (1 + 1 / len(runs))
    of_new = new.variance or base.variance
    if of_new is not None:
        excess = of_new.value / new.num_launches - launch_part(runs, base.variance)
        squared += max(excess, 0.0)
    error = max(math.sqrt(squared), change.error or 0.0)
    return replace(change, error=error, dof=len(runs) - 1)


def _between(runs: Sequence[Measured]) -> float:
    return float(np.var([run.center for run in runs], ddof=1))


def launch_part(runs: Sequence[Measured], variance: Variance | None) -> float:
    """Return what launches add to the variance of a run's centre, the mean over the runs."""
    if variance is None:
        return 0.0
    return variance.value * float(np.mean([1 / run.num_launches for run in runs]))


def run_sd(runs: Sequence[Measured], variance: Variance | None) -> float | None:
    """Return by how much runs differ beyond their launches, a standard deviation.

    The moment estimate ``√max(0, B − mean(σ²/n_r))``; None: fewer than two runs.
    """
    if len(runs) < 2:
        return None
    return math.sqrt(max(_between(runs) - launch_part(runs, variance), 0.0))
