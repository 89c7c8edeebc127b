"""Fitting α and B to measured points, per operation, number of ranks, element type and link.

Each sweep is searched for changes of regime: every way to cut its sizes into one, two or three
pieces is compared, and a further piece has to pay by the F test of its two parameters, with the
p-value multiplied by the number of ways to cut (Bai & Perron 1998; Bonferroni). Each regime is a
line ``time = θ1 + θ2·size`` with θ ≥ 0, without the points that something else on the machine made
too slow. Its latency and slope are divided by the factors of the operation's law (`laws`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalebench import units
from scalebench.costmodel.links.fitted import LinkFit, Regime
from scalebench.costmodel.links.laws import OPERATIONS, Terms, algorithms, law_terms
from scalebench.costmodel.links.lines import LARGEST_SHARE, Line, Mask, Sweep
from scalebench.costmodel.links.points import LinkPoint
from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.stats import Floats, quantile

MIN_SIZES = 3
"""Two sizes would give a line, but nothing to tell how well it fits."""

POOR_ERROR_RATIO = 0.10
"""A fit whose typical size is off by more than this is called poor."""

POOR_WORST_RATIO = 0.50
"""Or one of whose sizes is off by more than this."""


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


def key_of(point: LinkPoint) -> SweepKey:
    """Return the sweep that a point belongs to."""
    return SweepKey(
        point.link, point.op, point.dtype, point.world_size, point.algorithm, point.in_place
    )


def group_points(points: Iterable[LinkPoint]) -> dict[SweepKey, list[LinkPoint]]:
    """Sort points into sweeps, in the order in which the sweeps appear."""
    return by_key((key_of(point), point) for point in points)


def fit_link(points: Sequence[LinkPoint], law: str | None = None) -> LinkFit:
    """Fit one operation at one number of ranks, element type and link.

    Args:
        points: At least `MIN_SIZES` different sizes; points of equal size become their median.
        law: Algorithm whose law gives α and B; None: the operation's default.

    Raises:
        UsageError: The points cannot be fitted; the text says why and what is needed.
    """
    if not points:
        raise UsageError(f"There are no points to fit: {MIN_SIZES} sizes or more are needed.")
    groups = group_points(points)
    if len(groups) > 1:
        given = "; ".join(str(key) for key in list(groups)[:3])
        raise UsageError(f"A link is fitted to points of one kind, not to {given}: use fit_links.")
    ((key, members),) = groups.items()
    reason = _why_not(key, members, law)
    if reason:
        raise UsageError(reason)
    return _fit(key, members, law)


def fit_links(
    points: Iterable[LinkPoint], laws: Mapping[str, str] | None = None
) -> tuple[list[LinkFit], list[str]]:
    """Fit every operation, number of ranks, element type and link.

    Args:
        points: Of any kinds.
        laws: Operation → algorithm whose law gives α and B; others have their default.

    Returns:
        A fit for each sweep that could be fitted; of each other sweep why not, and what to do.
    """
    fits, refused = [], []
    for key, members in group_points(points).items():
        reason = _why_not(key, members, None)
        if reason:
            refused.append(reason)
        else:
            fits.append(_fit(key, members, (laws or {}).get(key.op)))
    return fits, refused


def _why_not(key: SweepKey, points: Sequence[LinkPoint], law: str | None) -> str | None:
    """Say why points of one kind cannot be fitted; None: they can."""
    if key.op not in OPERATIONS:
        return (
            f"{key}: there is no law for this operation; there is one for {', '.join(OPERATIONS)}."
        )
    if key.world_size < 2:
        return f"{key}: one rank sends nothing; measure 2 ranks or more."
    if law is not None and (reason := _why_not_by(law, key)):
        return f"{key}: {reason}; valid: {', '.join(algorithms(key.op))}."
    num_sizes = len({p.size_bytes for p in _right(points)})
    if num_sizes < MIN_SIZES:
        given = "given" if len(_right(points)) == len(points) else "with right results"
        return f"{key}: {num_sizes} sizes {given}, {MIN_SIZES} or more are needed."
    return None


def _right(points: Sequence[LinkPoint]) -> list[LinkPoint]:
    """Return the points whose results were not found wrong: only they are fitted."""
    return [point for point in points if not point.is_wrong]


def _why_not_by(law: str, key: SweepKey) -> str | None:
    """Say why a law cannot be fitted to a sweep; None: it can."""
    if law not in algorithms(key.op):
        return f"there is no law {law!r}"
    try:
        terms = law_terms(key.op, law, key.world_size)
    except ValueError as reason:
        return str(reason)
    return None if terms.latency_steps else f"the law {law!r} has no latency term"


def _fit(key: SweepKey, points: Sequence[LinkPoint], law: str | None) -> LinkFit:
    """Make the record of one sweep."""
    sweep = Sweep.of(_right(points))
    name = law or algorithms(key.op)[0]
    terms = law_terms(key.op, name, key.world_size)
    found = sweep.regimes()
    regimes = tuple(_regime(sweep.size, mine, line, terms) for mine, line in found)
    errors = np.concatenate([_errors(line) for _, line in found])
    return LinkFit(
        **key._asdict(),
        law=name,
        regimes=regimes,
        num_points=len(_right(points)),
        error_ratio=float(np.median(errors)),
        poor=_poor(regimes, errors, sweep.size),
    )


def _errors(line: Line) -> Floats:
    """Return |measured/fitted − 1| at the sizes that support a line."""
    return np.asarray(np.abs(np.expm1(line.residuals[line.weights > 0])))


def _regime(size: Floats, mine: Mask, line: Line, terms: Terms) -> Regime:
    """Make the record of one line; the law's factors are divided out.

    Intervals are those of θ itself and not of its logarithm: the model is linear there, and a
    latency not significantly different from 0 keeps an interval that says so.
    """
    theta, known = line.theta, line.covariance
    half_width = quantile(line.dof) * np.sqrt(np.diagonal(known))
    low, high = np.maximum(theta - half_width, 0.0), theta + half_width
    sizes, errors = size[line.weights > 0], _errors(line)
    steps, factor = terms
    return Regime(
        min_bytes=int(sizes[0]),
        max_bytes=int(sizes[-1]),
        num_sizes=len(sizes),
        alpha_s=theta[0] / steps,
        alpha_low_s=low[0] / steps,
        alpha_high_s=high[0] / steps,
        bandwidth_byte_per_s=_bandwidth(factor, theta[1]),
        bandwidth_low_byte_per_s=_bandwidth(factor, high[1]),
        bandwidth_high_byte_per_s=_bandwidth(factor, low[1]),
        error_ratio=float(np.median(errors)),
        worst_error_ratio=float(errors.max()),
        set_aside_bytes=tuple(int(one) for one in size[mine & (line.weights == 0)]),
        scale=line.scale,
        freedom=line.dof,
        covariance=(known[0, 0], known[0, 1], known[1, 1]),
    )


def _bandwidth(factor: float, slope: float) -> float | None:
    """Return the bandwidth that a slope (s per byte) means; None: the time does not grow."""
    return factor / slope if slope > 0 else None


def _poor(regimes: Sequence[Regime], errors: Floats, size_bytes: Floats) -> str | None:
    """Say why a fit should not be relied upon; None: nothing speaks against it."""
    reasons = []
    typical, worst = float(np.median(errors)), float(errors.max())
    if typical > POOR_ERROR_RATIO:
        reasons.append(f"the typical size is {units.percent(typical)} off the line")
    if worst > POOR_WORST_RATIO:
        reasons.append(f"one size is {units.percent(worst)} off the line")
    aside = sum(len(regime.set_aside_bytes) for regime in regimes)
    if aside >= LARGEST_SHARE * (aside + len(errors)):
        reasons.append(f"{aside} of {aside + len(errors)} sizes were too slow for the line")
    beyond = int(np.count_nonzero(size_bytes > regimes[-1].max_bytes))
    if beyond > 1:
        reasons.append(
            f"the {beyond} largest sizes were too slow for the line: measure larger ones to see "
            "whether this is another regime or a disturbance"
        )
    return "; ".join(reasons) or None
