"""Heat maps, one case at a time: step times by rank, tokens by expert."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import plotly.graph_objects as go

from scalebench import units
from scalebench.analysis.rank_steps import ExpertLoad, RankGrid
from scalebench.report.figures.charts import ChartKind, Choices, add_in_views, views
from scalebench.report.figures.style import NEUTRAL, style
from scalebench.report.tables.layout import PLACE, texts
from scalebench.report.words import wording
from scalebench.report.words.wording import place

T = TypeVar("T", RankGrid, ExpertLoad)

SCALE = [[0.0, "#0072B2"], [0.5, "#F2F2F2"], [1.0, "#D55E00"]]
"""Blue: faster, orange: slower; distinguished by every sight."""

ROW_PX = 26
LEAST_REACH = 0.02
MOST_LISTED = 64
AUTORANGE = {"xaxis.autorange": True, "yaxis.autorange": "reversed"}
FEWEST, OFTEN = 8, 0.85
"""Steps, and the part of them, from which on a rank is called slower; 7 of 8 by chance: 4 %."""


def grid_kind(grids: Sequence[RankGrid]) -> ChartKind:
    """Return the kind of figure with a heat map of each case, one at a time."""
    found = sorted(grids, key=lambda grid: -_spread_of_ranks(grid)[0])
    return ChartKind(
        "heat",
        "Every rank at every step",
        lambda *_: _heat(found) if found else None,
        lambda _: conclude_all(found),
        COLUMNS,
        lambda _: _lines(found),
        note="One launch, own step of each rank against the median of all clean steps. Left of the"
        " line: warm-up. Blank: the first step of a block, which counts for nothing.",
        remark=lambda _: _merged(found),
        choose=lambda _, figure: _views(figure, found, _grid_layout),
    )


def _heat(grids: Sequence[RankGrid]) -> go.Figure:
    height, ticks = _height(grids[0].ranks), _rank_ticks(grids[0])
    return _maps(grids, "heat", "rank", height, _grid_traces, **ticks)


def _grid_traces(grid: RankGrid) -> tuple[go.Heatmap, go.Scatter]:
    return _map(grid), _cut(grid.steady_from, grid.ranks[0] - 0.5, grid.ranks[-1] + 0.5)


def _maps(
    items: Sequence[T], name: str, title: str, height: int, traces: Callable[[T], Any], **axis: Any
) -> go.Figure:
    """Draw a heat map over steps for each item, as a view; title and ``axis``: of the other."""
    figure = go.Figure()
    add_in_views(figure, items, place, traces)
    style(figure, name, height=height, hovermode="closest", margin={"t": 30})
    figure.update_xaxes(title="step", automargin=True, showgrid=False)
    figure.update_yaxes(title=title, autorange="reversed", automargin=True, showgrid=False, **axis)
    return figure


def _views(
    figure: go.Figure, items: Sequence[T], layout: Callable[[T], dict[str, Any]]
) -> Choices | None:
    return views(figure, "case", list(map(place, items)), list(map(layout, items)))


def _height(lines: Sequence[Any], line_px: int = ROW_PX) -> int:
    return int(min(max(line_px * len(lines), 90), 460)) + 84


def _cut(steady_from: int, first: float | str, last: float | str) -> go.Scatter:
    """Draw where the warm-up ends, from the first line to the last."""
    return go.Scatter(
        x=[steady_from - 0.5, steady_from - 0.5],
        y=[first, last],
        mode="lines",
        line={"color": NEUTRAL, "width": 2},
        hoverinfo="skip",
    )


def _map(grid: RankGrid) -> go.Heatmap:
    reach = 100 * _reach(grid)
    return go.Heatmap(
        z=np.round(100 * grid.deviation, 2),
        x=np.array(grid.steps, dtype=np.int32),
        y=np.array(grid.ranks, dtype=np.int32),
        zmin=-reach,
        zmax=reach,
        colorscale=SCALE,
        xgap=1 if len(grid.steps) <= 120 else 0,
        ygap=1 if len(grid.ranks) <= 40 else 0,
        hovertemplate="rank %{y}, step %{x}: %{z:+.3g} %<extra></extra>",
        colorbar={
            "ticksuffix": " %", "thickness": 10, "outlinewidth": 0, "x": 1.0, "len": 1.0,
            "nticks": 5,
        },
    )  # fmt: skip


def _reach(grid: RankGrid) -> float:
    """Return how far the colours reach: what 98 of 100 clean steps do not exceed."""
    clean = np.abs(_clean(grid))
    clean = clean[~np.isnan(clean)]
    return max(float(np.percentile(clean, 98)), LEAST_REACH) if len(clean) else LEAST_REACH


def _clean(grid: RankGrid) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return grid.deviation[:, np.array(grid.steps) >= grid.steady_from]


def _rank_ticks(grid: RankGrid) -> dict[str, object]:
    most = min(len(grid.ranks), 12)
    shown = np.unique(np.linspace(0, len(grid.ranks) - 1, most).round().astype(int))
    ranks = [grid.ranks[index] for index in shown]
    return {"tickvals": ranks, "ticktext": [str(rank) for rank in ranks]}


def _grid_layout(grid: RankGrid) -> dict[str, Any]:
    ticks = {f"yaxis.{name}": value for name, value in _rank_ticks(grid).items()}
    return {"height": _height(grid.ranks), **AUTORANGE, **ticks}


def _merged(grids: Sequence[RankGrid]) -> list[str]:
    return [
        f"{place(grid)}: {grid.num_ranks} ranks × {grid.num_steps}"
        " steps; a field shows the one of several steps that is furthest from the median."
        for grid in grids
        if (len(grid.ranks), len(grid.steps)) != (grid.num_ranks, grid.num_steps)
    ]


def _spread_of_ranks(grid: RankGrid) -> tuple[float, int]:
    """Return how much slower the slowest rank's median clean step is than all, and which it is."""
    with np.errstate(all="ignore"):
        middles = np.nanmedian(_clean(grid), axis=1)
    most = int(np.nanargmax(middles)) if not np.all(np.isnan(middles)) else 0
    return float(np.nan_to_num(middles[most])), grid.ranks[most]


def conclude_all(grids: Sequence[RankGrid]) -> str:
    """Say which rank is steadily slower than the others, in the case where it is so the most."""
    steady = [grid for grid in grids if _is_steady(grid)]
    if steady:
        return conclude_heat(max(steady, key=lambda grid: _spread_of_ranks(grid)[0]))
    if len(grids) == 1:
        return conclude_heat(grids[0])
    largest = max(grids, key=lambda grid: _spread_of_ranks(grid)[0])
    if _spread_of_ranks(largest)[0] < LEAST_REACH:
        return "In no case is a rank slower than the others by more than 2 %."
    return "In no case is a rank steadily slower than the others: it is one and then another."


def _is_steady(grid: RankGrid) -> bool:
    spread, rank = _spread_of_ranks(grid)
    share, num_steps = _share_slower(grid, rank)
    return spread >= LEAST_REACH and num_steps >= FEWEST and share >= OFTEN


def conclude_heat(grid: RankGrid) -> str:
    """Say which rank of a launch is slower than the others, if one is."""
    spread, rank = _spread_of_ranks(grid)
    where = place(grid)
    share, num_steps = _share_slower(grid, rank)
    if spread < LEAST_REACH:
        return f"No rank of {where} is slower than the others by more than 2 %."
    if num_steps < FEWEST or share < OFTEN:
        return f"No rank of {where} is steadily slower than the others: it is one and then another."
    return (
        f"In {where}, rank {rank} is {100 * spread:.1f} % slower than the median of all steps, and"
        f" slower than the middle rank in {100 * share:.0f} % of them."
    )


def _share_slower(grid: RankGrid, rank: int) -> tuple[float, int]:
    """Return the part of the clean steps in which a rank was slower than the middle one."""
    clean = _clean(grid)
    known = clean[:, ~np.isnan(clean).any(axis=0)]
    if known.shape[1] == 0:
        return 0.0, 0
    own = known[grid.ranks.index(rank)]
    return float((own > np.median(known, axis=0)).mean()), known.shape[1]


def _lines(grids: Sequence[RankGrid]) -> list[tuple[RankGrid, int, str, str, str]]:
    found = []
    for grid in grids:
        for rank, steps in list(zip(grid.ranks, _clean(grid), strict=True))[:MOST_LISTED]:
            own = steps[~np.isnan(steps)]
            if len(own) == 0:
                continue
            middle, most = float(np.median(own)), float(own.max())
            median, slowest = (units.seconds((1 + by) * grid.median_s) for by in (middle, most))
            found.append((grid, rank, median, f"{wording.signed(100 * middle)} %", slowest))
    return found


COLUMNS = (*PLACE, *texts("rank", "median step", "against all ranks", "slowest step"))


EXPERT_PX = 18


def expert_kind(loads: Sequence[ExpertLoad]) -> ChartKind:
    """Return the kind of figure with a heat map of each case, the most uneven one first."""
    found = sorted(loads, key=lambda load: -_busiest(load)[0])
    return ChartKind(
        "experts",
        "Tokens of every expert",
        lambda *_: _draw_loads(found) if found else None,
        lambda _: conclude_load(found[0]),
        LOAD_COLUMNS,
        lambda _: _load_lines(found),
        note="One launch, all ranks together. 1: the even share of the step's tokens; orange: more,"
        " blue: less. Left of the line: warm-up.",
        choose=lambda _, figure: _views(
            figure, found, lambda load: {"height": _height(load.experts, EXPERT_PX), **AUTORANGE}
        ),
    )


def _draw_loads(loads: Sequence[ExpertLoad]) -> go.Figure:
    height = _height(loads[0].experts, EXPERT_PX)
    return _maps(loads, "experts", "layer, expert", height, _load_traces, type="category")


def _load_traces(load: ExpertLoad) -> tuple[go.Heatmap, go.Scatter]:
    return _load_map(load), _cut(load.steady_from, _names(load)[0], _names(load)[-1])


def _names(load: ExpertLoad) -> list[str]:
    return [f"{layer}, {expert}" for layer, expert in load.experts]


def _load_map(load: ExpertLoad) -> go.Heatmap:
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


def _clean_load(load: ExpertLoad) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    chosen = np.array(load.steps) >= load.steady_from
    return load.times_even[:, chosen] if chosen.any() else load.times_even


def _busiest(load: ExpertLoad) -> tuple[float, int, int]:
    """Return the highest mean load of an expert, its layer and its number."""
    means = _clean_load(load).mean(axis=1)
    most = int(means.argmax())
    return float(means[most]), *load.experts[most]


def conclude_load(load: ExpertLoad) -> str:
    """Say which expert of a case has the most tokens."""
    times, layer, expert = _busiest(load)
    return (
        f"In {place(load)}, expert {expert} of layer {layer} has the most tokens: {times:.2f} times"
        " the even share over the clean steps."
    )


def _load_lines(loads: Sequence[ExpertLoad]) -> list[tuple[ExpertLoad, int, int, str, str]]:
    return [
        (load, layer, expert, f"{own.mean():.2f}", f"{own.max():.2f}")
        for load in loads
        for (layer, expert), own in list(zip(load.experts, _clean_load(load), strict=True))[
            :MOST_LISTED
        ]
    ]


LOAD_COLUMNS = (*PLACE, *texts("layer", "expert", "mean load", "highest load"))
