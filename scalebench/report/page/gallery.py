"""A folder of runs as a tour: pages that share one plotly, an index of questions and answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalebench.analysis.page_data import PageData
from scalebench.records.summary import Summary
from scalebench.report.findings.brief import SuiteInBrief, judge_in_brief
from scalebench.report.page.offline import plotly_script, render_offline
from scalebench.report.page.page import render_page, title
from scalebench.report.words import wording

PLOTLY = "plotly.min.js"
INDEX = "index.html"
PAGE = "report.html"


@dataclass(frozen=True)
class Exhibit:
    """One run of the gallery.

    Attributes:
        name: That of its folder.
        questions: Suite → what it answers; a suite that is not known here has none.
    """

    name: str
    summary: Summary
    page_data: PageData
    questions: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What was run."""
        return title(self.summary)

    @property
    def heading(self) -> str:
        """The question of its only suite; of several or unknown ones the name of the folder."""
        suites = list(wording.by_suite(self.summary.rows))
        return self.questions.get(suites[0], self.name) if len(suites) == 1 else self.name

    @property
    def answers(self) -> list[SuiteInBrief]:
        """What the run says, suite by suite."""
        return judge_in_brief(self.summary)

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
