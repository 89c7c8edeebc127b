"""Frameworks side by side: step time, memory, version, and what each says is in force."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from scalebench.records.summary import Row
from scalebench.report.tables.layout import RANKS, SHRINKING_CASE, Column, value
from scalebench.report.tables.listing import PlainTable
from scalebench.report.tables.terminal import line
from scalebench.report.words import frameworks

TITLE = "Frameworks"
NOTE = "Settings are those that the framework itself reports, by its own names."

COLUMNS: tuple[Column[Row], ...] = (
    SHRINKING_CASE,
    RANKS,
    value("step, ms", lambda row: row.step_s, frameworks.milliseconds),
    Column("longer than the fastest by, %", frameworks.slower_by),
    Column("memory per rank", frameworks.memory),
    Column("version", frameworks.versions, numeric=False),
    Column("settings", frameworks.settings, numeric=False),
)


def tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the table for the page; nothing where no framework trained."""
    known = [row for row in rows if row.framework is not None]
    if not known:
        return ()
    return (PlainTable.of(TITLE, NOTE, COLUMNS, known),)


def framework_parts(rows: Sequence[Row], ascii_only: bool) -> list[RenderableType]:
    """Return the verdict for a terminal; nothing where no framework trained."""
    said = frameworks.sentence(rows)
    return [Text(""), line(said, ascii_only, "bold")] if said else []
