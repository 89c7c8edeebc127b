"""Many straight lines at once: ``time = x1·θ1 + x2·θ2`` with θ ≥ 0, by relative error.

Least squares of the residuals ``log(time) − log(x·θ)``: noise of a measured time grows with the
time, and a factor too slow is as far off as the same factor too fast. The minimum is found by
Gauss–Newton; with rows divided by the fitted time each step is a linear least-squares problem
with non-negative unknowns, which for two unknowns is solved in closed form, for all lines
together. A line is a row of each array; lines of fewer points are padded with weight 0.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scalebench.stats import Floats

NUM_PARAMETERS = 2
_MAX_STEPS = 60
_TOLERANCE = 1e-10
_ROUNDING = 1e-12
"""A parameter that adds less than this to every time is 0 but for rounding."""


@dataclass(frozen=True)
class Lines:
    """Fitted lines, L of them with up to n points each.

    Attributes:
        theta: Parameters, shape [L, 2].
        residuals: ``log(time) − log(fitted)``, shape [L, n]; 0 where the weight is 0.
        weights: Relative weight of each point, shape [L, n].
        rows: ``x / fitted``, shape [L, n, 2]: how the logarithm of a fitted time follows θ.
    """

    theta: Floats
    residuals: Floats
    weights: Floats
    rows: Floats

    @cached_property
    def rss(self) -> Floats:
        """Weighted sum of squared residuals, shape [L]."""
        return np.asarray(np.sum(self.weights * self.residuals**2, axis=1))

    @cached_property
    def dof(self) -> NDArray[np.int64]:
        """Degrees of freedom: points of positive weight less parameters, shape [L].

        A parameter that came out as 0 counts, too: which one does is not known beforehand.
        """
        counts = np.count_nonzero(self.weights > 0, axis=1)
        return np.asarray(counts - NUM_PARAMETERS)

    @cached_property
    def scale(self) -> Floats:
        """Standard deviation of a log-residual of weight 1, shape [L]; nan where `dof` is 0."""
        dof = np.where(self.dof > 0, self.dof, np.nan)
        return np.sqrt(self.rss / dof)

    @cached_property
    def unscaled_covariance(self) -> Floats:
        """Covariance of θ for a scale of 1, shape [L, 2, 2]; inf where θ is not determined."""
        rows, weights = self.rows, self.weights
        s12 = np.sum(weights * rows[..., 0] * rows[..., 1], axis=1)
        s22 = np.sum(weights * rows[..., 1] ** 2, axis=1)
        # 1 − correlation², as a sum of squares: a difference of nearly equal sums loses digits
        slope = s12 / s22
        rest = np.sum(weights * (rows[..., 0] - slope[:, None] * rows[..., 1]) ** 2, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            v11 = 1 / rest
            v12 = -slope * v11
            v22 = 1 / s22 + slope**2 * v11
        return np.stack((np.stack((v11, v12), -1), np.stack((v12, v22), -1)), -2)

    @cached_property
    def leverage(self) -> Floats:
        """How far each point determines its own fitted time, 0 to 1, shape [L, n]."""
        spread = np.einsum("lni,lij,lnj->ln", self.rows, self.unscaled_covariance, self.rows)
        return np.asarray(np.clip(self.weights * spread, 0.0, 1.0))


def fit_lines(x: Floats, log_time: Floats, weights: Floats) -> Lines:
    """Fit every line.

    Args:
        x: What multiplies θ, shape [L, n, 2], ≥ 0; one of the two positive at every point.
        log_time: Logarithms of the times, shape [L, n].
        weights: Relative weights, shape [L, n]; each line has two points of positive weight.
    """
    theta = _step(x / np.exp(log_time)[..., None], np.zeros_like(log_time), weights)
    best = _residuals(x, log_time, weights, theta)
    for _ in range(_MAX_STEPS):
        residuals, rows, rss = best
        proposed = _step(rows, residuals, weights)
        new = _residuals(x, log_time, weights, proposed)
        for _ in range(3):  # a step that goes too far is halved
            worse = new[2] > rss * (1 + 1e-12)
            if not worse.any():
                break
            proposed = np.where(worse[:, None], (theta + proposed) / 2, proposed)
            new = _residuals(x, log_time, weights, proposed)
        better = new[2] < rss * (1 - _TOLERANCE)
        if not better.any():
            break
        theta = np.where(better[:, None], proposed, theta)
        best = _residuals(x, log_time, weights, theta)
    share = np.max(np.where(weights[..., None] > 0, best[1] * theta[:, None], 0.0), axis=1)
    return Lines(np.where(share < _ROUNDING, 0.0, theta), best[0], weights, best[1])


def _residuals(
    x: Floats, log_time: Floats, weights: Floats, theta: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return residuals, rows and weighted sums of squares at θ."""
    fitted = np.maximum(x[..., 0] * theta[:, :1] + x[..., 1] * theta[:, 1:], 1e-300)
    residuals = np.where(weights > 0, log_time - np.log(fitted), 0.0)
    return residuals, x / fitted[..., None], np.sum(weights * residuals**2, axis=1)


def _step(rows: Floats, residuals: Floats, weights: Floats) -> Floats:
    """Solve ``min Σ w·(rows·θ − (1 + residual))²`` over θ ≥ 0, shape [L, 2].

    The current θ solves ``rows·θ = 1``, so the residual is what is left to explain.
    """
    r1, r2 = rows[..., 0], rows[..., 1]
    target = 1 + residuals
    s11, s22 = np.sum(weights * r1 * r1, axis=1), np.sum(weights * r2 * r2, axis=1)
    s12 = np.sum(weights * r1 * r2, axis=1)
    t1, t2 = np.sum(weights * r1 * target, axis=1), np.sum(weights * r2 * target, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = s11 * s22 - s12**2
        first = (t1 * s22 - t2 * s12) / determinant
        second = (t2 * s11 - t1 * s12) / determinant
        only_first = (second < 0) | ~np.isfinite(second)
        only_second = (first < 0) | ~np.isfinite(first)
        first = np.where(only_second, 0.0, np.where(only_first, np.maximum(t1 / s11, 0), first))
        second = np.where(only_second, np.maximum(t2 / s22, 0), np.where(only_first, 0.0, second))
    return np.stack((first, second), axis=-1)
