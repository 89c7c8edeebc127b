"""Frameworks side by side: time per step with its interval, and memory per rank."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from scalebench.records.summary import Row
from scalebench.report.page.charts import ChartKind
from scalebench.report.page.figure_style import Looks, safe, style
from scalebench.report.words import frameworks, wording

ROW_PX, AROUND_PX = 30, 110
MEGA = 1e6


def framework_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw both for every framework at the largest N; None: there is none."""
    found = frameworks.side_by_side(rows)
    if found is None:
        return None
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    names = [safe(row.case, 40) for row in found.rows]
    colors = [looks[row.suite, row.case].color for row in found.rows]
    figure.add_trace(_steps(found.rows, names, colors), row=1, col=1)
    figure.add_trace(_memory(found.rows, names, colors), row=1, col=2)
    style(figure, "frameworks")
    _mark_as_fast(figure, found.fastest)
    figure.update_layout(height=AROUND_PX + ROW_PX * len(names), showlegend=False)
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title="ms per step", rangemode="tozero", automargin=True, row=1, col=1)
    figure.update_xaxes(title="MB per rank", rangemode="tozero", automargin=True, row=1, col=2)
    return figure


def _mark_as_fast(figure: go.Figure, fastest: Row) -> None:
    """Shade the interval of the shortest step over all rows: who reaches it may be as fast."""
    step = fastest.step_s
    if step is None or step.low is None or step.high is None:
        return
    figure.add_vrect(
        x0=1e3 * step.low,
        x1=1e3 * step.high,
        fillcolor="grey",
        opacity=0.2,
        line_width=0,
        layer="below",
        row=1,
        col=1,
    )


def _steps(rows: Sequence[Row], names: list[str], colors: list[str]) -> go.Bar:
    steps = [row.step_s for row in rows if row.step_s is not None]
    return go.Bar(
        x=[1e3 * step.value for step in steps],
        y=names,
        orientation="h",
        marker={"color": colors},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [1e3 * ((step.high or step.value) - step.value) for step in steps],
            "arrayminus": [1e3 * (step.value - (step.low or step.value)) for step in steps],
        },
        text=[frameworks.milliseconds(step) for step in steps],
        hovertemplate="%{y}: %{text} ms<extra></extra>",
        textposition="none",
    )


def _memory(rows: Sequence[Row], names: list[str], colors: list[str]) -> go.Bar:
    return go.Bar(
        x=[(row.peak_memory_bytes or 0) / MEGA for row in rows],
        y=names,
        orientation="h",
        marker={"color": colors},
        text=[frameworks.memory(row) for row in rows],
        hovertemplate="%{y}: %{text}<extra></extra>",
        textposition="none",
    )


def _tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    found = frameworks.side_by_side(rows)
    return [
        (
            wording.plain(row.case, 64),
            str(row.world_size),
            frameworks.milliseconds(row.step_s) if row.step_s else wording.DASH,
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
    ("case", "N", "step, ms", "memory per rank"),
    None,
    "Bars: the median step with its 95 % interval, and the peak of the fullest rank. The"
    " shortest step comes first. Grey: its interval. A case whose interval reaches into it is not"
    " significantly different.",
)
