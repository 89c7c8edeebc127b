"""One step, ranks as rows: what each did at any moment, and its communication below."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data.timeline import ACTIVITIES, HIDDEN, RankStep, StepTimeline
from scalebench.records.paths import PERFETTO
from scalebench.records.rows.budget import MEASURED
from scalebench.report.page.charts import ChartKind, Choices, add_in_views, legend, views
from scalebench.report.page.figure_style import safe, style
from scalebench.report.page.palette import PART_COLORS
from scalebench.report.tables.layout import PLACE, texts
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


def timeline_kind(timelines: Sequence[StepTimeline]) -> ChartKind:
    """Return the kind of figure that shows one step of each of the cases, one at a time."""
    found = sorted(timelines, key=lambda one: -_exposed(one))
    return ChartKind(
        "timeline",
        "One step",
        lambda *_: timeline_figure(found) if found else None,
        lambda _: conclude(found),
        COLUMNS,
        lambda _: lines(found),
        lambda figure: legend(figure, {name: meaning for name, _, meaning in KINDS.values()}),
        "The traced step of median length; tracing's own cost included. All ranks on one clock. All"
        f" traced steps of a launch: open {PERFETTO}, in the run's folder, at ui.perfetto.dev.",
        "A timeline needs traced steps of several ranks: --gpus 1,2 without --no-trace.",
        remark=lambda _: remarks(found),
        choose=lambda _, figure: choose(figure, found),
    )


def _exposed(one: StepTimeline) -> float:
    lost = [rank.total_s("exposed_transfer") + rank.total_s("wait") for rank in one.ranks]
    return max(lost) / one.step_s


def timeline_figure(timelines: Sequence[StepTimeline]) -> go.Figure:
    """Draw the steps; only the first one is visible."""
    figure = go.Figure()
    add_in_views(figure, timelines, place, _traces)
    style(figure, "timeline")
    figure.update_layout(
        barmode="overlay", hovermode="closest", margin={"t": 30}, height=_height(timelines[0])
    )
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

    Args:
        kind: Of the bars.
        found: Place, start and end in seconds, and a text of each bar.
        head: Begins what is said of a bar, by plotly's template; its text is ``customdata[0]``.
        color: Of all bars.
        height: Of all bars, in lanes.
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


def choose(figure: go.Figure, timelines: Sequence[StepTimeline]) -> Choices | None:
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


def conclude(timelines: Sequence[StepTimeline]) -> str:
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


def remarks(timelines: Sequence[StepTimeline]) -> list[str]:
    """Say which ranks are not shown, and where waiting could not be told from transfer."""
    said = []
    for one in timelines:
        if one.num_ranks > len(one.ranks):
            said.append(f"{place(one)}: {len(one.ranks)} of {one.num_ranks} ranks are shown.")
        if one.not_apart:
            reason = wording.plain(one.not_apart, 200)
            said.append(f"{place(one)}: transfer includes waiting: {reason}.")
    return said


def lines(timelines: Sequence[StepTimeline]) -> list[tuple[StepTimeline, int, str, str, str]]:
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


COLUMNS = (*PLACE, *texts("rank", "activity", "in the step", "of the step"))
