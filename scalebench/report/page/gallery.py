"""A folder of runs as a tour: pages that share their scripts, an index of questions and answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalebench import units
from scalebench.analysis.page_data import PageData
from scalebench.records.summary import Row, Summary
from scalebench.report.findings.findings import SuiteVerdict, headlines, judge
from scalebench.report.page.offline import render_offline, shared_files
from scalebench.report.page.page import render_page, title
from scalebench.report.tables import experts, frameworks, races
from scalebench.report.words import linking, wording

INDEX = "index.html"
PAGE = "report.html"


TOUR = (
    *("collectives", "ddp", "fsdp", "pipeline", "compression", "tensor", "context", "expert"),
    *("mesh", "batch", "asynchronous", "frameworks", "recovery"),
)
"""Suites in the order of the tour: the links, one division at a time, several, whole trainings."""


@dataclass(frozen=True)
class Answer:
    """What a run says about one suite.

    Attributes:
        sentences: What the suite's own question asks beyond the efficiency.
        memory: Case → peak of its fullest rank at the size that it is judged by.
    """

    suite: SuiteVerdict
    sentences: tuple[str, ...]
    memory: Mapping[str, str]


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
    def suites(self) -> list[str]:
        """Names of its suites, those that measure links alone last."""
        of_links = self.summary.collectives.suites if self.summary.collectives else []
        return [*wording.by_suite(self.summary.rows), *of_links]

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands in the tour: by its first suite, then by its name."""
        first = next(iter(self.suites), "")
        return TOUR.index(first) if first in TOUR else len(TOUR), self.name

    @property
    def heading(self) -> str:
        """The question of its only suite; of several or unknown ones the name of the folder."""
        suites = self.suites
        return self.questions.get(suites[0], self.name) if len(suites) == 1 else self.name

    @property
    def answers(self) -> list[Answer]:
        """What the run says, suite by suite."""
        groups = wording.by_suite(self.summary.rows)
        found = []
        for verdict in judge(self.summary).suites:
            if verdict.cases or verdict.is_race:
                sentences = _sentences(groups[verdict.suite])
                found.append(Answer(verdict, sentences, _memory(headlines(verdict.findings))))
        return found

    @property
    def of_links(self) -> str:
        """What came of the collectives that it timed; empty: it timed none."""
        found = self.summary.collectives
        return linking.headline(found) if found is not None else ""

    @property
    def page(self) -> str:
        """Where its page lies."""
        return f"{self.name}/{PAGE}"


def render_gallery(exhibits: Sequence[Exhibit]) -> dict[str, str]:
    """Return the files of a gallery: relative path → text."""
    pages = {one.page: render_page([one.summary], [one.page_data], shared=True) for one in exhibits}
    tour = sorted(exhibits, key=lambda one: one.place)
    index = render_offline("gallery.html.j2", False, exhibits=tour)
    return {INDEX: index, **shared_files(), **pages}


def _sentences(rows: Sequence[Row]) -> tuple[str, ...]:
    said = (races.lockstep_sentence(rows), frameworks.sentence(rows), experts.sentence(rows))
    return tuple(text for text in said if text)


def _memory(heads: Sequence[Row]) -> dict[str, str]:
    return {
        wording.plain(row.case, 64): units.bytes_(row.peak_memory_bytes)
        for row in heads
        if row.peak_memory_bytes is not None
    }
