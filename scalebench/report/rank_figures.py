"""Step times by rank and number: the heat map, the way to the steady state, the memory of steps."""

from collections.abc import Sequence
from statistics import median

import numpy as np
import plotly.graph_objects as go

from scalebench import units
from scalebench.evidence.rank_steps import Autocorrelation, Course, RankGrid
from scalebench.report import wording
from scalebench.report.charts import ChartKind, Choices, KeyEntry, group_key, view_mark, views
from scalebench.report.figures import Looks, safe, style, wide_axis
from scalebench.report.palette import DASHES, NEUTRAL, SYMBOLS

SCALE = [[0.0, "#0072B2"], [0.5, "#F2F2F2"], [1.0, "#D55E00"]]
"""Blue: faster, orange: slower; told apart by every sight."""

ROW_PX = 26
LEAST_REACH = 0.02
MOST_LISTED = 64
FEWEST, OFTEN = 8, 0.85
"""Steps, and the part of them, from which on a rank is called slower; 7 of 8 by chance: 4 %."""


def _name(case: str, world_size: int) -> str:
    return f"{wording.plain(case, 64)}, N={world_size}"


def grid_kind(grids: Sequence[RankGrid]) -> ChartKind:
    """Return the kind of figure with a heat map of each case, one at a time."""
    found = sorted(grids, key=lambda grid: -_spread_of_ranks(grid)[0])
    return ChartKind(
        "heat",
        "Every rank at every step",
        "",
        lambda *_: _heat(found) if found else None,
        lambda _: _conclude_heat(found[0]),
        lambda _: _tabulate_heat(found),
        ("case", "N", "rank", "median step", "against all ranks", "slowest step"),
        None,
        "One launch, own step of each rank against the median of all clean steps. Left of the"
        " line: warm-up. Blank: the first step of a block, which counts for nothing.",
        remark=lambda _: _merged(found),
        choose=lambda _, figure: _choose_heat(figure, found),
    )


def _heat(grids: Sequence[RankGrid]) -> go.Figure:
    figure = go.Figure()
    for index, grid in enumerate(grids):
        figure.add_trace(_map(grid, visible=index == 0))
        figure.add_trace(_cut(grid, visible=index == 0))
    style(figure, "heat")
    figure.update_layout(height=_heat_height(grids[0]), hovermode="closest", margin={"t": 30})
    figure.update_xaxes(title="step", automargin=True, showgrid=False)
    figure.update_yaxes(
        title="rank", autorange="reversed", automargin=True, showgrid=False, **_rank_ticks(grids[0])
    )
    return figure


def _map(grid: RankGrid, visible: bool) -> go.Heatmap:
    reach = 100 * _reach(grid)
    return go.Heatmap(
        z=np.round(100 * grid.deviation, 2),
        x=np.array(grid.steps, dtype=np.int32),
        y=np.array(grid.ranks, dtype=np.int32),
        zmin=-reach,
        zmax=reach,
        colorscale=SCALE,
        visible=visible,
        meta=view_mark(_name(grid.case, grid.world_size)),
        xgap=1 if len(grid.steps) <= 120 else 0,
        ygap=1 if len(grid.ranks) <= 40 else 0,
        hovertemplate="rank %{y}, step %{x}: %{z:+.3g} %<extra></extra>",
        colorbar={
            "ticksuffix": " %", "thickness": 10, "outlinewidth": 0, "x": 1.0, "len": 1.0,
            "nticks": 5,
        },
    )  # fmt: skip


def _cut(grid: RankGrid, visible: bool) -> go.Scatter:
    edge = grid.steady_from - 0.5
    return go.Scatter(
        x=[edge, edge],
        y=[grid.ranks[0] - 0.5, grid.ranks[-1] + 0.5],
        mode="lines",
        line={"color": NEUTRAL, "width": 2},
        hoverinfo="skip",
        visible=visible,
        meta=view_mark(_name(grid.case, grid.world_size)),
    )


def _reach(grid: RankGrid) -> float:
    """Return how far the colours reach: what 98 of 100 clean steps do not exceed."""
    clean = np.abs(_clean(grid))
    clean = clean[~np.isnan(clean)]
    return max(float(np.percentile(clean, 98)), LEAST_REACH) if len(clean) else LEAST_REACH


def _clean(grid: RankGrid) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return grid.deviation[:, np.array(grid.steps) >= grid.steady_from]


def _rank_ticks(grid: RankGrid) -> dict[str, object]:
    most = min(len(grid.ranks), 12)
    places = np.unique(np.linspace(0, len(grid.ranks) - 1, most).round().astype(int))
    ranks = [grid.ranks[place] for place in places]
    return {"tickvals": ranks, "ticktext": [str(rank) for rank in ranks]}


def _heat_height(grid: RankGrid) -> int:
    return int(min(max(ROW_PX * len(grid.ranks), 90), 460)) + 84


def _choose_heat(figure: go.Figure, grids: Sequence[RankGrid]) -> Choices | None:
    layouts = [
        {
            "height": _heat_height(grid),
            "xaxis.autorange": True,
            "yaxis.autorange": "reversed",
            **{f"yaxis.{name}": value for name, value in _rank_ticks(grid).items()},
        }
        for grid in grids
    ]
    names = [_name(grid.case, grid.world_size) for grid in grids]
    return views(figure, "case", names, layouts, [_heat_height(grid) for grid in grids])


def _merged(grids: Sequence[RankGrid]) -> list[str]:
    return [
        f"{_name(grid.case, grid.world_size)}: {grid.num_ranks} ranks × {grid.num_steps} steps;"
        " a field shows the one of several steps that is furthest from the median."
        for grid in grids
        if (len(grid.ranks), len(grid.steps)) != (grid.num_ranks, grid.num_steps)
    ]


def _spread_of_ranks(grid: RankGrid) -> tuple[float, int]:
    """Return how much slower the slowest rank's median clean step is than all, and which it is."""
    with np.errstate(all="ignore"):
        middles = np.nanmedian(_clean(grid), axis=1)
    place = int(np.nanargmax(middles)) if not np.all(np.isnan(middles)) else 0
    return float(np.nan_to_num(middles[place])), grid.ranks[place]


def _conclude_heat(grid: RankGrid) -> str:
    spread, rank = _spread_of_ranks(grid)
    where = _name(grid.case, grid.world_size)
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


def _tabulate_heat(grids: Sequence[RankGrid]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for grid in grids:
        clean = _clean(grid)
        for place, rank in list(enumerate(grid.ranks))[:MOST_LISTED]:
            own = clean[place][~np.isnan(clean[place])]
            if len(own) == 0:
                continue
            middle, most = float(np.median(own)), float(own.max())
            lines.append(
                (
                    wording.plain(grid.case, 64),
                    str(grid.world_size),
                    str(rank),
                    units.seconds((1 + middle) * grid.median_s),
                    f"{wording.signed(100 * middle)} %",
                    units.seconds((1 + most) * grid.median_s),
                )
            )
    return lines


def course_kind(courses: Sequence[Course]) -> ChartKind:
    """Return the kind of figure with the steps of every launch in order, one case at a time."""
    return ChartKind(
        "course",
        "The way to the steady state",
        "",
        lambda _, looks: _course(courses, looks) if courses else None,
        lambda _: _conclude_course(courses),
        lambda _: _tabulate_course(courses),
        ("case", "N", "launch", "warm-up steps", "steady", "first step", "median after"),
        None,
        "A line for each launch, the slowest rank at every step; the bar across it is the cut:"
        " steps left of it are warm-up and count for nothing.",
        choose=lambda _, figure: views(figure, "case", _course_names(courses)),
    )


def _course_names(courses: Sequence[Course]) -> list[str]:
    return list(dict.fromkeys(_name(one.case, one.world_size) for one in courses))


def _course(courses: Sequence[Course], looks: Looks) -> go.Figure:
    figure = go.Figure()
    first = _course_names(courses)[0]
    for one in courses:
        name = _name(one.case, one.world_size)
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
    times = [1e3 * step_s for one in courses for step_s in one.step_s]
    figure.update_yaxes(title="ms", automargin=True, **wide_axis(times))
    return figure


def _conclude_course(courses: Sequence[Course]) -> str:
    cuts = [one.steady_from for one in courses]
    unsteady = [one for one in courses if one.steady is False]
    span = f"{min(cuts)}" if min(cuts) == max(cuts) else f"{min(cuts)} to {max(cuts)}"
    said = f"Steps are taken to be steady after {span} steps of warm-up"
    if unsteady:
        where = _name(unsteady[0].case, unsteady[0].world_size)
        return f"{said}; {len(unsteady)} of {len(courses)} launches never settled, {where} first."
    return f"{said}, in all {len(courses)} launches."


def _tabulate_course(courses: Sequence[Course]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for one in courses:
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


def memory_of_steps_kind(found: Sequence[Autocorrelation]) -> ChartKind:
    """Return the kind of figure with the autocorrelation of clean steps."""
    return ChartKind(
        "autocorrelation",
        "What a step tells of the next",
        "",
        lambda _, looks: _autocorrelation(found, looks) if found else None,
        lambda _: _conclude_autocorrelation(found),
        lambda _: _tabulate_autocorrelation(found),
        ("case", "N", "clean steps", "lag 1", "lag 2", "lag 5", "independent within"),
        lambda _, looks, figure: _case_entries(figure, found, looks),
        "Autocorrelation of clean steps by lag, mean over the launches; dotted: what independent"
        " steps stay within 19 times in 20.",
    )


def _autocorrelation(found: Sequence[Autocorrelation], looks: Looks) -> go.Figure:
    figure = go.Figure()
    band = max(one.band for one in found)
    longest = max(len(one.values) for one in found)
    for sign in (1, -1):
        figure.add_trace(
            go.Scatter(
                x=[1, longest], y=[sign * band] * 2, mode="lines", hoverinfo="skip",
                line={"color": NEUTRAL, "width": 1.2, "dash": "dot"},
            )
        )  # fmt: skip
    for one in found:
        look = looks[one.suite, one.case]
        figure.add_trace(
            go.Scatter(
                x=list(range(1, len(one.values) + 1)),
                y=[round(value, 4) for value in one.values],
                mode="lines+markers",
                line={"color": look.color, "dash": look.dash, "width": 1.6},
                marker={"symbol": look.symbol, "size": 6, "color": look.color},
                legendgroup=safe(f"{one.suite}/{one.case}", 200),
                hovertemplate=f"<b>{safe(_name(one.case, one.world_size), 90)}</b><br>"
                "lag %{x}: %{y:.2f}<extra></extra>",
            )
        )
    style(figure, "autocorrelation")
    figure.update_layout(height=300, hovermode="closest")
    figure.update_xaxes(title="lag, steps", automargin=True)
    figure.update_yaxes(automargin=True, zeroline=True, zerolinecolor=NEUTRAL)
    return figure


def _case_entries(
    figure: go.Figure, found: Sequence[Autocorrelation], looks: Looks
) -> tuple[KeyEntry, ...]:
    entries = []
    for one in found:
        look = looks[one.suite, one.case]
        group = safe(f"{one.suite}/{one.case}", 200)
        name = _name(one.case, one.world_size)
        dash = DASHES[look.dash]
        entries.append(KeyEntry(name, look.color, SYMBOLS[look.symbol], dash, group))
    return group_key(figure, entries)


def _conclude_autocorrelation(found: Sequence[Autocorrelation]) -> str:
    most = max(found, key=lambda one: abs(one.values[0]) / one.band)
    where = _name(most.case, most.world_size)
    if abs(most.values[0]) <= most.band:
        return f"Neighbouring steps are independent as far as {most.num_steps} of them tell."
    return (
        f"Neighbouring steps of {where} are not independent (lag 1: {most.values[0]:.2f}), so that"
        " intervals count launches, not steps."
    )


def _tabulate_autocorrelation(found: Sequence[Autocorrelation]) -> list[tuple[str, ...]]:
    def at(one: Autocorrelation, lag: int) -> str:
        return wording.signed(one.values[lag - 1], 2) if lag <= len(one.values) else wording.DASH

    return [
        (
            wording.plain(one.case, 64),
            str(one.world_size),
            str(one.num_steps),
            *(at(one, lag) for lag in (1, 2, 5)),
            f"± {one.band:.2f}",
        )
        for one in found
    ]
