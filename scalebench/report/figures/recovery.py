"""Checkpoints as a figure: what each save costs, what a failure takes, the loss meanwhile."""

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.race import FailureFigures, SaveFigures
from scalebench.records.summary import Row
from scalebench.report.figures.charts import ChartKind, bars, diamonds, lay, legend
from scalebench.report.figures.style import (
    CATEGORY_COLORS,
    COLORS,
    NEUTRAL,
    SYMBOLS,
    Looks,
    row_name,
    style,
)
from scalebench.report.tables import recovery
from scalebench.report.tables.layout import CASE, RANKS, Column, placed, value, value_of_each
from scalebench.report.words import wording
from scalebench.report.words.wording import seconds

BLOCKED, SLOWER, DURABLE = "blocked", "slower steps", "on the disk"
MEANINGS = {
    BLOCKED: "No rank trains.",
    SLOWER: "How much longer the steps take until then.",
    DURABLE: "Every byte is on the disk: only then does the checkpoint survive a failure.",
}


def _draw(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    saved = recovery.saved_rows(rows)
    if not saved:
        return None
    lanes = lay([row for row, _ in saved])
    longest = max(max(save.cost_s.value, save.durable_s.value) for _, save in saved)
    scale, unit = (1.0, "seconds") if longest >= 1 else (1e-3, "ms")
    figure = go.Figure()
    parts = (
        (BLOCKED, CATEGORY_COLORS["gradients"], [save.stall_s for _, save in saved]),
        (SLOWER, CATEGORY_COLORS["optimizer"], [save.slower_s for _, save in saved]),
    )
    told = [_hover_text(*pair) for pair in saved]
    for name, color, found in parts:
        lengths = [max(0.0, one.value) / scale if one else 0.0 for one in found]
        figure.add_trace(bars(name, color, lengths, lanes.places, told))
    ends = [save.durable_s.value / scale for _, save in saved]
    figure.add_trace(diamonds(DURABLE, NEUTRAL, ends, lanes.places, told))
    style(figure, "recovery")
    lanes.draw(figure)
    figure.update_yaxes(
        ticktext=[f"N={row.world_size}, {wording.plain(one.method, 32)}" for row, one in saved]
    )
    figure.update_xaxes(title=f"{unit} since the save began", rangemode="tozero", automargin=True)
    return figure


def _hover_text(row: Row, save: SaveFigures) -> str:
    slower = wording.DASH if save.slower_s is None else seconds(save.slower_s)
    return (
        f"{row_name(row)}, {wording.plain(save.method, 32)}<br>blocked {seconds(save.stall_s)}, "
        f"slower steps {slower}, on the disk after {seconds(save.durable_s)}"
    )


PHASE_LOOKS = (
    ("notice", "noticed", "#EE8866", "The launcher has heard of it."),
    ("stop", "stopped", "#FFAABB", "No rank is left."),
    ("start", "started", "#77AADD", "The last process runs."),
    ("rendezvous", "connected", "#99DDFF", "Every rank has found the others."),
    ("build", "built", "#44BB99", "Model and wrapper are there."),
    ("load", "loaded", "#BBCC33", "The state of the checkpoint is there."),
    ("first_step", "first step", "#EEDD88", "One step is done."),
    ("catch_up", "caught up", "#AAAA00", "The steps that were lost are done again."),
)
"""Phase, its name, its colour (Paul Tol's light scheme), what has happened at its end."""


def _draw_failures(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    failures = recovery.failed_rows(rows)
    if not failures:
        return None
    lanes = lay([row for row, _ in failures])
    figure = go.Figure()
    for key, name, color, _meaning in PHASE_LOOKS:
        known = [one.phases_s.get(key) for _, one in failures]
        lengths = [found.value if found else 0.0 for found in known]
        told = [
            f"{row_name(row)}, {_failure(one)}<br>{name}: "
            f"{recovery.mean_seconds(found) if found else wording.DASH}"
            for (row, one), found in zip(failures, known, strict=True)
        ]
        figure.add_trace(bars(name, color, lengths, lanes.places, told))
    style(figure, "failures")
    lanes.draw(figure)
    figure.update_yaxes(ticktext=[f"N={row.world_size}, {_failure(one)}" for row, one in failures])
    figure.update_xaxes(title="seconds since the failure", rangemode="tozero", automargin=True)
    return figure


def _failure(one: FailureFigures) -> str:
    return f"{wording.plain(one.kind, 32)}, {wording.plain(one.restarted_by, 32)}"


FAILURE_PHASES = ChartKind(
    "failures",
    "From a failure to the step that was lost",
    _draw_failures,
    lambda rows: " ".join(recovery.failed(rows)),
    placed(
        Column("failure", _failure),
        *value_of_each(
            {key: name for key, name, *_ in PHASE_LOOKS},
            lambda one, key: one.phases_s.get(key),
            recovery.mean_seconds,
        ),
        Column("total", lambda one: units.seconds(one.total_s.value)),
    ),
    recovery.failed_rows,
    lambda figure: legend(figure, {name: meaning for _, name, _, meaning in PHASE_LOOKS}),
    "Each colour ends when the last rank is that far. Mean over failures, by one clock.",
)

SAVE_COST = ChartKind(
    "recovery",
    "What a checkpoint costs",
    _draw,
    recovery.headline,
    placed(
        Column("method", lambda one: wording.plain(one.method, 32)),
        Column("blocked", lambda one: units.seconds(one.stall_s.value)),
        value("slower", lambda one: one.slower_s, recovery.mean_seconds),
        Column("cost", lambda one: units.seconds(one.cost_s.value)),
        Column("on the disk", lambda one: units.seconds(one.durable_s.value)),
    ),
    recovery.saved_rows,
    lambda figure: legend(figure, MEANINGS),
    "Bars: what a save costs training. Diamond: from then on a failure does not lose it.",
)


def _draw_elastic(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    found = recovery.elastic_rows(rows)
    if not found:
        return None
    figure = go.Figure()
    symbols = list(SYMBOLS)
    for number, stretch in enumerate(found):
        part = stretch.part
        steps = [part.first_step + i for i in range(len(part.loss))]
        name = f"{wording.plain(stretch.row.case, 64)}, N={part.world_size}"
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=part.loss,
                name=name,
                mode="lines+markers",
                line={"color": COLORS[number % len(COLORS)], "width": 2},
                marker={"symbol": symbols[number % len(symbols)], "size": 7},
                hovertemplate=f"{name}<br>step %{{x}}: loss %{{y:.4f}}<extra></extra>",
            )
        )
    style(figure, "elastic", showlegend=True)
    figure.update_xaxes(title="step", automargin=True)
    figure.update_yaxes(title="loss", automargin=True)
    return figure


ELASTIC_LOSS = ChartKind(
    "elastic",
    "The loss while a rank is missing",
    _draw_elastic,
    lambda rows: " ".join(recovery.over_the_seam(rows)),
    (
        CASE.of(lambda one: one.row),
        RANKS.of(lambda one: one.part),
        recovery.STEPS,
        value("samples/s", lambda one: one.part.throughput, units.count),
        replace(recovery.LOSS, header="loss of the last step"),
    ),
    recovery.elastic_rows,
    note="Where two lines overlap, steps that were lost are done again.",
)
