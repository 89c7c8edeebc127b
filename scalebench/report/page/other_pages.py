"""The pages of ``scalebench search`` and ``scalebench trace``, and a folder of runs as a tour."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go

from scalebench import __version__, units
from scalebench.analysis.page_data import PageData
from scalebench.records.summary import Row, Summary
from scalebench.report.figures.charts import Chart, legend, plot_json
from scalebench.report.figures.style import COLORS, NEUTRAL, safe, style, wide_axis
from scalebench.report.findings.findings import SuiteVerdict, headlines, judge
from scalebench.report.page.offline import render_offline, shared_files
from scalebench.report.page.page import render_page, title
from scalebench.report.search import MEASURED, columns_of, experiment_words, notes
from scalebench.report.tables import axes, communication, frameworks, races, traces
from scalebench.report.tables.layout import PlainTable
from scalebench.report.words import wording
from scalebench.search.result import RankedChoice, SearchResult
from scalebench.trace.analysis import Figures
from scalebench.trace.job import JobFigures, RankFigures

MILLI = 1e3
BAR_PX = 26
MOST_LABELS = 40

# Name, colour, and how many seconds of a rank it stands for.
_Part = tuple[str, str, Callable[[Figures], float]]

_ON_GPU: tuple[_Part, ...] = (
    ("communication during copies", COLORS[5], lambda f: f.comm_beside_copies_s),
    ("copies only", COLORS[3], lambda f: f.copies_alone_s),
)

# Together they fill the window.
_PARTS: tuple[_Part, ...] = (
    ("compute only", COLORS[0], lambda f: f.compute_s - f.overlap_s),
    ("both at once", COLORS[4], lambda f: f.overlap_s),
    ("communication alone", COLORS[1], lambda f: f.exposed_comm_s - f.comm_beside_copies_s),
    *_ON_GPU,
    ("idle", "rgba(128,136,144,0.35)", lambda f: f.idle_s),
)
INDEX = "index.html"
PAGE = "report.html"

TOUR = (
    *("collectives", "ddp", "fsdp", "pipeline", "compression", "tensor", "context", "expert"),
    *("mesh", "batch", "asynchronous", "frameworks", "recovery"),
)
"""Suites in the order of the tour: the links, one division at a time, several, whole trainings."""


def render_search_page(result: SearchResult) -> str:
    """Return one HTML file that opens offline."""
    return render_offline(
        "search.html.j2",
        with_charts=True,
        title=f"Search: {result.workload} on {result.world_size} ranks",
        facts=f"global batch {result.global_batch} · {result.num_candidates:,} configurations · "
        f"scalebench {__version__}",
        why=result.why,
        notes=[*_of_experiment(result), *notes(result)],
        chart=_search_chart(result),
        tables=_search_tables(result),
    )


def _of_experiment(result: SearchResult) -> list[str]:
    if result.measured is None:
        return []
    return [f"trained here: {said}" for said in experiment_words(result.measured)]


def _search_conclusion(result: SearchResult) -> str:
    fastest, least = result.front[-1], result.front[0]
    if len(result.front) == 1:
        return f"{fastest.mesh_words} is fastest and needs least memory."
    return (
        f"The fastest step, {units.seconds(fastest.step_s)}, needs "
        f"{units.bytes_(fastest.memory_bytes)} a rank; the least memory, "
        f"{units.bytes_(least.memory_bytes)}, costs {units.seconds(least.step_s)}."
    )


def _search_chart(result: SearchResult) -> Chart:
    figure = go.Figure()
    others = [one for one in result.best if one.case not in {f.case for f in result.front}]
    steps = [one.step_s for one in (*result.front, *others)]
    memory = [one.memory_bytes for one in (*result.front, *others)]
    unit, size = ("GB", 1e9) if max(memory) >= 1e9 else ("MB", 1e6)
    line = {"color": COLORS[0], "width": 2, "shape": "vh"}
    figure.add_trace(
        _points(result.front, "Pareto front", "lines+markers", COLORS[0], (unit, size), line)
    )
    if others:
        figure.add_trace(_points(others, "best of other meshes", "markers", NEUTRAL, (unit, size)))
    if result.memory_limit_bytes is not None:
        limit = result.memory_limit_bytes / (1 + result.margin) / size
        ends = [MILLI * min(steps), MILLI * max(steps)]
        figure.add_trace(
            go.Scatter(
                x=[limit, limit], y=ends, mode="lines", name="memory limit less margin",
                line={"color": COLORS[1], "width": 1.5, "dash": "dot"}, hoverinfo="skip",
            )
        )  # fmt: skip
    style(figure, "search")
    figure.update_xaxes(
        title=f"predicted memory of a rank, {unit}", **wide_axis([m / size for m in memory])
    )
    figure.update_yaxes(
        title="predicted step, ms", automargin=True, **wide_axis([MILLI * s for s in steps])
    )
    said = _search_conclusion(result)
    return Chart(
        id="search-front",
        suite="",
        conclusion=said,
        label=f"Step time against memory. {said} The numbers are in the table below.",
        spec=plot_json(figure),
        height=400,
        key=legend(figure),
        header=("case", "step", "memory a rank"),
        table=tuple(
            (one.case, units.seconds(one.step_s), units.bytes_(one.memory_bytes))
            for one in result.front
        ),
    )


def _points(
    of: "tuple[RankedChoice, ...] | list[RankedChoice]",
    name: str,
    mode: str,
    color: str,
    scale: tuple[str, float],
    line: dict[str, object] | None = None,
) -> go.Scatter:
    unit, size = scale
    return go.Scatter(
        x=[one.memory_bytes / size for one in of],
        y=[MILLI * one.step_s for one in of],
        mode=mode,
        name=name,
        line=line,
        marker={"color": color, "size": 8, "symbol": "circle"},
        customdata=[[f"{safe(one.mesh_words)}<br>{safe(one.how_words)}"] for one in of],
        hovertemplate=f"%{{customdata[0]}}<br>%{{y:.4g}} ms, %{{x:.4g}} {unit}<extra></extra>",
    )


def _search_tables(result: SearchResult) -> list[PlainTable]:
    rows = list(enumerate(result.best, 1))
    found = [PlainTable.of("The best of each mesh and ZeRO stage.", "", columns_of(result), rows)]
    if result.measured is not None:
        title = f"Trained here, run {wording.plain(result.measured.run, 80)}."
        found.append(PlainTable.of(title, "", MEASURED, result.measured.rows))
    return found


def render_trace_page(job: JobFigures) -> str:
    """Return one HTML file that opens offline."""
    return render_offline(
        "trace.html.j2",
        with_charts=True,
        title=_title(job),
        facts=f"{traces.device(job)} · {traces.WINDOWS[job.window]} · scalebench {__version__}",
        notices=(
            *job.notices,
            *job.refused,
            *traces.gap_lines(job),
            *traces.copy_lines(job),
            *traces.wait_lines(job),
        ),
        conclusion=_conclusion(job),
        chart=_chart(job),
        tables=_tables(job),
        suspects=[
            (wording.plain(name, 200), units.seconds(spent))
            for name, spent in traces.suspects(job).items()
        ],
    )


def _title(job: JobFigures) -> str:
    if len(job.ranks) == 1:
        return f"Communication of rank {job.ranks[0].trace.rank}"
    if len({rank.trace.rank for rank in job.ranks}) < len(job.ranks):
        return f"Communication in {len(job.ranks)} traces"
    of = f" of {job.world_size}" if job.world_size else ""
    return f"Communication of {len(job.ranks)}{of} ranks"


def _conclusion(job: JobFigures) -> str:
    total = job.total
    calls = [rank.trace.timeline.calls for rank in job.ranks]
    lacks = [one.lack for one in calls if one.are_missing]
    if lacks:
        return f"How much of the communication was hidden is not known: calls have no {lacks[0]}."
    if total.overlap_ratio is None:
        return "No communication was recognised."
    said = (
        f"{traces.ratio_as_percent(total.overlap_ratio)} of the communication was hidden behind "
        f"computation; {units.seconds(total.exposed_comm_s)} of "
        f"{units.seconds(total.comm_s)} was exposed"
    )
    if len(job.ranks) > 1:
        worst = max(job.ranks, key=lambda rank: rank.figures.exposed_comm_s)
        most = units.seconds(worst.figures.exposed_comm_s)
        said += f", the most on rank {worst.trace.rank} ({most})"
    return f"{said}."


def _chart(job: JobFigures) -> Chart:
    figure = go.Figure()
    labels = [_label(rank, job) for rank in job.ranks]
    parts = _parts(job)
    for name, color, seconds_of in parts:
        spent = [seconds_of(rank.figures) for rank in job.ranks]
        figure.add_trace(
            go.Bar(
                x=[round(1e3 * s, 6) for s in spent],
                y=labels,
                orientation="h",
                name=name,
                marker={"color": color},
                customdata=[
                    [_hover(name, s, r.figures)] for s, r in zip(spent, job.ranks, strict=True)
                ],
                hovertemplate="<b>%{y}</b><br>%{customdata[0]}<extra></extra>",
            )
        )
    height = 110 + BAR_PX * len(labels)
    style(figure, "trace", barmode="stack", bargap=0.3, showlegend=False, height=height)
    figure.update_xaxes(title="ms", rangemode="tozero")
    step = -(-len(labels) // MOST_LABELS)
    figure.update_yaxes(
        autorange="reversed", type="category", showgrid=False, automargin=True,
        tickvals=labels[::step],
    )  # fmt: skip
    conclusion = _conclusion(job)
    return Chart(
        id="trace-parts",
        suite="",
        conclusion=conclusion,
        label=f"Where each rank's time went. {conclusion} The numbers are in the table below.",
        spec=plot_json(figure),
        height=height,
        key=legend(figure),
        header=("rank", *(name for name, _, _ in parts)),
        table=tuple(
            (str(rank.trace.rank), *(units.seconds(read(rank.figures)) for _, _, read in parts))
            for rank in job.ranks
        ),
    )


def _parts(job: JobFigures) -> Sequence[_Part]:
    """Return the parts that there can be: without a GPU there are no copies."""
    on_gpu = any(rank.trace.timeline.on_gpu for rank in job.ranks)
    return [part for part in _PARTS if on_gpu or part not in _ON_GPU]


def _label(rank: RankFigures, job: JobFigures) -> str:
    """Name a bar; files of the same rank are distinguished by their place."""
    same = [other for other in job.ranks if other.trace.rank == rank.trace.rank]
    number = f" ({same.index(rank) + 1})" if len(same) > 1 else ""
    return f"rank {rank.trace.rank}{number}"


def _hover(name: str, spent: float, figures: Figures) -> str:
    share = traces.ratio_as_percent(spent / figures.window_s if figures.window_s else None)
    return f"{name}: {units.seconds(spent)}, {share} of {units.seconds(figures.window_s)}"


def _tables(job: JobFigures) -> list[PlainTable]:
    whose = "All ranks together." if len(job.ranks) > 1 else f"Rank {job.ranks[0].trace.rank}."
    tables = [
        PlainTable.of("By rank.", "", traces.rank_columns(job, 80), traces.rank_lines(job)),
        *(
            PlainTable.of(f"{caption} {whose}", "", traces.share_columns(first), shares)
            for caption, first, shares in (
                ("By kind of operation.", "operation", job.total.kinds),
                ("By what the rank was doing when it asked.", "phase", job.total.phases),
            )
        ),
    ]
    tables += [
        PlainTable.of(f"What the GPU did. {whose}", "", *traces.kind_table(job)),
        PlainTable.of("Why the GPU was idle.", "", traces.IDLE_COLUMNS, traces.idle_rows(job)),
    ]
    return [table for table in tables if table.lines]


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
        return communication.headline(found) if found is not None else ""

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
    said = (races.lockstep_sentence(rows), frameworks.sentence(rows), axes.sentence(rows))
    return tuple(text for text in said if text)


def _memory(heads: Sequence[Row]) -> dict[str, str]:
    return {
        wording.plain(row.case, 64): units.bytes_(row.peak_memory_bytes)
        for row in heads
        if row.peak_memory_bytes is not None
    }
