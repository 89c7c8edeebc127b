"""A folder of runs as pages that share one plotly, with an index that says what each run found."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.analysis.page_data import PageData
from scalebench.records.summary import Summary
from scalebench.report.findings.findings import RunVerdict, judge
from scalebench.report.page.offline import plotly_script, render_offline
from scalebench.report.page.page import render_page, title

PLOTLY = "plotly.min.js"
INDEX = "index.html"
PAGE = "report.html"


@dataclass(frozen=True)
class Exhibit:
    """One run of the gallery; ``name`` is its folder's."""

    name: str
    summary: Summary
    page_data: PageData

    @property
    def title(self) -> str:
        """What was run."""
        return title(self.summary)

    @property
    def verdict(self) -> RunVerdict:
        """What the run says."""
        return judge(self.summary)

    @property
    def page(self) -> str:
        """Where its page lies."""
        return f"{self.name}/{PAGE}"


def render_gallery(exhibits: Sequence[Exhibit]) -> dict[str, str]:
    """Return the files of a gallery: relative path → text."""
    pages = {
        one.page: render_page([one.summary], [one.page_data], plotly=f"../{PLOTLY}")
        for one in exhibits
    }
    index = render_offline("gallery.html.j2", False, exhibits=exhibits)
    return {INDEX: index, PLOTLY: plotly_script(), **pages}
