"""The page of one or several runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench import units
from scalebench.analysis.page_data import PageData
from scalebench.records.summary import Row, Summary
from scalebench.report.certificate import as_listing
from scalebench.report.export import frames
from scalebench.report.figures.charts import Chart
from scalebench.report.figures.style import Look, Looks, assign
from scalebench.report.findings.findings import (
    NextStep,
    RunVerdict,
    SuiteVerdict,
    judge,
    next_steps,
)
from scalebench.report.gate_table import history_table
from scalebench.report.page.cards import Card, is_noisy, make_cards
from scalebench.report.page.comparison import change_cards, compare
from scalebench.report.page.offline import fragment, packed, render_offline, row_address, row_links
from scalebench.report.page.overview import (
    Fact,
    LinkCard,
    SuiteCard,
    facts,
    link_card,
    overview_markdown,
    suite_card,
    swatch,
)
from scalebench.report.page.rows import RowView, row_views
from scalebench.report.page.sections import NO_LINK, Block, Material, Section, of_suite, sections
from scalebench.report.tables.columns import Column, present
from scalebench.report.tables.layout import PlainTable
from scalebench.report.words import wording
from scalebench.report.words.notes import Mark, bearers, explain, marks

MAX_EMBEDDED_BYTES = 100_000
"""Raw step times above this size are left out of the page's JSON; summary.json has them."""

LONGEST_REASON = 6000

MOST_NAMED = 6
"""Suites that a title names; of more it says how many."""


@dataclass(frozen=True)
class SuiteView:
    """Everything the template shows of one suite.

    Attributes:
        row_links: Case and N, as tables write them → address of the row.
        sections: What the suite's figures and tables are about, in their order.
        absent: Title and line of what the run has nothing for.
    """

    id: str
    link: str
    name: str
    facts: str
    ranking: str | None
    overview: SuiteCard
    cards: tuple[Card, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    row_links: Mapping[tuple[str, str], str]
    sections: tuple[tuple[Section, Block], ...]
    absent: tuple[tuple[str, str], ...]
    row_views: tuple[RowView, ...]


@dataclass(frozen=True)
class Download:
    """A file inside the page, as a data URI of its gzip."""

    name: str
    uri: str
    size: str
    remark: str = ""


@dataclass(frozen=True)
class RunView:
    """Everything the template shows of one run.

    Attributes:
        link_card: What its timed collectives came to; None: it timed none.
        first: What to try first, that which could win most before the others.
        prefix: Of the addresses of its rows.
        facts: What one asks of a run besides its results.
        markdown: The overview, to copy.
    """

    id: str
    link: str
    title: str
    summary: Summary
    notices: tuple[str, ...]
    verdict: RunVerdict
    first: tuple[NextStep, ...]
    prefix: Sequence[str]
    facts: tuple[Fact, ...]
    suites: tuple[SuiteView, ...]
    links: tuple[tuple[Section, Block], ...]
    link_card: LinkCard | None
    missing: tuple[Row, ...]
    marks: tuple[tuple[Mark, tuple[str, ...]], ...]
    markdown: str
    certificate: PlainTable | None
    environment: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    downloads: tuple[Download, ...]

    @property
    def drawn(self) -> bool:
        """Whether the run has a figure."""
        shown = [*self.links, *(pair for suite in self.suites for pair in suite.sections)]
        return any(isinstance(part, Chart) for _, block in shown for part in block.parts)


def render_page(
    summaries: Sequence[Summary],
    page_data: Sequence[PageData | None] | None = None,
    shared: bool = False,
) -> str:
    """Return the page of one or several runs.

    ``shared``: it is one of a folder of pages that share their scripts.
    """
    looks = assign(row for summary in summaries for row in summary.rows)
    beside = [None] * len(summaries) if page_data is None else page_data
    runs = [
        _run(i, len(summaries) > 1, summary, found, looks)
        for i, (summary, found) in enumerate(zip(summaries, beside, strict=True), 1)
    ]
    comparisons = [
        compare(f"comparison-{i}", summaries[0], other, looks)
        for i, other in enumerate(summaries[1:], 1)
    ]
    return render_offline(
        "report.html.j2",
        any(run.drawn for run in runs) or any(one.suites for one in comparisons),
        shared=shared,
        runs=runs,
        comparisons=comparisons,
        history=history_table(summaries) if comparisons else None,
        changes={
            one.id: change_cards(one.pairs, summaries[0].rows, other.rows, looks, [f"run-{i}"])
            for i, (one, other) in enumerate(zip(comparisons, summaries[1:], strict=True), 2)
        },
        marks_of=marks,
        longest=LONGEST_REASON,
        noisy=is_noisy,
        swatch_of=swatch,
        address=row_address,
    )


def _run(
    number: int,
    several: bool,
    summary: Summary,
    page_data: PageData | None,
    looks: dict[wording.CaseKey, Look],
) -> RunView:
    run_id = f"run-{number}"
    prefix = [run_id] if number > 1 else []
    verdict = judge(summary)
    groups = wording.by_suite(summary.rows)
    found = sections(
        Material(run_id, groups, looks, summary.largest_batches, page_data, summary.environment)
    )
    about = {name: f"{run_id}-{name}" for name in ("environment", "reproduce", "marks")}
    told = facts(summary, summary.model, about)
    suites = tuple(
        _suite(f"{run_id}-suite-{i}", suite, groups[suite.suite], looks, found, page_data, prefix)
        for i, suite in enumerate(verdict.suites, 1)
    )
    cards = [suite.overview for suite in suites]
    first = next_steps(verdict.suites, groups)
    of_links = of_suite(found, NO_LINK)
    timed = link_card(summary.collectives, f"{run_id}-links" if of_links else "")
    markdown = overview_markdown(
        title(summary), summary.run_id, cards, timed, first, told, summary.reproduce
    )
    return RunView(
        id=run_id,
        link=run_id if several else "",
        title=title(summary),
        summary=summary,
        notices=_notices(summary),
        verdict=verdict,
        first=first,
        prefix=prefix,
        facts=told,
        suites=suites,
        links=of_links,
        link_card=timed,
        missing=tuple(row for row in summary.rows if row.status != "ok"),
        marks=_marks(summary.rows),
        markdown=markdown,
        certificate=as_listing(summary.certificate) if summary.certificate else None,
        environment=_facts(summary.environment),
        downloads=_downloads(summary),
    )


def _suite(
    suite_id: str,
    verdict: SuiteVerdict,
    rows: Sequence[Row],
    looks: Looks,
    found: Sequence[Section],
    page_data: PageData | None,
    prefix: Sequence[str],
) -> SuiteView:
    link = fragment(*prefix, verdict.suite)
    mine = of_suite(found, verdict.suite)
    charts = {
        section.name: [part for part in block.parts if isinstance(part, Chart)]
        for section, block in mine
    }
    return SuiteView(
        id=suite_id,
        link=link,
        name=verdict.suite,
        facts=verdict.facts,
        ranking=verdict.ranking,
        overview=suite_card(verdict, rows, looks, prefix),
        cards=make_cards(verdict.findings, looks, prefix),
        columns=present(rows),
        rows=tuple(rows),
        row_links=row_links(rows, prefix),
        sections=mine,
        absent=tuple((one.title, one.absent) for one in found if one.absent),
        row_views=row_views(suite_id, link, rows, looks, charts, page_data, prefix),
    )


def title(summary: Summary) -> str:
    """Say in a few words what was run: ``"ddp on 1 and 2 CPU ranks"``."""
    if not summary.rows and summary.collectives is not None:
        suites = [wording.plain(name, 40) for name in summary.collectives.suites]
        return f"{wording.joined(suites)}: links"
    if not summary.rows:
        return "Nothing was run"
    suites = [wording.plain(name, 40) for name in wording.by_suite(summary.rows)]
    names = wording.joined(suites) if len(suites) <= MOST_NAMED else f"{len(suites)} suites"
    measured = [row for row in summary.rows if row.status == "ok"] or summary.rows
    largest = max(measured, key=lambda row: row.world_size)
    first, *others = sorted({row.world_size for row in measured})
    several = f"{first} {'to' if others[1:] else 'and'} " if others else ""
    return f"{names} on {several}{wording.ranks(largest)}"


def _marks(rows: Sequence[Row]) -> tuple[tuple[Mark, tuple[str, ...]], ...]:
    """Return each mark that occurs, explained, with the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in marks(row))
    return tuple((explain(name), bearers(rows, name)) for name in names)


def _facts(environment: dict[str, Any]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return the environment as titled groups of name and value, however deep it is."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, value in environment.items():
        if name == "imported":  # a switch, nothing of the machine
            continue
        nested = isinstance(value, dict | list) and any(
            isinstance(item, dict) for item in (value, *value)
        )
        group = name if nested else ""
        groups.setdefault(group, []).extend(_leaves("" if nested else name, value))
    ordered = sorted(groups.items(), key=lambda item: item[0] != "")
    return tuple((wording.plain(name, 80), tuple(lines)) for name, lines in ordered if lines)


def _leaves(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in _leaves(f"{name} {k}".strip(), v)]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [leaf for i, v in enumerate(value) for leaf in _leaves(f"{name} {i}".strip(), v)]
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value) or "none"
    text = "not set" if value is None else wording.plain(value, 2000)
    return [(wording.plain(name, 120), text)]


def _notices(summary: Summary) -> tuple[str, ...]:
    """Return the notices; those on the largest batch are lines of its table."""
    listed = {
        batch.notice(with_suite)
        for batch in summary.largest_batches
        for with_suite in (False, True)
    }
    others = tuple(notice for notice in summary.notices if notice not in listed)
    if not listed:
        return others
    return (*others, "every case at the largest batch that fits a rank, see Memory")


def _downloads(summary: Summary) -> tuple[Download, ...]:
    table = _download("summary.csv", frames.rows_csv([summary]))
    whole = _download("summary.json", summary.model_dump_json())
    if len(whole.uri) <= MAX_EMBEDDED_BYTES:
        return table, whole
    without = summary.model_dump_json(exclude={"rows": {"__all__": {"samples"}}})
    remark = "without the raw step times, which are in the run folder's summary.json"
    return table, _download("summary.json", without, remark)


def _download(name: str, text: str, remark: str = "") -> Download:
    uri = f"data:application/gzip;base64,{packed(text)}"
    return Download(name, uri, units.bytes_(len(text.encode())), remark)
