"""How much runs of unchanged code differ from one another, beyond what their launches explain.

Launches of one job share a host, its clocks and its neighbours; another job has others. Several
accepted runs of one machine show how much that makes, and it enters the interval of the change.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalebench.gate.change import Change, Side
from scalebench.gate.measured import Measured
from scalebench.stats import Variance


def pooled_runs(runs: Sequence[Measured]) -> Measured:
    """Return the accepted runs of a row as one side.

    Its centre is the mean over the runs, its variance that between launches within them, pooled.
    Launches of different runs are no exchangeable values: there are none for the rank test.

    Args:
        runs: At least one.
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


def change_over_runs(change: Change, runs: Sequence[Measured], sides: tuple[Side, Side]) -> Change:
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

    Args:
        change: By the launches alone.
        runs: Of the baseline; fewer than two: nothing is known of how runs differ.
        sides: Baseline and new run, with the variance between launches that is used.
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
    """Return the variance of the runs' centres."""
    return float(np.var([run.center for run in runs], ddof=1))


def launch_part(runs: Sequence[Measured], variance: Variance | None) -> float:
    """Return what launches add to the variance of a run's centre, the mean over the runs."""
    if variance is None:
        return 0.0
    return variance.value * float(np.mean([1 / run.num_launches for run in runs]))


def run_sd(runs: Sequence[Measured], variance: Variance | None) -> float | None:
    """Return by how much runs differ beyond their launches, a standard deviation.

    The moment estimate ``√max(0, B − mean(σ²/n_r))``; None: fewer than two runs.

    Args:
        runs: Of the baseline.
        variance: Between launches.
    """
    if len(runs) < 2:
        return None
    return math.sqrt(max(_between(runs) - launch_part(runs, variance), 0.0))
