"""Where a backend changes its protocol: pieces of a sweep that follow different lines.

Every way to cut the sizes of a sweep into one, two or three contiguous pieces is compared by the
residuals of one line per piece. A further piece has to pay: the F test of its two parameters,
with the p-value multiplied by the number of ways to cut (Bonferroni), because the best of many
cuts was looked for. So a sweep without any change is cut with a probability of at most `LEVEL`,
whatever its length, as far as its log-residuals are normal, alike and independent. Bai & Perron
1998 for the sequence of tests.
"""

from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from scalebench.costmodel.links.fitting.lines import NUM_PARAMETERS, fit_lines
from scalebench.costmodel.links.fitting.outliers import SMALLEST_SCALE
from scalebench.stats import Floats

LEVEL = 0.01
"""Probability that a sweep without a change of regime is cut."""

MAX_REGIMES = 3
MIN_SIZES = 4
"""Sizes that a regime needs when there are several."""

_NUM_HALF_SIZES = 32
_CHUNK = 64
"""Sweeps worked on at once: what stays in the processor's cache."""

Labels = NDArray[np.int64]


def find_regimes(size: Floats, log_time: Floats, weights: Floats) -> Labels:
    """Tell to which regime of its sweep each point belongs.

    Args:
        size: Ascending along each row, shape [S, n].
        log_time: Logarithms of the times, shape [S, n].
        weights: Shape [S, n]; 0 for padding and for points that are not to count.

    Returns:
        0, 1, … along each row, shape [S, n]. A regime begins with a point that counts.
    """
    labels = np.zeros(size.shape, dtype=np.int64)
    enough = np.flatnonzero(np.count_nonzero(weights, axis=1) >= 2 * MIN_SIZES)
    for rows in (enough[i : i + _CHUNK] for i in range(0, len(enough), _CHUNK)):
        labels[rows] = _labels(size[rows], log_time[rows], weights[rows])
    return labels


def regime_weights(labels: Labels, weights: Floats) -> tuple[Labels, Floats]:
    """Return each regime's sweep, shape [R], ascending, and its weights, 0 outside it, [R, n]."""
    owner, number = np.nonzero(np.arange(MAX_REGIMES) <= labels.max(axis=1, keepdims=True))
    return owner, weights[owner] * (labels[owner] == number[:, None])


def _labels(size: Floats, log_time: Floats, weights: Floats) -> Labels:
    """Do what `find_regimes` says, for sweeps with enough sizes for two regimes."""
    count = np.count_nonzero(weights, axis=1)
    chosen = np.zeros(size.shape, dtype=np.int64)
    chosen_rss, num_chosen = _rss(chosen, size, log_time, weights), np.ones(len(size), dtype=int)
    for num, cuts in _best_cuts(_piece_rss(size, log_time, weights)).items():
        possible = count >= num * MIN_SIZES
        labels = (np.arange(size.shape[1]) >= cuts[:, :, None]).sum(axis=1) * possible[:, None]
        rss = _rss(labels, size, log_time, weights)
        dof = np.maximum(count - NUM_PARAMETERS * num, 1)
        extra = NUM_PARAMETERS * (num - num_chosen)
        variance = np.maximum(rss / dof, SMALLEST_SCALE**2)
        p_value = fdtrc(extra, dof, np.maximum(chosen_rss - rss, 0) / extra / variance)
        ways = np.array([_ways_to_cut(n, num) for n in count.tolist()])
        better = possible & (p_value * ways < LEVEL / (MAX_REGIMES - 1))
        chosen[better], chosen_rss[better], num_chosen[better] = labels[better], rss[better], num
    return chosen


def _rss(labels: Labels, size: Floats, log_time: Floats, weights: Floats) -> Floats:
    """Return each sweep's residual sum of squares, one line per regime; shape [S]."""
    owner, inside = regime_weights(labels, weights)
    x = np.stack((np.ones_like(inside), size[owner]), axis=-1)
    rss = fit_lines(x, log_time[owner], inside).rss
    return np.bincount(owner, weights=rss, minlength=len(size)).astype(float)


def _ways_to_cut(n: int, pieces: int) -> int:
    """Return in how many ways n points make that many pieces of `MIN_SIZES` or more."""
    return comb(max(n - pieces * MIN_SIZES, 0) + pieces - 1, pieces - 1)


def _best_cuts(piece: Floats) -> dict[int, Labels]:
    """Return number of pieces → where all but the first begin, of least total; [S, pieces − 1]."""
    one_cut = piece[:, 0, :] + piece[:, :, -1]
    two_cuts = piece[:, 0, :, None] + piece + piece[:, None, :, -1]
    best = np.argmin(two_cuts.reshape(len(piece), -1), axis=1)
    return {
        2: np.argmin(one_cut, axis=1)[:, None],
        3: np.stack(np.divmod(best, piece.shape[1]), axis=1),
    }


def _piece_rss(size: Floats, log_time: Floats, weights: Floats) -> Floats:
    """Return nearly the least residual sum of squares of one line, for each piece.

    A line ``θ1 + θ2·D`` is a factor times ``h + D``, with h the size at which half the time is
    latency (Hockney's n½). For a given h the factor is a mean of logarithms, and the sums over
    every piece are differences of running sums. The best h of a grid is improved by one
    Gauss–Newton step: near enough to find the best cuts; the tests use `_rss`.

    Returns:
        Shape [S, n+1, n+1]; ``[s, i, j]`` is the piece of points i to j−1; inf where it has too
        few points, or begins with one that does not count.
    """
    num, n = size.shape
    shapes, slopes = _shapes(size, weights)
    w = weights[:, None, :]
    rest = log_time[:, None, :] - shapes
    rest -= (w * rest).sum(axis=2, keepdims=True) / w.sum(axis=2, keepdims=True)
    sums = [_running(term) for term in (w, w * rest, w * rest**2)]
    slope_sums = [_running(w * term) for term in (slopes, slopes**2, slopes * rest)]
    before = _running((weights > 0).astype(float))
    result = np.full((num, n + 1, n + 1), np.inf)
    sweep = np.arange(num)[:, None]
    for i in range(n - MIN_SIZES + 1):
        ends = np.arange(i + MIN_SIZES, n + 1)
        enough = before[:, ends] - before[:, i : i + 1] >= MIN_SIZES
        allowed = enough & ((i == 0) | (weights[:, i : i + 1] > 0))
        total, first, second = (s[:, :, ends] - s[:, :, i : i + 1] for s in sums)
        total = np.where(allowed[:, None], total, 1.0)
        spread = second - first**2 * (1 / total)
        best = np.argmin(spread, axis=1)
        least = np.take_along_axis(spread, best[:, None], 1)[:, 0]
        first = np.take_along_axis(first, best[:, None], 1)[:, 0]
        g, gg, gr = (s[sweep, best, ends] - s[sweep, best, i] for s in slope_sums)
        count = total[:, 0]
        curvature = np.maximum(gg - g**2 / count, 1e-12)
        gain = (gr - g * first / count) ** 2 / curvature
        result[:, i, ends] = np.where(allowed, np.maximum(least - gain, 0.0), np.inf)
    return result


def _running(terms: Floats) -> Floats:
    """Return the sums of the first 0, 1, … n points, shape [..., n+1]."""
    return np.concatenate((np.zeros_like(terms[..., :1]), np.cumsum(terms, axis=-1)), axis=-1)


def _shapes(size: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return ``log(h + D)`` for a grid of h, and its slope in log h; [S, H, n] each."""
    low = np.min(size, axis=1, initial=np.inf, where=weights > 0)[:, None] / 8
    high = np.max(size, axis=1, initial=0.0, where=weights > 0)[:, None] * 8
    half_size = (low * (high / low) ** np.linspace(0, 1, _NUM_HALF_SIZES))[:, :, None]
    sizes = size[:, None, :]
    slopes = half_size / (half_size + sizes)
    slopes[:, [0, -1]] = 0.0  # the ends stand for pure bandwidth and pure latency
    return np.log(half_size + sizes), slopes
