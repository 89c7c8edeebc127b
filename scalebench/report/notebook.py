"""What a notebook shows of a run: HTML without a script, and the page's figures.

Nothing is fetched, and every text of a run is escaped.
"""

import html
import io
import json
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from rich.console import Console
from rich.text import Text

from scalebench.analysis.page_data import PageData
from scalebench.errors import UsageError, unknown_name
from scalebench.records.summary import Row, Summary
from scalebench.report.figures.style import assign
from scalebench.report.findings.findings import judge
from scalebench.report.page.overview import efficiency_chart, swatch
from scalebench.report.page.sections import Material, sections
from scalebench.report.tables.columns import present
from scalebench.report.tables.layout import cells, names
from scalebench.report.words import wording

STYLE = (
    "<style>.scalebench .effchart{width:26em;max-width:100%;--paper:#fff}"
    ".scalebench .effchart text{font-size:11px;fill:#777}"
    ".scalebench .effchart .grid{stroke:#8884}.scalebench td{white-space:nowrap}"
    ".scalebench .effchart .ideal{stroke:#888;stroke-dasharray:2 3}</style>"
)


def terminal_html(text: str) -> str:
    """Return what a command prints, with its ANSI styles, as one HTML element."""
    console = Console(record=True, file=io.StringIO(), width=200, legacy_windows=False)
    console.print(Text.from_ansi(text), soft_wrap=True)
    code = '<pre style="line-height:1.25;white-space:pre;overflow-x:auto">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=code)


def run_html(summary: Summary) -> str:
    """Return a run's suites, each as its ranking, its table and its efficiency over N."""
    parts = [f"<p>{html.escape(wording.plain(notice, 300))}</p>" for notice in summary.notices]
    groups = wording.by_suite(summary.rows)
    looks = assign(summary.rows)
    for verdict in judge(summary).suites:
        rows = groups[verdict.suite]
        name = html.escape(wording.plain(verdict.suite, 64))
        said = html.escape(" ".join(filter(None, (verdict.facts, verdict.ranking))))
        chart = efficiency_chart(rows, looks, {}, f"Efficiency over N, {verdict.suite}") or ""
        cases = wording.by_case(rows) if chart else ()
        key = " ".join(f"{swatch(looks[one])}{html.escape(wording.plain(one[1]))}" for one in cases)
        parts.append(f"<h4>{name}</h4><p>{said}</p>{rows_html(rows)}{chart}<p>{key}</p>")
    if not summary.rows:
        parts.append("<p>This run trained nothing.</p>")
    return f'<div class="scalebench">{STYLE}{"".join(parts)}</div>'


def rows_html(rows: Sequence[Row]) -> str:
    """Return the table of a suite, in the columns of the terminal's and the page's."""
    columns = present(rows)
    lines = [cells(columns, row) for row in rows]
    table: str = pd.DataFrame(lines, columns=list(names(columns))).to_html(index=False, border=0)
    return table


def page_figure(
    summary: Summary, page_data: PageData | None, name: str, suite: str | None
) -> go.Figure:
    """Return a figure of the page, for example ``efficiency``, with its conclusion as title.

    Args:
        summary: Of the run.
        page_data: What the run's folder holds beyond its summary.
        name: Of the figure.
        suite: Whose; None: the only one that has such a figure.

    Raises:
        UsageError: The page has no such figure, or several suites have one.
    """
    groups = wording.by_suite(summary.rows)
    material = Material(
        *("run", groups, assign(summary.rows), summary.largest_batches, page_data),
        summary.environment,
    )
    charts = {chart.id: chart for section in sections(material) for chart in section.charts}
    places = {str(index): found for index, found in enumerate(("the link", *groups))}
    drawn: dict[str, dict[str, str]] = {}
    for chart_id in charts:
        kind, _, index = chart_id.removeprefix("run-").rpartition("-")
        drawn.setdefault(kind, {})[places[index]] = chart_id
    if name not in drawn:
        raise unknown_name("figure", name, drawn)
    of = drawn[name]
    if suite is None and len(of) > 1:
        raise UsageError(f"Several suites have a figure {name}: add suite=, of {', '.join(of)}.")
    if suite is not None and suite not in of:
        raise unknown_name(f"suite with a figure {name}", suite, of)
    chart = charts[of[suite or next(iter(of))]]
    figure = go.Figure(json.loads(chart.spec))
    title = html.escape(chart.conclusion or chart.title)
    return figure.update_layout(title={"text": title, "font": {"size": 14}}, showlegend=True)
