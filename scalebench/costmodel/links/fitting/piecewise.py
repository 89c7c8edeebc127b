"""Sweeps as lines, regime by regime: changes of regime and outliers found together."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from scalebench.costmodel.links.fitting.lines import Lines
from scalebench.costmodel.links.fitting.outliers import fit_without_outliers, spikes
from scalebench.costmodel.links.fitting.regimes import Labels, find_regimes, regime_weights
from scalebench.costmodel.links.fitting.uncertainty import covariance, half_widths
from scalebench.stats import Floats

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

    owner: Labels
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
    labels = _find_regimes_and_outliers(size, log_time, weights)
    return _fit_cut(labels, size, log_time, weights)


def _fit_cut(labels: Labels, size: Floats, log_time: Floats, weights: Floats) -> Pieces:
    """Fit each regime by itself, without its outliers."""
    owner, given = regime_weights(labels, weights)
    lines = fit_without_outliers(_columns(size[owner]), log_time[owner], given)
    return Pieces(owner, size[owner], given, lines)


def _find_regimes_and_outliers(size: Floats, log_time: Floats, weights: Floats) -> Labels:
    """Return to which regime of its sweep each point belongs, shape [S, n].

    Outliers are known only once the regimes are, and the reverse. The simple answer comes
    first: one line with a few points set aside. Only a sweep that is cut even without those is
    searched again, without its spikes, and once more without the outliers of what was found.
    """
    alone = fit_without_outliers(_columns(size), log_time, weights)
    aside = (weights > 0) & (alone.weights == 0)
    isolated = aside & ~_in_a_row(aside)
    labels = find_regimes(size, log_time, np.where(isolated, 0.0, weights))
    counted = np.where(spikes(np.log(size), log_time, weights), 0.0, weights)
    again = np.flatnonzero(labels.any(axis=1))
    for _ in range(_SEARCHES):
        if not len(again):
            break
        labels[again] = find_regimes(size[again], log_time[again], counted[again])
        pieces = _fit_cut(labels[again], size[again], log_time[again], weights[again])
        kept = np.zeros_like(size[again])
        np.add.at(kept, pieces.owner, pieces.lines.weights)
        changed = (kept != counted[again]).any(axis=1)
        counted[again] = kept
        again = again[changed]
    return labels


def _in_a_row(aside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which points set aside are one of three or more neighbours: a regime, no accident."""
    threes = sliding_window_view(np.pad(aside, ((0, 0), (2, 2))), 3, axis=1).all(axis=2)
    return np.asarray(sliding_window_view(threes, 3, axis=1).any(axis=2))


def _columns(size: Floats) -> Floats:
    """Return what multiplies latency and slope, shape [..., 2]."""
    return np.stack((np.ones_like(size), size), axis=-1)
