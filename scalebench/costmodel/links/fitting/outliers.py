"""Points that something else on the machine made too slow.

A busy machine makes an operation slower, never faster: only points above the line are suspected,
and never more than a fifth of them.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from scalebench.costmodel.links.fitting.lines import NUM_PARAMETERS, Lines, fit_lines
from scalebench.stats import Floats

LEVEL = 0.01
"""Chance that any point of a line without outliers is set aside."""

LARGEST_SHARE = 0.2
"""Of a line's points: more that stand above it are no accident but the line's own shape."""

SMALLEST_SCALE = 0.01
"""Medians of the same operation differ by 1 % from one minute to the next.

Scatter below that is not held against a point or a line, however exact the rest looks.
"""

_SPIKE_SCALES = 4.0


def fit_without_outliers(x: Floats, log_time: Floats, weights: Floats) -> Lines:
    """Fit lines and set aside the points that stand too far above them.

    The generalised extreme studentised deviate test (Rosner 1983), one-sided, for regression:
    the point that stands out most is removed and the line fitted anew, up to `LARGEST_SHARE`
    times; outliers are all points up to the last removed whose deletion residual (against the
    fit without it) exceeds Student's t at `LEVEL` over the number of points left. Looking at the
    last, not the first, keeps outliers from hiding one another.

    The arguments are those of `fit_lines`.

    Returns:
        The lines, fitted to the points kept; outliers have weight 0.
    """
    num_points = np.count_nonzero(weights > 0, axis=1)
    most = np.floor(LARGEST_SHARE * num_points).astype(int)
    current, kept = weights, weights
    for count in range(1, int(most.max(initial=0)) + 1):
        lines = fit_lines(x, log_time, current)
        excess = _deletion_residuals(lines)
        suspect = np.argmax(excess, axis=1)
        index = np.arange(len(excess))
        dof = np.maximum(lines.dof - 1, 1)
        p_value = stdtr(dof, -excess[index, suspect])
        open_ = (count <= most) & (lines.dof > 1)
        current = current.copy()
        current[index[open_], suspect[open_]] = 0.0
        outlying = open_ & (p_value * (lines.dof + NUM_PARAMETERS) < LEVEL)
        kept = np.where(outlying[:, None], current, kept)
    return fit_lines(x, log_time, kept)


def _deletion_residuals(lines: Lines) -> Floats:
    """Residuals over their standard deviation, each by the fit without its point; [L, n]."""
    rest = np.maximum(1 - lines.leverage, 1e-9)
    squares = lines.weights * lines.residuals**2
    dof = np.maximum(lines.dof - 1, 1)[:, None]
    variance = np.maximum(lines.rss[:, None] - squares / rest, 0.0) / dof
    scale = np.maximum(np.sqrt(variance), SMALLEST_SCALE)
    excess = np.sqrt(lines.weights) * lines.residuals / (scale * np.sqrt(rest))
    return np.where(lines.weights > 0, excess, -np.inf)


def spikes(log_size: Floats, log_time: Floats, weights: Floats) -> NDArray[np.bool_]:
    """Tell which points stand above whatever their neighbours lead one to expect.

    Needs no line, and so comes before the search for regimes: a point counts only when it lies
    above the interpolation of its two neighbours *and* above the extrapolation of the two before
    *and* of the two after it; next to a change of regime one of them is right. By how much:
    `_SPIKE_SCALES` robust standard deviations of all such interpolations.

    Args:
        log_size: Ascending along each row, shape [L, n].
        log_time: Shape [L, n].
        weights: 0 for the padding at each row's end, shape [L, n].

    Returns:
        Shape [L, n]; never at the two points of either end.
    """
    found = np.zeros(log_time.shape, dtype=bool)
    if log_time.shape[1] < 5:
        return found
    s = [log_size[:, k : log_size.shape[1] - 4 + k] for k in range(5)]
    t = [log_time[:, k : log_time.shape[1] - 4 + k] for k in range(5)]
    real = weights[:, 4:] > 0

    def expected(i: int, j: int) -> Floats:
        width = np.where(real, s[j] - s[i], 1.0)
        return t[i] + (t[j] - t[i]) * (s[2] - s[i]) / width

    between = t[2] - expected(1, 3)
    above = np.minimum(between, np.minimum(t[2] - expected(0, 1), t[2] - expected(3, 4)))
    deviation = np.where(real, np.abs(between), np.nan)
    known = real.any(axis=1)
    scale = np.full(len(real), np.inf)
    scale[known] = np.maximum(1.4826 * np.nanmedian(deviation[known], axis=1), SMALLEST_SCALE)
    found[:, 2:-2] = real & (above > _SPIKE_SCALES * scale[:, None])
    return found
