"""Whole trainings side by side: loss over time, staleness of gradients, frameworks."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from scalebench import units
from scalebench.analysis.page_data import RaceCurve
from scalebench.grouping import by_key
from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, legend, view_mark, views
from scalebench.report.figures.style import COLORS, NEUTRAL, PALER, Looks, safe, style, whiskers
from scalebench.report.tables import frameworks, races
from scalebench.report.tables.layout import CASE, PLACE, RANKS, Column, texts, value
from scalebench.report.words import wording
from scalebench.report.words.wording import place

THIN, THICK = 0.9, 2.4
MEGA = 1e6

Axis = Callable[[RaceCurve, Row | None], list[float] | None]


def _megabytes(curve: RaceCurve, row: Row | None) -> list[float] | None:
    if curve.sent_bytes is not None:
        return [sent / MEGA for sent in curve.sent_bytes]
    if row is None or row.wire_bytes is None:
        return None
    each = row.wire_bytes / curve.global_batch / MEGA
    return [samples * each for samples in curve.samples]


AXES: Mapping[str, tuple[str, Axis]] = {
    "training time": ("seconds of training", lambda curve, _: list(curve.trained_s)),
    "samples": ("samples", lambda curve, _: [float(samples) for samples in curve.samples]),
    "bytes": ("MB that a rank has sent", _megabytes),
}


def race_kind(curves: Sequence[RaceCurve]) -> ChartKind:
    """Return the kind of figure with the curves of a suite's races."""
    return ChartKind(
        "race",
        "Loss on held-out samples",
        lambda rows, looks: _race_figure(curves, rows, looks) if curves else None,
        races.headline,
        RACE_COLUMNS,
        lambda _: curves,
        legend,
        "A thin line for each seed, the thick one their median; dotted: the target.",
        choose=lambda _, figure: views(
            figure,
            "against",
            _known_axes(figure),
            [{"xaxis.title.text": AXES[name][0]} for name in _known_axes(figure)],
        ),
    )


def _known_axes(figure: go.Figure) -> list[str]:
    marks = {trace.meta for trace in figure.data}
    return [name for name in AXES if view_mark(name) in marks]


def _race_figure(curves: Sequence[RaceCurve], rows: Sequence[Row], looks: Looks) -> go.Figure:
    figure = go.Figure()
    by_place = {(row.case, row.world_size): row for row in rows}
    races = by_key(((curve.case, curve.world_size), curve) for curve in curves)
    for number, (name, (_, along)) in enumerate(AXES.items()):
        for at, seeds in races.items():
            drawn = [(curve, along(curve, by_place.get(at))) for curve in seeds]
            known = [(curve, x) for curve, x in drawn if x is not None and x[-1] > 0]
            if known:
                figure.add_traces(_curves(known, looks, view_mark(name), visible=number == 0))
    _draw_target(figure, rows)
    style(figure, "race", height=420, hovermode="closest")
    losses = [loss for curve in curves for loss in curve.loss if loss is not None]
    figure.update_xaxes(title=next(iter(AXES.values()))[0], rangemode="tozero", automargin=True)
    if losses:
        figure.update_yaxes(range=[0.95 * min(losses), 1.05 * max(c.loss[0] or 0 for c in curves)])
    figure.update_yaxes(title="loss", automargin=True)
    return figure


def _curves(
    seeds: Sequence[tuple[RaceCurve, list[float]]], looks: Looks, mark: str, visible: bool
) -> list[go.Scatter]:
    first = seeds[0][0]
    look = looks[first.suite, first.case]
    name = safe(place(first), 80)
    shared = {"mode": "lines", "meta": mark, "visible": visible, "legendgroup": name}
    thin = [
        go.Scatter(
            x=x,
            y=list(curve.loss),
            opacity=0.4,
            line={"color": look.color, "width": THIN, "dash": look.dash},
            hovertemplate=f"{name}, seed {curve.repeat + 1}: %{{y:.4g}}<extra></extra>",
            **shared,
        )
        for curve, x in seeds
    ]
    middle = go.Scatter(
        x=[median(column) for column in zip(*(x for _, x in seeds), strict=True)],
        y=[_median(column) for column in zip(*(curve.loss for curve, _ in seeds), strict=True)],
        name=name,
        line={"color": look.color, "width": THICK, "dash": look.dash},
        hovertemplate=f"{name}, median: %{{y:.4g}}<extra></extra>",
        **shared,
    )
    return [*thin, middle]


def _median(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return median(known) if len(known) == len(losses) else None


def _draw_target(figure: go.Figure, rows: Sequence[Row]) -> None:
    found = races.racing(rows)
    if not found:
        return
    target = found[0][1].target_loss
    figure.add_hline(target, line={"color": NEUTRAL, "width": 1.2, "dash": "dot"})


RACE_COLUMNS: tuple[Column[RaceCurve], ...] = (
    CASE,
    RANKS,
    Column("seed", lambda curve: str(curve.repeat + 1)),
    Column("samples", lambda curve: str(curve.samples[-1])),
    Column("training", lambda curve: units.seconds(curve.trained_s[-1])),
    value("first loss", lambda curve: curve.loss[0], "{:.4g}".format),
    value("last loss", lambda curve: curve.loss[-1], "{:.4g}".format),
)


HEIGHT_PX = 220


def _counted(rows: Sequence[Row]) -> list[tuple[Row, dict[int, int]]]:
    found = races.looked_at(rows)
    return [(row, figures.staleness) for row, figures in found if figures.staleness]


def _staleness_figure(rows: Sequence[Row], looks: Looks) -> go.Figure:
    figure = go.Figure()
    for row, counts in _counted(rows):
        look, total = looks[row.suite, row.case], sum(counts.values())
        steps = list(range(max(counts) + 1))
        name = safe(wording.place(row), 80)
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=[100 * counts.get(one, 0) / total for one in steps],
                name=name,
                mode="lines+markers",
                line={"color": look.color, "width": 2, "dash": look.dash},
                marker={"symbol": look.symbol, "size": 7, "color": look.color},
                hovertemplate=f"{name}: %{{y:.3g}} % of the gradients are %{{x}} steps old"
                "<extra></extra>",
            )
        )
    style(figure, "staleness", height=HEIGHT_PX, hovermode="closest")
    figure.update_xaxes(title="steps old", rangemode="tozero", automargin=True)
    figure.update_yaxes(title="% of gradients", rangemode="tozero", automargin=True)
    return figure


def conclude_staleness(rows: Sequence[Row]) -> str | None:
    """Say whose gradients are the stalest; None: none were counted."""
    found = [(row, row.lockstep.mean_staleness) for row, _ in _counted(rows) if row.lockstep]
    known = [(row, mean) for row, mean in found if mean is not None]
    if not known:
        return None
    row, mean = max(known, key=lambda pair: pair[1])
    stages = (row.lockstep.stages if row.lockstep else None) or []
    law = f"equal ranks without a bound make {row.world_size - 1}"
    if stages:
        law = f"its schedule makes {fmean(one.staleness_law for one in stages):.2f}"
    return f"The gradients of {wording.place(row)} are {mean:.2f} steps old in the mean; {law}."


STALENESS = ChartKind(
    "staleness",
    "Staleness of gradients",
    lambda rows, looks: _staleness_figure(rows, looks) if _counted(rows) else None,
    conclude_staleness,
    (*PLACE, *texts("staleness", "gradients")),
    lambda rows: [(row, *of) for row, counts in _counted(rows) for of in sorted(counts.items())],
    legend,
    "Steps that a server, or a pipeline's stage, made while a gradient was computed: 0 is"
    " lockstep.",
)


ROW_PX, AROUND_PX, BETWEEN_PX = 26, 180, 80
PANELS = 2
WIDEST = 3.0
"""Where the axis of step times ends at most, in longest steps."""


AS_FAST, SLOWER, UNKNOWN = "not significantly slower", "slower", "not known"
VERDICT_COLORS = {AS_FAST: COLORS[0], SLOWER: COLORS[1], UNKNOWN: NEUTRAL}
"""What is said of a case next to the fastest → its colour."""


def framework_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw both for every framework at the largest N; None: there is none."""
    found = frameworks.side_by_side(rows)
    if found is None:
        return None
    height = AROUND_PX + PANELS * ROW_PX * len(found.rows)
    figure = make_subplots(rows=PANELS, cols=1, vertical_spacing=BETWEEN_PX / height)
    names = [safe(row.case, 40) for row in found.rows]
    for verdict, color in VERDICT_COLORS.items():
        of_verdict = [row for row in found.rows if _verdict(found, row) == verdict]
        if of_verdict:
            figure.add_trace(_steps(of_verdict, verdict, color), row=1, col=1)
            figure.add_trace(_memory(of_verdict, verdict, color), row=2, col=1)
    style(figure, "frameworks", height=height, bargap=0.35, barmode="overlay")
    figure.update_yaxes(
        autorange="reversed", automargin=True, categoryorder="array", categoryarray=names
    )
    figure.update_xaxes(rangemode="tozero", automargin=True, nticks=5)
    figure.update_xaxes(title="ms per step", range=[0, _end_ms(found.rows)], row=1, col=1)
    figure.update_xaxes(title="MB per rank", row=2, col=1)
    return figure


def _end_ms(rows: Sequence[Row]) -> float:
    """Return where the axis of step times ends: a very wide interval does not hide the bars."""
    steps = [row.step_s for row in rows if row.step_s is not None]
    longest = max(step.value for step in steps)
    reach = max(step.reach[1] for step in steps)
    return 1e3 * min(1.05 * reach, WIDEST * longest)


def _verdict(found: frameworks.SideBySide, row: Row) -> str:
    slower = found.is_slower(row)
    return UNKNOWN if slower is None else SLOWER if slower else AS_FAST


def _steps(rows: Sequence[Row], verdict: str, color: str) -> go.Bar:
    steps = [row.step_s for row in rows if row.step_s is not None]
    bars = _bars(rows, verdict, color, [1e3 * step.value for step in steps], _step_text)
    spans = ((step.value, step.low, step.high) for step in steps)
    return bars.update(error_x=whiskers(spans, color, 1.8, 5, 1e3))


def _bars(
    rows: Sequence[Row],
    verdict: str,
    color: str,
    lengths: Sequence[float],
    text: Callable[[Row], str],
) -> go.Bar:
    return go.Bar(
        name=verdict,
        legendgroup=verdict,
        x=lengths,
        y=[safe(row.case, 40) for row in rows],
        orientation="h",
        marker={"color": color, "opacity": PALER},
        customdata=[text(row) for row in rows],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )


def _step_text(row: Row) -> str:
    """Return what is said of a row's step: its time, and how much longer than the shortest."""
    told = frameworks.milliseconds(row.step_s) if row.step_s else wording.DASH
    longer = frameworks.slower_by(row)
    if longer == frameworks.FASTEST:
        return f"{told} ms, the shortest"
    return f"{told} ms" if longer == wording.DASH else f"{told} ms, {longer} % longer"


def _memory(rows: Sequence[Row], verdict: str, color: str) -> go.Bar:
    peaks = [(row.peak_memory_bytes or 0) / MEGA for row in rows]
    return _bars(rows, verdict, color, peaks, frameworks.memory)


def _compared_rows(rows: Sequence[Row]) -> Sequence[Row]:
    found = frameworks.side_by_side(rows)
    return found.rows if found else ()


FRAMEWORKS = ChartKind(
    "frameworks",
    "Time per step and memory per rank",
    framework_figure,
    frameworks.sentence,
    (
        CASE,
        RANKS,
        value("step, ms", lambda row: row.step_s, frameworks.milliseconds),
        Column("longer than the fastest by, %", frameworks.slower_by),
        Column("memory per rank", frameworks.memory),
    ),
    _compared_rows,
    legend,
    "Above: the median step with its 95 % interval, the shortest first. Below: the peak of the"
    " fullest rank. The colour tells how a case compares with the fastest, by the ratio of both"
    " steps in the same rounds: intervals of step times may overlap and the ratio be certain.",
)
