"""Measured against predicted: every step, every operation; and the projection to more ranks."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data import Extrapolation
from scalebench.analysis.projection.recovery import ProjectedRow, Projection
from scalebench.analysis.projection.scores import predicted_rows, score
from scalebench.grouping import by_key
from scalebench.records.rows.steps import PredictedOperation
from scalebench.records.summary import Row
from scalebench.report.figures import charts
from scalebench.report.figures.charts import lay, texts_behind
from scalebench.report.figures.scaling import PREDICTION_SYMBOL, case_line
from scalebench.report.figures.style import (
    NEUTRAL,
    PALE,
    Looks,
    hover,
    reference_line,
    row_name,
    safe,
    step_text,
    style,
    whiskers,
    wide_axis,
)
from scalebench.report.tables import predictions
from scalebench.report.tables.layout import CASE, PLACE, RANKS, Column, Columns
from scalebench.report.words import wording

ROOM = 0.28
DODGE = 0.16
"""Of a lane, between what was measured and what was predicted."""

MEASURED, PREDICTED = "measured, 95 % interval", "predicted, 90 % interval"


def steps_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw every predicted step under the measured one; None without predictions."""
    drawn = predicted_rows(rows)
    if not drawn:
        return None
    placed = lay(drawn)
    figure = go.Figure()
    lanes = list(zip(placed.places, drawn, strict=True))
    figure.add_trace(_measured(lanes, looks))
    figure.add_trace(_predicted(lanes, looks))
    figure.add_trace(_errors(lanes))
    style(figure, "predicted-steps")
    placed.draw(figure)
    high = max(1e3 * _end(row) for row in drawn)
    figure.update_xaxes(title="ms per step", range=[0, high * (1 + ROOM)], automargin=True)
    return figure


def _end(row: Row) -> float:
    measured = (row.step_s.value, row.step_s.high) if row.step_s else ()
    ends = (row.predicted_step_s, row.prediction and row.prediction.high_s, *measured)
    return max(float(end) for end in ends if end)


def _measured(lanes: Sequence[tuple[float, Row]], looks: Looks) -> go.Scatter:
    steps = [(y, row, row.step_s) for y, row in lanes if row.step_s]
    return go.Scatter(
        x=[1e3 * step.value for _, _, step in steps],
        y=[y - DODGE for y, _, _ in steps],
        error_x=whiskers(
            ((s.value, s.low, s.high) for _, _, s in steps), NEUTRAL, 1.4, 4, 1e3
        ),
        mode="markers",
        legendgroup=MEASURED,
        **hover(f"{row_name(row)}<br>measured: {step_text(row)}" for _, row, _ in steps),
        marker={
            "size": 9,
            "color": [looks[wording.case_key(row)].color for _, row, _ in steps],
            "symbol": [looks[wording.case_key(row)].symbol for _, row, _ in steps],
        },
    )  # fmt: skip


def _predicted(lanes: Sequence[tuple[float, Row]], looks: Looks) -> go.Scatter:
    found = []
    for y, row in lanes:
        told, value = row.prediction, row.predicted_step_s or 0.0
        low, high = (told.low_s, told.high_s) if told else (None, None)
        found.append((y, row, value, low or value, high or value))
    return go.Scatter(
        x=[1e3 * value for _, _, value, _, _ in found],
        y=[y + DODGE for y, *_ in found],
        error_x=whiskers((of[2:] for of in found), NEUTRAL, 1.1, 4, 1e3),
        mode="markers",
        legendgroup=PREDICTED,
        **hover(
            f"{row_name(row)}<br>predicted: {units.seconds(value)}"
            f" ({units.seconds(low)} to {units.seconds(high)})"
            for _, row, value, low, high in found
        ),
        marker={
            "symbol": PREDICTION_SYMBOL, "size": 9,
            "color": [looks[wording.case_key(row)].color for _, row, *_ in found],
            "line": {
                "width": 1.8,
                "color": [looks[wording.case_key(row)].color for _, row, *_ in found],
            },
        },
    )  # fmt: skip


def _errors(lanes: Sequence[tuple[float, Row]]) -> go.Scatter:
    text = [f"  {predictions.signed_percent(row.prediction_error)}" for _, row in lanes]
    return texts_behind([1e3 * _end(row) for _, row in lanes], [y for y, _ in lanes], text)


def conclude_steps(rows: Sequence[Row]) -> str:
    """Say how far the predicted steps are off."""
    found = score(rows)
    if found is None:
        return "No step was predicted."
    worst = found["worst"]
    where = f"{wording.plain(worst['case'], 64)} at N={worst['world_size']}"
    error = predictions.signed_percent(found["worst_error"])
    if found["num_rows"] == 1:
        return f"The predicted step of {where} is {error} off the measured one."
    return (
        f"Predicted steps are {predictions.percent(found['mean_error'])} off the measured ones on"
        f" average; the furthest is that of {where} ({error})."
    )


def operations_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw every operation's measured over its predicted time; None where none was measured."""
    drawn = operations(rows)
    if not drawn:
        return None
    figure = go.Figure()
    ends = [1e3 * t for _, one, took_s in drawn for t in (one.predicted_s, took_s)]
    diagonal = [0.8 * min(ends), 1.25 * max(ends)]
    figure.add_trace(reference_line(diagonal, diagonal))
    for key, group in wording.by_case(row for row, *_ in drawn).items():
        members = {id(row) for row in group}
        mine = [of for of in drawn if id(of[0]) in members]
        look = looks[key]
        figure.add_trace(
            go.Scatter(
                x=[1e3 * one.predicted_s for _, one, _ in mine],
                y=[1e3 * took_s for *_, took_s in mine],
                mode="markers",
                legendgroup=safe(f"{key[0]}/{key[1]}", 200),
                marker={"symbol": look.symbol, "size": 9, "color": look.color, "opacity": 0.8},
                **hover(_operation_text(*of) for of in mine),
            )
        )
    style(figure, "predicted-operations", hovermode="closest")
    figure.update_xaxes(title="predicted, ms", automargin=True, **wide_axis(ends))
    figure.update_yaxes(title="measured, ms", automargin=True, **wide_axis(ends))
    return figure


def operations(rows: Sequence[Row]) -> list[tuple[Row, PredictedOperation, float]]:
    """Return the operations of several ranks that were predicted, and how long each took."""
    return [
        (row, one, one.measured_s)
        for row in rows
        for one in (row.prediction.operations if row.prediction else ())
        if row.world_size > 1 and one.measured_s and one.predicted_s
    ]


def _operation_text(row: Row, found: PredictedOperation, took_s: float) -> str:
    return (
        f"{row_name(row)}<br>{safe(found.op, 40)}, {units.bytes_(found.size_bytes)}<br>"
        f"predicted {units.seconds(found.predicted_s)},"
        f" measured {units.seconds(took_s)}"
    )


def conclude_operations(rows: Sequence[Row]) -> str:
    """Say how many operations lie near their prediction."""
    drawn = operations(rows)
    near = [one for _, one, took_s in drawn if abs(one.predicted_s / took_s - 1) <= 0.1]
    return (
        f"{len(near)} of {len(drawn)} operations took what was predicted within 10 %; on the"
        " dotted line both are alike."
    )


OPERATION_COLUMNS: Columns = (
    *PLACE,
    Column("operation", lambda of: wording.plain(of[1].op, 40)),
    Column("size", lambda of: units.bytes_(of[1].size_bytes)),
    Column("predicted", lambda of: units.seconds(of[1].predicted_s)),
    Column("measured", lambda of: units.seconds(of[2])),
    Column("error", lambda of: predictions.signed_percent(of[1].predicted_s / of[2] - 1)),
)
PREDICTED_STEPS = charts.ChartKind(
    "predicted-steps",
    "Steps, measured and predicted",
    steps_figure,
    conclude_steps,
    predictions.COLUMNS,
    predicted_rows,
    note="Upper mark: measured, 95 % interval; cross: predicted, 90 % interval; behind: the error.",
)
PREDICTED_OPERATIONS = charts.ChartKind(
    "predicted-operations",
    "Operations, measured and predicted",
    operations_figure,
    conclude_operations,
    OPERATION_COLUMNS,
    operations,
    note="Every bucket or collective of a step: transfer without waiting, median over traced steps."
    " Two in flight at once share the link, and each lasts as long as both.",
)


AS_MEASURED = "links and gradients as measured"


def extrapolation_kind(extrapolation: Extrapolation, suite: str) -> charts.ChartKind:
    """Return the kind of figure of a suite's projection."""
    why = extrapolation.reason or "no case of this suite can be predicted"
    return charts.ChartKind(
        "extrapolation",
        "At more ranks",
        lambda rows, looks: extrapolation_figure(rows, looks, extrapolation),
        lambda rows: conclude_extrapolation(extrapolation, suite),
        EXTRAPOLATION_COLUMNS,
        lambda _: [
            (name, row)
            for name, projection in _projections(extrapolation).items()
            for rows in _of_suite(projection, suite).values()
            for row in rows
        ],
        lambda figure: tuple(entry for entry in charts.legend(figure) if entry.color != NEUTRAL),
        "Predicted, not measured; bands: 90 % prediction intervals. Marks: measured.",
        f"Nothing is projected: {wording.plain(why, 300)}",
        remark=lambda rows: extrapolation_remarks(extrapolation, suite),
        choose=lambda rows, figure: charts.views(
            figure, "what if", list(_projections(extrapolation))
        ),
    )


def _projections(extrapolation: Extrapolation) -> dict[str, Projection]:
    base = {} if extrapolation.as_measured is None else {AS_MEASURED: extrapolation.as_measured}
    return base | extrapolation.changed


def _of_suite(projection: Projection, suite: str) -> dict[str, list[ProjectedRow]]:
    """Return the projected rows of a suite by case, those with an efficiency."""
    return by_key(
        (row.case, row)
        for row in projection.rows
        if row.suite == suite and row.efficiency is not None and row.step_s is not None
    )


def extrapolation_figure(
    rows: Sequence[Row], looks: Looks, extrapolation: Extrapolation
) -> go.Figure | None:
    """Draw efficiency over N for every case; None where nothing is projected."""
    suite = rows[0].suite
    figure, sizes = go.Figure(), set()
    for name, projection in _projections(extrapolation).items():
        for case, projected in _of_suite(projection, suite).items():
            for trace in _curve(suite, case, projected, looks):
                trace.visible, trace.meta = name == AS_MEASURED, charts.view_mark(name)
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
            trace.mode, trace.meta = "markers", charts.EVERY_VIEW
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
            **hover(map(_projected_text, projected)),
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


def _projected_text(row: ProjectedRow) -> str:
    span = _span(row) or "no interval"
    return (
        f"<b>{safe(row.case, 60)}</b>, N={row.world_size}, predicted<br>"
        f"{100 * (row.efficiency or 0.0):.3g} %, step {units.seconds(row.step_s or 0.0)} ({span})"
    )


def conclude_extrapolation(extrapolation: Extrapolation, suite: str) -> str:
    """Say how the best case fares at the largest size that is projected."""
    assert extrapolation.as_measured is not None
    projected = [
        row for rows in _of_suite(extrapolation.as_measured, suite).values() for row in rows
    ]
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
    source = "the cost model" if extrapolation.changed else "the growth of the steps"
    return (
        f"At N={best.world_size} {source} gives {wording.plain(best.case, 64)}"
        f" {100 * (best.efficiency or 0.0):.3g} % efficiency{span}{most}{off}."
    )


def extrapolation_remarks(extrapolation: Extrapolation, suite: str) -> list[str]:
    """Say what was taken for granted, and what was refused."""
    projection = extrapolation.as_measured
    if projection is None:
        return []
    said = [f"Taken for granted: {'; '.join(projection.assumptions)}."]
    refused = by_key(
        (row.case, row) for row in projection.rows if row.suite == suite and row.reason
    )
    said += [
        f"Not projected: {wording.plain(case, 64)} at N = "
        f"{wording.joined([str(row.world_size) for row in rows])}:"
        f" {wording.plain(rows[0].reason or '', 200)}."
        for case, rows in refused.items()
    ]
    outside = dict.fromkeys(t for row in projection.rows for t in row.outside)
    return [*said, *(f"Beyond the link's support: {wording.plain(text, 200)}." for text in outside)]


EXTRAPOLATION_COLUMNS: tuple[Column[tuple[str, ProjectedRow]], ...] = (
    Column("what if", lambda of: of[0]),
    CASE.of(lambda of: of[1]),
    RANKS.of(lambda of: of[1]),
    Column("batch all/rank", lambda of: f"{of[1].global_batch}/{of[1].rank_batch}"),
    Column("step", lambda of: units.seconds(of[1].step_s or 0.0)),
    Column("90 % interval", lambda of: _span(of[1]) or wording.DASH),
    Column("efficiency", lambda of: f"{100 * (of[1].efficiency or 0.0):.3g} %"),
)
