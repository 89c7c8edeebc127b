"""The page of ``scalebench trace``: where each rank's time went, and by which collective."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from scalebench import __version__, units
from scalebench.report.figures.charts import Chart, legend, plot_json
from scalebench.report.figures.style import COLORS, style
from scalebench.report.page.offline import render_offline
from scalebench.report.tables import traces
from scalebench.report.tables.layout import PlainTable
from scalebench.report.words import wording
from scalebench.trace.analysis import Figures
from scalebench.trace.job import JobFigures, RankFigures

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
