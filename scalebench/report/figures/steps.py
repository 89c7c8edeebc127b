"""One step, ranks as rows, a pipeline's over its plan; and what changes while a job trains."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.rank_steps import ACTIVITIES, HIDDEN, RankStep, StepTimeline
from scalebench.records.rows.budget import MEASURED
from scalebench.records.rows.strategies import TimedPass
from scalebench.records.summary import Row
from scalebench.report.figures.charts import (
    ChartKind,
    Choices,
    add_in_views,
    legend,
    views,
    write_heading,
)
from scalebench.report.figures.style import (
    DASHES,
    PART_COLORS,
    Looks,
    hover,
    lane_axis,
    safe,
    style,
)
from scalebench.report.tables.layout import PLACE, Column, placed, texts
from scalebench.report.words import wording
from scalebench.report.words.wording import place

LANE_PX = 46
ABOVE, BELOW = 0.44, 0.2
"""Heights of a rank's two bars, in lanes."""

COMMUNICATION = "in_flight"
MEANINGS = {
    "codec": "It encodes or decodes gradients.",
    "exposed_transfer": "Data on the wire while it computes nothing.",
    "wait": "In a communication that others have not reached.",
    "copies": "It copies or fills GPU memory, nothing else.",
    "data_stall": "It waits for the next batch.",
    "other_idle": "Nothing of these.",
}
KINDS = {
    "compute": ("computation", "#C3C9D0", "The rank computes."),
    **{
        part.key: (part.name, PART_COLORS[part.key], MEANINGS.get(part.key, part.meaning))
        for part in sorted(MEASURED, key=lambda part: part.key != "codec")  # its own work first
        if part.key in ACTIVITIES
    },
    COMMUNICATION: ("in flight", "#99A8B5", "Below each rank: its communication; hover for sizes."),
    HIDDEN: ("hidden", "#44708B", "The part during computation, which costs nothing."),
}
"""Kind → its name, colour and meaning."""
HEIGHT_PX = 220

Moves = Sequence[tuple[int, float]]
"""From which step on a value was in force, and the value."""


def timeline_kind(timelines: Sequence[StepTimeline]) -> ChartKind:
    """Return the kind of figure that shows one step of each of the cases, one at a time."""
    found = sorted(timelines, key=lambda one: -_exposed(one))
    return ChartKind(
        "timeline",
        "One step",
        lambda *_: timeline_figure(found) if found else None,
        lambda _: conclude_timeline(found),
        TIMELINE_COLUMNS,
        lambda _: timeline_lines(found),
        lambda figure: legend(figure, {name: meaning for name, _, meaning in KINDS.values()}),
        "The traced step of median length; tracing's own cost included. All ranks on one clock. All"
        " traced steps: scalebench export RUN --format chrome-trace --out trace.json writes them"
        " for ui.perfetto.dev.",
        "A timeline needs traced steps of several ranks: --gpus 1,2 without --no-trace.",
        remark=lambda _: timeline_remarks(found),
        choose=lambda _, figure: choose_timeline(figure, found),
    )


def _exposed(one: StepTimeline) -> float:
    lost = [rank.total_s("exposed_transfer") + rank.total_s("wait") for rank in one.ranks]
    return max(lost) / one.step_s


def timeline_figure(timelines: Sequence[StepTimeline]) -> go.Figure:
    """Draw the steps; only the first one is visible."""
    figure = go.Figure()
    add_in_views(figure, timelines, place, _traces)
    height, margin = _height(timelines[0]), {"t": 30}
    style(figure, "timeline", barmode="overlay", hovermode="closest", margin=margin, height=height)
    figure.update_yaxes(showgrid=False, automargin=True, **_axis(timelines[0]))
    figure.update_xaxes(title="ms after the step began", automargin=True)
    return figure


def _height(one: StepTimeline) -> int:
    return LANE_PX * len(one.ranks) + 84


def _axis(one: StepTimeline) -> dict[str, object]:
    return {
        "tickvals": list(range(len(one.ranks))),
        "ticktext": [f"rank {rank.rank}" for rank in one.ranks],
        "range": [len(one.ranks) - 0.5, -0.55],
    }


def _traces(one: StepTimeline) -> list[go.Bar]:
    traces = [_spans(one, kind, -0.14, ABOVE) for kind in ACTIVITIES]
    traces.append(_operations(one))
    traces.append(_spans(one, HIDDEN, 0.26, BELOW * 0.5))
    return [trace for trace in traces if trace.x]


def _spans(one: StepTimeline, kind: str, offset: float, height: float) -> go.Bar:
    name, color, _ = KINDS[kind]
    found = [
        (lane + offset, start, end, str(rank.rank))
        for lane, rank in enumerate(one.ranks)
        for start, end in rank.spans.get(kind, ())
    ]
    head = f"rank %{{customdata[0]}}: {name}, "
    return _bar(kind, found, head, color, height)


def _operations(one: StepTimeline) -> go.Bar:
    found = []
    for lane, rank in enumerate(one.ranks):
        for op in rank.operations:
            size = "" if op.num_bytes is None else f", {units.bytes_(op.num_bytes)}"
            text = f"rank {rank.rank}: {safe(op.kind, 40)} {op.ordinal}{size}"
            found.append((lane + 0.26, op.start_s, op.end_s, text))
    return _bar(COMMUNICATION, found, "%{customdata[0]}<br>", KINDS[COMMUNICATION][1], BELOW)


def _bar(
    kind: str,
    found: Sequence[tuple[float, float, float, str]],
    head: str,
    color: str,
    height: float,
) -> go.Bar:
    """Draw bars; what a page says of each is put together there, so that it stays small.

    ``found``: place, start and end in seconds, and a text of each bar. ``head`` begins what is said
    of a bar, by plotly's template; its text is ``customdata[0]``. Heights are in lanes.
    """
    return go.Bar(
        x=[_short(1e3 * (end - start)) for _, start, end, _ in found],
        base=[_short(1e3 * start) for _, start, _, _ in found],
        y=[y for y, *_ in found],
        customdata=[[text, units.seconds(end - start)] for _, start, end, text in found],
        hovertemplate=f"{head}%{{customdata[1]}} from %{{base:.4~g}} ms<extra></extra>",
        orientation="h",
        width=height,
        name=KINDS[kind][0],
        legendgroup=kind,
        marker={"color": color, "line": {"width": 0}},
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def choose_timeline(figure: go.Figure, timelines: Sequence[StepTimeline]) -> Choices | None:
    """Return a view for each step, with its own ranks and length."""
    layouts = [
        {
            **{f"yaxis.{name}": value for name, value in _axis(one).items()},
            "height": _height(one),
            "xaxis.autorange": True,
        }
        for one in timelines
    ]
    return views(figure, "case", list(map(place, timelines)), layouts)


def conclude_timeline(timelines: Sequence[StepTimeline]) -> str:
    """Conclude the step that is shown at first: the rank that loses most, and to what."""
    one = timelines[0]
    lost, kind, rank = max(
        (
            (rank.total_s(kind), kind, rank)
            for rank in one.ranks
            for kind in ACTIVITIES
            if kind != "compute"
        ),
        key=lambda found: found[0],
    )
    return (
        f"In one step of {place(one)} ({units.seconds(one.step_s)}), rank {rank.rank} computes"
        f" {_percent(rank, 'compute', one)} of the time; its largest pause is"
        f" {KINDS[kind][0]}, {units.seconds(lost)}."
    )


def _percent(rank: RankStep, kind: str, one: StepTimeline) -> str:
    return f"{100 * rank.total_s(kind) / one.step_s:.0f} %"


def timeline_remarks(timelines: Sequence[StepTimeline]) -> list[str]:
    """Say which ranks are not shown, and where waiting could not be told from transfer."""
    said = []
    for one in timelines:
        if one.num_ranks > len(one.ranks):
            said.append(f"{place(one)}: {len(one.ranks)} of {one.num_ranks} ranks are shown.")
        if one.not_apart:
            reason = wording.plain(one.not_apart, 200)
            said.append(f"{place(one)}: transfer includes waiting: {reason}.")
    return said


def timeline_lines(
    timelines: Sequence[StepTimeline],
) -> list[tuple[StepTimeline, int, str, str, str]]:
    """Return how long each rank did what."""
    return [
        (
            one,
            rank.rank,
            KINDS[kind][0],
            units.seconds(rank.total_s(kind)),
            _percent(rank, kind, one),
        )
        for one in timelines
        for rank in one.ranks
        for kind in (*ACTIVITIES, HIDDEN)
        if rank.total_s(kind) > 0
    ]


TIMELINE_COLUMNS = (*PLACE, *texts("rank", "activity", "in the step", "of the step"))


PASS_KINDS = {
    "F": ("forward", "#77AADD"),
    "B": ("backward", "#44BB99"),
    "I": ("backward, inputs", "#99DDFF"),
    "W": ("backward, weights", "#EEDD88"),
}
"""Kind of a pass → its name, and its colour: Paul Tol's light scheme."""

PLANNED_OPACITY = 0.45
PASS_LANE_PX = 17
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
    for y, row in headings:
        write_heading(figure, y, f"<b>{safe(row.case, 40)}</b>, {wording.ranks(row)}")
    figure.update_layout(
        barmode="overlay",
        height=int(bottom * PASS_LANE_PX + 96),
        hovermode="closest",
        margin={"t": 8},
    )
    lane_axis(figure, ticks, bottom)
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
    return [kind for kind in PASS_KINDS if kind in there]


def conclude_schedule(rows: Sequence[Row]) -> str:
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
    conclude_schedule,
    placed(
        Column("rank", lambda one: str(one.rank)),
        Column("pass", lambda one: one.name),
        Column("from", lambda one: units.seconds(one.start_s)),
        Column("to", lambda one: units.seconds(one.end_s)),
        Column("planned from", lambda one: units.seconds(one.planned_start_s)),
        Column("planned to", lambda one: units.seconds(one.planned_end_s)),
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
    name, color = PASS_KINDS[kind]
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


def _over_steps(
    name: str,
    title: str,
    axis: str,
    moves_of: Callable[[Row], Mapping[str, Moves]],
    conclude: Callable[[Row], str],
    note: str,
) -> ChartKind:
    """Return the kind of figure of values that now and then change during the first launch."""

    def moves(rows: Sequence[Row]) -> list[tuple[Row, str, int, float]]:
        found = [(row, moves_of(row)) for row in rows]
        return [(r, who, *at) for r, of in found for who, steps in of.items() for at in steps]

    def draw(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
        figure, last = go.Figure(), max((step for _, _, step, _ in moves(rows)), default=0)
        for row in rows:
            look = looks[row.suite, row.case]
            for number, (who, steps) in enumerate(moves_of(row).items()):
                label = f"{safe(place(row), 80)} {who}".strip()
                figure.add_scatter(
                    x=[*(step for step, _ in steps), last + 1],
                    y=[*(number for _, number in steps), steps[-1][1]],
                    name=label,
                    mode="lines",
                    line={"color": look.color, "shape": "hv", "dash": list(DASHES)[number % 4]},
                    hovertemplate=f"{label}, step %{{x}}: %{{y:g}}<extra></extra>",
                )
        style(figure, name, height=HEIGHT_PX, hovermode="closest")
        figure.update_xaxes(title="step, warm-up included", automargin=True)
        figure.update_yaxes(title=axis, rangemode="tozero", automargin=True)
        return figure if figure.data else None

    return ChartKind(
        name,
        title,
        draw,
        lambda rows: " ".join(conclude(row) for row in rows if moves_of(row)),
        (*PLACE, *texts("of", "from step", axis)),
        lambda rows: [(row, who, step, f"{value:g}") for row, who, step, value in moves(rows)],
        legend,
        note,
    )


def _share_moves(row: Row) -> Mapping[str, Moves]:
    found = row.balance.history if row.balance else []
    ranks = range(row.world_size if found else 0)
    return {f"rank {rank}": [(step, of[rank]) for step, of in found] for rank in ranks}


SHARES = _over_steps(
    "shares",
    "Shares of the global batch",
    "samples",
    _share_moves,
    lambda row: (
        f"{place(row)}: shares changed {row.balance.num_changes} times and ended at"
        f" {', '.join(map(str, row.balance.shares))} samples."
        if row.balance
        else ""
    ),
    "Samples of each rank in a step, in the first launch.",
)
LOSS_SCALE = _over_steps(
    "loss-scale",
    "Scale of the loss",
    "scale",
    lambda row: {"": row.loss_scale} if row.loss_scale else {},
    lambda row: (
        f"{place(row)}: the scale ended at {row.loss_scale[-1][1]:g};"
        f" {row.num_skipped_steps or 0} steps of the measurement were skipped."
        if row.loss_scale
        else ""
    ),
    "Of float16, in the first launch. Where it falls, the step before was skipped.",
)
