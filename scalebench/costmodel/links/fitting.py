"""Fitting α and B to measured points, per operation, number of ranks, element type and link.

Lines through the times of one operation at many sizes: regimes, and outliers set aside.

How regimes are found: see `scalebench.costmodel.links.fitting`.

Each sweep is searched for changes of regime: every way to cut its sizes into one, two or three
pieces is compared, and a further piece has to pay by the F test of its two parameters, with the
p-value multiplied by the number of ways to cut (Bai & Perron 1998; Bonferroni). Each regime is a
line ``time = θ1 + θ2·size`` with θ ≥ 0, without the points that something else on the machine made
too slow. Its latency and slope are divided by the factors of the operation's law (`laws`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import fdtrc, stdtr

from scalebench import units
from scalebench.costmodel.links.fitted import LinkFit, LinkPoint, Regime
from scalebench.costmodel.links.laws import OPERATIONS, Terms, algorithms, law_terms
from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.stats import Floats, quantile

MIN_REGIME_SIZES = 4
"""Sizes that a regime needs when there are several."""

MAX_REGIMES = 3

LEVEL = 0.01
"""Probability that a sweep without a change of regime is cut, or that any of its points is set
aside."""

LARGEST_SHARE = 0.2
"""Of a line's points: more that stand above it are no accident but the line's own shape."""

SMALLEST_SCALE = 0.01
"""Medians of the same operation differ by 1 % from one minute to the next.

Scatter below that is not compared with a point or a line, however exact the rest looks.
"""

_NUM_PARAMETERS = 2
_SPIKE_SCALES = 4.0
_SEARCHES = 3
"""Rounds of finding regimes and outliers in turn; further ones hardly change anything."""

Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]
MIN_SIZES = 3
"""Two sizes would give a line, but nothing to tell how well it fits."""

POOR_ERROR_RATIO = 0.10
"""A fit whose typical size is off by more than this is called poor."""

POOR_WORST_RATIO = 0.50
"""Or one of whose sizes is off by more than this."""


@dataclass(frozen=True)
class Sweep:
    """One time for each size, sizes ascending.

    Several points of one size become their median: how often a size was measured says nothing
    about how far the line may be off there. Weights have a mean of 1.
    """

    size: Floats
    log_time: Floats
    weights: Floats

    @classmethod
    def of(cls, points: Sequence[LinkPoint]) -> "Sweep":
        """Return the sweep of some points."""
        size = np.array([p.size_bytes for p in points], dtype=float)
        log_time, weights = np.log([p.time_s for p in points]), _weights(points)
        distinct, where = np.unique(size, return_inverse=True)
        alike = [where == number for number in range(len(distinct))]
        joined = np.array([weights[same].mean() for same in alike])
        times = np.array([np.median(log_time[same]) for same in alike])
        return cls(distinct, times, joined / joined.mean())

    def line(self, weights: Floats) -> "Line":
        """Fit a line by least squares of ``log(time) − log(fitted)``, to the points with weight.

        Noise of a measured time grows with the time, and a factor too slow is as far off as the
        same factor too fast. Gauss–Newton: each step is a linear problem with θ ≥ 0.
        """
        x = np.column_stack((np.ones_like(self.size), self.size))
        counts, root = weights > 0, np.sqrt(weights)

        def solved(rows: Floats, target: Floats) -> Floats:
            rows = rows * root[:, None]
            norm = np.linalg.norm(rows, axis=0)
            return np.asarray(nnls(rows / norm, target * root)[0] / norm)

        def at(theta: Floats) -> Line:
            fitted = np.maximum(x @ theta, 1e-300)
            residuals = np.where(counts, self.log_time - np.log(fitted), 0.0)
            return Line(theta, residuals, weights, x / fitted[:, None])

        best = at(solved(x / np.exp(self.log_time)[:, None], np.ones_like(self.size)))
        for _ in range(60):
            proposed = solved(best.rows, 1 + best.residuals)
            new = at(proposed)
            for _ in range(3):  # a step that goes too far is halved
                if new.rss <= best.rss * (1 + 1e-12):
                    break
                proposed = (best.theta + proposed) / 2
                new = at(proposed)
            if not new.rss < best.rss * (1 - 1e-10):
                break
            best = new
        share = (best.rows[counts] * best.theta).max(axis=0)
        is_rounding = share < 1e-12  # of every time
        return Line(np.where(is_rounding, 0.0, best.theta), best.residuals, weights, best.rows)

    def line_without_outliers(self, weights: Floats) -> "Line":
        """Fit a line and set aside the points that stand too far above it: they get weight 0.

        A busy machine makes an operation slower, never faster. The generalised extreme studentised
        deviate test (Rosner 1983), one-sided: the point that stands out most is removed and the
        line fitted again, up to `LARGEST_SHARE` times; outliers are all points up to the last
        removed whose deletion residual exceeds Student's t at `LEVEL` over the number of points
        left. Looking at the last, not the first, keeps outliers from hiding one another.
        """
        current = kept = weights
        for _ in range(math.floor(LARGEST_SHARE * np.count_nonzero(weights))):
            line = self.line(current)
            if line.dof <= 1:
                break
            excess = line.deletion_residuals
            suspect = int(np.argmax(excess))
            current = current.copy()
            current[suspect] = 0.0
            if stdtr(line.dof - 1, -excess[suspect]) * (line.dof + _NUM_PARAMETERS) < LEVEL:
                kept = current
        return self.line(kept)

    def regimes(self) -> list[tuple[Mask, "Line"]]:
        """Return which points each regime has, and its line without outliers.

        Outliers are known only once the regimes are, and the reverse. The simple answer comes
        first: one line with a few points set aside. Only a sweep that is cut even without those
        is searched again, without its spikes, and once more without the outliers of what was found.
        """
        aside = (self.weights > 0) & (self.line_without_outliers(self.weights).weights == 0)
        labels = self._cut(np.where(aside & ~_in_a_row(aside), 0.0, self.weights))
        if labels.any():
            counted = np.where(self._spikes(), 0.0, self.weights)
            for _ in range(_SEARCHES):
                labels = self._cut(counted)
                kept = np.sum([line.weights for _, line in self._lines(labels)], axis=0)
                if np.array_equal(kept, counted):
                    break
                counted = kept
        return self._lines(labels)

    def _lines(self, labels: Labels) -> list[tuple[Mask, "Line"]]:
        pieces = [labels == number for number in range(int(labels.max()) + 1)]
        return [
            (mine, self.line_without_outliers(np.where(mine, self.weights, 0.0))) for mine in pieces
        ]

    def _cut(self, weights: Floats) -> Labels:
        """Return to which regime each point belongs: 0, 1, …; those without weight do not count."""
        counted = np.flatnonzero(weights)
        n = len(counted)
        chosen = np.zeros(len(self.size), dtype=np.int64)
        if n < 2 * MIN_REGIME_SIZES:
            return chosen
        chosen_rss, num_chosen = self._rss(chosen, weights), 1
        for num, cuts in enumerate(_best_cuts(self._piece_rss(counted, weights)), 2):
            if n < num * MIN_REGIME_SIZES:
                continue
            begins = counted[list(cuts)]
            labels = (np.arange(len(self.size)) >= begins[:, None]).sum(axis=0)
            rss, dof = self._rss(labels, weights), max(n - _NUM_PARAMETERS * num, 1)
            extra = _NUM_PARAMETERS * (num - num_chosen)
            variance = max(rss / dof, SMALLEST_SCALE**2)
            p_value = fdtrc(extra, dof, max(chosen_rss - rss, 0) / extra / variance)
            ways = math.comb(n - num * MIN_REGIME_SIZES + num - 1, num - 1)
            if p_value * ways < LEVEL / (MAX_REGIMES - 1):
                chosen, chosen_rss, num_chosen = labels, rss, num
        return chosen

    def _rss(self, labels: Labels, weights: Floats) -> float:
        pieces = (labels == number for number in range(int(labels.max()) + 1))
        return sum(self.line(np.where(mine, weights, 0.0)).rss for mine in pieces)

    def _piece_rss(self, counted: Labels, weights: Floats) -> Floats:
        """Return nearly the residual sum of squares of a line through the points i to j−1, [i, j].

        A line is a factor times ``h + size``, with h the size at which half the time is latency
        (Hockney's n½). For a given h the factor is a mean of logarithms, and the sums over every
        piece are differences of running sums. The best h of a grid is near enough to find the cuts.
        """
        size, w = self.size[counted], weights[counted]
        half_sizes = np.geomspace(size[0] / 1e3, size[-1] * 1e3, 256)
        rest = self.log_time[counted] - np.log(half_sizes[:, None] + size)
        rest -= np.average(rest, axis=1, weights=w)[:, None]
        num, first, second = (
            np.pad(np.cumsum(term, axis=-1), ((0, 0), (1, 0)))
            for term in (w[None], w * rest, w * rest**2)
        )
        n = len(size)
        i, j = np.nonzero(
            np.subtract.outer(np.arange(n + 1), np.arange(n + 1)) <= -MIN_REGIME_SIZES
        )
        sums = (
            second[:, j] - second[:, i] - (first[:, j] - first[:, i]) ** 2 / (num[:, j] - num[:, i])
        )
        result = np.full((n + 1, n + 1), np.inf)
        result[i, j] = np.maximum(sums.min(axis=0), 0.0)
        return result

    def _spikes(self) -> Mask:
        """Tell which points stand above whatever their neighbours lead one to expect.

        Needs no line, and so comes before the search for regimes: a point counts only when it lies
        above the interpolation of its two neighbours *and* above the extrapolation of the two
        before *and* of the two after it; next to a change of regime one of them is right. By how
        much: `_SPIKE_SCALES` robust standard deviations of all such interpolations.
        """
        found = np.zeros(len(self.size), dtype=bool)
        if len(found) < 5:
            return found
        s, t = np.log(self.size), self.log_time
        at = np.arange(2, len(s) - 2)

        def above(i: int, j: int) -> Floats:
            before, behind = at + i, at + j
            slope = (t[behind] - t[before]) / (s[behind] - s[before])
            return np.asarray(t[at] - t[before] - slope * (s[at] - s[before]))

        between = above(-1, 1)
        least = np.minimum.reduce([between, above(-2, -1), above(2, 1)])
        scale = max(1.4826 * float(np.median(np.abs(between))), SMALLEST_SCALE)
        found[2:-2] = least > _SPIKE_SCALES * scale
        return found


def _best_cuts(piece: Floats) -> list[tuple[int, ...]]:
    """Return where all pieces but the first begin: of two pieces, and of three."""
    two_cuts = piece[0, :, None] + piece + piece[None, :, -1]
    first, second = divmod(int(np.argmin(two_cuts)), len(piece))
    return [(int(np.argmin(piece[0] + piece[:, -1])),), (first, second)]


def _in_a_row(aside: Mask) -> Mask:
    """Tell which points set aside are one of three or more neighbours: a regime, no accident."""
    runs = np.cumsum(np.diff(aside, prepend=False) & aside) * aside
    return np.asarray(aside & (np.bincount(runs)[runs] >= 3))


def _weights(points: Sequence[LinkPoint]) -> Floats:
    """Return ``1/(σ² + median σ²)`` with σ from each point's own 95 % interval; [n].

    The typical σ stands for what an interval does not see (the line's own error, the next
    launch): no point counts more than twice the typical one, a vague one counts little. All
    alike where a point has no interval.
    """
    if any(p.low_s is None or p.high_s is None for p in points):
        return np.ones(len(points))
    half_widths = [math.log(p.high_s / p.low_s) / 2 for p in points if p.low_s and p.high_s]
    variance = (np.array(half_widths) / 1.959963984540054) ** 2
    typical = float(np.median(variance))
    return np.ones(len(points)) if typical <= 0 else 1 / (variance + typical)


@dataclass(frozen=True)
class Line:
    """A fitted line through n points.

    Attributes:
        theta: Latency and slope.
        residuals: ``log(time) − log(fitted)``; 0 where the weight is 0.
        weights: Relative weight of each point.
        rows: ``(1, size) / fitted``, [n, 2]: how the logarithm of a fitted time follows θ.
    """

    theta: Floats
    residuals: Floats
    weights: Floats
    rows: Floats

    @cached_property
    def rss(self) -> float:
        """Weighted residual sum of squares."""
        return float(np.sum(self.weights * self.residuals**2))

    @cached_property
    def dof(self) -> int:
        """A parameter that came out as 0 counts, too: which one does is not known beforehand."""
        return int(np.count_nonzero(self.weights)) - _NUM_PARAMETERS

    @property
    def scale(self) -> float:
        """Standard deviation of a log-residual of weight 1; nan without degrees of freedom."""
        return math.sqrt(self.rss / self.dof) if self.dof > 0 else math.nan

    @cached_property
    def unscaled_covariance(self) -> Floats:
        """Covariance of θ for a scale of 1; inf where θ is not determined."""
        w, (r1, r2) = self.weights, self.rows.T
        s22 = np.sum(w * r2**2)
        # 1 − correlation², as a sum of squares: a difference of nearly equal sums loses digits
        slope = np.sum(w * r1 * r2) / s22
        with np.errstate(divide="ignore", invalid="ignore"):
            v11 = 1 / np.sum(w * (r1 - slope * r2) ** 2)
            return np.array([[v11, -slope * v11], [-slope * v11, 1 / s22 + slope**2 * v11]])

    @cached_property
    def leverage(self) -> Floats:
        """How far each point determines its own fitted time, 0 to 1."""
        spread = np.einsum("ni,ij,nj->n", self.rows, self.unscaled_covariance, self.rows)
        return np.asarray(np.clip(self.weights * spread, 0.0, 1.0))

    @property
    def deletion_residuals(self) -> Floats:
        """Residuals over their standard deviation, each by the fit without its point."""
        rest = np.maximum(1 - self.leverage, 1e-9)
        others = np.maximum(self.rss - self.weights * self.residuals**2 / rest, 0.0)
        scale = np.maximum(np.sqrt(others / max(self.dof - 1, 1)), SMALLEST_SCALE)
        excess = np.sqrt(self.weights) * self.residuals / (scale * np.sqrt(rest))
        return np.where(self.weights > 0, excess, -np.inf)

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of θ, [2, 2]; nan without degrees of freedom.

        Student's t with the line's own scale holds when the residuals scatter alike and
        independently; measured sweeps do neither. So for each parameter it is the larger of the
        usual variance and the one that takes each point's own residual for its scatter (HC2;
        MacKinnon & White 1985), and it is widened for correlated neighbours.
        """
        usual = self.scale**2 * self.unscaled_covariance
        variance = np.diagonal(usual)
        influence = self.weights[:, None] * (self.rows @ self.unscaled_covariance)
        scatter = self.residuals**2 / np.maximum(1 - self.leverage, 0.05)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (influence**2 * scatter[:, None]).sum(axis=0) / variance
            widening = np.where(variance > 0, np.sqrt(np.maximum(ratio, 1.0)), 1.0)
        return np.asarray(usual * np.outer(widening, widening) * self._neighbour_factor)

    @property
    def _neighbour_factor(self) -> float:
        """``(1 + ρ)/(1 − ρ)`` with ρ the correlation of neighbours, where it is noticeable.

        So many fewer points there are in effect (Bartlett 1935). The sample correlation is first
        freed of its own bias, −(2 + 4ρ)/n with two parameters (Kendall 1954 for a fitted mean, one
        more for the slope).
        """
        n = self.dof + _NUM_PARAMETERS
        standardised = np.sqrt(self.weights) * self.residuals
        products = np.sum(standardised[1:] * standardised[:-1])
        found = float(products / max(np.sum(standardised**2), 1e-300))
        if n < 7 or (found + 2 / n) * math.sqrt(n) <= 1:
            return 1.0
        unbiased = min(max(found + (2 + 4 * found) / n, 0.0), 0.8)
        return (1 + unbiased) / (1 - unbiased)


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
