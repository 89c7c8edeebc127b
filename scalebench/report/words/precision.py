"""Where a run fell short of the precision that was wanted, and what would help."""

from math import ceil

from scalebench.records.precision import ImpreciseRow
from scalebench.records.summary import Summary
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
