"""Renderings of a `Summary`: terminal table, Markdown, CSV and the page.

Pure functions from the summary to text. What a rendering needs is imported when it is asked for:
plotly and pandas cost seconds, the models behind the predictions a fifth of one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebench.analysis.page_data import PageData
    from scalebench.records.summary import Summary

__all__ = ["render_csv", "render_markdown", "render_page", "render_table"]


def render_table(
    summary: "Summary",
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    verbose: bool = False,
) -> str:
    """Return tables and verdict as text for a terminal; see `scalebench.report.table`."""
    from scalebench.report import table
    from scalebench.report.tables.layout import Screen

    return table.render_table(summary, Screen(width, color, ascii_only), verbose)


def render_markdown(summary: "Summary") -> str:
    """Return verdict and table as Markdown for a pull request."""
    from scalebench.report import markdown

    return markdown.render_markdown(summary)


def render_page(
    summaries: "Sequence[Summary]", page_data: "Sequence[PageData | None] | None" = None
) -> str:
    """Return one HTML file that opens offline and shows one or several runs.

    Args:
        summaries: Of the runs.
        page_data: What each run's folder holds beyond its summary, as
            `scalebench.analysis.page_data.gather` returns it; None: what needs it is left out.
    """
    from scalebench.report.page import page

    return page.render_page(summaries, page_data)


def render_csv(summary: "Summary") -> str:
    """Return the rows as CSV; estimates as name, name_low, name_high, name_n."""
    from scalebench.report.export import frames

    return frames.rows_csv([summary])
