"""Where the rest went: the loss budgets of a suite as a table, for terminal and Markdown.

Points of the measured step: the ideal step, which is the efficiency, and the parts sum to 100.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scalebench.report import causes, wording
from scalebench.report.attributed import NEGLIGIBLE, PARTS, RESIDUAL, Budget, Part, budgeted
from scalebench.report.terminal import CASE_WIDTHS, GAP, line, to_ascii
from scalebench.summary import Row

TITLE = "where the rest went"
UNIT = "percent of the measured step; ideal + parts = 100"
DOUBT = "?"
DOUBTFUL = f"{DOUBT} cannot be told from zero"
OPEN = "open"
OPEN_MEANS = "open: traced steps were unlike the clean ones (see the report); no cause is named"
MERGED = "rest"

Accounted = Sequence[tuple[Row, Budget]]


@dataclass(frozen=True)
class BudgetColumn:
    """One column: a part, or at narrow widths several of them together."""

    header: str
    parts: tuple[Part, ...]

    def share(self, budget: Budget) -> float:
        """Return what the column's parts are of the measured step."""
        return sum(budget.share(part) for part in self.parts)

    def doubtful(self, row: Row, budget: Budget) -> bool:
        """Whether one of the parts is written as a number but cannot be told from zero."""
        return any(
            abs(budget.share(part)) >= NEGLIGIBLE and not causes.certain(row, budget, part)
            for part in self.parts
            if part is not RESIDUAL
        )

    def text(self, row: Row, budget: Budget) -> str:
        """Return the number in points, marked where it is in doubt; a dash without any."""
        if not any(budget.knows(part) for part in self.parts):
            return wording.DASH
        return causes.points(self.share(budget)) + DOUBT * self.doubtful(row, budget)

    def largest(self, accounted: Accounted) -> float:
        """Return the largest share in any row, whatever its sign."""
        return max(abs(self.share(budget)) for _, budget in accounted)


def part_columns(accounted: Accounted) -> list[BudgetColumn]:
    """Return the parts that are not negligible in every row."""
    columns = [BudgetColumn(part.header, (part,)) for part in PARTS]
    return [column for column in columns if column.largest(accounted) >= NEGLIGIBLE]


def footnotes(rows: Sequence[Row], accounted: Accounted) -> list[str]:
    """Explain the signs of the table, what tracing cost, and who holds the others up."""
    columns = part_columns(accounted)
    doubt = any(column.doubtful(*pair) for column in columns for pair in accounted)
    is_open = any(not budget.closes for _, budget in accounted)
    signs = [text for text, needed in ((DOUBTFUL, doubt), (OPEN_MEANS, is_open)) if needed]
    cost = causes.tracing_cost([row for row, _ in accounted])
    bound = causes.clock_bound(accounted)
    late = [
        f"{wording.place(row)}: {said[0].lower()}{said[1:-1]}"
        for row in rows
        for said in causes.held_up(row)
    ]
    whole = [text for text in (cost, bound) if text]
    dashes = [f"{wording.DASH} {text}" for text in causes.not_apart(accounted)]
    return [*signs, *dashes, *whole, *late]


def missing(rows: Sequence[Row]) -> list[str]:
    """Say why no row that was measured has a loss budget."""
    reasons = [row.unavailable.get("budget") for row in rows if row.step_s is not None]
    told = dict.fromkeys(wording.plain(reason) for reason in reasons if reason)
    return [f"no loss budget: {reason}" for reason in told]


def header(columns: Sequence[BudgetColumn], accounted: Accounted) -> list[str]:
    """Return the headers of the whole table."""
    return ["case", "N", "ideal", *(c.header for c in columns), *_open_header(accounted)]


def cells(
    row: Row, budget: Budget, columns: Sequence[BudgetColumn], accounted: Accounted
) -> list[str]:
    """Return one line of the whole table."""
    numbers = [column.text(row, budget) for column in columns]
    closing = ["" if budget.closes else OPEN for _ in _open_header(accounted)]
    name = wording.plain(row.case, 64)
    return [name, str(row.world_size), causes.points(budget.ideal), *numbers, *closing]


def _open_header(accounted: Accounted) -> list[str]:
    return [""] if any(not budget.closes for _, budget in accounted) else []


def budget_parts(rows: Sequence[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    """Return what a terminal shows below the headline table of a suite; or why there are none."""
    accounted = budgeted(rows)
    if not accounted:
        return [line(why, ascii_only, "dim") for why in missing(rows)]
    if not part_columns(accounted):
        return []
    layout = _fit(accounted, width, ascii_only)
    notes = footnotes(rows, accounted)
    if layout.merged:
        names = wording.joined([part.header for part in layout.merged])
        notes.insert(0, f"{MERGED}: {names}, together at this width")
    title = Text.assemble((TITLE, "bold"), ("  " + (to_ascii(UNIT) if ascii_only else UNIT), "dim"))
    return [Text(""), title, _table(layout), *(line(note, ascii_only, "dim") for note in notes)]


@dataclass
class _Layout:
    """Which columns are shown and how wide: what `_fit` looks for."""

    accounted: Accounted
    columns: list[BudgetColumn]
    ascii_only: bool
    case_width: int = CASE_WIDTHS[0]

    @property
    def merged(self) -> tuple[Part, ...]:
        """The parts that share a column."""
        return next((c.parts for c in self.columns if len(c.parts) > 1), ())

    def lines(self) -> list[list[str]]:
        """Return the headers and the rows; cells may have several lines."""
        found = ["\n".join(name.split(" ")) for name in header(self.columns, self.accounted)]
        return [found, *(self._line(*pair) for pair in self.accounted)]

    def _line(self, row: Row, budget: Budget) -> list[str]:
        name, *rest = cells(row, budget, self.columns, self.accounted)
        shown = [to_ascii(text) for text in (name, *rest)] if self.ascii_only else [name, *rest]
        return ["\n".join(textwrap.wrap(shown[0], self.case_width)), *self._aligned(shown[1:])]

    def _aligned(self, shown: list[str]) -> list[str]:
        """Keep the place of the mark of doubt free in its columns, so that points line up."""
        aligned = list(shown)
        for index, column in enumerate(self.columns, 2):  # after N and ideal
            if any(column.doubtful(*pair) for pair in self.accounted):
                aligned[index] += "" if shown[index].endswith(DOUBT) else " "
        return aligned

    def width(self) -> int:
        """Return how many terminal columns the table needs."""
        widths = [
            max(cell_len(text) for cell in column for text in cell.split("\n"))
            for column in zip(*self.lines(), strict=True)
        ]
        return sum(widths) + GAP * len(widths)

    def merge(self) -> None:
        """Put one more of the smallest columns to those that share the last."""
        single = [column for column in self.columns if len(column.parts) == 1]
        single.sort(key=lambda column: column.largest(self.accounted))
        smallest = single[: 1 if self.merged else 2]
        gone = [c for c in self.columns if len(c.parts) > 1 or c in smallest]
        kept = [c for c in self.columns if c not in gone]
        together = [part for part in PARTS if any(part in c.parts for c in gone)]
        self.columns = [*kept, BudgetColumn(MERGED, tuple(together))]


def _fit(accounted: Accounted, width: int, ascii_only: bool) -> _Layout:
    """Return the fullest layout that fits."""
    layout = _Layout(accounted, part_columns(accounted), ascii_only)
    for case_width in CASE_WIDTHS:
        if layout.width() > width:
            layout.case_width = case_width
    while layout.width() > width and len(layout.columns) > 1:
        layout.merge()
    return layout


def _table(layout: _Layout) -> Table:
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold"
    )
    headers, *lines = layout.lines()
    for index, name in enumerate(headers):
        table.add_column(
            Text(name), justify="right" if index else "left", no_wrap=True, overflow="crop"
        )
    previous = None
    for (row, budget), shown in zip(layout.accounted, lines, strict=True):
        name = "" if previous == row.case else shown[0]
        styles = [
            *("", "", "bold"),
            *("dim" if c.doubtful(row, budget) else "" for c in layout.columns),
            "yellow",
        ]
        texts = zip([name, *shown[1:]], styles, strict=False)
        table.add_row(*(Text(text, style=style) for text, style in texts))
        previous = row.case
    return table
