"""Measured against predicted: every row's step, and every operation of it."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.prediction_scores import predicted_rows, score
from scalebench.records.rows.prediction import PredictedOperation
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind
from scalebench.report.page.figure_style import (
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
from scalebench.report.page.figures import PREDICTION_SYMBOL
from scalebench.report.page.lanes import lay, texts_behind
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.tables import predictions
from scalebench.report.tables.layout import PLACE, Column, Columns
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
    style(figure, "predicted-operations")
    figure.update_layout(hovermode="closest")
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
PREDICTED_STEPS = ChartKind(
    "predicted-steps",
    "Steps, measured and predicted",
    steps_figure,
    conclude_steps,
    predictions.COLUMNS,
    predicted_rows,
    note="Upper mark: measured, 95 % interval; cross: predicted, 90 % interval; behind: the error.",
)
PREDICTED_OPERATIONS = ChartKind(
    "predicted-operations",
    "Operations, measured and predicted",
    operations_figure,
    conclude_operations,
    OPERATION_COLUMNS,
    operations,
    note="Every bucket or collective of a step: transfer without waiting, median over traced steps."
    " Two in flight at once share the link, and each lasts as long as both.",
)
