"""Lockstep as a table: where each rank's time went, and how stale gradients were."""

from scalebench.records.rows.lockstep import LockstepFigures
from scalebench.records.summary import Row
from scalebench.report.tables.layout import FOLDED, PLACE, Column, value, without
from scalebench.report.tables.listing import Table, ending, pages
from scalebench.report.words import lockstep

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


LOCKSTEP = Table(
    "Lockstep",
    COLUMNS,
    lockstep.looked_at,
    remark="where each rank's time went",
    notes=(
        "Of each rank's time: computing, exchanging (with waiting for an answer; of traced steps "
        "the transfer alone), waiting for slower ranks. Staleness: steps that the servers made "
        "while a gradient was computed.",
    ),
    below=ending(lockstep.sentence),
    narrowing=(*without("dropped", "batches", "of gradients"), *FOLDED),
)
tables = pages(LOCKSTEP)
