"""Lockstep as a table: where each rank's time went, and how stale gradients were."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from scalebench.records.rows.lockstep import LockstepFigures
from scalebench.records.summary import Row
from scalebench.report.tables.layout import CASE_WIDTHS, PLACE, Column, fit, folded, table, value
from scalebench.report.tables.layout import without as leave_out
from scalebench.report.tables.listing import PlainTable
from scalebench.report.tables.terminal import line, titled
from scalebench.report.words import lockstep

TITLE = "Lockstep"
ABOUT = (
    "Of each rank's time: computing, exchanging (with waiting for an answer; of traced steps the"
    " transfer alone), waiting for slower ranks. Staleness: steps that the servers made while a"
    " gradient was computed."
)

Found = tuple[Row, LockstepFigures]


def _batches(found: Found) -> str | None:
    known = [rank.num_batches for rank in found[1].ranks if rank.num_batches is not None]
    if not known:
        return None
    if len(known) > lockstep.FEW:
        return f"{min(known):.0f} to {max(known):.0f}"
    return ", ".join(f"{count:.0f}" for count in known)


COLUMNS: tuple[Column[Found], ...] = (
    *PLACE,
    value("batches", _batches, str),
    Column("computing", lambda of: lockstep.percents([one.compute for one in of[1].ranks])),
    Column("exchanging", lambda of: lockstep.percents([one.exchange for one in of[1].ranks])),
    Column("waiting", lambda of: lockstep.percents([one.wait for one in of[1].ranks])),
    value("staleness", lambda of: of[1].mean_staleness, lambda mean: f"{mean:.2f}"),
    value("of gradients", lambda of: of[1].staleness, lockstep.distribution),
    value("dropped", lambda of: of[1].num_dropped or None, str),
)


def tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the table for the page; none where no time is known."""
    found = lockstep.looked_at(rows)
    return (PlainTable.of(TITLE, ABOUT, COLUMNS, found),) if found else ()


def lockstep_parts(rows: Sequence[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    """Return what a terminal shows; nothing where all train in lockstep."""
    found = lockstep.looked_at(rows)
    if all(figures.traced for _, figures in found):
        return []
    narrower = (*leave_out("dropped", "batches", "of gradients"), *folded(*CASE_WIDTHS[1:]))
    columns = fit(COLUMNS, found, width, ascii_only, narrower)
    said = lockstep.sentence(rows)
    return [
        Text(""),
        titled(TITLE, "where each rank's time went", ascii_only),
        table(columns, found, ascii_only),
        line(ABOUT, ascii_only, "dim"),
        *([line(said, ascii_only)] if said else []),
    ]
