"""What traced steps tell of a row that is worth a sentence or a line."""

from collections.abc import Sequence

from scalebench.records.rows.budget import Budget
from scalebench.records.rows.communication import Straggler
from scalebench.records.summary import Estimate, Row
from scalebench.report.words.wording import is_baseline

NEGLIGIBLE = 0.0005
"""Of the step: below this a part is written as 0.0 %."""

WORTH_TELLING = 0.01
"""Of the step: estimates or arrivals that differ by less make no difference to the answer."""

SELDOM = 10
"""Operations below which a rank that is hardly late cannot be said to come last always."""

VERY_LATE = 0.1
"""Of the step: so late, a few operations are enough if the rank comes last to all of them."""

FEW = 4
"""Operations below which nobody is named."""


def budgeted(rows: Sequence[Row]) -> list[tuple[Row, Budget]]:
    """Return the rows whose loss is accounted for, without the baseline, which has none."""
    return [(row, row.budget) for row in rows if row.budget is not None and not is_baseline(row)]


def arrivals(row: Row) -> list[Straggler]:
    """Return who came last how often, the most frequent first; of one rank alone: nothing."""
    return list(row.stragglers or ()) if row.world_size > 1 else []


def straggler(row: Row) -> Straggler | None:
    """Return the rank that holds the others up; None where nobody does so steadily.

    It comes last in more than 60 % of the operations and half as often again as chance would have
    it, by more than 1 % of a step. No test of significance: arrivals of one step depend on one
    another. Of fewer than ten operations it has to come last to all, by more than 10 % of a step.
    """
    found = arrivals(row)
    num_operations = sum(other.count for other in found)
    if not found or row.step_s is None or num_operations < FEW:
        return None
    first = found[0]
    if num_operations < SELDOM:
        always = first.share == 1 and first.median_late_s > VERY_LATE * row.step_s.value
        return first if always else None
    enough = num_operations >= 2 * SELDOM or first.share >= 0.9
    often = enough and first.share > 0.6 and first.stands_out(row.world_size)
    late = first.median_late_s > WORTH_TELLING * row.step_s.value
    return first if often and late else None


def disagreements(row: Row) -> list[tuple[str, Estimate, str, Estimate]]:
    """Return the pairs of estimates that disagree by more than 1 % of the step."""
    found = row.exposed_comm_estimates
    if found is None or row.step_s is None:
        return []
    return found.disagreements(WORTH_TELLING * row.step_s.value)
