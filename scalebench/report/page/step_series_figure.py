"""The steps of every launch in order, from the first one to the steady state."""

from collections.abc import Sequence
from statistics import median

import numpy as np
import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.page_data.rank_steps import StepSeries
from scalebench.report.page.charts import ChartKind, view_mark, views
from scalebench.report.page.figure_style import Looks, style, wide_axis
from scalebench.report.words import wording
from scalebench.report.words.wording import place_name


def step_series_kind(step_series: Sequence[StepSeries]) -> ChartKind:
    """Return the kind of figure with the steps of every launch in order, one case at a time."""
    return ChartKind(
        "course",
        "The way to the steady state",
        "",
        lambda _, looks: _figure(step_series, looks) if step_series else None,
        lambda _: _conclude(step_series),
        lambda _: _tabulate(step_series),
        ("case", "N", "launch", "warm-up steps", "steady", "first step", "median after"),
        None,
        "A line for each launch, the slowest rank at every step; the bar across it is the cut:"
        " steps left of it are warm-up and count for nothing.",
        choose=lambda _, figure: views(figure, "case", _series_names(step_series)),
    )


def _series_names(step_series: Sequence[StepSeries]) -> list[str]:
    return list(dict.fromkeys(place_name(one.case, one.world_size) for one in step_series))


def _figure(step_series: Sequence[StepSeries], looks: Looks) -> go.Figure:
    figure = go.Figure()
    first = _series_names(step_series)[0]
    for one in step_series:
        name = place_name(one.case, one.world_size)
        look = looks[one.suite, one.case]
        figure.add_trace(
            go.Scatter(
                x=np.array(one.steps, dtype=np.int32),
                y=np.array([1e3 * s for s in one.step_s], dtype=np.float32),
                mode="lines",
                line={"color": look.color, "width": 1.2},
                opacity=0.75,
                visible=name == first,
                meta=view_mark(name),
                hovertemplate=f"launch {one.repeat + 1}, step %{{x}}: %{{y:.4g}} ms<extra></extra>",
            )
        )
        cut = [s for n, s in zip(one.steps, one.step_s, strict=True) if n >= one.steady_from]
        figure.add_trace(
            go.Scatter(
                x=[one.steady_from - 0.5],
                y=[1e3 * median(cut)] if cut else [None],
                mode="markers",
                marker={
                    "symbol": "line-ns", "size": 26, "color": look.color,
                    "line": {"width": 2.5, "color": look.color},
                },
                visible=name == first,
                meta=view_mark(name),
                hovertemplate=f"launch {one.repeat + 1}: steady from step {one.steady_from}"
                "<extra></extra>",
            )
        )  # fmt: skip
    style(figure, "course")
    figure.update_layout(height=300, hovermode="closest", margin={"t": 30})
    figure.update_xaxes(title="step", automargin=True)
    times = [1e3 * step_s for one in step_series for step_s in one.step_s]
    figure.update_yaxes(title="ms", automargin=True, **wide_axis(times))
    return figure


def _conclude(step_series: Sequence[StepSeries]) -> str:
    cuts = [one.steady_from for one in step_series]
    unsteady = [one for one in step_series if one.steady is False]
    span = f"{min(cuts)}" if min(cuts) == max(cuts) else f"{min(cuts)} to {max(cuts)}"
    said = f"Steps are taken to be steady after {span} steps of warm-up"
    if unsteady:
        where = place_name(unsteady[0].case, unsteady[0].world_size)
        return (
            f"{said}; {len(unsteady)} of {len(step_series)} launches never settled, {where} first."
        )
    return f"{said}, in all {len(step_series)} launches."


def _tabulate(step_series: Sequence[StepSeries]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for one in step_series:
        after = [s for n, s in zip(one.steps, one.step_s, strict=True) if n >= one.steady_from]
        lines.append(
            (
                wording.plain(one.case, 64),
                str(one.world_size),
                str(one.repeat + 1),
                str(one.steady_from),
                {True: "yes", False: "no", None: "not told"}[one.steady],
                units.seconds(one.step_s[0]),
                units.seconds(median(after)) if after else wording.DASH,
            )
        )
    return lines
