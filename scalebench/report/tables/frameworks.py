"""Frameworks side by side: step time, memory, version, and what each says is in force."""

from scalebench.records.summary import Row
from scalebench.report.tables.layout import RANKS, SHRINKING_CASE, Column, value
from scalebench.report.tables.listing import Table, pages
from scalebench.report.words import frameworks

COLUMNS: tuple[Column[Row], ...] = (
    SHRINKING_CASE,
    RANKS,
    value("step, ms", lambda row: row.step_s, frameworks.milliseconds),
    Column("longer than the fastest by, %", frameworks.slower_by),
    Column("memory per rank", frameworks.memory),
    Column("version", frameworks.versions, numeric=False),
    Column("settings", frameworks.settings, numeric=False),
)


FRAMEWORKS = Table(
    "Frameworks",
    COLUMNS,
    lambda rows: [row for row in rows if row.framework is not None],
    notes=("Settings are those that the framework itself reports, by its own names.",),
)
tables = pages(FRAMEWORKS)
