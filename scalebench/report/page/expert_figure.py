"""Tokens of every expert over the steps as a heat map, one case at a time."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from scalebench.analysis.page_data.expert_load import ExpertLoad
from scalebench.report.page.charts import ChartKind, Choices, add_in_views, views
from scalebench.report.page.figure_style import style
from scalebench.report.page.heat_figure import SCALE
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.words.wording import place

ROW_PX = 18
MOST_LISTED = 64


def expert_kind(loads: Sequence[ExpertLoad]) -> ChartKind:
    """Return the kind of figure with a heat map of each case, the most uneven one first."""
    found = sorted(loads, key=lambda load: -_busiest(load)[0])
    return ChartKind(
        "experts",
        "Tokens of every expert",
        lambda *_: _draw(found) if found else None,
        lambda _: conclude(found[0]),
        COLUMNS,
        lambda _: _lines(found),
        note="One launch, all ranks together. 1: the even share of the step's tokens; orange: more,"
        " blue: less. Left of the line: warm-up.",
        choose=lambda _, figure: _choose(figure, found),
    )


def _draw(loads: Sequence[ExpertLoad]) -> go.Figure:
    figure = go.Figure()
    add_in_views(figure, loads, place, lambda load: (_map(load), _cut(load)))
    style(figure, "experts")
    figure.update_layout(height=_height(loads[0]), hovermode="closest", margin={"t": 30})
    figure.update_xaxes(title="step", automargin=True, showgrid=False)
    figure.update_yaxes(
        title="layer, expert",
        autorange="reversed",
        automargin=True,
        showgrid=False,
        type="category",
    )
    return figure


def _names(load: ExpertLoad) -> list[str]:
    return [f"{layer}, {expert}" for layer, expert in load.experts]


def _map(load: ExpertLoad) -> go.Heatmap:
    return go.Heatmap(
        z=np.round(load.times_even, 2),
        x=np.array(load.steps, dtype=np.int32),
        y=_names(load),
        zmin=0,
        zmid=1,
        zmax=2,
        colorscale=SCALE,
        hovertemplate="layer and expert %{y}, step %{x}: %{z:.3g} of the even share<extra></extra>",
        colorbar={"thickness": 10, "outlinewidth": 0, "x": 1.0, "len": 1.0, "nticks": 5},
    )


def _cut(load: ExpertLoad) -> go.Scatter:
    edge, names = load.steady_from - 0.5, _names(load)
    return go.Scatter(
        x=[edge, edge],
        y=[names[0], names[-1]],
        mode="lines",
        line={"color": NEUTRAL, "width": 2},
        hoverinfo="skip",
    )


def _height(load: ExpertLoad) -> int:
    return int(min(max(ROW_PX * len(load.experts), 90), 460)) + 84


def _choose(figure: go.Figure, loads: Sequence[ExpertLoad]) -> Choices | None:
    layouts = [
        {"height": _height(load), "xaxis.autorange": True, "yaxis.autorange": "reversed"}
        for load in loads
    ]
    return views(figure, "case", list(map(place, loads)), layouts)


def _clean(load: ExpertLoad) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    chosen = np.array(load.steps) >= load.steady_from
    return load.times_even[:, chosen] if chosen.any() else load.times_even


def _busiest(load: ExpertLoad) -> tuple[float, int, int]:
    """Return the highest mean load of an expert, its layer and its number."""
    means = _clean(load).mean(axis=1)
    most = int(means.argmax())
    return float(means[most]), *load.experts[most]


def conclude(load: ExpertLoad) -> str:
    """Say which expert of a case has the most tokens."""
    times, layer, expert = _busiest(load)
    return (
        f"In {place(load)}, expert {expert} of layer {layer} has the most tokens: {times:.2f} times"
        " the even share over the clean steps."
    )


def _lines(loads: Sequence[ExpertLoad]) -> list[tuple[ExpertLoad, int, int, str, str]]:
    return [
        (load, layer, expert, f"{own.mean():.2f}", f"{own.max():.2f}")
        for load in loads
        for (layer, expert), own in list(zip(load.experts, _clean(load), strict=True))[:MOST_LISTED]
    ]


COLUMNS = (*PLACE, *texts("layer", "expert", "mean load", "highest load"))
