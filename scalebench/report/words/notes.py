"""Lines under the table: efficiencies above 100 %, and those known less well than wanted."""

from collections.abc import Sequence
from math import ceil

from scalebench.records.precision import ImpreciseRow
from scalebench.records.summary import Row, Summary
from scalebench.report.words import wording

NAMED = 2
"""Rows that are named; of more, the widest."""

LONGEST_MINUTES = 60
"""A longer budget is no advice: more than the time makes such a row wide."""


def precision_note(summary: Summary) -> str | None:
    """Say which efficiencies are known less well than wanted; None: none, or nothing was wanted.

    ``"target precision ± 3 % not reached in 90 s by 1 of 6 rows (ddp, N=2: ± 4.2 %); reaching it
    would take --budget 4m"``
    """
    reached = summary.precision
    if reached is None or not reached.imprecise:
        return None
    widest = sorted(reached.imprecise, key=lambda row: -(row.half_width or float("inf")))
    named = "; ".join(_row(row) for row in widest[:NAMED])
    more = "; …" if len(widest) > NAMED else ""
    told = (
        f"target precision ± {_percent(reached.half_width)} not reached in "
        f"{reached.budget_s:g} s by {len(widest)} of {reached.num_rows} rows ({named}{more})"
    )
    missing = [row.more_s for row in widest if row.more_s is not None]
    if not missing:
        return told
    minutes = ceil((reached.budget_s + max(missing)) / 60)
    if minutes > LONGEST_MINUTES:
        return (
            f"{told}; reaching it here would take more than an hour: close other programs "
            "(scalebench doctor), or ask for less (--precision)"
        )
    return f"{told}; reaching it would take --budget {minutes}m"


def _row(row: ImpreciseRow) -> str:
    width = "no interval" if row.half_width is None else f"± {_percent(row.half_width)}"
    return f"{wording.plain(row.case, 64)}, N={row.world_size}: {width}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


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
