"""How well a fitted line's latency and slope are known.

Student's t with the line's own residual scale and degrees of freedom holds when the residuals
scatter alike and independently. Measured sweeps do neither: small messages scatter more than
large ones, and a busy minute hits several sizes in a row. So two corrections that only ever
widen the interval come on top; with well-behaved residuals they take 95 % to 96 or 97 %.
"""

import numpy as np

from scalebench.costmodel.links.fitting.lines import Lines
from scalebench.stats import Floats, quantile

_NOTICEABLE = 1.0
"""Standard errors from which a correlation of neighbours is corrected for."""

_LARGEST_CORRELATION = 0.8
_MIN_POINTS_FOR_CORRELATION = 7


def covariance(lines: Lines) -> Floats:
    """Return the covariance of θ, shape [L, 2, 2]; nan where `dof` is 0.

    The larger of two variances, for each parameter: the usual one, and the one that takes each
    point's own residual for its scatter (HC2; MacKinnon & White 1985). Times
    ``(1 + ρ)/(1 − ρ)`` with ρ the correlation of neighbouring residuals, where it is noticeable:
    so many fewer points there are in effect (Bartlett 1935). The correlation of the two
    parameters is that of the usual covariance.
    """
    usual = lines.scale[:, None, None] ** 2 * lines.unscaled_covariance
    variance = np.diagonal(usual, axis1=1, axis2=2)
    influence = lines.weights[..., None] * np.einsum(
        "lij,lnj->lni", lines.unscaled_covariance, lines.rows
    )
    scatter = lines.residuals**2 / np.maximum(1 - lines.leverage, 0.05)
    own = np.sum(influence**2 * scatter[..., None], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        widening = np.where(variance > 0, np.sqrt(np.maximum(own / variance, 1.0)), 1.0)
    shared = usual * widening[:, :, None] * widening[:, None, :]
    return np.asarray(shared * _neighbour_factor(lines)[:, None, None])


def half_widths(lines: Lines) -> Floats:
    """Return half the width of each parameter's 95 % interval, shape [L, 2].

    In θ itself and not in its logarithm: the model is linear there, and a latency that cannot
    be told from 0 keeps an interval that says so.
    """
    errors = np.sqrt(np.diagonal(covariance(lines), axis1=1, axis2=2))
    return np.asarray(quantile(lines.dof)[:, None] * errors)


def _neighbour_factor(lines: Lines) -> Floats:
    """Return by how much correlated neighbours widen a variance, shape [L], 1 or more.

    The sample correlation is first freed of its own bias, −(2 + 4ρ)/n with two parameters
    (Kendall 1954 for a fitted mean, one more for the slope).
    """
    standardised = np.sqrt(lines.weights) * lines.residuals
    num_points = np.count_nonzero(lines.weights > 0, axis=1)
    products = np.sum(standardised[:, 1:] * standardised[:, :-1], axis=1)
    found = products / np.maximum(np.sum(standardised**2, axis=1), 1e-300)
    noticeable = (found + 2 / num_points) * np.sqrt(num_points) > _NOTICEABLE
    unbiased = np.clip(found + (2 + 4 * found) / num_points, 0.0, _LARGEST_CORRELATION)
    counts = noticeable & (num_points >= _MIN_POINTS_FOR_CORRELATION)
    return np.where(counts, (1 + unbiased) / (1 - unbiased), 1.0)
