"""Frameworks side by side: time per step with its interval, and memory per rank."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, safe, style
from scalebench.report.page.palette import COLORS, NEUTRAL, PALER
from scalebench.report.words import frameworks, wording

ROW_PX, AROUND_PX = 30, 110
MEGA = 1e6
AS_FAST, SLOWER, UNKNOWN = "not significantly slower", "slower", "not known"
COLOR_OF = {AS_FAST: COLORS[0], SLOWER: COLORS[1], UNKNOWN: NEUTRAL}
"""What is said of a case beside the fastest → its colour."""


def framework_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw both for every framework at the largest N; None: there is none."""
    found = frameworks.side_by_side(rows)
    if found is None:
        return None
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    names = [safe(row.case, 40) for row in found.rows]
    for verdict, color in COLOR_OF.items():
        of_verdict = [row for row in found.rows if _verdict(found, row) == verdict]
        if of_verdict:
            figure.add_trace(_steps(of_verdict, verdict, color), row=1, col=1)
            figure.add_trace(_memory(of_verdict, verdict, color), row=1, col=2)
    style(figure, "frameworks")
    figure.update_layout(height=AROUND_PX + ROW_PX * len(names), bargap=0.35, barmode="overlay")
    figure.update_yaxes(
        autorange="reversed", automargin=True, categoryorder="array", categoryarray=names
    )
    figure.update_xaxes(rangemode="tozero", automargin=True, nticks=5)
    figure.update_xaxes(title="ms per step", row=1, col=1)
    figure.update_xaxes(title="MB per rank", row=1, col=2)
    return figure


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
    "Left: the median step with its 95 % interval, the shortest first. Right: the peak of the"
    " fullest rank. The colour tells how a case compares with the fastest, by the ratio of both"
    " steps in the same rounds: intervals of step times may overlap and the ratio be certain.",
)
