"""Races: the loss on held-out samples against time, samples and bytes."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data.races import RaceCurve
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend, view_mark, views
from scalebench.report.page.figure_style import Looks, safe, style
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.tables import races
from scalebench.report.tables.layout import CASE, RANKS, Column, value
from scalebench.report.words.wording import place

THIN, THICK = 0.9, 2.4
MEGA = 1e6

Axis = Callable[[RaceCurve, Row | None], list[float] | None]


def _times(curve: RaceCurve, _: Row | None) -> list[float]:
    return list(curve.trained_s)


def _samples(curve: RaceCurve, _: Row | None) -> list[float]:
    return [float(samples) for samples in curve.samples]


def _megabytes(curve: RaceCurve, row: Row | None) -> list[float] | None:
    if curve.sent_bytes is not None:
        return [sent / MEGA for sent in curve.sent_bytes]
    if row is None or row.wire_bytes is None:
        return None
    each = row.wire_bytes / curve.global_batch / MEGA
    return [samples * each for samples in curve.samples]


AXES: Mapping[str, tuple[str, Axis]] = {
    "training time": ("seconds of training", _times),
    "samples": ("samples", _samples),
    "bytes": ("MB that a rank has sent", _megabytes),
}


def race_kind(curves: Sequence[RaceCurve]) -> ChartKind:
    """Return the kind of figure with the curves of a suite's races."""
    return ChartKind(
        "race",
        "Loss on held-out samples",
        lambda rows, looks: _figure(curves, rows, looks) if curves else None,
        races.headline,
        COLUMNS,
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


def _figure(curves: Sequence[RaceCurve], rows: Sequence[Row], looks: Looks) -> go.Figure:
    figure = go.Figure()
    by_place = {(row.case, row.world_size): row for row in rows}
    races: dict[tuple[str, int], list[RaceCurve]] = {}
    for curve in curves:
        races.setdefault((curve.case, curve.world_size), []).append(curve)
    for number, (name, (_, along)) in enumerate(AXES.items()):
        for at, seeds in races.items():
            drawn = [(curve, along(curve, by_place.get(at))) for curve in seeds]
            known = [(curve, x) for curve, x in drawn if x is not None and x[-1] > 0]
            if known:
                figure.add_traces(_lines(known, looks, view_mark(name), visible=number == 0))
    _draw_target(figure, rows)
    style(figure, "race")
    losses = [loss for curve in curves for loss in curve.loss if loss is not None]
    figure.update_layout(height=420, hovermode="closest")
    figure.update_xaxes(title=next(iter(AXES.values()))[0], rangemode="tozero", automargin=True)
    if losses:
        figure.update_yaxes(range=[0.95 * min(losses), 1.05 * max(c.loss[0] or 0 for c in curves)])
    figure.update_yaxes(title="loss", automargin=True)
    return figure


def _lines(
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


COLUMNS: tuple[Column[RaceCurve], ...] = (
    CASE,
    RANKS,
    Column("seed", lambda curve: str(curve.repeat + 1)),
    Column("samples", lambda curve: str(curve.samples[-1])),
    Column("training", lambda curve: units.seconds(curve.trained_s[-1])),
    value("first loss", lambda curve: curve.loss[0], "{:.4g}".format),
    value("last loss", lambda curve: curve.loss[-1], "{:.4g}".format),
)
