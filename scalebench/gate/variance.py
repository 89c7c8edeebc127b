"""How much launches of a run differ from one another, and runs from runs.

Five launches know their own variance to a factor of two. The rows of one run were measured on one
machine by turns, so what is typical of them is known far better: each row's variance is moved
towards it, by as much as the rows agree among themselves.

Launches of one job share a host, its clocks and its neighbours; another job has others. Several
accepted runs of one machine show how much that makes, and it enters the interval of the change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma, fdtrc, polygamma

from scalebench.gate.change import Change
from scalebench.gate.observation import Measured
from scalebench.stats import Variance

_OWN_WAY = 0.001
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
