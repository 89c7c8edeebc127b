"""Sweeps as lines, regime by regime: changes of regime and outliers found together."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scalebench.costmodel.lines import Floats, Lines
from scalebench.costmodel.outliers import fit_without_outliers, spikes
from scalebench.costmodel.regime_search import find_regimes
from scalebench.costmodel.uncertainty import covariance, half_widths

_SEARCHES = 3
"""Rounds of finding regimes and outliers in turn; further ones hardly change anything."""


@dataclass(frozen=True)
class Pieces:
    """The lines of all regimes of all sweeps, R of them.

    Attributes:
        owner: Each regime's sweep, shape [R], ascending.
        size: Sizes of that sweep, shape [R, n].
        given: Weights before outliers were set aside, 0 outside the regime; shape [R, n].
        lines: The fits.
    """

    owner: NDArray[np.int64]
    size: Floats
    given: Floats
    lines: Lines

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of each line's latency and slope, shape [R, 2, 2]."""
        return covariance(self.lines)

    @cached_property
    def half_widths(self) -> Floats:
        """Half the widths of their 95 % intervals, shape [R, 2]."""
        return half_widths(self.lines)

    def of_sweep(self, number: int) -> range:
        """Return the rows that belong to a sweep."""
        first, last = np.searchsorted(self.owner, [number, number + 1])
        return range(int(first), int(last))

    def kept(self, row: int) -> Floats:
        """Return the sizes that support a line, ascending."""
        return np.asarray(self.size[row, self.lines.weights[row] > 0])

    def set_aside(self, row: int) -> Floats:
        """Return the sizes that stood too far above it."""
        outlying = (self.given[row] > 0) & (self.lines.weights[row] == 0)
        return np.asarray(self.size[row, outlying])

    def errors(self, row: int) -> Floats:
        """Return |measured/fitted − 1| at the sizes that support a line."""
        kept = self.lines.weights[row] > 0
        return np.asarray(np.abs(np.expm1(self.lines.residuals[row, kept])))


def fit_pieces(size: Floats, log_time: Floats, weights: Floats) -> Pieces:
    """Fit all sweeps, each in as many regimes as its points call for.

    Args:
        size: Bytes, ascending along each row, shape [S, n].
        log_time: Logarithms of the times in seconds, shape [S, n].
        weights: Shape [S, n]; 0 for the padding at each row's end.
    """
    starts = _regime_starts(size, log_time, weights)
    return _fit_cut(starts, size, log_time, weights)


def _fit_cut(starts: list[list[int]], size: Floats, log_time: Floats, weights: Floats) -> Pieces:
    """Fit the regimes that begin at the points told."""
    owner = np.repeat(np.arange(len(starts)), [len(s) for s in starts])
    first = np.array([begin for s in starts for begin in s])
    last = np.array([end for s in starts for end in [*s[1:], size.shape[1]]])
    position = np.arange(size.shape[1])
    inside = (position >= first[:, None]) & (position < last[:, None])
    size, given = size[owner], weights[owner] * inside
    lines = fit_without_outliers(_columns(size), log_time[owner], given)
    return Pieces(owner, size, given, lines)


def _regime_starts(size: Floats, log_time: Floats, weights: Floats) -> list[list[int]]:
    """Return where each sweep's regimes begin.

    Outliers are known only once the regimes are, and the reverse. The simple answer comes
    first: one line with a few points set aside. Only a sweep that is cut even without those is
    searched again, without its spikes, and once more without the outliers of what was found.
    """
    alone = fit_without_outliers(_columns(size), log_time, weights)
    isolated = (weights > 0) & (alone.weights == 0) & ~_in_a_row(alone.weights, weights)
    starts = find_regimes(size, log_time, np.where(isolated, 0.0, weights))
    cut = [number for number, s in enumerate(starts) if len(s) > 1]
    if cut:
        searched = _search_again(size[cut], log_time[cut], weights[cut])
        for number, found in zip(cut, searched, strict=True):
            starts[number] = found
    return starts


def _search_again(size: Floats, log_time: Floats, weights: Floats) -> list[list[int]]:
    starts: list[list[int]] = [[0] for _ in range(len(size))]
    counted = np.where(spikes(np.log(size), log_time, weights), 0.0, weights)
    changed = np.arange(len(size))
    for _ in range(_SEARCHES):
        its = size[changed], log_time[changed]
        found = find_regimes(*its, counted[changed])
        for number, begins in zip(changed, found, strict=True):
            starts[number] = begins
        pieces = _fit_cut(found, *its, weights[changed])
        kept = np.zeros_like(its[0])
        np.add.at(kept, pieces.owner, pieces.lines.weights)
        differs = (kept != counted[changed]).any(axis=1)
        counted[changed] = kept
        changed = changed[differs]
        if not len(changed):
            break
    return starts


def _in_a_row(kept: Floats, given: Floats) -> NDArray[np.bool_]:
    """Tell which points set aside are one of three or more neighbours: a regime, no accident."""
    aside = np.pad((given > 0) & (kept == 0), ((0, 0), (2, 2)))
    length = given.shape[1]
    at = [aside[:, k : k + length] for k in range(5)]
    rows = (at[0] & at[1] & at[2]) | (at[1] & at[2] & at[3]) | (at[2] & at[3] & at[4])
    return np.asarray(rows)


def _columns(size: Floats) -> Floats:
    """Return what multiplies latency and slope, shape [..., 2]."""
    return np.stack((np.ones_like(size), size), axis=-1)
