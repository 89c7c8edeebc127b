"""Why a rank computes longer than its share of the baseline's step: three measured parts.

Plain training on the rank's batch, on one rank, says what a smaller batch costs. The same on N
ranks that train at once and send nothing says what sharing the machine costs: cores, caches,
memory, power. What the budget's compute inflation leaves of both is the strategy's own: its
operators, its hooks, its microbatches.
"""

from math import hypot

from scalebench.analysis.rows.efficiency import Ratios
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rows.budget import Budget, ComputeInflation
from scalebench.spec import Pipeline
from scalebench.stats import Estimate

NOT_MEASURED = "plain ranks that train at once were not measured: rows did not take turns"
NOT_PLANNED = "plain ranks that train at once are not launched with --quick"
OVERSUBSCRIBED = "more ranks than cores: what sharing them costs is not separated"
NOT_TOGETHER = "there is no round in which plain ranks alone and at once both succeeded"
IN_STAGES = "a pipeline computes microbatches in stages, which no plain step shows"


def inflation_of(
    row: Launches, base: Launches | None, ratios: Ratios, budget: Budget
) -> ComputeInflation | None:
    """Split the compute inflation of a row's budget; None: nothing tells any part of it."""
    if base is None or row.cell.world_size == 1:
        return None
    crowded = ratios.contention(row, base)
    if crowded is None:
        why = _why_not_measured(row, base, ratios)
        return ComputeInflation(unavailable=dict.fromkeys(PARTS, why))
    in_stages = isinstance(row.cell.strategy, Pipeline)
    smaller = None if in_stages else ratios.smaller_batch(row, base)
    batch_s = None if smaller is None else _seconds(smaller, budget.ideal_s)
    before_s = budget.ideal_s * (1.0 if smaller is None else smaller.value)
    contention_s = _seconds(crowded, before_s)
    whole = budget.estimates.get("compute_inflation_s")
    return ComputeInflation(
        smaller_batch_s=batch_s,
        contention_s=contention_s,
        own_operators_s=None if whole is None else _rest(whole, batch_s, contention_s),
        contention=crowded,
        unavailable={"smaller_batch_s": IN_STAGES} if in_stages else {},
    )


def _why_not_measured(row: Launches, base: Launches, ratios: Ratios) -> str:
    if ratios.has_independent(row, base):
        return NOT_TOGETHER
    if row.cell.oversubscribed:
        return OVERSUBSCRIBED
    took_turns = any(result.shared_with for result in row.good.values())
    return NOT_PLANNED if took_turns else NOT_MEASURED


PARTS = ("smaller_batch_s", "contention_s", "own_operators_s")


def _seconds(ratio: Estimate, step_s: float) -> Estimate:
    """Return what a step takes longer that takes ``ratio`` times as long."""
    ends = [None if end is None else (end - 1) * step_s for end in (ratio.low, ratio.high)]
    return Estimate(value=(ratio.value - 1) * step_s, low=ends[0], high=ends[1], n=ratio.n)


def _rest(whole: Estimate, *parts: Estimate | None) -> Estimate:
    """Return what known parts leave of the whole; the errors are independent."""
    known = [part for part in parts if part is not None]
    value = whole.value - sum(part.value for part in known)
    widths = [one.half_width for one in (whole, *known)]
    if any(width is None for width in widths):
        return Estimate(value=value, n=whole.n)
    width = hypot(*(width for width in widths if width is not None))
    return Estimate(value=value, low=value - width, high=value + width, n=whole.n)
