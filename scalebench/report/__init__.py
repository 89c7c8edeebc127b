"""Renderings of a `Summary`: terminal table, Markdown, CSV and the page.

Pure functions from the summary to text. plotly and pandas are imported only by the renderings
that need them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalebench.report.markdown import render_markdown
from scalebench.report.table import render_table
from scalebench.summary import Summary

if TYPE_CHECKING:
    from scalebench.evidence import Evidence

__all__ = ["render_csv", "render_markdown", "render_page", "render_table"]


def render_page(
    summaries: Sequence[Summary], evidence: "Sequence[Evidence | None] | None" = None
) -> str:
    """Return one HTML file that opens offline and shows one or several runs.

    Args:
        summaries: Of the runs.
        evidence: What each run's folder holds beyond its summary, as `scalebench.evidence.gather`
            returns it; None: what needs it is left out.
    """
    from scalebench.report import page

    return page.render_page(summaries, evidence)


def render_csv(summary: Summary) -> str:
    """Return the rows as CSV; estimates as name, name_low, name_high, name_n."""
    from scalebench.report import frames

    return frames.rows_csv([summary])
