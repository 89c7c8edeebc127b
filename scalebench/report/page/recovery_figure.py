"""Checkpoints as a figure: what each save costs training, and when it is on the disk."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.recovery import SaveFigures
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, row_name, style
from scalebench.report.page.lanes import BAR, lay
from scalebench.report.page.palette import CATEGORY_COLORS, NEUTRAL
from scalebench.report.tables.recovery import saved_rows
from scalebench.report.words import recovering, wording
from scalebench.report.words.recovering import seconds

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


SAVE_COST = ChartKind(
    "recovery",
    "What a checkpoint costs",
    "",
    _draw,
    lambda rows: recovering.headline(rows) or "",
    _tabulate,
    HEADER,
    lambda figure: legend(figure, MEANINGS),
    "Bars: what a save costs training. Diamond: from then on a failure does not lose it.",
)
