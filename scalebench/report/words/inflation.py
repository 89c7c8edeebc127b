"""Why a rank computes longer, in words: a smaller batch, contention, the strategy's own part."""

from dataclasses import dataclass

from scalebench.records.rows.budget import Budget, ComputeInflation
from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.stats import Estimate

NAMES = {
    "smaller_batch_s": "smaller batch",
    "contention_s": "contention",
    "own_operators_s": "extra operators",
}

LEAST = 0.005
"""Of the step: a smaller part is not worth a line."""


@dataclass(frozen=True)
class InflationPart:
    """One measured part of slower computation, as a part of the step.

    Attributes:
        field: Of `ComputeInflation`.
        share: With its interval.
    """

    field: str
    share: Estimate

    @property
    def certain(self) -> bool:
        """Whether its interval excludes zero."""
        return self.share.excludes_zero

    @property
    def text(self) -> str:
        """``"contention 10.2"``, with a word of doubt where it may be zero."""
        doubt = "" if self.certain else " (uncertain)"
        return f"{NAMES[self.field]} {wording.signed(100 * self.share.value)}{doubt}"


def inflation_parts(budget: Budget | None) -> list[InflationPart]:
    """Return the parts of a budget's slower computation that were measured."""
    if budget is None or budget.inflation is None:
        return []
    found: ComputeInflation = budget.inflation
    estimates = {name: getattr(found, name) for name in NAMES}
    return [
        InflationPart(name, estimate.scaled(1 / budget.measured_s))
        for name, estimate in estimates.items()
        if estimate is not None
    ]


def largest_inflation(budget: Budget | None) -> InflationPart | None:
    """Return the largest part that certainly takes time; None: there is none."""
    certain = [p for p in inflation_parts(budget) if p.certain and p.share.value >= LEAST]
    return max(certain, key=lambda part: part.share.value, default=None)


def inflation_note(row: Row) -> str | None:
    """Say what a row's slower computation consists of, where a part of it is certain."""
    if largest_inflation(row.budget) is None:
        return None
    parts = wording.joined([part.text for part in inflation_parts(row.budget)])
    return f"{wording.place(row)}: slower computation consists of {parts}"
