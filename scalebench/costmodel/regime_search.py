"""Where a backend changes its protocol: pieces of a sweep that follow different lines.

Every way to cut the sizes of a sweep into up to `MAX_REGIMES` contiguous pieces is compared by
the residuals of one line per piece. A further piece has to pay: the F test of its two parameters,
with the chance multiplied by the number of ways to cut (Bonferroni), because the best of many
cuts was looked for. So a sweep without any change is cut with a chance of at most `LEVEL`,
whatever its length, as far as its log-residuals are normal, alike and independent. Bai & Perron
1998 for the search by dynamic programming and the sequence of tests.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from scalebench.costmodel.lines import NUM_PARAMETERS, Floats, fit_lines
from scalebench.costmodel.outliers import SMALLEST_SCALE

LEVEL = 0.01
"""Chance that a sweep without a change of regime is cut."""

MAX_REGIMES = 3
MIN_SIZES = 4
"""Sizes that a regime needs when there are several."""

_NUM_HALF_SIZES = 32
_CHUNK = 50_000
"""Sizes times grid points worked on at once: what stays in the processor's cache."""

Breaks = NDArray[np.int64]


@dataclass(frozen=True)
class _Sweeps:
    """Sweeps without padding or points set aside; all of n points."""

    size: Floats
    log_time: Floats
    weights: Floats

    @property
    def num_points(self) -> int:
        return int(self.size.shape[1])


def find_regimes(size: Floats, log_time: Floats, weights: Floats) -> list[list[int]]:
    """Find where the regimes of each sweep begin.

    Args:
        size: Ascending along each row, shape [S, n].
        log_time: Logarithms of the times, shape [S, n].
        weights: Shape [S, n]; 0 for padding and for points that are not to count.

    Returns:
        For each sweep the indices of the first points of its regimes; the first is 0.
    """
    starts: list[list[int]] = [[0] for _ in range(len(size))]
    counts = np.count_nonzero(weights > 0, axis=1)
    for num_points in np.unique(counts[counts >= 2 * MIN_SIZES]):
        members = np.flatnonzero(counts == num_points)
        step = max(1, _CHUNK // (_NUM_HALF_SIZES * int(num_points)))
        for chunk in (members[i : i + step] for i in range(0, len(members), step)):
            used = np.nonzero(weights[chunk] > 0)[1].reshape(len(chunk), num_points)
            parts = (np.take_along_axis(a[chunk], used, 1) for a in (size, log_time, weights))
            for row, sweep, cuts in zip(used, chunk, _cuts(_Sweeps(*parts)), strict=True):
                starts[sweep] += [int(row[cut]) for cut in cuts]
    return starts


def _cuts(sweeps: _Sweeps) -> list[list[int]]:
    """Return the cuts of each sweep, ascending."""
    n = sweeps.num_points
    breaks = _best_partitions(_piece_rss(sweeps))
    rss = [_exact_rss(sweeps, cuts) for cuts in breaks]
    chosen = np.ones(len(sweeps.size), dtype=int)
    for more in range(2, len(rss) + 1):
        chance = _chance_of_gain(rss, chosen, more, n) * _ways_to_cut(n, more)
        chosen = np.where(chance < LEVEL / (MAX_REGIMES - 1), more, chosen)
    return [breaks[r - 1][i].tolist() for i, r in enumerate(chosen)]


def _chance_of_gain(rss: list[Floats], fewer: NDArray[np.int64], more: int, n: int) -> Floats:
    """Return the F test's chance of a gain this large by accident, for a fixed place; [S]."""
    before = np.choose(fewer - 1, rss)
    after = rss[more - 1]
    freedom = n - NUM_PARAMETERS * more
    extra = NUM_PARAMETERS * (more - fewer)
    variance = np.maximum(after / freedom, SMALLEST_SCALE**2)
    return np.asarray(fdtrc(extra, freedom, np.maximum(before - after, 0) / extra / variance))


def _exact_rss(sweeps: _Sweeps, cuts: Breaks) -> Floats:
    """Return the least residual sum of squares of each sweep, cut as told; [S]."""
    num, n = sweeps.size.shape
    piece = (np.arange(n) >= cuts[:, :, None]).sum(axis=1)
    inside = piece[:, None, :] == np.arange(cuts.shape[1] + 1)[:, None]
    weights = (sweeps.weights[:, None, :] * inside).reshape(-1, n)
    size, log_time = (np.repeat(a, inside.shape[1], 0) for a in (sweeps.size, sweeps.log_time))
    x = np.stack((np.ones_like(size), size), axis=-1)
    return np.asarray(fit_lines(x, log_time, weights).rss.reshape(num, -1).sum(axis=1))


def _ways_to_cut(n: int, pieces: int) -> int:
    """Return in how many ways n points make that many pieces of `MIN_SIZES` or more."""
    return comb(n - pieces * MIN_SIZES + pieces - 1, pieces - 1)


def _piece_rss(sweeps: _Sweeps) -> Floats:
    """Return nearly the least residual sum of squares of one line, for each piece.

    A line ``θ1 + θ2·D`` is a factor times ``h + D``, with h the size at which half the time is
    latency (Hockney's n½). For a given h the factor is a mean of logarithms, and the sums over
    every piece are differences of running sums. The best h of a grid is improved by one
    Gauss–Newton step: near enough to find the best cuts; the tests use `_exact_rss`.

    Returns:
        Shape [S, n+1, n+1]; ``[s, i, j]`` is the piece of points i to j−1, inf where too short.
    """
    num, n = sweeps.size.shape
    result = np.full((num, n + 1, n + 1), np.inf)
    shapes, slopes = _shapes(sweeps)
    rest = sweeps.log_time[:, None, :] - shapes
    weights = sweeps.weights[:, None, :]
    rest -= (weights * rest).sum(axis=2, keepdims=True) / weights.sum(axis=2, keepdims=True)
    sums = [_running(term) for term in (weights, weights * rest, weights * rest**2)]
    slope_sums = [_running(weights * term) for term in (slopes, slopes**2, slopes * rest)]
    sweep = np.arange(num)[:, None]
    for i in range(n - MIN_SIZES + 1):
        ends = np.arange(i + MIN_SIZES, n + 1)
        total, first, second = (s[:, :, ends] - s[:, :, i : i + 1] for s in sums)
        spread = second - first**2 * (1 / total)
        best = np.argmin(spread, axis=1)
        least = np.take_along_axis(spread, best[:, None], 1)[:, 0]
        first = np.take_along_axis(first, best[:, None], 1)[:, 0]
        g, gg, gr = (s[sweep, best, ends] - s[sweep, best, i] for s in slope_sums)
        count = total[:, 0]
        curvature = np.maximum(gg - g**2 / count, 1e-12)
        gain = (gr - g * first / count) ** 2 / curvature
        result[:, i, ends] = np.maximum(least - gain, 0.0)
    return result


def _running(terms: Floats) -> Floats:
    """Return the sums of the first 0, 1, … n points, shape [S, H, n+1]."""
    return np.concatenate((np.zeros_like(terms[..., :1]), np.cumsum(terms, axis=-1)), axis=-1)


def _shapes(sweeps: _Sweeps) -> tuple[Floats, Floats]:
    """Return ``log(h + D)`` for a grid of h, and its slope in log h; [S, H, n] each."""
    low, high = sweeps.size[:, :1] / 8, sweeps.size[:, -1:] * 8
    half_size = (low * (high / low) ** np.linspace(0, 1, _NUM_HALF_SIZES))[:, :, None]
    sizes = sweeps.size[:, None, :]
    slopes = half_size / (half_size + sizes)
    slopes[:, [0, -1]] = 0.0  # the ends stand for pure bandwidth and pure latency
    return np.log(half_size + sizes), slopes


def _best_partitions(piece: Floats) -> list[Breaks]:
    """Return for 1, 2, … pieces the cuts, ascending, of least total sum of squares."""
    num, ends = piece.shape[:2]
    n = ends - 1
    cost = piece[:, 0, :]
    partitions = [np.zeros((num, 0), dtype=np.int64)]
    came_from: list[Breaks] = []
    for _ in range(min(MAX_REGIMES, n // MIN_SIZES) - 1):
        total = cost[:, :, None] + piece
        came_from.append(np.argmin(total, axis=1))
        cost = np.min(total, axis=1)
        partitions.append(_trace_back(came_from, n))
    return partitions


def _trace_back(came_from: list[Breaks], n: int) -> Breaks:
    """Return the cuts that led to the cost at the end, ascending, shape [S, pieces − 1]."""
    index = np.arange(len(came_from[0]))
    end = np.full(len(index), n)
    found = []
    for origin in reversed(came_from):
        end = origin[index, end]
        found.append(end)
    return np.stack(found[::-1], axis=1)
