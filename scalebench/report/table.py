"""The terminal table."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scalebench.costmodel.link_profile import LinkProfile
from scalebench.report import certificate, wording
from scalebench.report.budget_table import budget_parts
from scalebench.report.calibration import fit_parts
from scalebench.report.columns import Column, present
from scalebench.report.compression import compression_parts
from scalebench.report.findings import judge
from scalebench.report.marks import explain, letters, marks
from scalebench.report.predictions import prediction_parts
from scalebench.report.terminal import CASE_WIDTHS, GAP, NARROWEST, line, printed, to_ascii
from scalebench.summary import Row, Summary, TimedCollectives

NARROWING = ("tokens", "loss", "marks", "energy", "batch", "throughput", "memory", "mfu")
"""What gives way at narrow widths, in this order; ``marks`` become letters, the rest go."""

LONGEST_REASON = 400

_STATUS_STYLE = {"failed": "bold red", "oom": "bold red", "skipped": "yellow"}


def render_table(
    summary: Summary, width: int = 100, color: bool = False, ascii_only: bool = False
) -> str:
    """Return the table as text for a terminal.

    Args:
        summary: The run.
        width: Columns of the terminal; less important table columns give way below 140.
        color: Whether ANSI styles are written.
        ascii_only: Write nothing but ASCII, for terminals that are not UTF-8.
    """
    width = max(width, NARROWEST)
    return printed(_parts(summary, width, ascii_only), width, color, ascii_only)


def _parts(summary: Summary, width: int, ascii_only: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [
        line(wording.plain(notice), ascii_only, "yellow") for notice in summary.notices
    ]
    if summary.status != "complete":
        status = f"This run is not complete: {wording.plain(summary.status, 40)}."
        parts.append(line(status, ascii_only, "yellow"))
    for suite, rows in wording.by_suite(summary.rows).items():
        parts += _suite(suite, rows, width, ascii_only)
    if summary.collectives is not None:
        parts += _collectives(summary.collectives, summary.link, ascii_only)
    parts += _verdict(summary, ascii_only)
    if not summary.rows and summary.collectives is None:
        parts.append(line("No cell was planned; there is nothing to show.", ascii_only))
    if summary.certificate is not None:
        parts.append(line(certificate.reference(summary.certificate), ascii_only, "dim"))
    return parts


def _collectives(
    found: TimedCollectives, link: LinkProfile | None, ascii_only: bool
) -> list[RenderableType]:
    parts: list[RenderableType] = [Text("")]
    parts += [line(wording.plain(name, 64), ascii_only, "bold") for name in found.suites]
    if link is not None:
        num_ops = len({point.op for point in link.points})
        told = (
            f"{num_ops} operations at {found.num_points} points, every result verified: "
            f"{found.num_wrong} wrong elements · {link.device} over {link.backend}"
        )
        parts += [line(told, ascii_only, "dim"), *fit_parts(link, ascii_only)]
    if found.failure is not None:
        parts.append(line(f"failed: {wording.plain(found.failure)}", ascii_only, "bold red"))
    return parts


def _verdict(summary: Summary, ascii_only: bool) -> list[RenderableType]:
    """Return what the run says of every case beside the baseline, in a few sentences each."""
    parts: list[RenderableType] = []
    for suite in judge(summary).suites:
        told = [finding for finding in suite.findings if finding.kind != "baseline"]
        if told or suite.ranking:
            name = wording.plain(suite.suite, 64)
            parts += [Text(""), line(f"verdict: {name}", ascii_only, "bold")]
            parts += [line(suite.ranking, ascii_only)] if suite.ranking else []
        for finding in told:
            text = line(f"{wording.plain(finding.case, 64)}: {finding.verdict}", ascii_only)
            parts.append(Padding(text, (0, 0, 0, 2)))
    return parts


def _suite(suite: str, rows: list[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    layout, dropped = _fit(rows, width, ascii_only)
    parts: list[RenderableType] = [
        Text(""),
        line(wording.plain(suite, 64), ascii_only, "bold"),
        line(wording.suite_facts(rows), ascii_only, "dim"),
        _table(layout),
        *_reasons(rows, ascii_only),
    ]
    if layout.lettered:
        names = dict.fromkeys(name for row in rows for name in marks(row))
        legend = ", ".join(f"{explain(name).letter} {name}" for name in names)
        if legend:
            parts.append(line(f"marks: {legend}", ascii_only, "dim"))
    if dropped:
        left_out = f"not shown at this width: {', '.join(c.header for c in dropped)}"
        parts.append(line(left_out, ascii_only, "dim"))
    return [
        *parts,
        *budget_parts(rows, width, ascii_only),
        *compression_parts(rows, width, ascii_only),
        *prediction_parts(rows, width, ascii_only),
    ]


@dataclass
class _Layout:
    """Which columns are shown and how wide: what `_fit` looks for."""

    rows: Sequence[Row]
    columns: list[Column]
    ascii_only: bool
    lettered: bool = False
    case_width: int = CASE_WIDTHS[0]

    def cell(self, column: Column, row: Row) -> str:
        """Return the text of a cell; a long case name comes in several lines."""
        if self.lettered and column.key == "marks":
            return letters(marks(row))
        text = to_ascii(column.text(row)) if self.ascii_only else column.text(row)
        return "\n".join(textwrap.wrap(text, self.case_width)) if column.key == "case" else text

    def width(self) -> int:
        """Return how many terminal columns the table needs."""
        return sum(self._column_width(column) + GAP for column in self.columns)

    def _column_width(self, column: Column) -> int:
        cells = [self.cell(column, row) for row in self.rows]
        lines = [line for cell in cells for line in cell.split("\n")]
        return max(cell_len(line) for line in [*column.header.split(" "), *lines])

    def narrow(self, key: str) -> list[Column]:
        """Give way in one respect; return the columns that went."""
        if key == "marks":
            self.lettered = True
            return []
        gone = [column for column in self.columns if column.key == key]
        self.columns = [column for column in self.columns if column.key != key]
        return gone


def _fit(rows: Sequence[Row], width: int, ascii_only: bool) -> tuple[_Layout, list[Column]]:
    """Return the fullest layout that fits, and the columns that had to go."""
    layout = _Layout(rows, list(present(rows)), ascii_only)
    dropped: list[Column] = []
    for key in NARROWING:
        if layout.width() > width:
            dropped += layout.narrow(key)
    for case_width in CASE_WIDTHS:
        if layout.width() > width:
            layout.case_width = case_width
    return layout, dropped


def _table(layout: _Layout) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for column in layout.columns:
        table.add_column(
            Text("\n".join(column.header.split(" "))),
            justify="right" if column.numeric else "left",
            no_wrap=True,
            overflow="crop",
        )
    previous = None
    for row in layout.rows:
        cells = []
        for column in layout.columns:
            repeated = column.key == "case" and previous == row.case
            text = "" if repeated else layout.cell(column, row)
            cells.append(Text(text, style=_style(column, row)))
        table.add_row(*cells)
        previous = row.case
    return table


def _style(column: Column, row: Row) -> str:
    if column.key == "step":
        return _STATUS_STYLE.get(row.status, "")
    if column.key == "check" and row.correctness and row.correctness.status == "deviates":
        return "bold red"
    if column.key == "efficiency":
        return "dim" if row.oversubscribed else "bold"
    return "yellow" if column.key == "marks" else ""


def _reasons(rows: Sequence[Row], ascii_only: bool) -> list[RenderableType]:
    missing = [row for row in rows if row.status != "ok"]
    if not missing:
        return []
    parts: list[RenderableType] = [line("not measured", ascii_only, "bold")]
    for row in missing:
        reason = wording.plain(row.reason or "no reason recorded", LONGEST_REASON)
        name = wording.plain(row.case, 64)
        told = line(f"{name}, N={row.world_size}, {row.status}: {reason}", ascii_only)
        parts.append(Padding(told, (0, 0, 0, 2)))
    return parts
