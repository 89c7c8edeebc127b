"""A table, declared once: what a terminal and a page show of it.

`Table` says what a table of a suite has: columns, lines, and what has to be known to read it.
`show` puts it on a terminal, `pages` tables of the page, `scalebench.report.markdown` a
table of Markdown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scalebench.records.summary import Row
from scalebench.report.tables.layout import (
    FOLDED,
    Column,
    Narrowing,
    Screen,
    cells,
    names,
)
from scalebench.report.words.wording import as_sentence, capital

S = TypeVar("S")

Columns = Sequence[Column[S]]
Said = str | Callable[[Sequence[Row]], str]
Notes = Sequence[str] | Callable[[Sequence[Row]], Sequence[str]]
V = TypeVar("V")

MOST_LINES = 200
"""Of one table; what is left out stands in summary.json."""


def told(what: V | Callable[[Sequence[Row]], V], rows: Sequence[Row]) -> V:
    """Return what is said of these rows: always the same, or as it follows from them."""
    return what(rows) if callable(what) else what


def ending(
    sentence: Callable[[Sequence[Row]], str | None], style: str = ""
) -> Callable[[Sequence[Row]], Sequence[tuple[str, str]]]:
    """Return a last line that is a sentence on the rows; none where it is None."""
    return lambda rows: [(said, style)] if (said := sentence(rows)) else []


@dataclass(frozen=True)
class Table(Generic[S]):
    """A table of one suite. Without lines it is not shown.

    Attributes:
        title: What it shows.
        columns: Or how they follow from the lines.
        lines: What of a suite's rows stands in a line each.
        heading: The title on the page, where it is another one.
        remark: Beside the title on a terminal.
        lead: Lines between title and table on a terminal.
        about: What the page says above the table before the notes, as a sentence.
        notes: What has to be known to read it: above the table on the page, below elsewhere.
        below: Further lines below the table on a terminal, with their styles.
        narrowing: What gives way on a narrow terminal.
        folded: Shown on the page on demand only.
    """

    title: str
    columns: Columns[S] | Callable[[Sequence[S]], Columns[S]]
    lines: Callable[[Sequence[Row]], Sequence[S]]
    heading: Said = ""
    remark: Said = ""
    lead: Notes = ()
    about: Said = ""
    notes: Notes = ()
    below: Callable[[Sequence[Row]], Sequence[tuple[str, str]]] = lambda rows: ()
    narrowing: Sequence[Narrowing] = FOLDED
    folded: bool = False

    def columns_of(self, lines: Sequence[S]) -> Columns[S]:
        """Return the columns of a table of these lines."""
        return self.columns(lines) if callable(self.columns) else self.columns


@dataclass(frozen=True)
class PlainTable:
    """A table of texts on the page.

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
        cls, title: str, note: str, columns: Columns[S], rows: Sequence[S], folded: bool = False
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


def pages(*declared: Table[Any]) -> Callable[[Sequence[Row]], tuple[PlainTable, ...]]:
    """Return what makes tables of the page of a suite's rows: those that have a line."""
    return lambda rows: tuple(
        _page(one, lines, rows) for one in declared if (lines := one.lines(rows))
    )


def _page(one: Table[S], lines: Sequence[S], rows: Sequence[Row]) -> PlainTable:
    title = told(one.heading, rows) or capital(one.title)
    said = (told(one.about, rows), *told(one.notes, rows))
    note = " ".join(as_sentence(text) for text in said if text)
    return PlainTable.of(title, note, one.columns_of(lines), lines, one.folded)


def show(one: Table[Any], rows: Sequence[Row], screen: Screen) -> None:
    """Show the table of a suite's rows on a terminal; nothing where it has no lines."""
    lines = one.lines(rows)
    columns = one.columns_of(lines)
    if not lines or not columns:
        return
    screen.line()
    screen.title(one.title, told(one.remark, rows))
    screen.lines(told(one.lead, rows), "dim")
    screen.table(columns, lines, one.narrowing)
    screen.lines(told(one.notes, rows), "dim")
    for text, style in one.below(rows):
        screen.line(text, style)
