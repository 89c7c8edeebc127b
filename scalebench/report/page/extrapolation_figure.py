"""The projection to more ranks than were measured, with its intervals, as measured and what if."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data.extrapolation import Extrapolation
from scalebench.analysis.projection.rows import ProjectedRow, Projection
from scalebench.records.summary import Row
from scalebench.report.page.charts import (
    EVERY_VIEW,
    ChartKind,
    KeyEntry,
    legend,
    view_mark,
    views,
)
from scalebench.report.page.figure_style import Looks, hover, safe, style
from scalebench.report.page.figures import case_line
from scalebench.report.page.palette import NEUTRAL, PALE
from scalebench.report.tables import predictions
from scalebench.report.tables.layout import CASE, RANKS, Column
from scalebench.report.words import wording

AS_MEASURED = "links and gradients as measured"


def extrapolation_kind(extrapolation: Extrapolation, suite: str) -> ChartKind:
    """Return the kind of figure of a suite's projection."""
    why = extrapolation.reason or "no case of this suite can be predicted"
    return ChartKind(
        "extrapolation",
        "At more ranks",
        lambda rows, looks: extrapolation_figure(rows, looks, extrapolation),
        lambda rows: conclude(extrapolation, suite),
        COLUMNS,
        lambda _: [
            (name, row)
            for name, projection in _projections(extrapolation).items()
            for rows in _of(projection, suite).values()
            for row in rows
        ],
        key,
        "Predicted, not measured; bands: 90 % prediction intervals. Marks: measured.",
        f"Nothing is projected: {wording.plain(why, 300)}",
        remark=lambda rows: remarks(extrapolation, suite),
        choose=lambda rows, figure: views(figure, "what if", list(_projections(extrapolation))),
    )


def _projections(extrapolation: Extrapolation) -> dict[str, Projection]:
    base = {} if extrapolation.as_measured is None else {AS_MEASURED: extrapolation.as_measured}
    return base | extrapolation.changed


def _of(projection: Projection, suite: str) -> dict[str, list[ProjectedRow]]:
    """Return the projected rows of a suite by case, those with an efficiency."""
    found: dict[str, list[ProjectedRow]] = {}
    for row in projection.rows:
        if row.suite == suite and row.efficiency is not None and row.step_s is not None:
            found.setdefault(row.case, []).append(row)
    return found


def extrapolation_figure(
    rows: Sequence[Row], looks: Looks, extrapolation: Extrapolation
) -> go.Figure | None:
    """Draw efficiency over N for every case; None where nothing is projected."""
    suite = rows[0].suite
    figure, sizes = go.Figure(), set()
    for name, projection in _projections(extrapolation).items():
        for case, projected in _of(projection, suite).items():
            for trace in _curve(suite, case, projected, looks):
                trace.visible, trace.meta = name == AS_MEASURED, view_mark(name)
                figure.add_trace(trace)
            sizes |= {row.world_size for row in projected}
    if not sizes:
        return None
    for case_key, group in wording.by_case(rows).items():
        points = [
            (row.world_size, row, row.efficiency)
            for row in group
            if row.efficiency and row.world_size > 1 and not row.oversubscribed
        ]
        if points and not wording.is_baseline(group[0]):
            trace = case_line(case_key, looks[case_key], points, 100.0, " %")
            trace.mode, trace.meta = "markers", EVERY_VIEW
            figure.add_trace(trace)
    style(figure, "extrapolation")
    ticks = sorted(sizes)
    figure.update_xaxes(
        title="N", type="log", tickvals=ticks, ticktext=[str(n) for n in ticks], automargin=True
    )
    figure.update_yaxes(range=[0, 105], ticksuffix=" %", automargin=True)
    return figure


def _curve(
    suite: str, case: str, projected: Sequence[ProjectedRow], looks: Looks
) -> list[go.Scatter]:
    look = looks[suite, case]
    group = safe(f"{suite}/{case}", 200)
    traces = []
    banded = [(row, ends) for row in projected if (ends := _ends(row))]
    if len(banded) > 1:
        sizes = [row.world_size for row, _ in banded]
        traces.append(
            go.Scatter(
                x=[*sizes, *reversed(sizes)],
                y=[*(high for _, (_, high) in banded), *(low for _, (low, _) in reversed(banded))],
                mode="lines", line={"width": 0}, fill="toself", fillcolor=look.color,
                opacity=PALE, hoverinfo="skip", legendgroup=group,
            )
        )  # fmt: skip
    traces.append(
        go.Scatter(
            x=[row.world_size for row in projected],
            y=[round(100 * (row.efficiency or 0.0), 3) for row in projected],
            mode="lines+markers",
            line={"color": look.color, "dash": "dot", "width": 1.6},
            marker={"symbol": "x-thin", "size": 8, "color": look.color,
                    "line": {"width": 1.6, "color": look.color}},
            name=safe(case, 64),
            legendgroup=group,
            **hover(map(_text, projected)),
        )
    )  # fmt: skip
    return traces


def _ends(row: ProjectedRow) -> tuple[float, float] | None:
    """Return the interval of the efficiency in percent."""
    if not row.low_s or not row.high_s or row.ideal_s is None:
        return None
    low, high = (round(min(100 * row.ideal_s / s, 105.0), 3) for s in (row.high_s, row.low_s))
    return low, high


def _span(row: ProjectedRow) -> str:
    if not row.low_s or not row.high_s:
        return ""
    return f"{units.seconds(row.low_s)} to {units.seconds(row.high_s)}"


def _text(row: ProjectedRow) -> str:
    span = _span(row) or "no interval"
    return (
        f"<b>{safe(row.case, 60)}</b>, N={row.world_size}, predicted<br>"
        f"{100 * (row.efficiency or 0.0):.3g} %, step {units.seconds(row.step_s or 0.0)} ({span})"
    )


def key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    """Return the cases that are projected, without the baseline."""
    return tuple(entry for entry in legend(figure) if entry.color != NEUTRAL)


def conclude(extrapolation: Extrapolation, suite: str) -> str:
    """Say how the best case fares at the largest size that is projected."""
    assert extrapolation.as_measured is not None
    projected = [row for rows in _of(extrapolation.as_measured, suite).values() for row in rows]
    furthest = max(row.world_size for row in projected)
    last = [row for row in projected if row.world_size == furthest]
    best = max(last, key=lambda row: row.efficiency or 0.0)
    ends = _ends(best)
    span = "" if ends is None else f" ({ends[0]:.3g} to {ends[1]:.3g})"
    error = extrapolation.as_measured.typical_error
    off = ""
    if error is not None:
        off = f"; this run's predictions are off by {predictions.percent(error)} (root mean square)"
    most = f", the most of {len(last)} cases" if len(last) > 1 else ""
    return (
        f"At N={best.world_size} the cost model gives {wording.plain(best.case, 64)}"
        f" {100 * (best.efficiency or 0.0):.3g} % efficiency{span}{most}{off}."
    )


def remarks(extrapolation: Extrapolation, suite: str) -> list[str]:
    """Say what was taken for granted, and what was refused."""
    projection = extrapolation.as_measured
    if projection is None:
        return []
    said = [f"Taken for granted: {'; '.join(projection.assumptions)}."]
    refused: dict[str, list[ProjectedRow]] = {}
    for row in projection.rows:
        if row.suite == suite and row.reason:
            refused.setdefault(row.case, []).append(row)
    said += [
        f"Not projected: {wording.plain(case, 64)} at N = "
        f"{wording.joined([str(row.world_size) for row in rows])}:"
        f" {wording.plain(rows[0].reason or '', 200)}."
        for case, rows in refused.items()
    ]
    outside = dict.fromkeys(t for row in projection.rows for t in row.outside)
    return [*said, *(f"Beyond the link's support: {wording.plain(text, 200)}." for text in outside)]


COLUMNS: tuple[Column[tuple[str, ProjectedRow]], ...] = (
    Column("what if", lambda of: of[0]),
    CASE.of(lambda of: of[1]),
    RANKS.of(lambda of: of[1]),
    Column("batch all/rank", lambda of: f"{of[1].global_batch}/{of[1].rank_batch}"),
    Column("step", lambda of: units.seconds(of[1].step_s or 0.0)),
    Column("90 % interval", lambda of: _span(of[1]) or wording.DASH),
    Column("efficiency", lambda of: f"{100 * (of[1].efficiency or 0.0):.3g} %"),
)
