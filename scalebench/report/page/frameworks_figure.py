"""Frameworks side by side: time per step with its interval, and memory per rank."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, safe, style
from scalebench.report.page.palette import COLORS, NEUTRAL, PALER
from scalebench.report.tables import frameworks
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
    return go.Bar(
        name=verdict,
        legendgroup=verdict,
        x=[1e3 * step.value for step in steps],
        y=[safe(row.case, 40) for row in rows],
        orientation="h",
        marker={"color": color, "opacity": PALER},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [1e3 * ((step.high or step.value) - step.value) for step in steps],
            "arrayminus": [1e3 * (step.value - (step.low or step.value)) for step in steps],
            **{"thickness": 1.8, "width": 5, "color": color},
        },
        customdata=[_step_text(row) for row in rows],
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
    return go.Bar(
        name=verdict,
        legendgroup=verdict,
        x=[(row.peak_memory_bytes or 0) / MEGA for row in rows],
        y=[safe(row.case, 40) for row in rows],
        orientation="h",
        marker={"color": color, "opacity": PALER},
        customdata=[frameworks.memory(row) for row in rows],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )


def _tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    found = frameworks.side_by_side(rows)
    return [
        (
            wording.plain(row.case, 64),
            str(row.world_size),
            frameworks.milliseconds(row.step_s) if row.step_s else wording.DASH,
            frameworks.slower_by(row),
            frameworks.memory(row),
        )
        for row in (found.rows if found else ())
    ]


FRAMEWORKS = ChartKind(
    "frameworks",
    "Time per step and memory per rank",
    "",
    framework_figure,
    lambda rows: frameworks.sentence(rows) or "",
    _tabulate,
    ("case", "N", "step, ms", "longer than the fastest by, %", "memory per rank"),
    legend,
    "Above: the median step with its 95 % interval, the shortest first. Below: the peak of the"
    " fullest rank. The colour tells how a case compares with the fastest, by the ratio of both"
    " steps in the same rounds: intervals of step times may overlap and the ratio be certain.",
)
