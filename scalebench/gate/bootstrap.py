"""How well one launch knows its median step, and the bootstrap over launches and blocks of steps.

Steps within a launch are autocorrelated, so blocks of consecutive steps are drawn, not steps.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 100
"""Of a launch: its standard error is then known to 7 % of itself."""

_SEED = 20040212


@cache
def _picks(num_steps: int, resamples: int) -> NDArray[np.intp]:
    """Return indices of circular blocks of ``√n`` steps, shape ``[resamples, n]``.

    The same for every launch of as many steps, so that a verdict can be had again.
    """
    length = max(1, round(num_steps**0.5))
    num_blocks = -(-num_steps // length)
    generator = np.random.default_rng((_SEED, num_steps, resamples))
    starts = generator.integers(0, num_steps, (resamples, num_blocks, 1))
    picks = (starts + np.arange(length)) % num_steps
    return np.asarray(picks.reshape(resamples, -1)[:, :num_steps], dtype=np.intp)


def resampled_log_medians(
    step_s: Sequence[float], resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Return the logarithm of the median step of resampled launches, shape ``[resamples]``.

    The circular block bootstrap (Politis & Romano 1992).

    Args:
        step_s: Clean steps of one launch in order, positive, at least one.
        resamples: How many.
    """
    steps = np.asarray(step_s, dtype=float)
    medians = np.median(steps[_picks(len(steps), resamples)], axis=1)
    return np.asarray(np.log(medians), dtype=float)


def median_variance(step_s: Sequence[float]) -> float:
    """Return the variance of the logarithm of a launch's median step, from within the launch.

    Launches differ at least by this; by how much more only several launches can tell.
    """
    return float(resampled_log_medians(step_s).var(ddof=1))


def percentile_interval(
    base: Sequence[Sequence[float]], new: Sequence[Sequence[float]], confidence: float, seed: int
) -> tuple[float, float]:
    """Return the hierarchical bootstrap's interval of the log ratio of the medians.

    Launches are drawn with replacement, and blocks of steps within each (Davison & Hinkley 1997,
    §3.8; Kalibera & Jones 2013); the percentiles of the difference are returned. With 5 launches
    a side this interval is too narrow, and the gate does not use it: see ``change``. It is here to
    be held against.

    Args:
        base: Clean steps of every launch of the baseline.
        new: The same of the new run.
        confidence: For example 0.95.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for launches in (base, new):
        medians = np.array([resampled_log_medians(steps) for steps in launches])
        shape = (1000, len(launches))
        which = generator.integers(0, len(launches), shape)
        again = generator.integers(0, medians.shape[1], shape)
        drawn.append(medians[which, again].mean(axis=1))
    outside = 50 * (1 - confidence)
    low, high = np.percentile(drawn[1] - drawn[0], (outside, 100 - outside))
    return float(low), float(high)
