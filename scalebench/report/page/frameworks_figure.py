"""Frameworks side by side: time per step with its interval, and memory per rank."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, safe, style, whiskers
from scalebench.report.page.palette import COLORS, NEUTRAL, PALER
from scalebench.report.tables import frameworks
from scalebench.report.tables.layout import CASE, RANKS, Column, value
from scalebench.report.words import wording

ROW_PX, AROUND_PX, BETWEEN_PX = 26, 180, 80
PANELS = 2
WIDEST = 3.0
"""Where the axis of step times ends at most, in longest steps."""

MEGA = 1e6
AS_FAST, SLOWER, UNKNOWN = "not significantly slower", "slower", "not known"
COLOR_OF = {AS_FAST: COLORS[0], SLOWER: COLORS[1], UNKNOWN: NEUTRAL}
"""What is said of a case beside the fastest → its colour."""


def framework_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw both for every framework at the largest N; None: there is none."""
    found = frameworks.side_by_side(rows)
    if found is None:
        return None
    height = AROUND_PX + PANELS * ROW_PX * len(found.rows)
    figure = make_subplots(rows=PANELS, cols=1, vertical_spacing=BETWEEN_PX / height)
    names = [safe(row.case, 40) for row in found.rows]
    for verdict, color in COLOR_OF.items():
        of_verdict = [row for row in found.rows if _verdict(found, row) == verdict]
        if of_verdict:
            figure.add_trace(_steps(of_verdict, verdict, color), row=1, col=1)
            figure.add_trace(_memory(of_verdict, verdict, color), row=2, col=1)
    style(figure, "frameworks")
    figure.update_layout(height=height, bargap=0.35, barmode="overlay")
    figure.update_yaxes(
        autorange="reversed", automargin=True, categoryorder="array", categoryarray=names
    )
    figure.update_xaxes(rangemode="tozero", automargin=True, nticks=5)
    figure.update_xaxes(title="ms per step", range=[0, _end_ms(found.rows)], row=1, col=1)
    figure.update_xaxes(title="MB per rank", row=2, col=1)
    return figure


def _end_ms(rows: Sequence[Row]) -> float:
    """Return where the axis of step times ends: a very wide interval does not hide the bars."""
    steps = [row.step_s for row in rows if row.step_s is not None]
    longest = max(step.value for step in steps)
    reach = max(step.value if step.high is None else step.high for step in steps)
    return 1e3 * min(1.05 * reach, WIDEST * longest)


def _verdict(found: frameworks.SideBySide, row: Row) -> str:
    slower = found.is_slower(row)
    return UNKNOWN if slower is None else SLOWER if slower else AS_FAST


def _steps(rows: Sequence[Row], verdict: str, color: str) -> go.Bar:
    steps = [row.step_s for row in rows if row.step_s is not None]
    bars = _bars(rows, verdict, color, [1e3 * step.value for step in steps], _step_text)
    spans = ((step.value, step.low, step.high) for step in steps)
    return bars.update(error_x=whiskers(spans, color, 1.8, 5, 1e3))


def _bars(
    rows: Sequence[Row],
    verdict: str,
    color: str,
    lengths: Sequence[float],
    text: Callable[[Row], str],
) -> go.Bar:
    return go.Bar(
        name=verdict,
        legendgroup=verdict,
        x=lengths,
        y=[safe(row.case, 40) for row in rows],
        orientation="h",
        marker={"color": color, "opacity": PALER},
        customdata=[text(row) for row in rows],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )


def _step_text(row: Row) -> str:
    """Return what is said of a row's step: its time, and how much longer than the shortest."""
    told = frameworks.milliseconds(row.step_s) if row.step_s else wording.DASH
    longer = frameworks.slower_by(row)
    if longer == frameworks.FASTEST:
        return f"{told} ms, the shortest"
    return f"{told} ms" if longer == wording.DASH else f"{told} ms, {longer} % longer"


def _memory(rows: Sequence[Row], verdict: str, color: str) -> go.Bar:
    peaks = [(row.peak_memory_bytes or 0) / MEGA for row in rows]
    return _bars(rows, verdict, color, peaks, frameworks.memory)


def _lines(rows: Sequence[Row]) -> Sequence[Row]:
    found = frameworks.side_by_side(rows)
    return found.rows if found else ()


FRAMEWORKS = ChartKind(
    "frameworks",
    "Time per step and memory per rank",
    framework_figure,
    frameworks.sentence,
    (
        CASE,
        RANKS,
        value("step, ms", lambda row: row.step_s, frameworks.milliseconds),
        Column("longer than the fastest by, %", frameworks.slower_by),
        Column("memory per rank", frameworks.memory),
    ),
    _lines,
    legend,
    "Above: the median step with its 95 % interval, the shortest first. Below: the peak of the"
    " fullest rank. The colour tells how a case compares with the fastest, by the ratio of both"
    " steps in the same rounds: intervals of step times may overlap and the ratio be certain.",
)
