"""A table of texts on the page: what it shows, what has to be known to read it, its lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from scalebench.report.tables.layout import Column, cells, names

S = TypeVar("S")

MOST_LINES = 200
"""Of one table; what is left out stands in summary.json."""


@dataclass(frozen=True)
class PlainTable:
    """A table of texts.

    Attributes:
        title: What it shows.
        note: What has to be known to read it; may be empty.
        words: Indices of the columns that hold words; the others are numbers.
        folded: Shown on demand only.
    """

    title: str
    note: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    words: frozenset[int] = frozenset({0})
    folded: bool = False

    @classmethod
    def of(
        cls,
        title: str,
        note: str,
        columns: Sequence[Column[S]],
        rows: Sequence[S],
        folded: bool = False,
    ) -> "PlainTable":
        """Return the table of these rows, at most `MOST_LINES`; the note says how many miss."""
        missing = len(rows) - MOST_LINES
        return cls(
            title,
            note if missing <= 0 else f"{note} {missing} more are in summary.json.".lstrip(),
            names(columns),
            tuple(cells(columns, row) for row in rows[:MOST_LINES]),
            frozenset(i for i, column in enumerate(columns) if not column.numeric),
            folded,
        )
