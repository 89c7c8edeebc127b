"""A fitted link: its measured points, α and B of an operation by regime, what it costs at any N.

One measured point of a link: an operation, a size, a time.

Which of several all-reduces is fastest at which size, measured and by the fitted lines.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from pydantic import Field, FiniteFloat, NonNegativeFloat, computed_field, model_validator

from scalebench import units
from scalebench.costmodel.links.laws import OPERATIONS, Terms, busbw_factor, law_terms
from scalebench.errors import UsageError
from scalebench.records.measured.probes import RehearsedPipeline, RehearsedStep
from scalebench.spec.base import LARGE, Record
from scalebench.stats import quantile

_NO_LIMIT = 100.0
"""Logarithm of a factor that says nothing any more, and can still be computed with."""
LinkTimes = Callable[[str, int, int], "LinkTime"]
"""(operation, ranks, full size in bytes) → what it takes; raises NoFit."""


class Regime(Record):
    """A range of sizes in which one line holds.

    Intervals are 95 % and speak of the scatter around the line in the points given. What a whole
    sweep has in common (a slow launch, a hot machine) is not in them: measure several launches.

    Attributes:
        min_bytes: Smallest size that supports the line.
        max_bytes: Largest size that supports it.
        num_sizes: Sizes that support it.
        alpha_s: Latency α of one step of the law, seconds; 0: below what can be told.
        bandwidth_byte_per_s: Bandwidth B of the law's link; None: the time does not grow with
            the size here.
        bandwidth_low_byte_per_s: None: the times are exactly alike.
        bandwidth_high_byte_per_s: None: the data set no upper limit.
        error_ratio: Median of |measured/fitted − 1| over the sizes.
        worst_error_ratio: Its largest value.
        set_aside_bytes: Sizes that stood too far above the line to be counted.
        scale: Standard deviation of the logarithm of measured/fitted.
        freedom: Degrees of freedom of that.
        covariance: Of the line's (latency in s, slope in s per byte): variance, covariance,
            variance; what the interval of a prediction is made from.
    """

    min_bytes: int
    max_bytes: int
    num_sizes: int
    alpha_s: NonNegativeFloat
    alpha_low_s: NonNegativeFloat
    alpha_high_s: NonNegativeFloat
    bandwidth_byte_per_s: float | None = Field(gt=0)
    bandwidth_low_byte_per_s: float | None = Field(gt=0)
    bandwidth_high_byte_per_s: float | None = Field(gt=0)
    error_ratio: float
    worst_error_ratio: float
    set_aside_bytes: tuple[int, ...] = ()
    scale: float
    freedom: int
    covariance: tuple[float, float, float]

    def time_s(self, size_bytes: float, terms: Terms) -> float:
        """Return the time by this regime's line, seconds."""
        return terms.time_s(size_bytes, self.alpha_s, self.bandwidth_byte_per_s or math.inf)

    def interval_s(self, size_bytes: float, terms: Terms) -> tuple[float, float]:
        """Return the 95 % interval of one further measured time at this size, seconds."""
        time = self.time_s(size_bytes, terms)
        v11, v12, v22 = self.covariance
        spread = (v11 + 2 * v12 * size_bytes + v22 * size_bytes**2) / time**2
        deviation = math.sqrt(self.scale**2 + max(spread, 0.0))
        reach = min(float(quantile(self.freedom)) * deviation, _NO_LIMIT)
        return time * math.exp(-reach), time * math.exp(reach)


class PredictedTime(Record):
    """A predicted time.

    Attributes:
        time_s: Predicted median time, seconds.
        low_s: Lower end of the 95 % interval of one further measured median; None: the size lies
            beyond every regime, where no data support an interval.
        high_s: Upper end, likewise.
        outside: Why no fitted regime holds at this size; None: one does.
    """

    time_s: float
    low_s: float | None
    high_s: float | None
    outside: str | None = None


class LinkFit(Record):
    """The fit of one operation at one number of ranks.

    Attributes:
        link: Which link, or which table of a log; empty: there is only one.
        op: Operation.
        dtype: Element type.
        world_size: Ranks.
        algorithm: What was asked of the backend.
        in_place: Whether the result overwrote the input.
        law: Algorithm whose law divides the line into α and B; it is assumed, not found.
        regimes: By size, ascending.
        num_points: Points given.
        error_ratio: Median of |measured/fitted − 1| over the sizes of all regimes.
        poor: Why the fit should not be relied upon; None: nothing speaks against it.
    """

    link: str
    op: str
    dtype: str
    world_size: int
    algorithm: str
    in_place: bool | None
    law: str
    regimes: tuple[Regime, ...] = Field(min_length=1)
    num_points: int
    error_ratio: float
    poor: str | None = None

    @property
    def terms(self) -> Terms:
        """What multiplies α and D/B in the law."""
        return law_terms(self.op, self.law, self.world_size)

    def predict(self, size_bytes: float) -> PredictedTime:
        """Predict the time of a size.

        Between two regimes the nearer one (by ratio) gives the time, and the interval covers
        both. Beyond the first or last the time is that regime's line continued, without interval.

        Args:
            size_bytes: Full size D.

        Raises:
            UsageError: The size is not a positive number.
        """
        if not 0 < size_bytes < math.inf:
            raise UsageError(f"No operation has {size_bytes} bytes: give a positive size.")
        # By how many times the size is too small or too large; 1 or less: inside.
        nearest = min(
            self.regimes, key=lambda r: max(r.min_bytes / size_bytes, size_bytes / r.max_bytes)
        )
        time = nearest.time_s(size_bytes, self.terms)
        outside = self._outside(size_bytes)
        around = [nearest] if outside is None else self._on_both_sides(size_bytes)
        ends = [end for r in around for end in r.interval_s(size_bytes, self.terms)]
        return PredictedTime(
            time_s=time,
            low_s=min(ends, default=None),
            high_s=max(ends, default=None),
            outside=outside,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat object for each regime, as `calibrate --json` has them."""
        shared = self.model_dump(mode="json", exclude={"regimes", "error_ratio"})
        return [{**shared, **regime.model_dump(mode="json")} for regime in self.regimes]

    def _on_both_sides(self, size_bytes: float) -> list[Regime]:
        """Return the regimes before and after a gap; none beyond the first or last."""
        pairs = zip(self.regimes, self.regimes[1:], strict=False)
        return [r for p in pairs if p[0].max_bytes < size_bytes < p[1].min_bytes for r in p]

    def _outside(self, size_bytes: float) -> str | None:
        """Say why no regime holds at a size; None: one does."""
        if any(r.min_bytes <= size_bytes <= r.max_bytes for r in self.regimes):
            return None
        size, between = units.bytes_(size_bytes), self._on_both_sides(size_bytes)
        if between:
            low, high = (units.bytes_(b) for b in (between[0].max_bytes, between[1].min_bytes))
            return (
                f"{size} lies between {low} and {high}, where the fit changes from one regime to "
                "the next"
            )
        low, high = (
            units.bytes_(b) for b in (self.regimes[0].min_bytes, self.regimes[-1].max_bytes)
        )
        return f"{size} lies outside the fitted sizes, {low} to {high}: measure it"


class NoFit(Exception):
    """An operation whose time nothing supports; the text says why."""


@dataclass(frozen=True)
class LinkTime:
    """The predicted time of one operation.

    Attributes:
        time_s: Seconds.
        low_s: Lower end of the 95 % interval.
        high_s: Upper end.
        world_sizes: Numbers of ranks at which was measured what this rests on.
        outside: Why no fitted regime holds at this size, so that a line was continued beyond its
            support; None: one does.
        dof: Degrees of freedom behind the interval; infinite: it has none to speak of.
    """

    time_s: float
    low_s: float
    high_s: float
    world_sizes: tuple[int, ...]
    outside: str | None = None
    dof: float = math.inf


class LinkModel:
    """Fits of the backend's operations, put together over the numbers of ranks.

    At a number of ranks that was measured, its own fit answers. At any other the law does, with
    the α and B of the nearest that was measured; the interval then holds what each of the others
    would have said, and widens with every doubling beyond them by as much as their answers moved
    apart within one.

    Attributes:
        rehearsals: Pipelines and other steps that were played over these links.
    """

    def __init__(
        self,
        fits: Iterable[LinkFit],
        dtype: str = "float32",
        rehearsals: Sequence[RehearsedPipeline | RehearsedStep] = (),
    ) -> None:
        self.rehearsals = tuple(rehearsals)
        chosen = [fit for fit in fits if fit.algorithm == "backend"]
        self._of: dict[str, dict[int, LinkFit]] = {}
        for fit in sorted(chosen, key=lambda fit: fit.dtype != dtype):
            self._of.setdefault(fit.op, {}).setdefault(fit.world_size, fit)

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """All numbers of ranks with a fit, ascending."""
        return tuple(sorted({n for fits in self._of.values() for n in fits}))

    def below(self, world_size: int) -> "LinkModel":
        """Return the model that knows nothing of this many ranks or more."""
        fits = [f for of in self._of.values() for n, f in of.items() if n < world_size]
        return LinkModel(fits, rehearsals=[r for r in self.rehearsals if r.world_size < world_size])

    def time(self, op: str, world_size: int, size_bytes: int) -> LinkTime:
        """Return what an operation takes; nothing at one rank.

        Raises:
            NoFit: The operation was not fitted at any number of ranks.
        """
        if world_size == 1:
            return LinkTime(0.0, 0.0, 0.0, ())
        fits = self._of.get(op, {})
        if not fits:
            raise NoFit(f"no {op} was calibrated")
        if world_size in fits:
            return _direct(fits[world_size], size_bytes)
        return _by_law(list(fits.values()), world_size, size_bytes)

    def faster(self, times: float) -> LinkTimes:
        """Return what operations take on a link that carries ``times`` as much.

        Under ``α + D/B`` a link of k times the bandwidth treats D bytes as it did D/k.
        """
        return lambda op, n, size: self.time(op, n, max(1, round(size / times)))

    def bandwidth_byte_per_s(self, op: str, world_size: int) -> float:
        """Return the B of an operation's largest sizes at the nearest N that was measured.

        Raises:
            NoFit: The operation was not fitted, or no bandwidth shows in its times.
        """
        regime = self._nearest(op, world_size).regimes[-1]
        if regime.bandwidth_byte_per_s is None:
            raise NoFit(f"the times of {op} show no bandwidth")
        return regime.bandwidth_byte_per_s

    def _nearest(self, op: str, world_size: int) -> LinkFit:
        fits = self._of.get(op, {})
        if not fits:
            raise NoFit(f"no {op} was calibrated")
        return min(fits.values(), key=lambda fit: abs(math.log2(world_size / fit.world_size)))

    def bandwidth_term(self, op: str, world_size: int, size_bytes: int) -> float:
        """Return the textbook's bandwidth term alone, ``factor·D/B``, without latency; seconds.

        B is that of the largest sizes at the nearest number of ranks that was measured.

        Raises:
            NoFit: The operation was not fitted at any number of ranks.
        """
        fit = self._nearest(op, world_size)
        bandwidth = fit.regimes[-1].bandwidth_byte_per_s or math.inf
        return law_terms(op, fit.law, world_size).bytes_factor * size_bytes / bandwidth


def _direct(fit: LinkFit, size_bytes: int) -> LinkTime:
    predicted = fit.predict(size_bytes)
    low, high = _interval(predicted, fit, size_bytes)
    dof = _nearest(fit, size_bytes).freedom
    return LinkTime(predicted.time_s, low, high, (fit.world_size,), predicted.outside, dof)


def _interval(predicted: PredictedTime, fit: LinkFit, size_bytes: int) -> tuple[float, float]:
    """Return the interval; outside the fitted sizes, that of the nearest regime's line."""
    if predicted.low_s is not None and predicted.high_s is not None:
        return predicted.low_s, predicted.high_s
    return _nearest(fit, size_bytes).interval_s(size_bytes, fit.terms)


def _nearest(fit: LinkFit, size_bytes: int) -> Regime:
    return min(
        fit.regimes, key=lambda r: max(r.min_bytes / size_bytes, size_bytes / r.max_bytes, 1.0)
    )


def _by_law(fits: Sequence[LinkFit], world_size: int, size_bytes: int) -> LinkTime:
    """Return what the law makes of the fits at other numbers of ranks."""

    def distance(fit: LinkFit) -> float:
        return abs(math.log2(world_size / fit.world_size))

    ordered = sorted(fits, key=distance)
    try:
        times = [_carried(fit, world_size, size_bytes) for fit in ordered]
    except ValueError as reason:  # the law does not hold for this many ranks
        raise NoFit(str(reason)) from reason
    center, nearest = times[0], ordered[0]
    predicted = nearest.predict(size_bytes)
    low, high = _interval(predicted, nearest, size_bytes)
    moved = max(
        (
            abs(math.log(time / center)) / abs(math.log2(fit.world_size / nearest.world_size))
            for fit, time in zip(ordered[1:], times[1:], strict=True)
        ),
        default=0.0,
    )
    reach = moved * (1 + distance(nearest))
    return LinkTime(
        center,
        center * low / predicted.time_s * math.exp(-reach),
        center * high / predicted.time_s * math.exp(reach),
        tuple(sorted(fit.world_size for fit in fits)),
        predicted.outside,
        _nearest(nearest, size_bytes).freedom,
    )


def _carried(fit: LinkFit, world_size: int, size_bytes: int) -> float:
    """Return a fit's α and B under its law at another number of ranks, seconds."""
    terms = law_terms(fit.op, fit.law, world_size)
    return _nearest(fit, size_bytes).time_s(size_bytes, terms)


class LinkPoint(Record):
    """The median time of one operation at one size.

    Attributes:
        op: Operation; those with a law are `scalebench.costmodel.links.laws.OPERATIONS`.
        dtype: Element type, for example ``float32``.
        world_size: Ranks that took part.
        size_bytes: Full size D, as nccl-tests counts it; 0: of a barrier.
        time_s: Median over the iterations of one launch, of the slowest rank; of GPUs the mean of
            the ranks.
        in_place: Whether the result overwrote the input; None: no such choice, or not known.
        algorithm: What was asked of the backend; ``backend``: its own choice.
        num_wrong: Elements of the result that were wrong; None: not checked, or not counted.
        failed_check: Whether it was found wrong without its elements being counted.
        low_s: Lower end of the median's 95 % interval; None: not known.
        high_s: Upper end, likewise.
        link: Which link, for example the name of a lab's network, or which table of a log;
            empty: there is only one.
    """

    op: str
    dtype: str
    world_size: int = Field(ge=1, lt=LARGE)
    size_bytes: int = Field(ge=0, lt=LARGE)
    time_s: FiniteFloat = Field(gt=0)
    in_place: bool | None = None
    algorithm: str = "backend"
    num_wrong: int | None = Field(default=None, ge=0)
    failed_check: bool = False
    low_s: FiniteFloat | None = Field(default=None, gt=0)
    high_s: FiniteFloat | None = Field(default=None, gt=0)
    link: str = ""

    @model_validator(mode="after")
    def _interval_holds_the_time(self) -> Self:
        if (self.low_s is None) != (self.high_s is None):
            raise ValueError("give both low_s and high_s, or neither")
        ends = (self.low_s or self.time_s, self.high_s or self.time_s)
        if not ends[0] <= self.time_s <= ends[1]:
            raise ValueError("time_s does not lie between low_s and high_s")
        return self

    @property
    def is_wrong(self) -> bool:
        """Whether the result was found to be wrong."""
        return self.failed_check or bool(self.num_wrong)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def algbw_byte_per_s(self) -> float:
        """Algorithm bandwidth: size over time."""
        return self.size_bytes / self.time_s

    @computed_field  # type: ignore[prop-decorator]
    @property
    def busbw_byte_per_s(self) -> float | None:
        """Bus bandwidth as nccl-tests defines it; None: not defined for this operation."""
        if self.op not in OPERATIONS:
            return None
        return self.algbw_byte_per_s * busbw_factor(self.op, self.world_size)


@dataclass(frozen=True)
class Winner:
    """Neighbouring sizes at which the same algorithm is fastest.

    Attributes:
        measured: Its name.
        predicted: The one whose fitted line is fastest at the geometric middle of the sizes, of
            those that have a line there; None: fewer than two have.
    """

    world_size: int
    min_bytes: int
    max_bytes: int
    measured: str
    predicted: str | None


def crossovers(points: Sequence[LinkPoint], fits: Sequence[LinkFit]) -> list[Winner]:
    """Return who wins where, by N and size; nothing where there is one algorithm only.

    Args:
        points: All-reduces of several algorithms; others are not looked at.
        fits: Of the same points.
    """
    reduces = [point for point in points if point.op == "all_reduce"]
    winners = []
    for key in dict.fromkeys((p.world_size, p.dtype, p.link) for p in reduces):
        mine = [p for p in reduces if (p.world_size, p.dtype, p.link) == key]
        if len({point.algorithm for point in mine}) > 1:
            fitted = [
                fit
                for fit in fits
                if fit.op == "all_reduce" and (fit.world_size, fit.dtype, fit.link) == key
            ]
            winners += _winners(mine, fitted)
    return winners


def _winners(points: Sequence[LinkPoint], fits: Sequence[LinkFit]) -> list[Winner]:
    algorithms = {point.algorithm for point in points}
    by_size: dict[int, dict[str, float]] = {}
    for point in points:
        by_size.setdefault(point.size_bytes, {})[point.algorithm] = point.time_s
    complete = sorted(size for size, found in by_size.items() if set(found) == algorithms)
    fastest = [(size, min(by_size[size], key=by_size[size].__getitem__)) for size in complete]
    found = []
    for name, together in groupby(fastest, key=lambda pair: pair[1]):
        sizes = [size for size, _ in together]
        middle = (sizes[0] * sizes[-1]) ** 0.5
        predicted = _predicted(middle, fits)
        found.append(Winner(points[0].world_size, sizes[0], sizes[-1], name, predicted))
    return found


def _predicted(size_bytes: float, fits: Sequence[LinkFit]) -> str | None:
    times = {}
    for fit in fits:
        prediction = fit.predict(size_bytes)
        if prediction.outside is None:
            times[fit.algorithm] = prediction.time_s
    return min(times, key=times.__getitem__) if len(times) > 1 else None
