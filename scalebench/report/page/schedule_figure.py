"""A pipeline's step as a figure: what the ranks did when, over what their dry run plans."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.pipeline import TimedPass
from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, hover, safe, style
from scalebench.report.page.lanes import write_heading
from scalebench.report.tables.layout import PLACE, Column
from scalebench.report.words import wording

KINDS = {
    "F": ("forward", "#77AADD"),
    "B": ("backward", "#44BB99"),
    "I": ("backward, inputs", "#99DDFF"),
    "W": ("backward, weights", "#EEDD88"),
}
"""Kind of a pass → its name, and its colour: Paul Tol's light scheme."""

PLANNED_OPACITY = 0.45
LANE_PX = 17
HEADING = 1.4
BAR = 0.86
MOST_RANKS = 16


class Bar(NamedTuple):
    """One pass of one rank; times in seconds after the step began."""

    lane: float
    kind: str
    start_s: float
    end_s: float
    text: str
    planned: bool


def schedule_figure(rows: Sequence[Row], _: Looks) -> go.Figure | None:
    """Draw one step of the largest pipeline of every case; None without any."""
    drawn = largest(rows)
    if not drawn:
        return None
    bars, ticks, headings, bottom = _lay(drawn)
    figure = go.Figure()
    for kind in shown_kinds(rows):
        figure.add_trace(_trace(kind, [bar for bar in bars if bar.kind == kind]))
    style(figure, "schedule")
    for place, row in headings:
        write_heading(figure, place, f"<b>{safe(row.case, 40)}</b>, {wording.ranks(row)}")
    figure.update_layout(
        barmode="overlay", height=int(bottom * LANE_PX + 96), hovermode="closest", margin={"t": 8}
    )
    figure.update_yaxes(
        tickvals=[place for place, _ in ticks],
        ticktext=[name for _, name in ticks],
        range=[bottom, 0.0],
        showgrid=False,
        automargin=True,
    )
    figure.update_xaxes(title="ms after the first pass of the step", automargin=True)
    return figure


def largest(rows: Sequence[Row]) -> list[Row]:
    """Return, of every case, the row with the most ranks whose passes are known."""
    found: dict[wording.CaseKey, Row] = {}
    for row in rows:
        if _actions(row) and row.pipeline and 1 < row.pipeline.num_ranks <= MOST_RANKS:
            before = found.get(wording.case_key(row))
            if before is None or before.world_size < row.world_size:
                found[wording.case_key(row)] = row
    return list(found.values())


def shown_kinds(rows: Sequence[Row]) -> list[str]:
    """Return the kinds of passes that the figure shows."""
    there = {action.kind for row in largest(rows) for action in _actions(row)}
    return [kind for kind in KINDS if kind in there]


def conclude(rows: Sequence[Row]) -> str:
    """Conclude the figure of one suite."""
    told = []
    for row in largest(rows):
        assert row.pipeline is not None
        bubble, idle = row.pipeline.bubble_measured_times, row.pipeline.idle_ratio
        told.append(
            f"{wording.plain(row.case, 40)}: bubble {100 * bubble:.0f} %, no pass"
            f" {100 * idle:.0f} % of the time"
        )
    return "; ".join(told) + "."


SCHEDULE = ChartKind(
    "schedule",
    "Pipelines",
    schedule_figure,
    conclude,
    (
        *PLACE,
        Column("rank", lambda of: str(of[1].rank)),
        Column("pass", lambda of: of[1].name),
        Column("from", lambda of: units.seconds(of[1].start_s)),
        Column("to", lambda of: units.seconds(of[1].end_s)),
        Column("planned from", lambda of: units.seconds(of[1].planned_start_s)),
        Column("planned to", lambda of: units.seconds(of[1].planned_end_s)),
    ),
    lambda rows: [(row, action) for row in largest(rows) for action in _actions(row)],
    legend,
    "One traced step of the largest pipeline of each case. Planned, paler: the dry run with the"
    " measured times of the stages, nothing for transfer.",
)


def _actions(row: Row) -> list[TimedPass]:
    return list(row.pipeline.actions or ()) if row.pipeline else []


def _lay(
    rows: Sequence[Row],
) -> tuple[list[Bar], list[tuple[float, str]], list[tuple[float, Row]], float]:
    """Return the bars, the names of the lanes, the headings, and the lower edge; in lanes."""
    bars: list[Bar] = []
    ticks: list[tuple[float, str]] = []
    headings: list[tuple[float, Row]] = []
    place = 0.0
    for row in rows:
        headings.append((place + HEADING / 2, row))
        place += HEADING
        actions = _actions(row)
        lanes = {}
        for rank in sorted({action.rank for action in actions}):
            lanes[rank] = place + 0.5
            ticks += [(place + 0.5, f"rank {rank}, planned"), (place + 1.5, "measured")]
            place += 2.2
        for action in actions:
            planned = (0.0, "planned", action.planned_start_s, action.planned_end_s)
            measured = (1.0, "measured", action.start_s, action.end_s)
            for offset, what, start_s, end_s in (planned, measured):
                text = (
                    f"<b>{action.name}</b>, rank {action.rank}, {what}<br>"
                    f"{units.seconds(start_s)} to {units.seconds(end_s)}"
                )
                lane = lanes[action.rank] + offset
                bars.append(Bar(lane, action.kind, start_s, end_s, text, what == "planned"))
        place += 0.4
    return bars, ticks, headings, place


def _trace(kind: str, bars: Sequence[Bar]) -> go.Bar:
    name, color = KINDS[kind]
    return go.Bar(
        x=[1e3 * (bar.end_s - bar.start_s) for bar in bars],
        base=[1e3 * bar.start_s for bar in bars],
        y=[bar.lane for bar in bars],
        **hover(bar.text for bar in bars),
        orientation="h",
        width=BAR,
        name=name,
        marker={
            "color": color,
            "opacity": [PLANNED_OPACITY if bar.planned else 1.0 for bar in bars],
            "line": {"color": "#5b6570", "width": 0.6},
        },
    )
