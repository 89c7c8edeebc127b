"""A fitted link: α and B of an operation, regime by regime, and what they predict."""

import math
from typing import Any

from pydantic import Field, NonNegativeFloat

from scalebench import units
from scalebench.costmodel.links.laws import Terms, law_terms
from scalebench.errors import UsageError
from scalebench.records.base import Record
from scalebench.stats import quantile

_NO_LIMIT = 100.0
"""Logarithm of a factor that says nothing any more, and can still be computed with."""


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
