"""Small bars of HTML: an efficiency with its interval, and a loss budget as a strip."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.records.rows.budget import PARTS, RESIDUAL, Budget
from scalebench.records.summary import Estimate, Row
from scalebench.report.page.palette import PART_COLORS
from scalebench.report.tables import compression
from scalebench.report.words import causes
from scalebench.report.words.attributed import NEGLIGIBLE

NOISY = 0.1
"""Half the width of an interval, of an efficiency: a wider one is drawn grey."""


@dataclass(frozen=True)
class IntervalBar:
    """An efficiency on a track from ``start`` to ``end``, as percent of the track.

    Attributes:
        low, high: Ends of the interval; None: there is none.
        ideal: Where 100 % lies; None: outside of the track.
        noisy: Without an interval, or with a wide one.
    """

    middle: float
    low: float | None
    high: float | None
    ideal: float | None
    noisy: bool


@dataclass(frozen=True)
class Track:
    """What all interval bars of a suite have in common: efficiencies at both ends."""

    start: float
    end: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Track":
        """Return the track that holds the efficiencies of these rows with their intervals."""
        return cls.of_estimates([row.efficiency for row in rows if row.efficiency])

    @classmethod
    def of_estimates(cls, known: Sequence[Estimate]) -> "Track":
        """Return the track that holds these ratios with their intervals; 1 is on it."""
        lows = [one.low if one.low is not None else one.value for one in known]
        highs = [one.high if one.high is not None else one.value for one in known]
        start = 0.5 if known and min(lows) >= 0.5 else 0.0
        return cls(start, max(1.0, *(min(high, 2.0) for high in highs)) if known else 1.0)

    def place(self, efficiency: float) -> float:
        """Return where an efficiency lies, percent of the track."""
        within = (efficiency - self.start) / (self.end - self.start)
        return round(100 * min(max(within, 0.0), 1.0), 2)

    def bar(self, estimate: Estimate) -> IntervalBar:
        """Return the bar of an efficiency."""
        low, high = estimate.low, estimate.high
        return IntervalBar(
            self.place(estimate.value),
            None if low is None else self.place(low),
            None if high is None else self.place(high),
            self.place(1.0),
            is_noisy(estimate),
        )


def is_noisy(estimate: Estimate) -> bool:
    """Whether an efficiency has no interval, or one too wide to rank it."""
    half = estimate.half_width
    return half is None or half > NOISY * abs(estimate.value)


@dataclass(frozen=True)
class Segment:
    """A part of a loss budget in a strip.

    Attributes:
        width: Percent of the strip.
        sure: Its interval excludes zero; else it is hatched.
    """

    key: str
    name: str
    color: str
    width: float
    points: str
    sure: bool


@dataclass(frozen=True)
class Strip:
    """The parts of a loss budget that take time, end to end.

    Attributes:
        segments: Empty: the budget does not close, or nothing is missing.
        text: The same in words.
        total: What is lost, percent of the step; empty: not drawn.
    """

    segments: tuple[Segment, ...]
    text: str
    total: str


def widest(rows: Sequence[Row | None]) -> float:
    """Return the largest sum of losses among rows whose budget closes, as a part of the step."""
    budgets = [row.budget for row in rows if row and row.budget and row.budget.closes]
    return max((_sum(budget) for budget in budgets), default=0.0)


def _sum(budget: Budget) -> float:
    return sum(max(budget.share(part), 0.0) for part in PARTS)


def strip(row: Row, full: float) -> Strip | None:
    """Return the strip of a row's budget; None: it has none, or it does not close.

    Args:
        row: The row.
        full: What the whole strip stands for, as a part of the step.
    """
    budget = row.budget
    if budget is None or not budget.closes or full <= 0 or compression.is_bound(row):
        return None
    shown = [part for part in PARTS if abs(budget.share(part)) >= NEGLIGIBLE]
    segments = tuple(
        Segment(
            part.key,
            part.name,
            PART_COLORS[part.key],
            round(100 * budget.share(part) / full, 2),
            causes.points(budget.share(part)),
            part is RESIDUAL or causes.certain(row, budget, part),
        )
        for part in shown
        if budget.share(part) > 0
    )
    told = [
        f"{part.name} {causes.points(budget.share(part))}"
        + ("" if part is RESIDUAL or causes.certain(row, budget, part) else " (uncertain)")
        for part in shown
    ]
    total = causes.points(budget.gap)
    return Strip(segments, f"{total} % of a step is lost: {', '.join(told) or 'none'}.", total)
