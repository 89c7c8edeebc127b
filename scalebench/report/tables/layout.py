"""A table is its columns and its rows, declared once: what a terminal, a page and Markdown show.

`Table` says what a table of a suite has: columns, lines, and what has to be known to read it.
`show` puts it on a terminal, `pages` tables of the page, `scalebench.report.markdown` a table of
Markdown. Lines for a terminal are ASCII where nothing else can be shown.
"""

import io
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.wording import Placed, as_sentence, capital

ASCII = {
    wording.TIMES: "x", "±": "+/-", "µ": "u", wording.DASH: "-", wording.MINUS: "-", "—": "-",
    "→": "->", "…": "...", "✓": "ok", "·": "|", "─": "-", "≥": ">=", "≤": "<=",
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
}  # fmt: skip

NARROWEST = 40


def to_ascii(text: str) -> str:
    """Return ``text`` in ASCII; signs have their equivalents, anything else is ``?``."""
    spelt = "".join(ASCII.get(character, character) for character in text)
    return spelt.encode("ascii", "replace").decode("ascii")


def line(content: str, ascii_only: bool, style: str = "") -> Text:
    """Return one styled line."""
    return Text(to_ascii(content) if ascii_only else content, style=style)


R = TypeVar("R", contravariant=True)
S = TypeVar("S")
K = TypeVar("K")
V = TypeVar("V")

CASE_WIDTHS = (24, 16, 10)
"""A longer case name is folded: at the first width, or at the next where nothing is left to go."""

GAP = 2
"""Columns of the terminal between two columns of a table."""


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column of a table.

    Attributes:
        header: Its lines on a terminal; elsewhere they stand side by side, as `name` has it.
        text: What a row has in it.
        numeric: Aligned right; words are aligned left.
        style: Rich's name of the style of a row's text.
        once: Left empty where it, and all others that are `once`, would repeat the row above.
        fold: A longer text goes on in the next line; 0: it never does.
        wraps: Broken wherever a narrow terminal needs it; others end in "…".
        from_width: Columns that a terminal needs for it to be shown.
    """

    header: str
    text: Callable[[R], str]
    numeric: bool = True
    style: Callable[[R], str] = lambda row: ""
    once: bool = False
    fold: int = 0
    wraps: bool = False
    from_width: int = 0

    @property
    def name(self) -> str:
        """The header on one line."""
        return self.header.replace("\n", " ")

    def of(self, read: Callable[[S], R]) -> "Column[S]":
        """Return the column for rows that hold such a row; ``read`` finds it."""
        text, style = self.text, self.style
        return replace(self, text=lambda row: text(read(row)), style=lambda row: style(read(row)))  # type: ignore[return-value, arg-type]

    def cell(self, row: R, ascii_only: bool) -> str:
        """Return the text that a terminal shows, folded."""
        text = to_ascii(self.text(row)) if ascii_only else self.text(row)
        return "\n".join(textwrap.wrap(text, self.fold)) if self.fold else text


def value(
    header: str, read: Callable[[S], V | None], write: Callable[[V], str], from_width: int = 0
) -> Column[S]:
    """Return a column of values, with a dash where there is none."""

    def text(row: S) -> str:
        found = read(row)
        return wording.DASH if found is None else write(found)

    return Column(header, text, from_width=from_width)


def value_of_each(
    headers: Mapping[K, str], read: Callable[[Any, K], V | None], write: Callable[[V], str]
) -> tuple[Column[Any], ...]:
    """Return a column of values for each key of ``headers``; ``read`` finds a row's by the key."""

    def column(key: K, header: str) -> Column[Any]:
        return value(header, lambda row: read(row, key), write)

    return tuple(column(key, header) for key, header in headers.items())


CASE: Column[Placed] = Column(
    "case", lambda row: wording.plain(row.case, 64), numeric=False, once=True, fold=CASE_WIDTHS[0]
)
SHRINKING_CASE = replace(CASE, wraps=True)
"""Gives way before the numbers next to it do."""

RANKS: Column[Placed] = Column("N", lambda row: str(row.world_size))

PLACE: tuple[Column[tuple[Placed, Any]], ...] = (
    CASE.of(lambda pair: pair[0]),
    RANKS.of(lambda pair: pair[0]),
)
"""Where a pair belongs: its first is such a row."""


def _second(pair: tuple[Placed, S]) -> S:
    return pair[1]


def placed(*columns: Column[S]) -> tuple[Column[tuple[Placed, S]], ...]:
    """Return where a pair belongs, and columns of its second."""
    return (*PLACE, *(column.of(_second) for column in columns))


def texts(*headers: str, start: int = 1) -> tuple[Column[Any], ...]:
    """Return columns of rows that are tuples of texts, ``start`` of them left out in front."""

    def column(header: str, at: int) -> Column[Any]:
        return Column(header, lambda row: str(row[at]))

    return tuple(column(header, at) for at, header in enumerate(headers, start))


Columns = tuple[Column[Any], ...]
Narrowing = Callable[[Columns], Columns]
"""A way to give way on a narrow terminal."""


def without(*names: str) -> tuple[Narrowing, ...]:
    """Leave out the columns of these names, one after the other."""
    return tuple(
        lambda columns, name=name: tuple(c for c in columns if c.name != name) for name in names
    )


def folded(*widths: int, name: str = "case") -> tuple[Narrowing, ...]:
    """Fold a column at these widths, one after the other."""
    return tuple(
        lambda columns, fold=fold: tuple(
            replace(c, fold=fold) if c.name == name else c for c in columns
        )
        for fold in widths
    )


FOLDED = folded(*CASE_WIDTHS[1:])


def fit(
    columns: Iterable[Column[S]],
    rows: Sequence[S],
    width: int,
    ascii_only: bool,
    narrowing: Sequence[Narrowing] = (),
) -> tuple[Column[S], ...]:
    """Return the columns as they fit a terminal.

    ``narrowing`` gives way in this order until the rest fits the ``width``, in characters.
    """
    shown = tuple(column for column in columns if width >= column.from_width)
    for narrow in narrowing:
        if sum(_width(column, rows, ascii_only) + GAP for column in shown) <= width:
            break
        shown = narrow(shown)
    return shown


def _width(column: Column[S], rows: Sequence[S], ascii_only: bool) -> int:
    texts = [column.header, *(column.cell(row, ascii_only) for row in rows)]
    longest = max(cell_len(line) for text in texts for line in text.split("\n"))
    return max(longest, _least_width(column) or 0)


def _least_width(column: Column[S]) -> int | None:
    return CASE_WIDTHS[-1] if column.wraps and column.once else None


def table(columns: Sequence[Column[S]], rows: Iterable[S], ascii_only: bool) -> RichTable:
    """Return a table for a terminal; its columns as `fit` returns them."""
    drawn = RichTable(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold"
    )
    for column in columns:
        # ASCII has no sign for a text that was cut: half a number would look like a whole one.
        breaks = column.wraps or ascii_only
        drawn.add_column(
            Text(to_ascii(column.header) if ascii_only else column.header),
            justify="right" if column.numeric else "left",
            no_wrap=not breaks,
            overflow="fold" if breaks else "ellipsis",
            min_width=_least_width(column),
        )
    above: list[str] = []
    for row in rows:
        place = [column.text(row) for column in columns if column.once]
        hidden, above = place == above, place
        drawn.add_row(
            *(
                Text("" if hidden and c.once else c.cell(row, ascii_only), style=c.style(row))
                for c in columns
            )
        )
    return drawn


def names(columns: Iterable[Column[Any]]) -> tuple[str, ...]:
    """Return the headers, each on one line."""
    return tuple(column.name for column in columns)


def cells(columns: Iterable[Column[S]], row: S) -> tuple[str, ...]:
    """Return a row's texts, each on one line."""
    return tuple(column.text(row) for column in columns)


class Screen:
    """What a terminal shows, put together line by line.

    ``ascii_only`` is for terminals that are not UTF-8.
    """

    def __init__(self, width: int = 100, color: bool = False, ascii_only: bool = False) -> None:
        self.width, self.color, self.ascii_only = max(width, NARROWEST), color, ascii_only
        self._parts: list[RenderableType] = []

    def add(self, *parts: RenderableType) -> None:
        """Add what rich can draw."""
        self._parts += parts

    def line(self, text: str = "", style: str = "", indent: int = 0) -> "Screen":
        """Add a line; an empty one without a text. Return the screen."""
        drawn = line(text, self.ascii_only, style)
        self.add(Padding(drawn, (0, 0, 0, indent)) if indent else drawn)
        return self

    def lines(self, texts: Iterable[str], style: str = "", indent: int = 0) -> None:
        """Add a line for each text."""
        for text in texts:
            self.line(text, style, indent)

    def title(self, title: str, remark: str = "") -> None:
        """Add a title with a remark next to it; an empty one is none."""
        beside = [line(f"  {remark}", self.ascii_only, "dim")] if remark else []
        self.add(Text.assemble(line(title, self.ascii_only, "bold"), *beside))

    def table(
        self, columns: Iterable[Column[S]], rows: Sequence[S], narrowing: Sequence[Narrowing] = ()
    ) -> tuple[Column[S], ...]:
        """Add a table; return its columns as they fit."""
        shown = fit(columns, rows, self.width, self.ascii_only, narrowing)
        self.add(table(shown, rows, self.ascii_only))
        return shown

    def text(self) -> str:
        """Return what rich prints of it, without blanks at the ends."""
        stream = io.StringIO()
        console = Console(
            file=stream,
            width=self.width,
            force_terminal=self.color,
            color_system="standard" if self.color else None,
            no_color=not self.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )
        console.print(Group(*self._parts))
        written = to_ascii(stream.getvalue()) if self.ascii_only else stream.getvalue()
        lines = [text.rstrip() for text in written.splitlines()]
        return "\n".join(lines).strip("\n") + "\n"


ColumnsOf = Sequence[Column[S]]
Said = str | Callable[[Sequence[Row]], str]
Notes = Sequence[str] | Callable[[Sequence[Row]], Sequence[str]]


MOST_LINES = 200
"""Of one table; what is left out stands in summary.json."""


def said_of(what: V | Callable[[Sequence[Row]], V], rows: Sequence[Row]) -> V:
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
        columns: Or how they follow from the lines.
        lines: What of a suite's rows stands in a line each.
        heading: The title on the page, where it is another one.
        remark: Next to the title on a terminal.
        lead: Lines between title and table on a terminal.
        about: What the page says above the table before the notes, as a sentence.
        notes: What has to be known to read it: above the table on the page, below elsewhere.
        below: Further lines below the table on a terminal, with their styles.
        narrowing: What gives way on a narrow terminal.
        folded: Shown on the page on demand only.
    """

    title: str
    columns: ColumnsOf[S] | Callable[[Sequence[S]], ColumnsOf[S]]
    lines: Callable[[Sequence[Row]], Sequence[S]]
    heading: Said = ""
    remark: Said = ""
    lead: Notes = ()
    about: Said = ""
    notes: Notes = ()
    below: Callable[[Sequence[Row]], Sequence[tuple[str, str]]] = lambda rows: ()
    narrowing: Sequence[Narrowing] = FOLDED
    folded: bool = False

    def columns_of(self, lines: Sequence[S]) -> ColumnsOf[S]:
        """Return the columns of a table of these lines."""
        return self.columns(lines) if callable(self.columns) else self.columns


@dataclass(frozen=True)
class PlainTable:
    """A table of texts on the page.

    Attributes:
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
        cls, title: str, note: str, columns: ColumnsOf[S], rows: Sequence[S], folded: bool = False
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
    title = said_of(one.heading, rows) or capital(one.title)
    said = (said_of(one.about, rows), *said_of(one.notes, rows))
    note = " ".join(as_sentence(text) for text in said if text)
    return PlainTable.of(title, note, one.columns_of(lines), lines, one.folded)


def show(one: Table[Any], rows: Sequence[Row], screen: Screen) -> None:
    """Show the table of a suite's rows on a terminal; nothing where it has no lines."""
    lines = one.lines(rows)
    columns = one.columns_of(lines)
    if not lines or not columns:
        return
    screen.line()
    screen.title(one.title, said_of(one.remark, rows))
    screen.lines(said_of(one.lead, rows), "dim")
    screen.table(columns, lines, one.narrowing)
    screen.lines(said_of(one.notes, rows), "dim")
    for text, style in one.below(rows):
        screen.line(text, style)
