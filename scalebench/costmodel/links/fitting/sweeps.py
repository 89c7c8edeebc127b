"""Points sorted into sweeps: the times of one operation over the sizes, as arrays."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalebench.costmodel.links.points import LinkPoint
from scalebench.stats import Floats

_NORMAL_QUANTILE = 1.959963984540054
"""Half of a 95 % interval in standard deviations."""


class SweepKey(NamedTuple):
    """What the points of one sweep have in common."""

    link: str
    op: str
    dtype: str
    world_size: int
    algorithm: str
    in_place: bool | None

    def __str__(self) -> str:
        parts = [self.op, f"{self.world_size} ranks", self.dtype]
        parts += [self.link] if self.link else []
        parts += [self.algorithm] if self.algorithm != "backend" else []
        parts += [] if self.in_place is None else ["in place" if self.in_place else "out of place"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Sweep:
    """One time for each size, sizes ascending.

    Several points of one size become their median: how often a size was measured says nothing
    about how far the line may be off there.

    Attributes:
        key: What was measured.
        size_bytes: Distinct sizes, shape [n].
        log_time: Logarithm of the time in seconds, shape [n].
        weights: Mean 1, shape [n].
        num_points: Points before sizes were joined.
    """

    key: SweepKey
    size_bytes: Floats
    log_time: Floats
    weights: Floats
    num_points: int


def key_of(point: LinkPoint) -> SweepKey:
    """Return the sweep that a point belongs to."""
    return SweepKey(
        point.link, point.op, point.dtype, point.world_size, point.algorithm, point.in_place
    )


def group_points(points: Iterable[LinkPoint]) -> dict[SweepKey, list[LinkPoint]]:
    """Sort points into sweeps, in the order in which the sweeps appear."""
    groups: dict[SweepKey, list[LinkPoint]] = {}
    for point in points:
        groups.setdefault(key_of(point), []).append(point)
    return groups


def make_sweep(points: Sequence[LinkPoint]) -> Sweep:
    """Make a sweep of points that belong to one."""
    size = np.array([p.size_bytes for p in points], dtype=float)
    log_time = np.log([p.time_s for p in points])
    weights = _weights(points)
    order = np.argsort(size, kind="stable")
    size, log_time, weights = size[order], log_time[order], weights[order]
    if np.any(size[1:] == size[:-1]):
        firsts = np.flatnonzero(np.concatenate(([True], size[1:] > size[:-1])))
        log_time = np.array([np.median(part) for part in np.split(log_time, firsts[1:])])
        weights = np.array([part.mean() for part in np.split(weights, firsts[1:])])
        size, weights = size[firsts], weights / weights.mean()
    return Sweep(key_of(points[0]), size, log_time, weights, len(points))


def _weights(points: Sequence[LinkPoint]) -> Floats:
    """Return ``1/(σ² + median σ²)`` with σ from each point's own interval, of mean 1; [n].

    The typical σ stands for what an interval does not see (the line's own error, the next
    launch): no point counts more than twice the typical one, a vague one counts little. All
    alike where a point has no interval.
    """
    if any(p.low_s is None or p.high_s is None for p in points):
        return np.ones(len(points))
    half_widths = [math.log(p.high_s / p.low_s) / 2 for p in points if p.low_s and p.high_s]
    variance = (np.array(half_widths) / _NORMAL_QUANTILE) ** 2
    typical = float(np.median(variance))
    if typical <= 0:
        return np.ones(len(points))
    weights = 1 / (variance + typical)
    return np.asarray(weights / weights.mean())


def stack(sweeps: Sequence[Sweep]) -> tuple[Floats, Floats, Floats]:
    """Return sizes, logarithms of times and weights of all sweeps, padded; [S, n] each.

    The padding has weight 0 and keeps the sizes ascending.
    """
    longest = max(len(sweep.size_bytes) for sweep in sweeps)
    size = np.empty((len(sweeps), longest))
    log_time, weights = np.zeros_like(size), np.zeros_like(size)
    for row, sweep in enumerate(sweeps):
        count = len(sweep.size_bytes)
        size[row, :count] = sweep.size_bytes
        size[row, count:] = sweep.size_bytes[-1] * 2.0 ** np.arange(1, longest - count + 1)
        log_time[row, :count] = sweep.log_time
        weights[row, :count] = sweep.weights
    return size, log_time, weights
