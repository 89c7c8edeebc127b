"""Checkpoints as a figure: what each save costs training, and when it is on the disk."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.recovery import FailureFigures, SaveFigures
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, row_name, style
from scalebench.report.page.lanes import BAR, lay
from scalebench.report.page.palette import CATEGORY_COLORS, NEUTRAL
from scalebench.report.tables import recovery
from scalebench.report.tables.recovery import failed_rows, saved_rows, seconds_or_none
from scalebench.report.words import wording
from scalebench.report.words.wording import seconds

BLOCKED, SLOWER, DURABLE = "blocked", "slower steps", "on the disk"
MEANINGS = {
    BLOCKED: "No rank trains.",
    SLOWER: "How much longer the steps take until then.",
    DURABLE: "Every byte is on the disk: only then does the checkpoint survive a failure.",
}
HEADER = ("case", "N", "method", "blocked", "slower", "cost", "on the disk")


def _draw(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    saved = saved_rows(rows)
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
    for name, color, found in parts:
        figure.add_trace(
            go.Bar(
                x=[max(0.0, one.value) / scale if one else 0.0 for one in found],
                y=list(lanes.places),
                name=name,
                orientation="h",
                width=BAR,
                marker={"color": color, "line": {"color": NEUTRAL, "width": 0.7}},
                customdata=[[_told(*pair)] for pair in saved],
                hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )
    figure.add_trace(
        go.Scatter(
            x=[save.durable_s.value / scale for _, save in saved],
            y=list(lanes.places),
            name=DURABLE,
            mode="markers",
            marker={"symbol": "diamond", "size": 11, "color": NEUTRAL},
            customdata=[[_told(*pair)] for pair in saved],
            hovertemplate="%{customdata[0]}<extra></extra>",
            cliponaxis=False,
        )
    )
    style(figure, "recovery")
    lanes.draw(figure)
    figure.update_yaxes(
        ticktext=[f"N={row.world_size}, {wording.plain(one.method, 32)}" for row, one in saved]
    )
    figure.update_xaxes(title=f"{unit} since the save began", rangemode="tozero", automargin=True)
    return figure


def _told(row: Row, save: SaveFigures) -> str:
    slower = wording.DASH if save.slower_s is None else seconds(save.slower_s)
    return (
        f"{row_name(row)}, {wording.plain(save.method, 32)}<br>blocked {seconds(save.stall_s)}, "
        f"slower steps {slower}, on the disk after {seconds(save.durable_s)}"
    )


def _tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            wording.plain(row.case, 64),
            str(row.world_size),
            wording.plain(save.method, 32),
            units.seconds(save.stall_s.value),
            wording.DASH if save.slower_s is None else units.seconds(save.slower_s.value),
            units.seconds(save.cost_s.value),
            units.seconds(save.durable_s.value),
        )
        for row, save in saved_rows(rows)
    ]


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
    failures = failed_rows(rows)
    if not failures:
        return None
    lanes = lay([row for row, _ in failures])
    figure = go.Figure()
    for phase, name, color, _meaning in PHASE_LOOKS:
        known = [one.phases_s.get(phase) for _, one in failures]
        figure.add_trace(
            go.Bar(
                x=[found.value if found else 0.0 for found in known],
                y=list(lanes.places),
                name=name,
                orientation="h",
                width=BAR,
                marker={"color": color, "line": {"color": NEUTRAL, "width": 0.7}},
                customdata=[
                    [f"{row_name(row)}, {_failure(one)}<br>{name}: {seconds_or_none(found)}"]
                    for (row, one), found in zip(failures, known, strict=True)
                ],
                hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )
    style(figure, "failures")
    lanes.draw(figure)
    figure.update_yaxes(ticktext=[f"N={row.world_size}, {_failure(one)}" for row, one in failures])
    figure.update_xaxes(title="seconds since the failure", rangemode="tozero", automargin=True)
    return figure


def _failure(one: FailureFigures) -> str:
    return f"{wording.plain(one.kind, 32)}, {wording.plain(one.restarted_by, 32)}"


def _tabulate_failures(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            wording.plain(row.case, 64),
            str(row.world_size),
            _failure(one),
            *(seconds_or_none(one.phases_s.get(phase)) for phase, *_ in PHASE_LOOKS),
            units.seconds(one.total_s.value),
        )
        for row, one in failed_rows(rows)
    ]


FAILURE_PHASES = ChartKind(
    "failures",
    "From a failure to the step that was lost",
    "",
    _draw_failures,
    lambda rows: " ".join(recovery.failed(rows)),
    _tabulate_failures,
    ("case", "N", "failure", *(name for _, name, *_ in PHASE_LOOKS), "total"),
    lambda figure: legend(figure, {name: meaning for _, name, _, meaning in PHASE_LOOKS}),
    "Each colour ends when the last rank is that far. Mean over failures, by one clock.",
)

SAVE_COST = ChartKind(
    "recovery",
    "What a checkpoint costs",
    "",
    _draw,
    lambda rows: recovery.headline(rows) or "",
    _tabulate,
    HEADER,
    lambda figure: legend(figure, MEANINGS),
    "Bars: what a save costs training. Diamond: from then on a failure does not lose it.",
)
