"""Why an efficiency can be above 100 %, in a line under the table."""

from collections.abc import Sequence

from scalebench.records.summary import Row
from scalebench.report.words import wording

MOST_NAMED = 3
"""Rows that a line names; of more it says how many."""

FASTER = (
    "faster than perfect scaling of the plain model, significantly: the strategy also changes how "
    "a step runs (buckets, memory, size of its pieces), and 100 % is the plain model in one process"
)
WITHIN = "not significantly: the interval includes 100 %"
NO_INTERVAL = "without an interval this may be noise: run again with --repeats 3"


def above_ideal(rows: Sequence[Row]) -> list[str]:
    """Explain the efficiencies above 100 % of a suite; one line for each reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if wording.is_baseline(row) or row.efficiency is None:
            continue
        if float(wording.point(row.efficiency, 100)) > 100:
            found.setdefault(_reason(row), []).append(wording.place(row))
    return [f"above 100 %, {_named(places)}: {reason}" for reason, places in found.items()]


def _reason(row: Row) -> str:
    low = row.efficiency.low if row.efficiency else None
    if low is None:
        return NO_INTERVAL
    return FASTER if low > 1 else WITHIN


def _named(places: Sequence[str]) -> str:
    if len(places) <= MOST_NAMED + 1:
        return "; ".join(places)
    return f"{'; '.join(places[:MOST_NAMED])} and {len(places) - MOST_NAMED} more"
