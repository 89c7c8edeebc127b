"""Memory by axis: what one process would hold, what each axis of a mesh takes off, what is left."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.memory import MemoryByAxis
from scalebench.records.summary import Row
from scalebench.report.tables.layout import PLACE, Column, value
from scalebench.report.tables.listing import Table
from scalebench.report.words import wording

Divided = tuple[Row, MemoryByAxis]


def divided(rows: Sequence[Row]) -> list[Divided]:
    """Return the rows on a mesh whose memory is told by axis."""
    return [(row, row.memory_by_axis) for row in rows if row.memory_by_axis is not None]


def share_saved(found: MemoryByAxis) -> float:
    """Return what all axes together take off, as a part of one process."""
    return 1 - found.rank_bytes / found.one_process_bytes if found.one_process_bytes else 0.0


def error(of: Divided) -> float | None:
    """Return (left − measured) / measured; None: not measured."""
    row, found = of
    return found.rank_bytes / row.peak_memory_bytes - 1 if row.peak_memory_bytes else None


def _savings(found: MemoryByAxis) -> str:
    told = (
        f"{wording.plain(one.axis, 40)} {wording.MINUS}{units.bytes_(one.total_bytes)}"
        if one.total_bytes
        else f"{wording.plain(one.axis, 40)} 0"
        for one in found.savings
    )
    return ", ".join(told)


COLUMNS: tuple[Column[Divided], ...] = (
    *PLACE,
    Column("one process", lambda of: units.bytes_(of[1].one_process_bytes)),
    Column("axes take off", lambda of: _savings(of[1]), numeric=False),
    Column("left", lambda of: units.bytes_(of[1].rank_bytes)),
    value("predicted", lambda of: of[0].predicted_memory_bytes, units.bytes_),
    value("measured", lambda of: of[0].peak_memory_bytes, units.bytes_),
    value("left, error", error, lambda ratio: f"{wording.signed(100 * ratio)} %"),
)


MEMORY_AXES = Table(
    "Memory by axis",
    COLUMNS,
    divided,
    about=(
        "Of the fullest rank. One process: its predicted peak on the whole batch. Each axis takes "
        "something off what those before it leave, by its law. Left: by these laws alone, without "
        "what is gathered for the moment and buffers of messages; predicted: the peak of the "
        "shard, measured alone."
    ),
)


def sentence(rows: Sequence[Row]) -> str | None:
    """Say which axis takes most off, in the row where all together take most off."""
    found = divided(rows)
    if not found:
        return None
    row, by_axis = max(found, key=lambda of: share_saved(of[1]))
    most = max(by_axis.savings, key=lambda one: one.total_bytes, default=None)
    if most is None or most.total_bytes <= 0:
        return None
    return (
        f"{wording.plain(row.case, 64)} on {wording.ranks(row)} leaves a rank "
        f"{units.percent(1 - share_saved(by_axis))} of what one process would hold; axis "
        f"{wording.plain(most.axis, 40)} takes off most, {units.bytes_(most.total_bytes)}."
    )
